/* Embeddings that are narrower than hidden values. */
#ifndef KV_MODEL_TENSOR_PROJECT_H
#define KV_MODEL_TENSOR_PROJECT_H

#include "lib/model/tensor_map.h"

/* m's embedding and head become made[0] and made[1]: the same, F32, with
 * project_in and project_out multiplied in, so that both are hidden wide. */
void kv_tensor_project(struct kv_model_weights *m, const struct kv_config *c,
                       struct kv_weight made[2]);

#endif
