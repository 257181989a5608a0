/* A pass over a model: all windows of a group through one layer, then the
 * next.  For forward.c, where the functions are, and backward.c alone.
 *
 * The unit of work is a tile: up to KV_PASS_TILE successive tokens of one
 * window.  Tiles never cross windows and do not follow the number of threads,
 * and every GEMM is one tile's: so the bits depend on neither. */
#ifndef KV_MODEL_PASS_H
#define KV_MODEL_PASS_H

#include "lib/model/model_impl.h"

enum { KV_PASS_TILE = 128 };

/* One layer's weights in f32: part[p] points into one block, in which parts
 * follow each other in the order of enum kv_part; NULL where there is none. */
struct kv_pass_layer {
    float *block;
    float *part[KV_PARTS];
};

struct kv_pass {
    /* Set by the caller. */
    const struct kv_model *m;
    size_t n_windows, n, first;
    float *x;          /* [n_windows][n][hidden] */
    size_t row_floats; /* the least scratch of a token beside one of `hidden` */
    /* NULL, or x before the attention and before the MLP of each layer from
     * kept_from on: [n_layers - kept_from][n_windows][n][hidden]. */
    float *kept_in, *kept_mid;
    size_t kept_from;

    size_t hidden, inter, q_dim, kv_dim;
    float *q, *k, *k_pre, *v, *out; /* as in struct kv_qkv */
    float *rope;                    /* kv_rope_table() */
    float *scratch;                 /* [threads][scratch_floats] */
    size_t scratch_floats;
    size_t loaded; /* the layer that `layer` is */
    struct kv_pass_layer layer;
};

struct kv_tile {
    size_t rows;    /* tokens */
    size_t token;   /* the first one's index in its window */
    size_t at;      /* the first one's index in the group */
    float *scratch; /* of the calling thread: rows of hidden + row_floats */
};

/* x [n_windows][n][hidden]: the tokens' embeddings.  Fails on a token outside
 * the vocabulary and past a sliding window. */
int kv_pass_embed(const struct kv_model *m, const int32_t *tokens,
                  size_t n_windows, size_t n, size_t first, float *x,
                  struct kv_err *e);

/* Sizes and rooms, and the tokens' embeddings in x.  Fails as they do. */
int kv_pass_init(struct kv_pass *p, const int32_t *tokens, struct kv_err *e);
void kv_pass_clear(struct kv_pass *p);

/* x through all layers.  Fails when attention does, and on Ctrl-C. */
int kv_pass_layers(struct kv_pass *p, const struct kv_attention *attention,
                   struct kv_err *e);

/* Widens a layer.  next: will be loaded after it; the same, when none. */
void kv_pass_load(struct kv_pass *p, size_t layer, size_t next);

size_t kv_pass_tiles(const struct kv_pass *p);
struct kv_tile kv_pass_tile(const struct kv_pass *p, size_t i);

/* The loaded layer's part of kept_in or kept_mid. */
static inline float *kv_pass_kept(const struct kv_pass *p, float *all)
{
    return all + (p->loaded - p->kept_from) * p->n_windows * p->n * p->hidden;
}

/* A tile's x -> q, k, k_pre, v of the loaded layer. */
void kv_pass_qkv(const struct kv_pass *p, const struct kv_tile *t);

/* out [rows][hidden] = RMSNorm of x; x [rows][n] += bias, unless NULL. */
void kv_pass_norm(const struct kv_pass *p, const float *w, const float *x,
                  size_t rows, float *out);
void kv_pass_bias(float *x, size_t rows, size_t n, const float *bias);

#endif
