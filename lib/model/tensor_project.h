/* Matrices outside of layers: to and from embeddings that are narrower than
 * hidden values, and streams beside the first. */
#ifndef KV_MODEL_TENSOR_PROJECT_H
#define KV_MODEL_TENSOR_PROJECT_H

#include "lib/model/tensor_map.h"

/* m's embedding and head become made[0] and made[1]: the same, F32, with
 * project_in and project_out multiplied in, so that both are hidden wide. */
void kv_tensor_project(struct kv_model_weights *m, const struct kv_config *c,
                       struct kv_weight made[2]);

/* Finds m->spread and m->gather, where c has several streams.  prefix: of the
 * tensors' names; dir: for sentences. */
int kv_tensor_streams(struct kv_model_weights *m, const struct kv_config *c,
                      const struct kv_weights *w, const char *prefix,
                      const char *dir, struct kv_weight **made,
                      struct kv_err *e);

#endif
