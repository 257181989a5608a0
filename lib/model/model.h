/* A model: a Hugging Face directory or a GGUF file, read where it lies, run on
 * the CPU or, when it is put there, on a GPU.
 *
 * Weights stay memory-mapped in their stored type and are widened to f32 one
 * layer at a time, while a group of windows passes through that layer.  So a
 * forward pass needs one layer in f32 beside its activations; a head of up to
 * 256 MiB in f32 is kept too, a larger one is widened piece by piece.  Windows
 * of a few tokens, as of text that is made, are multiplied by weights as they
 * lie there. */
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
    char weights[16]; /* "bf16", "f32", "q4_k": most of the bytes */
    /* 16 hex digits of a SHA-256 over all bytes of all files that any tool
     * reads of it: kv_model_files_hash(), then kv_weights_hash(). */
    char hash[32];
    size_t n_vocab, hidden, n_ctx; /* n_ctx: max_position_embeddings */
    size_t weight_bytes;           /* of all tensors, as stored */
    struct kv_shape shape;
    bool interleaved; /* RoPE turns neighbours in the model's own order of
                       * channels (kv_shape_channel()) */
};

/* path: a folder with config.json and model.safetensors, or shards with their
 * index; or a GGUF file, of several any.  Fails on anything missing, misshapen
 * or not implemented (an adapter too), on a tensor without which the numbers
 * would be wrong, and on weights that are not finite, all of which are read for
 * that; the tokenizer is not read. */
int kv_model_open(struct kv_model **m, const char *path, struct kv_err *e);
void kv_model_free(struct kv_model *m);
const struct kv_model_info *kv_model_info(const struct kv_model *m);

/* Tokens of a window: as many as asked for, n_ctx when 0.  More than n_ctx is
 * noted.  RoPE that goes by the length of a text (dynamic, longrope) is that of
 * windows of so many from here on, for all their tokens; before, that of short
 * ones. */
size_t kv_model_context(struct kv_model *m, size_t asked);

/* Once, before anything else: the model with fewer KV heads, the mean of `pool`
 * that follow each other taken for them: of their rows in the matrices and
 * biases of keys and values, so before the norm and the rotation of keys.
 * Their queries, the output and what a norm multiplies all heads with stay.
 * Means are taken when weights are read, of values as they are stored, in f32.
 * It has a hash of its own, and a name that says so.  Fails when pool does not
 * divide the KV heads, and where keys have a norm over all heads at once. */
int kv_model_pool_heads(struct kv_model *m, size_t pool, struct kv_err *e);

struct kv_device;

/* Once: from here on kv_model_forward() and kv_model_logits() run on d, the
 * device in use.  Matrices are there in the type of kv_layers_type(), or, where
 * not all layers fit, pass through it; what goes into a matrix product is
 * rounded to that type, all else is f32.  The same call gives the same bits
 * each time, but others than the CPU's, and others when windows are grouped
 * otherwise.  memory: what activations may take, as for kv_model_windows().
 * Fails when a layer does not fit beside that. */
int kv_model_to_device(struct kv_model *m, const struct kv_device *d,
                       size_t memory, struct kv_err *e);

/* Once: from here on products with matrices run in bf16 on the CPU: matrices of
 * other types, and what goes into a product, are rounded to it, sums are f32.
 * Fails where the machine has no such products.  Not for kv_model_backward().
 */
int kv_model_to_bf16(struct kv_model *m, struct kv_err *e);

/* From here on the products of up to KV_FEW_ROWS rows are in f32 on the CPU,
 * after kv_model_to_bf16() too: a step of a few tokens would take longer to
 * round the weights than to multiply by them. */
void kv_model_few_in_f32(struct kv_model *m);

/* What products with matrices are in: "f32", "bf16", "f16". */
const char *kv_model_gemm(const struct kv_model *m);

struct kv_config;

/* What kv_model_open() would read of the model's shape; path may also be a
 * config.json by itself. */
int kv_model_config(struct kv_config *c, const char *path, struct kv_err *e);

/* A model of this shape on a device, its weights random halves: for timing.
 * All of it stays there.  Fails without memory. */
int kv_model_random(struct kv_model **m, const struct kv_config *c,
                    const struct kv_device *d, uint64_t seed, struct kv_err *e);

/* Where the model is (kernels/backend.h). */
const struct kv_backend *kv_model_backend(const struct kv_model *m);

struct kv_host_layer;

/* One layer's attention for a group of windows, in the backend's memory.
 * Layouts: q, out [n_windows][n][n_heads][head_dim]; k, k_pre, v
 * [n_windows][n][n_kv_heads][head_dim].  q and k after RoPE, k_pre immediately
 * before it (after bias and norm, and the scale that some have in RoPE).  Token
 * t of every window stands at position first + t; rope: of these positions
 * (lib/rope_table.h). */
