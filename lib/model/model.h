/* A model: a Hugging Face directory or a GGUF file, memory-mapped.  It runs on
 * the CPU, or on a GPU after kv_model_to_device().
 *
 * Weights stay mapped in their stored type.  They are widened to f32 one layer
 * at a time, while a group of windows passes through the layer.  So a forward
 * pass holds its activations and one layer in f32.  An LM head of up to 256 MiB
 * in f32 is kept too; a larger one is widened piece by piece.  Windows of a few
 * tokens, as in decoding, are multiplied by the stored weights directly. */
#ifndef KV_MODEL_H
#define KV_MODEL_H

#include "kernels/backend.h"
#include "lib/base/err.h"
#include "lib/model/batch.h"
#include "lib/seq/tokens.h"
#include "lib/shape.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct kv_model;

struct kv_model_info {
    char name[128];   /* last part of the path */
    char arch[64];    /* "LlamaForCausalLM" */
    char weights[16]; /* the type that most bytes have: "bf16", "f32", "q4_k" */
    /* 16 hex digits of a SHA-256 over all bytes of all the model's files that
     * any tool reads: kv_model_files_hash(), then kv_weights_hash(). */
    char hash[32];
    size_t n_vocab, hidden, n_ctx; /* n_ctx: max_position_embeddings */
    size_t weight_bytes;           /* bytes of all tensors, as stored */
    struct kv_shape shape;
};

/* path: a folder with config.json and model.safetensors, or with shards and
 * their index; or a GGUF file, or any part of a split one.  Fails on anything
 * missing, misshapen or not implemented (an adapter too), on a tensor that is
 * neither used nor known to be unnecessary, and on weights that are not finite,
 * so it reads all weights.  The tokenizer is not read. */
int kv_model_open(struct kv_model **m, const char *path, struct kv_err *e);
void kv_model_free(struct kv_model *m);
const struct kv_model_info *kv_model_info(const struct kv_model *m);

/* Sets and returns the number of tokens of a window: asked, or n_ctx when asked
 * is 0.  Notes a window longer than n_ctx.  Afterwards RoPE that depends on the
 * length of a text (dynamic, longrope) uses this length for all tokens of a
 * window; before the call it assumes short windows. */
size_t kv_model_context(struct kv_model *m, size_t asked);

/* Whether RoPE depends on the length of a text. */
bool kv_model_by_length(const struct kv_model *m);

/* Replaces every `pool` neighbouring KV heads by their mean; call once, before
 * anything else.  The mean is taken over the heads' rows in the matrices and
 * biases of keys and values, so before the norm and RoPE of keys.  Queries, the
 * output and the weights of norms over heads stay.  Means are computed in f32
 * from the stored values when weights are read.  The model's hash changes, and
 * its name then says `pool`.  Fails when pool does not divide the KV heads, and
 * if keys have a norm over all heads at once. */
int kv_model_pool_heads(struct kv_model *m, size_t pool, struct kv_err *e);

struct kv_device;

/* Moves kv_model_forward() and kv_model_logits() to d, the device in use; call
 * once.  The device holds matrices in the type of kv_layers_type(); if not all
 * layers fit, they are loaded in turn.  Inputs of matrix products are rounded
 * to that type, all else is f32.  The same call gives the same bits each time;
 * the bits differ from the CPU's, and with the grouping of windows.  memory:
 * bytes for activations, as for kv_model_windows().  Fails when a layer does
 * not fit beside the activations. */
int kv_model_to_device(struct kv_model *m, const struct kv_device *d,
                       size_t memory, struct kv_err *e);

/* Makes products with matrices run in bf16 on the CPU; call once.  Matrices of
 * other types and the products' inputs are rounded to bf16, sums are f32.
 * Fails if the machine has no bf16 products.  Not for kv_model_backward(). */
int kv_model_to_bf16(struct kv_model *m, struct kv_err *e);

/* Whether the machine has bf16 products, and every matrix of the layers and of
 * the head is stored in bf16 or quantized. */
bool kv_model_suits_bf16(const struct kv_model *m);

/* Makes products of up to KV_FEW_ROWS rows run in f32 on the CPU, even after
 * kv_model_to_bf16(): for a few tokens, rounding the weights to bf16 would take
 * longer than multiplying by them. */
void kv_model_few_in_f32(struct kv_model *m);

/* The type of products with matrices: "f32", "bf16", "f16". */
const char *kv_model_gemm(const struct kv_model *m);

struct kv_config;

/* Reads the configuration as kv_model_open() does; path may also be a
 * config.json by itself. */
int kv_model_config(struct kv_config *c, const char *path, struct kv_err *e);

/* A model of this configuration on a device, with random halves as weights, for
 * timing.  All layers stay on the device.  Fails when memory runs out. */
int kv_model_random(struct kv_model **m, const struct kv_config *c,
                    const struct kv_device *d, uint64_t seed, struct kv_err *e);

/* The backend that runs the model (kernels/backend.h). */
const struct kv_backend *kv_model_backend(const struct kv_model *m);

struct kv_host_layer;

/* One layer's attention for a group of windows, in the backend's memory.
 * Layouts: q, out [n_windows][n][n_heads][head_dim]; k, k_pre, v
 * [n_windows][n][n_kv_heads][head_dim].  q and k are after RoPE.  k_pre is the
 * key immediately before RoPE: after bias and norm, and after the scale that
 * some models apply in RoPE.  Token t of every window stands at position first
 * + t.  rope: the table of these positions (lib/rope_table.h). */
