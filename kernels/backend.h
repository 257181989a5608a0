/* The dozen operations of a forward pass and its memory, in plain C on the CPU
 * (backend_cpu.c) and in CUDA (cuda/backend_cuda.c).  lib/model/forward.c is
 * written once on top of them.
 *
 * Arrays lie in the backend's memory: the host's on the CPU, the device's on
 * CUDA.  The residual stream and outputs of products are f32.  Inputs of
 * products have the type input_type, weight matrices the type weight_type.
 *
 * The unit of work is a tile of tokens.  On the CPU each() runs tiles in
 * parallel, and an operation on a tile is serial; on CUDA tiles are launched
 * one after another, and an operation launches and does not wait. */
#ifndef KV_BACKEND_H
#define KV_BACKEND_H

#include "kernels/attend.h"
#include "kernels/loss.h"
#include "kernels/rope.h"
#include "kernels/type.h"
#include "kernels/vecops/vecops.h"
#include "kernels/weights/rows.h"
#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_coder;
struct kv_device;
struct kv_gpu_code;

/* Weights on their way to the backend: n values. */
struct kv_load {
    void *to;
    enum kv_type to_type;
    /* Host memory: loads values [first, first + n) of these rows.  data NULL:
     * random numbers in [-scale, scale) that depend only on seed and index. */
    struct kv_stored_rows from;
    size_t first, n;
    uint64_t seed;
    float scale;
};

/* Rows [first, first + outputs) of a matrix, in the host's memory. */
struct kv_stored_part {
    struct kv_stored_rows rows;
    size_t first, outputs;
};

enum { KV_FEW_ROWS = 8 };

/* Sets c [rows][outputs], whose rows are c_row apart, to a [rows][inputs] times
 * the transpose of w [outputs][inputs]; add: adds the product to c. */
struct kv_product {
    size_t rows, outputs, inputs;
    const void *a, *w;
    float *c;
    size_t c_row;
    bool add;
    /* w NULL: multiplies by these matrices, one after another, whose rows keep
     * their stored form.  Only on the CPU, where this is faster for up to
     * KV_FEW_ROWS rows.  The operation itself runs in parallel, with the same
     * bits for any rows and threads. */
    const struct kv_stored_part *stored;
    size_t n_stored;
};

/* A norm of rows of n values: RMSNorm, or LayerNorm if it centers. */
struct kv_norm {
    const float *weight, *bias; /* [n]; bias: NULL, unless it centers */
    size_t n;
    float eps;
    bool centers;
};

/* The middle of an MLP of n values: act(gate) * up for rows with gate, then up;
 * or, if not gated, act(up) for rows of n.  silu may have a limit on the CPU:
 * then it is gate * sigmoid(alpha * gate) * (up + 1), with gates clamped to at
 * most the limit and ups to [-limit, limit]. */
struct kv_activation {
    enum kv_act act;
    bool gated;
    const float *bias; /* added to each row first; or NULL */
    size_t n;
    float limit, alpha; /* limit 0: none */
};

enum kv_norm_of { KV_NORM_OF_HEAD, KV_NORM_OF_OWN_HEAD, KV_NORM_OF_TOKEN };

/* The steps between the QKV projections and attention, for `rows` tokens: qkv
 * [rows][n_heads + 2 n_kv_heads][head_dim].  The tokens are at positions first,
 * first + 1, .. of windows of n tokens; after position n - 1 comes the next
 * window.  bias (NULL: none) is added to qkv, in place or not; then values are
 * clamped to [-clip, clip] (0: not clamped).  Next, each head of q and k is
 * normed by RMSNorm (norm NULL: none), and its rotated channels are multiplied
 * by rope_scale, which gives q and k_pre.  RoPE turns these into q and k.  A
 * norm that centers is LayerNorm (its bias NULL: none).  It covers each head,
 * with shared or own weights, or all heads of a token together.  norm_late: the
 * norms come after RoPE, and k_pre is k rotated back.  Three cases exist only
 * on the CPU: a norm of each head of v (v_norm NULL: none), no KV heads
 * (n_kv_heads 0; k, k_pre and v are then unchanged), and late norms other than
 * RMSNorm of each head. */
