/* Matrices and biases of experts in two tensors for all: one of gates and ups,
 * in turn (gpt-oss) or one after the other (Granite 4), one of downs; struct
 * kv_tensor_names has where what lies. */
#ifndef KV_MODEL_TENSOR_JOINED_H
#define KV_MODEL_TENSOR_JOINED_H

#include "lib/model/tensor_map.h"

struct kv_joined {
    const struct kv_weights *w;
    const struct kv_config *c;
    const char *dir;         /* for sentences */
    const char *before;      /* of the tensors' names in this layer; or all of
                              * the name */
    struct kv_weight **made; /* the next tensor of those made */
};

/* p: gate, up, down or the bias of one, gate before up.  Takes up to n_experts
 * of made. */
int kv_tensor_joined(const struct kv_joined *j, enum kv_part p,
                     const struct kv_weight **out, struct kv_err *e);

/* p: gate, up or down, of the tensor of this name (struct kv_tensor_names's
 * stacked).  Takes up to one of made. */
int kv_tensor_stacked(const struct kv_joined *j, enum kv_part p,
                      const struct kv_weight **out, struct kv_err *e);

#endif
