/* A pass over a model: all windows of a group through one layer, then the next.
 * Most functions are in forward.c.  forward_file.c, backward.c and code that
 * times a pass use them too.
 *
 * The unit of work is a tile of tokens (kernels/backend.h).  On the CPU a tile
 * never crosses windows or spans, tiles do not depend on the number of threads,
 * and every matrix product covers one tile.  So the bits depend neither on the
 * grouping of windows nor on threads.  (Windows and spans of a few tokens share
 * tiles; their products give a row the same bits, whatever other rows the tile
 * has.) */
#ifndef KV_MODEL_PASS_H
#define KV_MODEL_PASS_H

#include "lib/model/model_impl.h"

/* Host memory that holds a copy of a device's layer for attention. */
struct kv_host_layer {
    struct kv_backend *cpu;
    float *q, *k, *k_pre, *v, *out, *rope;
};

/* The steps of a pass, in the order of a layer. */
enum kv_step_part {
    KV_STEP_NORM,
    KV_STEP_QKV,
    KV_STEP_ROPE, /* also appends the newest key and value to the cache */
    KV_STEP_ATTENTION,
    KV_STEP_OUT,
    KV_STEP_MLP,
    KV_STEP_HEAD,
    KV_STEP_PARTS
};

struct kv_pass {
    /* Set by the caller. */
    struct kv_model *m;
    size_t n_windows, n, first;
    size_t first_window;          /* the same as in struct kv_qkv */
    const struct kv_batch *batch; /* the same as in struct kv_qkv */
    const int32_t *tokens;        /* [n_windows][n]; only read if layers have
                                   * embeddings of their own */
    float *x;                     /* [n_windows][n][hidden], in the backend's
                                   * memory */
    size_t row_wide;              /* `wide` has at least this many floats for
                                   * each token */
    /* NULL, or x before the attention and before the MLP of each layer from
     * kept_from on: [n_layers - kept_from][n_windows][n][hidden]. */
    float *kept_in, *kept_mid;
    size_t kept_from;
    unsigned skip; /* bit 1 << kv_step_part: a timed pass leaves this step
                    * out */
    bool few; /* on the CPU, n is at most KV_FEW_ROWS: products use the stored
               * matrices */

    const struct kv_backend *b;
    size_t hidden, inter;
    size_t q_dim, kv_dim;           /* sizes of the loaded layer */
    float *q, *k, *k_pre, *v, *out; /* the same as in struct kv_qkv */
    float *ks, *ks_pre, *vs;        /* keys and values of the last layer with
                                     * full attention, then, if layers share
                                     * them, of the last sliding layer */
    float *embedded;                /* x before the first layer, if layers have
                                     * embeddings */
    float *streams;  /* altup.c's streams: [n_streams], each sized like x */
    float *laurel;   /* altup.c's residual, sized like x, added after
                      * attention */
    float *out_gate; /* sized like q, if the model has one */
    float *mixer;    /* [n_windows][n][mixer.in], input of a mixer */
    /* For layers with experts, for all tokens: the MLP's input and its sum
     * [hidden], and shares [n_experts], 0 for experts that the token does not
     * use. */
    struct {
        float *in, *sum, *share;
    } experts;
    float *rope;    /* kv_rope_table() of the loaded layer */
    float *ropes;   /* RoPE tables of full attention, then of sliding
                     * attention */
    uint8_t *input; /* [threads][input_bytes] */
    float *wide;    /* [threads][wide_floats] */
    size_t input_bytes, wide_floats;
    size_t loaded;   /* the loaded layer, counted among all layers */
    size_t attended; /* the number of layers with attention before the loaded
                      * layer; or the layer whose keys and values it shares */
    bool shares;
    bool mixes;            /* the loaded layer has no attention */
    bool bare;             /* the loaded layer consists only of an MLP or of
                            * experts */
    struct kv_shape shape; /* kv_shape_layer() of the loaded layer, if it has
                            * attention */
    struct kv_host_layer *host;
};

struct kv_tile {
    size_t rows;  /* tokens */
    size_t token; /* the first one's index in its window */
    size_t at;    /* the first one's index in the group */
    void *input;  /* the calling thread's rows of products' inputs */
    float *wide;  /* the calling thread's rows of results */
};

/* Fails on a token outside the vocabulary, and past the learned positions. */
int kv_pass_check(const struct kv_model *m, const int32_t *tokens,
                  size_t n_windows, size_t n, size_t first, struct kv_err *e);

/* x [n_windows][n][hidden], in host memory: the tokens' embeddings. */
void kv_pass_embed(const struct kv_model *m, const int32_t *tokens,
                   size_t n_windows, size_t n, size_t first, float *x);

/* This process runs layers [m->relay.first, kv_pass_end()) (relay.h).
 * kv_pass_begin() fills x [n_windows][n][hidden], in host memory, with the
 * tokens' embeddings or with the output of earlier layers.  kv_pass_give()
 * sends x to the process of the next layers; after the last layer it does
 * nothing. */
size_t kv_pass_end(const struct kv_model *m);
bool kv_pass_is_last(const struct kv_model *m);
int kv_pass_begin(const struct kv_model *m, const int32_t *tokens,
                  size_t n_windows, size_t n, size_t first, float *x,
                  struct kv_err *e);
int kv_pass_give(const struct kv_model *m, const float *x, size_t n,
                 struct kv_err *e);

/* The number of consecutive tokens that a tile must not cross: a window's
 * tokens, or all. */
size_t kv_pass_stretch(const struct kv_pass *p);