struct kv_heads {
    size_t rows, first, n;
    size_t n_heads, n_kv_heads, head_dim;
    struct kv_rope_pairs pairs; /* the rotated channels */
    float *qkv;
    const float *bias, *q_norm, *k_norm, *v_norm;
    const float *q_norm_bias, *k_norm_bias;
    enum kv_norm_of norm_of;
    bool norm_centers, norm_late;
    float clip;
    float rope_scale;
    float eps;
    const float *rope;    /* [n][2][pairs.n]: cosines, sines */
    float *q;             /* [rows][n_heads][head_dim] */
    float *k, *k_pre, *v; /* [rows][n_kv_heads][head_dim] */
};

/* Codes of one side, made by encode().  Attention reads them instead of the
 * side's quantized rows, for the first n tokens after the sinks of each
 * sequence. */
struct kv_attend_codes {
    const struct kv_coder *coder;
    const uint8_t *bytes;
    size_t n;
};

/* Encodes the tokens of a window as a cache would encode them.  x: [n][row],
 * row = n_heads * head_dim of the coder. */
struct kv_encode {
    const float *x;
    size_t at;       /* x[0] is this token of the sequence */
    size_t n, first; /* x[0] to x[first - 1] are sinks, not encoded */
    size_t n_blocks; /* the tokens after the sinks */
    uint64_t seed;
    float *rounded, *again; /* both x rounded to halves [n][row]; NULL: not
                             * wanted */
    uint8_t *bytes;         /* [n_blocks][block_bytes] */
    unsigned *nonfinite;    /* set to 1 if x holds a NaN or an infinity; or
                             * NULL */
    unsigned *clipped;      /* receives, added, the number of values beyond the
                             * largest half; or NULL */
};

/* Processes tile i; `thread` selects the thread's own memory. */
typedef int kv_tile_work(const void *arg, size_t i, size_t thread,
                         struct kv_err *e);

struct kv_backend {
    enum kv_type input_type, weight_type;
    enum kv_type stored_type; /* type for products with stored matrices: f32,
                               * bf16 */
    size_t tile;              /* tokens of a tile */
    bool windows;             /* a tile's tokens belong to one window */
    bool on_host;             /* its memory is the host's */
    size_t logit_bytes, logit_unit, logit_rows; /* kv_backend_logit_rows() */
    const struct kv_device *device;             /* NULL: the CPU */
    void *state;
    void (*close)(struct kv_backend *b);

    /* Memory, zeroed only on the CPU; upload and download wait for all earlier
     * launches. */
    int (*alloc)(void **p, size_t bytes, struct kv_err *e);
    void (*free)(void *p); /* NULL is fine */
    int (*upload)(void *to, const void *from, size_t bytes, struct kv_err *e);
    int (*download)(void *to, const void *from, size_t bytes, struct kv_err *e);
    int (*load)(const struct kv_load *part, size_t n_parts, struct kv_err *e);

    /* Calls work() for all i < n; thread < threads(). */
    size_t (*threads)(void);
    int (*each)(size_t n, kv_tile_work *work, const void *arg,
                struct kv_err *e);

