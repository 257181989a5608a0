/* dump.h5: the real K, V and Q tensors of a model on a text.
 *
 * Attributes of "/": kind "kvtools-dump", format, tool_version, model, arch,
 * weights, model_hash, text, text_hash, bos, special, device, gemm,
 * channel_order, n_layers, n_heads, n_kv_heads, head_dim, attn_scale,
 * n_windows, ctx, first_layer, last_layer, dtype, and attn_cap, slide_window,
 * slide_head_dim, slide_kv_heads, shared_layers and latent where the model has
 * them, with rope_pairs, /slopes, /slides, /slide_inv_freq and /still
 * (lib/h5_head.h).
 * /tokens, /positions int32 [windows][ctx]; /inv_freq f32 [n_rot];
 * /layer_000/{q,k,v,k_pre} dtype [windows][ctx][heads][head_dim];
 * /layer_000/{k_gradient,v_gradient} f32 [windows][ctx][kv_heads][head_dim];
 * /layer_000/wo_gram f32 [kv_heads][d][d] where kv_dump_put_gram() was called.
 * Where the model has them: /k_bias f32 [n_layers][kv_heads][head_dim];
 * /sink_logit f32 [n_layers][n_heads], the logits of attention sinks
 * (kernels/attend.h); /cache_scale f32 [n_layers][2] (K, V), the scales of an
 * fp8 cache (lib/shape.h).
 *
 * If a model has layers without attention, the file has only its layers with
 * attention; the attribute model_layer of /layer_000 is this layer's number in
 * the model.
 *
 * channel_order is "model": the channels of a head have the order of
 * transformers.  RoPE turns channels i and i + n_rot, or, where rope_pairs is
 * "neighbours", 2 i and 2 i + 1.  Files of older versions, which have another
 * order for some models ("halves"), are refused.
 *
 * If sliding layers have other heads (slide_head_dim, slide_kv_heads), their
 * tensors have these sizes.  If the model's last layers (shared_layers) attend
 * with keys and values of other layers, the file has only the layers with their
 * own keys and values, and no queries of the last layers, for /layer_000/q has
 * the heads of one layer.  So attention errors, and klt's tables for K, count
 * only the queries of the layer that owns the keys.
 *
 * With a latent (shape.h) there is no /layer_000/v: a value is the first
 * `latent` channels of its key.
 *
 * The tensors of /layer_000 may be virtual datasets, whose values are in other
 * dumps in the same folder.  Each of these dumps has some of the windows or
 * layers (kv_dump_create_index()).
 *
 * Datasets are chunked by tokens, with Fletcher-32 checksums.  The file is
 * written as a stream, so memory does not grow with the text.  With h5py:
 *
 *   f = h5py.File("dump.h5")
 *   k = f["layer_000/k"][0]       # first window: [ctx][n_kv_heads][head_dim]
 *   f.attrs["model"].decode() */
#ifndef KV_DUMP_H
#define KV_DUMP_H

#include "lib/base/err.h"
#include "lib/reading.h"
#include "lib/shape.h"

#include <stdbool.h>
#include <stdint.h>

KV_PUBLIC_BEGIN

/* Gradients are d loss / d x of each value x of k_pre and v.  The loss is the
 * sum, not the mean, of the window's ctx - 1 losses -log p(token t+1), in nats,
 * t = 0 .. ctx - 2.  The last token predicts nothing and has zeros.  Gradients
 * are always f32, since they may be too small for fp16. */
enum kv_tensor {
    KV_T_Q,
    KV_T_K,
    KV_T_V,
    KV_T_K_PRE,
    KV_T_K_GRADIENT,
    KV_T_V_GRADIENT,
    KV_TENSORS
};
const char *kv_tensor_name(enum kv_tensor t); /* "q" ... "k_gradient" */

enum kv_dtype { KV_F32, KV_F16, KV_BF16 };
const char *kv_dtype_name(enum kv_dtype t);

struct kv_dump_info {
    char model[128], arch[64], weights[16], model_hash[32];
    char text[128], text_hash[32];
    struct kv_reading reading; /* of the text */
    /* The device that computed the tensors, such as "cpu", and the number type
     * of its matrix products with weights; not read back. */
    char device[256], gemm[8];
    struct kv_shape shape;
    size_t n_windows, ctx;
    size_t first_layer, last_layer; /* inclusive */
    bool have[KV_TENSORS];
    /* The stored type of all tensors but gradients; h5py reads bf16 as
     * float32. */
    enum kv_dtype dtype;
};