/* Sets sizes and allocates memory (pass_room.c).  Fails if a device's memory
 * runs out. */
int kv_pass_init(struct kv_pass *p, struct kv_err *e);
void kv_pass_clear(struct kv_pass *p);

/* Passes x through the loaded layer, or through all layers.  Fails if attention
 * fails, and on Ctrl-C. */
int kv_pass_layer(struct kv_pass *p, const struct kv_attention *attention,
                  struct kv_err *e);
int kv_pass_layers(struct kv_pass *p, const struct kv_attention *attention,
                   struct kv_err *e);

/* Applies the final norm to x, after the last layer. */
int kv_pass_norm_all(struct kv_pass *p, struct kv_err *e);

/* logits [n][n_vocab] of x [n][hidden], after the final norm; n at most
 * kv_backend_logit_rows(). */
int kv_pass_logits(struct kv_model *m, const float *x, size_t n, float *logits,
                   struct kv_err *e);

/* Loads a layer.  next: the layer to load after it; the same layer when there
 * is none.
 */
int kv_pass_load(struct kv_pass *p, size_t layer, size_t next,
                 struct kv_err *e);

/* Runs `work` on each tile of tokens. */
int kv_pass_each(const struct kv_pass *p, kv_tile_work *work, const void *arg,
                 struct kv_err *e);
struct kv_tile kv_pass_tile(const struct kv_pass *p, size_t i, size_t thread);

/* The loaded layer's part of kept_in or kept_mid. */
static inline float *kv_pass_kept(const struct kv_pass *p, float *all)
{
    return all + (p->loaded - p->kept_from) * p->n_windows * p->n * p->hidden;
}

/* *a: the input of the attention half or of the MLP half of the layer: x, or
 * the norm of x if the half begins with a norm. */
int kv_pass_enter(const struct kv_pass *p, const struct kv_tile *t,
                  enum kv_part norm, enum kv_part bias, const void **a,
                  struct kv_err *e);

/* Sets c [rows][outputs] to, or adds to c, a times the matrix that begins with
 * this part. */
int kv_pass_multiply(const struct kv_pass *p, const struct kv_tile *t,
                     enum kv_part part, const void *a, size_t inputs, float *c,
                     size_t outputs, bool add, struct kv_err *e);

/* x -> out [n_windows][n][mixer.out] of the loaded layer, which has no
 * attention (mixer.c). */
int kv_pass_mix(struct kv_pass *p, const struct kv_attention *attention,
                struct kv_err *e);

/* A tile's x -> q, k, k_pre, v of the loaded layer. */
int kv_pass_qkv(const struct kv_pass *p, const struct kv_tile *t,
                struct kv_err *e);

/* Multiplies a tile's attention outputs by the sigmoids of its gate. */
void kv_pass_gate_out(const struct kv_pass *p, const struct kv_tile *t);

/* Latent attention (latent.c), only on the host: computes q, k and k_pre of the
 * tile from a, the input of its products; and values [rows][n_heads][value]
 * from the tile's attention output. */
int kv_pass_latent(const struct kv_pass *p, const struct kv_tile *t,
                   const void *a, struct kv_err *e);
void kv_pass_latent_values(const struct kv_pass *p, const struct kv_tile *t,
                           float *values);

/* The MLP of experts (experts.c), only on the host.  Each tile's tokens choose
 * their experts by a [rows][hidden] f32, the input of the router and the
 * experts.  Each expert is widened once and processes, in all tiles, the tokens
 * that chose it; the sums over experts are added to each tile's x. */
int kv_pass_route(const struct kv_pass *p, const struct kv_tile *t,
                  const float *a, struct kv_err *e);
int kv_pass_experts(const struct kv_pass *p, struct kv_err *e);
int kv_pass_add_experts(const struct kv_pass *p, const struct kv_tile *t,
                        struct kv_err *e);

/* For layers with embeddings of their own (per_layer.c), only on the host: the
 * first function stores x before the first layer; the second adds a term
 * computed from the embeddings to the tile's x after the MLP. */
int kv_pass_keep_embedded(struct kv_pass *p, struct kv_err *e);
int kv_pass_per_layer(const struct kv_pass *p, const struct kv_tile *t,
                      struct kv_err *e);

/* Several streams (altup.c), only on the host.  spread makes all streams from x
 * before the first layer.  predict works before a layer's attention, add_laurel
 * after it, correct after its MLP (scaled [rows][hidden]: the first stream
 * times the layer's scale).  add_to_others adds y to the streams beside the
 * first, gather makes x of all streams after the last layer, and cut_gates
 * changes the gates x [rows][2 inter] of a sparse MLP. */
int kv_pass_spread(struct kv_pass *p, struct kv_err *e);
int kv_pass_predict(const struct kv_pass *p, const struct kv_tile *t,
                    struct kv_err *e);
void kv_pass_add_laurel(const struct kv_pass *p, const struct kv_tile *t);
int kv_pass_correct(const struct kv_pass *p, const struct kv_tile *t,
                    const float **scaled, struct kv_err *e);
void kv_pass_add_to_others(const struct kv_pass *p, const struct kv_tile *t,
                           const float *y);
int kv_pass_gather(const struct kv_pass *p, const struct kv_tile *t,
                   struct kv_err *e);
void kv_pass_cut_gates(const struct kv_pass *p, size_t rows, float *x);

/* out [rows][hidden], in this type, becomes the norm of x. */
int kv_pass_norm(const struct kv_pass *p, const float *w, const float *bias,
                 const float *x, size_t rows, enum kv_type type, void *out,
                 struct kv_err *e);

#endif