    /* Writes the norm of x [rows][n] to out [rows][n], of type `type`. */
    int (*norm)(const struct kv_norm *norm, const float *x, size_t rows,
                enum kv_type type, void *out, struct kv_err *e);
    /* Sets *a to x [n] as the input of a product, either x itself or a copy in
     * the workspace. */
    int (*to_input)(const struct kv_backend *b, const float *x, size_t n,
                    void *workspace, const void **a, struct kv_err *e);
    int (*multiply)(const struct kv_backend *b, const struct kv_product *p,
                    struct kv_err *e);
    int (*heads)(const struct kv_heads *h, struct kv_err *e);
    /* RoPE of x [rows][heads][head_dim] in place; row i takes place i % n of
     * rope [n][2][pairs.n]. */
    int (*rotate)(const float *rope, struct kv_rope_pairs pairs, size_t n,
                  float *x, size_t rows, size_t heads, size_t head_dim,
                  struct kv_err *e);
    /* x [rows][n] += bias [n]. */
    int (*add)(float *x, const float *bias, size_t rows, size_t n,
               struct kv_err *e);
    /* x [n] *= by. */
    int (*scale)(float *x, size_t n, float by, struct kv_err *e);
    /* Computes out [rows][n], of type `type`, from x; may overwrite x. */
    int (*activate)(const struct kv_activation *a, float *x, size_t rows,
                    enum kv_type type, void *out, struct kv_err *e);
    /* x = cap * tanh(x / cap) for rows of n, which begin `row` apart. */
    int (*cap)(float *x, size_t rows, size_t n, size_t row, float cap,
               struct kv_err *e);
    /* `until` of both sides and the view's `slope` are host memory.  codes:
     * [2], K and V, or NULL; seed: for attention on codes. */
    int (*attend)(const struct kv_backend *b, const struct kv_attend_job *job,
                  const struct kv_attend_codes *codes, uint64_t seed,
                  struct kv_err *e);

    /* Coders for a codec's blocks; NULL on the CPU, which uses the codecs of
     * lib/codec.h.  coder_new fails if there is no kernel for the code.
     * codes_attend: whether attention on codes of both sides [2] exists. */
    int (*coder_new)(const struct kv_backend *b, struct kv_coder **c,
                     const struct kv_gpu_code *code, struct kv_err *e);
    void (*coder_free)(struct kv_coder *c); /* NULL is fine */
    bool (*codes_attend)(const struct kv_backend *b,
                         const struct kv_gpu_code *code, uint64_t seed);
    int (*encode)(const struct kv_backend *b, struct kv_coder *c,
                  const struct kv_encode *job, struct kv_err *e);
    int (*decode)(const struct kv_coder *c, const uint8_t *bytes,
                  size_t n_blocks, float *x, struct kv_err *e);

    /* NULL on the CPU, which sums losses panel by panel (kernels/loss.h).
     * Computes loss [rows], host memory, from logits and base (NULL: none)
     * [rows][n_vocab] and the targets [rows], host memory, each below
     * n_vocab. */
    int (*loss)(const struct kv_backend *b, const float *logits,
                const float *base, const int32_t *target, size_t rows,
                size_t n_vocab, struct kv_loss *loss, struct kv_err *e);
};

/* Makes a backend with products in f32, or in bf16 if weight is bf16
 * (kernels/gemm.h). */
struct kv_backend *kv_backend_cpu(enum kv_type weight);
/* Makes a backend on d with matrices of type `weight`; copies d. */
struct kv_backend *kv_backend_cuda(const struct kv_device *d,
                                   enum kv_type weight);
void kv_backend_free(struct kv_backend *b); /* NULL is fine */

/* The number of rows of logits that a caller holds at once, at least 1. */
size_t kv_backend_logit_rows(const struct kv_backend *b, size_t n_vocab);

/* Backend memory that is allocated on first use and kept; all zeros: not
 * allocated yet.  A request for more bytes than are allocated loses the
 * content. */
struct kv_workspace {
    void *p;
    size_t bytes;
};

int kv_workspace_want(const struct kv_backend *b, struct kv_workspace *w,
                      size_t bytes, struct kv_err *e);
void kv_workspace_clear(const struct kv_backend *b, struct kv_workspace *w);

/* kv_backend_take() makes a host array a backend array: the host array itself,
 * or a copy in w.  kv_backend_place() gives backend memory for a result, and
 * kv_backend_give() copies the result to the host array. */
int kv_backend_take(const struct kv_backend *b, struct kv_workspace *w,
                    const void *host, size_t bytes, const void **at,
                    struct kv_err *e);
int kv_backend_place(const struct kv_backend *b, struct kv_workspace *w,
                     void *host, size_t bytes, void **at, struct kv_err *e);
int kv_backend_give(const struct kv_backend *b, void *host, const void *at,
                    size_t bytes, struct kv_err *e);

#endif