/* Writing: create, put every window of every layer in any order, commit.  The
 * commit fails when a window was not put.  The file appears at the commit. */
struct kv_dump_writer;
int kv_dump_create(struct kv_dump_writer **w, const char *path,
                   const struct kv_dump_info *info, struct kv_err *e);
int kv_dump_put_tokens(struct kv_dump_writer *w, size_t first_window,
                       size_t n_windows, const int32_t *tokens,
                       struct kv_err *e);
/* x: [n_windows][ctx][heads][head_dim] f32.  Fails on NaN, infinity and values
 * that overflow f16, naming layer, tensor and token. */
int kv_dump_put(struct kv_dump_writer *w, size_t layer, enum kv_tensor t,
                size_t first_window, size_t n_windows, const float *x,
                struct kv_err *e);
/* gram: [n_kv_heads][head_dim][head_dim], the sum of Wo^T Wo over the query
 * heads of each KV head's group. */
int kv_dump_put_gram(struct kv_dump_writer *w, size_t layer, const float *gram,
                     struct kv_err *e);
int kv_dump_commit(struct kv_dump_writer *w, struct kv_err *e); /* frees w */
/* A dump whose tensors are in other dumps, the parts; each part has some of its
 * windows or some of its layers.  Tokens and Gram matrices are put as into any
 * dump.  It is read as one dump; reading fails if a part is missing or has
 * another model, text or place. */
struct kv_dump_part {
    const char *file; /* file name, without the folder, which is the index's */
    size_t n_windows; /* this part's windows follow the windows of earlier parts
                       * with the layer */
    size_t first_layer, last_layer; /* inclusive */
};
int kv_dump_create_index(struct kv_dump_writer **w, const char *path,
                         const struct kv_dump_info *info,
                         const struct kv_dump_part *part, size_t n_parts,
                         struct kv_err *e);
void kv_dump_discard(struct kv_dump_writer *w); /* frees w; NULL is fine */

/* Reading.  Token numbers run through all windows: window * ctx + position.
 * Opening checks everything except the values, also that every layer exists and
 * that all layers have the same tensors. */
struct kv_codec;
struct kv_dump;
int kv_dump_open(struct kv_dump **d, const char *path, struct kv_err *e);
void kv_dump_close(struct kv_dump *d);
const struct kv_dump_info *kv_dump_info(const struct kv_dump *d);
const char *kv_dump_path(const struct kv_dump *d);
/* Restricts the dump to these layers. */
void kv_dump_narrow(struct kv_dump *d, size_t first_layer, size_t last_layer);
/* Fails when the dump lacks the tensor, naming the option that writes it. */
int kv_dump_want(const struct kv_dump *d, enum kv_tensor t, struct kv_err *e);

/* The tensor of a dump that a codec stores. */
enum kv_tensor kv_dump_tensor(const struct kv_codec *c);

/* out: [n][heads][head_dim]; heads are n_heads for q, else n_kv_heads.  Fails
 * when the dump lacks the tensor (naming kvdump's option that writes it) or
 * layer, on a bad checksum, and on NaN and values beyond 1e18 (naming file,
 * layer, tensor, token).  Not thread-safe. */
int kv_dump_read(struct kv_dump *d, size_t layer, enum kv_tensor t,
                 size_t first_token, size_t n, float *out, struct kv_err *e);
/* take true: later reads give keys (k, k_pre) without the model's bias
 * (lib/k_bias.h); false: as stored.  The shape must have a k_bias. */
void kv_dump_take_k_bias(struct kv_dump *d, bool take);
/* The Fisher information of each value of k_pre or v: the squares of the
 * gradients t. */
int kv_dump_fisher(struct kv_dump *d, size_t layer, enum kv_tensor t,
                   size_t first_token, size_t n, float *out, struct kv_err *e);
int kv_dump_tokens(struct kv_dump *d, size_t first_token, size_t n,
                   int32_t *out, struct kv_err *e);
int kv_dump_gram(struct kv_dump *d, size_t layer, float *gram,
                 struct kv_err *e);

KV_PUBLIC_END

#endif
