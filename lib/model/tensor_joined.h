/* Matrices and biases of experts in two tensors for all: one holds gates and
 * ups, interleaved (gpt-oss) or one after the other (Granite 4), the other
 * holds downs; struct kv_tensor_names describes the layout. */
#ifndef KV_MODEL_TENSOR_JOINED_H
#define KV_MODEL_TENSOR_JOINED_H

#include "lib/model/tensor_map.h"

struct kv_joined {
    const struct kv_weights *w;
    const struct kv_config *c;
    const char *dir;         /* for sentences */
    const char *before;      /* prefix of the tensors' names in this layer; or
                              * the whole name */
    struct kv_weight **made; /* the next free tensor in made */
};

/* *out: the part p: gate, up, down or one of their biases; the gate must be
 * bound before the up.  Uses up to n_experts tensors of made. */
int kv_tensor_joined(const struct kv_joined *j, enum kv_part p,
                     const struct kv_weight **out, struct kv_err *e);

/* *out: the part p: gate, up or down, in the tensor that `stacked` of struct
 * kv_tensor_names names.  Uses at most one tensor of made. */
int kv_tensor_stacked(const struct kv_joined *j, enum kv_part p,
                      const struct kv_weight **out, struct kv_err *e);

#endif
