/* Parts that llama.cpp's files store in other tensors than a folder does. */
#ifndef KV_MODEL_TENSOR_GGUF_H
#define KV_MODEL_TENSOR_GGUF_H

#include "lib/model/tensor_map.h"

/* A layer of a GGUF file. */
struct kv_gguf_layer {
    const struct kv_weights *w;
    const struct kv_config *c;
    const char *dir;    /* for sentences */
    const char *prefix; /* prefix of the names of all tensors */
    size_t layer;
    struct kv_weight **made; /* the next free tensor in made */
};

/* *out: the layer's part; NULL if the file stores it as a folder does.  Uses
 * one tensor of made, or up to two for each query head. */
int kv_tensor_gguf(const struct kv_gguf_layer *l, enum kv_part p,
                   const struct kv_weight **out, struct kv_err *e);

/* Whether this is a GGUF file that stores the inputs of linear attention in
 * separate tensors; a folder groups them by key head. */
bool kv_tensor_gguf_splits(const struct kv_weights *w,
                           const struct kv_config *c);

#endif
