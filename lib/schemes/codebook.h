/* Codebooks of centroids: the common core of pq, million, evasion, vecinfer and
 * cq, which differ mainly in their defaults.
 *
 * A head's head_dim values are cut into sub-vectors of d; each is stored as
 * the index, in b bits, of its nearest centroid (kernels/nearest/nearest.h).
 * Keys may be transformed before.  One token, all KV heads:
 *
 *   | head 0: code[head_dim / d] | head 1 | ... | 0 to 7 zero bits |
 *
 * b bits a code without gaps (kernels/bitpack.h): b / d bits a value and, per
 * token, the padding of the last byte.
 *
 * Parameters, each per side:
 *   d, b    dimensions of a sub-vector (the first parameter, named c in cq),
 *           and bits of a code
 *   books   who shares a codebook: all layers (model), the heads of one layer
 *           (layer), or each head has its own (head)
 *   sub     the sub-spaces of a head share a codebook, or each has its own
 *   t       transform of keys: S divides channel i of a head by the smoothing
 *           factor sqrt(max_t |K_ti|), H is the Hadamard transform of
 *           kernels/hadamard.h; SH is S, then H; HS is H, then S with the
 *           factors of the transformed keys.  Values are never transformed: t
 *           and rope apply to K alone, and V-t, V-rope are refused
 *   rope    keys are stored after RoPE (post) or before it (pre)
 *   w       weight of a sub-vector in k-means: one, or the sum over its values
 *           of their Fisher information (kv_dump_fisher() of lib/dump.h), g^T g
 *           with g the loss's gradient.  For keys fisher needs rope=pre and
 *           t=none, since kv_dump_fisher() is about keys in that form; anchor
 *           (antkv alone): the token's score (lib/anchor_score.h)
 *   iters   k-means rounds, at most
 *   init    where k-means starts: k-means++, or points drawn evenly (as faiss)
 *   residual  the newest r tokens stay fp16 (sliding), or tokens stay fp16
 *             until there are r of them, which are then coded together
 *             (batched)
 *
 * Tables in a calibration:
 *   codebook  [sub-spaces or 1][2^b][d] of fp16, per side, layer or all, head
 *             or all: k-means' centers, rounded and clamped to 65504; error:
 *             mean squared error per value of the training sample after
 *             decoding, in the space before the transform
 *   smooth    [n_kv_heads][head_dim], K, per layer: the factors, from the
 *             codebooks' text or from another calibration
 *
 * Size of the books: with books=head and sub=own one side of a layer has 2^b
 * fp16 values for each value of a token (b = 10 and 4096 values: 8 MiB).
 * Training a layer takes tokens x values x 2^b x rounds multiplications.  It
 * holds a sample of at most 256 sub-vectors per centroid, and as much again for
 * weights. */
#ifndef KV_SCHEMES_CODEBOOK_H
#define KV_SCHEMES_CODEBOOK_H

#include "lib/scheme.h"

struct kv_dump_info;

/* The parameters, from the entry for d and a scheme's defaults; the default of
 * a word is the index of its choice. */
enum { KV_CODEBOOK_MODEL, KV_CODEBOOK_LAYER, KV_CODEBOOK_HEAD };
enum { KV_CODEBOOK_SHARED, KV_CODEBOOK_OWN };
enum {
    KV_CODEBOOK_T_NONE,
    KV_CODEBOOK_T_S,
    KV_CODEBOOK_T_H,
    KV_CODEBOOK_T_HS,
    KV_CODEBOOK_T_SH
};
enum { KV_CODEBOOK_POST, KV_CODEBOOK_PRE };
enum { KV_CODEBOOK_W_NONE, KV_CODEBOOK_W_FISHER, KV_CODEBOOK_W_ANCHOR };
enum { KV_CODEBOOK_INIT_PP, KV_CODEBOOK_INIT_RANDOM };
enum { KV_CODEBOOK_SLIDING, KV_CODEBOOK_BATCHED };
/* clang-format off */
#define KV_CODEBOOK_PARAMS(DIMS, D, B, BOOKS, SUB, T, ROPE, W, ITERS, INIT,   \
                           RESIDUAL)                                           \
    KV_CODEBOOK_PARAMS_OF("none|fisher", DIMS, D, B, BOOKS, SUB, T, ROPE, W,   \
                          ITERS, INIT, RESIDUAL)
#define KV_CODEBOOK_PARAMS_OF(WEIGHTS, DIMS, D, B, BOOKS, SUB, T, ROPE, W,     \
                              ITERS, INIT, RESIDUAL)                           \
    { DIMS, NULL, D, 1, 16, true, "dimensions of a sub-vector" },              \
    { "b", NULL, B, 2, 16, true, "bits of a code: 2^b centroids" },            \
    { "books", "model|layer|head", BOOKS, 0, 0, true,                          \
      "codebooks per model, layer or KV head" },                               \
    { "sub", "shared|own", SUB, 0, 0, true,                                    \
      "sub-spaces share a codebook, or each has its own" },                    \
    { "t", "none|S|H|HS|SH", T, 0, 0, true,                                    \
      "transform of keys: smoothing, Hadamard, both in this order" },          \
    { "rope", "post|pre", ROPE, 0, 0, true,                                    \
      "keys are stored after or before RoPE" },                                \
    { "w", WEIGHTS, W, 0, 0, true,                                             \
      "weights of the k-means: none, Fisher information, token scores" },      \
    { "iters", NULL, ITERS, 1, 10000, true, "k-means rounds, at most" },       \
    { "init", "kmeans++|random", INIT, 0, 0, true,                             \
      "where k-means begins; random: points drawn evenly, as faiss does" },    \
    { "residual", "sliding|batched", RESIDUAL, 0, 0, false,                    \
      "the newest r tokens stay fp16, or fewer than r: r at a time" }
