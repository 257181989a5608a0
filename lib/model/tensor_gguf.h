/* Parts that llama.cpp's files have in other tensors than a folder. */
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

/* *out: the part of the layer; NULL if it is where a folder has it.  Uses up to
 * two tensors of made for each head of queries, or one. */
int kv_tensor_gguf(const struct kv_gguf_layer *l, enum kv_part p,
                   const struct kv_weight **out, struct kv_err *e);

/* Whether it is a GGUF file with the inputs of linear attention apart, which a
 * folder groups by key head. */
bool kv_tensor_gguf_splits(const struct kv_weights *w,
                           const struct kv_config *c);

#endif
