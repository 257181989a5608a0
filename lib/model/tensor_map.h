/* The parts of a decoder, found among the weights. */
#ifndef KV_MODEL_BIND_H
#define KV_MODEL_BIND_H

#include "lib/model/config.h"
#include "lib/model/weights.h"

/* A matrix is [output][input].  A matrix of several experts is a list of pieces
 * or one stored tensor.  NULL: the model has no such part. */
struct kv_layer_weights {
    const struct kv_weight *part[KV_PARTS];
};

struct kv_model_weights {
    const struct kv_weight *embed, *norm, *norm_bias;
    const struct kv_weight *positions, *embed_norm, *embed_norm_bias;
    const struct kv_weight *head, *head_bias; /* head: equals embed, when
                                               * tied */
    const struct kv_weight *project_in, *project_out;
    const struct kv_weight *layer_embed; /* [n_vocab][layers][layer_embed] */
    /* Models with several streams: matrices from the first stream to each other
     * stream, and back. */
    const struct kv_weight *spread[KV_MAX_STREAMS], *gather[KV_MAX_STREAMS];
    float *projected; /* memory of embed and head after project_in and
                       * project_out are multiplied in, or NULL */
    struct kv_layer_weights *layer;
    float norm_add; /* added to the weights of all norms */
    bool rates;     /* KV_P_MIX_DECAY holds -exp(decay) */
    bool tiled;     /* value head i of linear attention uses key head i modulo
                     * k_heads; else key head i / (v_heads / k_heads) */
    struct kv_weight *made;   /* tensors made here because files lack them */
    struct kv_weight *pooled; /* or NULL */
    float *zeros;             /* zeros for biases that a GGUF file omits */
    float *ones; /* ones for norms without weights, [hidden], or [head_dim] if
                  * larger */
    uint64_t seed;
};

/* Makes F16 tensors with the shapes that c gives, without data; kv_layers_new()
 * fills them with random numbers.  Release m with kv_tensor_unmap. */
void kv_tensor_map_random(struct kv_model_weights *m, const struct kv_config *c,
                          uint64_t seed);

/* The seed of a layer's part; layer n_layers stands for the final norm (part 0)
 * and the head (part 1). */
uint64_t kv_tensor_seed(const struct kv_model_weights *m, size_t layer,
                        size_t part);

/* The tensor of this name; it must have this shape (zeros end a shape with
 * fewer dimensions) and finite values.  dir: for sentences. */
int kv_tensor_bind(const struct kv_weight **out, const struct kv_weights *w,
                   const char *name, const size_t shape[3], const char *dir,
                   struct kv_err *e);

/* The prefix of the names of w's tensors.  In a file with several parts
 * (wrapped), the prefix of the text model's tensors; in a file of a model
 * without its head, the prefix lacks its first words. */
const char *kv_tensor_prefix(const struct kv_weights *w,
                             const struct kv_tensor_names *names, bool wrapped);

/* Finds every tensor and checks its shape, its type and that its values are
 * finite.  In a GGUF file any bias that c demands may be absent; it is then
 * zeros, as in llama.cpp.  Fails on a tensor that belongs to no part, and on a
 * head that differs from the embedding although c says that they are tied,
 * since the numbers could be wrong. dir: for sentences.  Release m with
 * kv_tensor_unmap. */
int kv_tensor_map(struct kv_model_weights *m, const struct kv_config *c,
                  const struct kv_weights *w, const char *dir,
                  struct kv_err *e);
void kv_tensor_unmap(struct kv_model_weights *m);

#endif