struct kv_qkv {
    const struct kv_shape *shape;
    const struct kv_backend *backend;
    size_t layer; /* number among the layers with keys and values */
    bool shared;  /* q belongs to a later layer that attends with this layer's
                   * keys and values; those came in an earlier call, with this
                   * layer's own q */
    size_t first_layer; /* the pass's first layer: earlier layers run
                         * elsewhere */
    size_t n_windows, n, first;
    size_t first_window; /* the group's first window within the call */
    const float *q, *k, *k_pre, *v;
    float *out;
    const float *rope;
    struct kv_host_layer **host;  /* belongs to forward.c */
    const struct kv_batch *batch; /* NULL: windows.  Otherwise the n tokens of
                                   * the batch, in its order, form one window,
                                   * and `first` has no meaning */
};

/* A function that computes attention and fills x->out.  It is called once for
 * each layer with attention and each group of windows, outside of parallel
 * regions, and may use threads. */
struct kv_attention {
    int (*run)(void *arg, const struct kv_qkv *x, struct kv_err *e);
    void *arg;
    /* For models with layers without attention: returns the state of a sequence
     * (a window's or a span's number), [n_states][state_floats] (shape.h),
     * which the pass updates.  NULL: passes begin at position 0, from temporary
     * states of zeros. */
    float *(*state)(void *arg, size_t sequence);
};

/* Causal attention over x->k and x->v in f32, the default where a struct
 * kv_attention is NULL.  arg and x->first are not used: the n tokens see only
 * each other. */
int kv_attend_exact(void *arg, const struct kv_qkv *x, struct kv_err *e);

/* Keys and values of tokens [first, first + n) of a window, from a layer in
 * host memory. */
struct kv_tokens kv_qkv_tokens(const struct kv_qkv *x, size_t window,
                               size_t first, size_t n);

/* The job, for the backend's attend(), in which queries [first, end) of every
 * window attend over x->k and x->v. */
struct kv_attend_job kv_qkv_job(const struct kv_qkv *x, size_t first,
                                size_t end);

/* kv_qkv_to_host() makes *host the layer in the host's memory: x itself on the
 * CPU, else a copy that is valid until the next layer.  The caller fills
 * host->out, and kv_qkv_from_host() copies it back to x. */
int kv_qkv_to_host(const struct kv_qkv *x, struct kv_qkv *host,
                   struct kv_err *e);
int kv_qkv_from_host(const struct kv_qkv *x, const struct kv_qkv *host,
                     struct kv_err *e);

/* tokens: [n_windows][n], token t at position first + t; fails on a token that
 * is not below n_vocab, naming it.  hidden: [n_windows][n][hidden] f32 after
 * the final norm.  first > 0 is for attention that remembers earlier tokens.
 * On the CPU any number of threads and any grouping of windows give the same
 * bits.  Also fails when attention fails, and on Ctrl-C. */
int kv_model_forward(struct kv_model *m, const int32_t *tokens,
                     size_t n_windows, size_t n, size_t first,
                     const struct kv_attention *attention, float *hidden,
                     struct kv_err *e);

/* The forward pass of a batch: hidden [kv_batch_tokens()][hidden].  attention
 * is not NULL.  On the CPU the bits of a span do not depend on the other spans,
 * except for spans of up to KV_FEW_ROWS tokens beside longer ones. */
int kv_model_forward_batch(struct kv_model *m, const struct kv_batch *b,
                           const struct kv_attention *attention, float *hidden,
                           struct kv_err *e);

/* The forward pass for windows that do not fit in memory together, on the CPU,
 * from position 0 on.  Groups of `group` >= 1 windows pass a layer one after
 * the other, so that each layer is read once.  If layers share keys and values,
 * each group passes all layers before the next group.  hidden: a temporary file
 * (lib/base/file.h), written from its start; fails when it cannot be written.
 */
int kv_model_forward_file(struct kv_model *m, const int32_t *tokens,
                          size_t n_windows, size_t n, size_t group,
                          const struct kv_attention *attention, FILE *hidden,
                          struct kv_err *e);

/* Logits of n rows: hidden [n][hidden] -> logits [n][n_vocab].  The CPU works
 * in parallel over tiles of KV_LOGIT_ROWS rows, counted from the first row.
 * Calls with multiples of KV_LOGIT_ROWS rows give the same bits as one call.
 * Inside a parallel region the function is serial.  On the CPU it fails only on
 * Ctrl-C.
 */
enum { KV_LOGIT_ROWS = 128 };

int kv_model_logits(struct kv_model *m, const float *hidden, size_t n,
                    float *logits, struct kv_err *e);

/* Hidden states of n rows, of n_hidden runs over the same tokens. */
struct kv_states {
    size_t n;
    const float *const *hidden; /* [n_hidden]: [n][hidden] */
    size_t n_hidden;
    const float *base; /* NULL, or the base run that each run is compared with,
                        * [n][hidden] */
};

/* loss: [n_hidden]: [n], against target [n], each below n_vocab.  The base's
 * logits are computed once for all runs; the bits of a run's losses do not
 * depend on the other runs. */
int kv_model_losses(struct kv_model *m, const struct kv_states *s,
                    const int32_t *target, struct kv_loss *const *loss,
                    struct kv_err *e);

/* The number of windows of n tokens, at least 1, whose activations fit in
 * `memory` bytes.  Counts hidden, q, k, k_pre, v and out, and, if attention
 * decodes a cache, half as much again for the decoded tensors. */
size_t kv_model_windows(const struct kv_model *m, size_t n, bool decodes,
                        size_t memory);

/* gram [n_kv_heads][d][d]: for each KV head, the sum of Wo^T Wo over its query
 * heads.
 */
int kv_model_wo_gram(struct kv_model *m, size_t layer, float *gram,
                     struct kv_err *e);

#endif