struct kv_qkv {
    const struct kv_shape *shape;
    const struct kv_backend *backend;
    size_t layer, n_windows, n, first;
    size_t first_window; /* the group's, among those of the call */
    const float *q, *k, *k_pre, *v;
    float *out;
    const float *rope;
    struct kv_host_layer **host;  /* forward.c's */
    const struct kv_batch *batch; /* NULL: windows.  Else the tokens are the
                                   * batch's, in its order: n of them in one
                                   * window, and `first` says nothing */
};

/* What computes attention: fills x->out.  Called once per layer and group of
 * windows, from outside any parallel region; parallelises inside as it likes.
 */
struct kv_attention {
    int (*run)(void *arg, const struct kv_qkv *x, struct kv_err *e);
    void *arg;
};

/* Causal attention over x->k and x->v in f32: what attention NULL means.  arg
 * is not used; x->first neither: the n tokens see only each other. */
int kv_attend_exact(void *arg, const struct kv_qkv *x, struct kv_err *e);

/* Tokens [first, first + n) of a window, of a layer in host memory. */
struct kv_tokens kv_qkv_tokens(const struct kv_qkv *x, size_t window,
                               size_t first, size_t n);

/* Queries [first, end) of every window over x->k and x->v, for the backend's
 * attend(). */
struct kv_attend_job kv_qkv_job(const struct kv_qkv *x, size_t first,
                                size_t end);

/* The layer in the host's memory: itself on the CPU, else a copy that is good
 * until the next layer, whose out is to be filled; and that out back to x. */
int kv_qkv_to_host(const struct kv_qkv *x, struct kv_qkv *host,
                   struct kv_err *e);
int kv_qkv_from_host(const struct kv_qkv *x, const struct kv_qkv *host,
                     struct kv_err *e);

/* tokens: [n_windows][n], each below n_vocab (else fails, naming it), token t
 * at position first + t.  hidden: [n_windows][n][hidden] f32 after the final
 * norm.  first > 0 is for attention that remembers earlier tokens.  On the CPU
 * the same bits for any number of threads and any grouping of windows.  Also
 * fails on a device when first + n passes a sliding window, when attention
 * fails, and on Ctrl-C. */
int kv_model_forward(struct kv_model *m, const int32_t *tokens,
                     size_t n_windows, size_t n, size_t first,
                     const struct kv_attention *attention, float *hidden,
                     struct kv_err *e);

/* The same of a batch: hidden [kv_batch_tokens()][hidden].  attention is not
 * NULL.  On the CPU a span has the same bits whatever is beside it, but for
 * spans of up to KV_FEW_ROWS tokens beside longer ones. */
int kv_model_forward_batch(struct kv_model *m, const struct kv_batch *b,
                           const struct kv_attention *attention, float *hidden,
                           struct kv_err *e);

/* The same of positions from 0 on, on the CPU, for windows that do not fit in
 * memory together: `group` >= 1 of them at a time pass a layer, then the
 * others, so that each layer is read once.  hidden: a temporary file
 * (lib/base/file.h), written from its start; also fails when it cannot be. */
int kv_model_forward_file(struct kv_model *m, const int32_t *tokens,
                          size_t n_windows, size_t n, size_t group,
                          const struct kv_attention *attention, FILE *hidden,
                          struct kv_err *e);

/* Logits of n rows: hidden [n][hidden] -> logits [n][n_vocab].  On the CPU:
 * parallel over tiles of KV_LOGIT_ROWS rows, counted from the first: rows taken
 * in multiples of it give the same bits as all at once; may be called from
 * inside a parallel region too (then serial), and fails only on Ctrl-C. */
enum { KV_LOGIT_ROWS = 128 };

int kv_model_logits(struct kv_model *m, const float *hidden, size_t n,
                    float *logits, struct kv_err *e);

/* Losses of n rows, hidden as above, against target [n], each below n_vocab;
 * base: NULL, or hidden states [n][hidden] to compare with. */
int kv_model_losses(struct kv_model *m, const float *hidden, const float *base,
                    size_t n, const int32_t *target, struct kv_loss *loss,
                    struct kv_err *e);

/* Windows of n tokens that fit in this many bytes of activations, at least 1.
 * Counted: hidden, q, k, k_pre, v and out; where attention decodes a cache,
 * half as much again for its tensors. */
size_t kv_model_windows(const struct kv_model *m, size_t n, bool decodes,
                        size_t memory);

/* gram [n_kv_heads][d][d]: sum of Wo^T Wo over the query heads of each group.
 */
int kv_model_wo_gram(struct kv_model *m, size_t layer, float *gram,
                     struct kv_err *e);

#endif
