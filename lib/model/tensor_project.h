/* Matrices outside of layers: projections between embeddings and wider hidden
 * states, and the matrices of models with several streams. */
#ifndef KV_MODEL_TENSOR_PROJECT_H
#define KV_MODEL_TENSOR_PROJECT_H

#include "lib/model/tensor_map.h"

/* Replaces m's embedding and head by made[0] and made[1]: F32, with project_in
 * and project_out multiplied in, so that both have hidden columns. */
void kv_tensor_project(struct kv_model_weights *m, const struct kv_config *c,
                       struct kv_weight made[2]);

/* Finds m->spread and m->gather, if c has several streams.  prefix: prefix of
 * the tensors' names; dir: for error sentences. */
int kv_tensor_streams(struct kv_model_weights *m, const struct kv_config *c,
                      const struct kv_weights *w, const char *prefix,
                      const char *dir, struct kv_weight **made,
                      struct kv_err *e);

#endif