/* clang-format on */

/* The functions that struct kv_scheme points to. */
int kv_codebook_check(struct kv_spec *s, const struct kv_shape *shape,
                      struct kv_err *e);
double kv_codebook_nominal(const struct kv_spec *s, enum kv_side side,
                           const struct kv_shape *shape);
size_t kv_codebook_hadamard(const struct kv_spec *s,
                            const struct kv_shape *shape);
int kv_codebook_trainable(const struct kv_spec *s, struct kv_dump *dump,
                          struct kv_err *e);
int kv_codebook_calibrate(const struct kv_spec *s, struct kv_dump *dump,
                          uint64_t seed, struct kv_calib_set *out,
                          struct kv_err *e);
/* Whether all layers share a codebook (books=model). */
bool kv_codebook_together(const struct kv_spec *s);
/* The set of c whose smoothing factors the spec may use: it belongs to a
 * codebook scheme with the spec's t and rope, and has every layer of the dump.
 * Fails if there is no such set. */
int kv_codebook_factors(const struct kv_calib_set **set,
                        const struct kv_calib *c, const struct kv_spec *s,
                        const struct kv_dump_info *info, struct kv_err *e);
int kv_codebook_open(struct kv_codec *c, const struct kv_calib *calib,
                     struct kv_err *e);
void kv_codebook_close(struct kv_codec *c);
void kv_codebook_encode(const struct kv_codec *c, struct kv_where w,
                        const float *x, size_t n_blocks, uint8_t *bytes);
void kv_codebook_decode(const struct kv_codec *c, const uint8_t *bytes,
                        size_t n_blocks, float *x);
bool kv_codebook_device(const struct kv_codec *c, struct kv_gpu_code *to);
bool kv_codebook_store(const struct kv_codec *c, struct kv_store *s);
void kv_codebook_tile(const struct kv_codec *c, const struct kv_store *s,
                      const uint8_t *blocks, size_t first, size_t n,
                      size_t head, uint8_t *tile);

/* The transform of keys, for one layer. */
struct kv_codebook_transform {
    size_t n_heads, head_dim;
    bool hadamard, hadamard_first;
    const float *smooth; /* [n_heads][head_dim], all > 0; NULL: no S */
};

/* The members of struct kv_scheme that all codebook schemes share: all except
 * name and defaults. */
#define KV_CODEBOOK_SCHEME                                                 \
    .residual_rule = {KV_SLIDING, KV_SLIDING}, .check = kv_codebook_check, \
    .nominal = kv_codebook_nominal, .hadamard = kv_codebook_hadamard,      \
    .training =                                                            \
        &(const struct kv_training){.check_dump = kv_codebook_trainable,   \
                                    .calibrate = kv_codebook_calibrate,    \
                                    .together = kv_codebook_together},     \
    .open = kv_codebook_open, .close = kv_codebook_close,                  \
    .encode = kv_codebook_encode, .decode = kv_codebook_decode,            \
    .device = kv_codebook_device, .store = kv_codebook_store,              \
    .tile = kv_codebook_tile

/* The transform that the spec asks for on this side, with smooth still NULL;
 * whether the spec asks for smoothing. */
struct kv_codebook_transform
kv_codebook_transform_of(const struct kv_spec *s, enum kv_side side,
                         const struct kv_shape *shape);
bool kv_codebook_smooths(const struct kv_spec *s, enum kv_side side);

/* x: [n][n_heads][head_dim], in place. */
void kv_codebook_forward(const struct kv_codebook_transform *t, float *x,
                         size_t n);
void kv_codebook_inverse(const struct kv_codebook_transform *t, float *x,
                         size_t n);
/* Applies the transform of an open codec to x, in place; the codec quantizes x
 * in this form. */
void kv_codebook_transformed(const struct kv_codec *c, float *x, size_t n);
/* q: [head_dim], a query of this KV head, transformed in place so that its
 * product with the transformed key is q . k. */
void kv_codebook_query(const struct kv_codebook_transform *t, size_t head,
                       float *q);

/* How the codes of a token share codebooks. */
struct kv_codebook_layout {
    size_t n_heads, n_sub, d; /* sub-vectors [n_heads][n_sub][d] */
    size_t head_books;        /* n_heads, or 1: the heads share */
    size_t sub_books;         /* n_sub, or 1: the sub-spaces share */
    size_t k;                 /* centroids */
};
struct kv_codebook_layout kv_codebook_layout(const struct kv_spec *s,
                                             enum kv_side side,
                                             const struct kv_shape *shape);

/* The sub-vectors that the book of (head, sub) codes: heads [h, h_end),
 * sub-spaces [j, j_end).  head < head_books, sub < sub_books. */
struct kv_codebook_users {
    size_t h, h_end, j, j_end;
};
struct kv_codebook_users kv_codebook_users(const struct kv_codebook_layout *l,
                                           size_t head, size_t sub);

/* Copies these sub-vectors of n tokens x [n][n_heads][n_sub][d] to point
 * [..][d], token by token, head by head.  Returns their number. */
size_t kv_codebook_gather(const struct kv_codebook_layout *l, size_t head,
                          size_t sub, const float *x, size_t n, float *point);

#endif
