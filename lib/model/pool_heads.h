/* Fewer KV heads: from multi-head to grouped-query to multi-query attention, as
 * models are made for it (mean pooling of projection matrices; then they are
 * trained on, which is not done here). */
#ifndef KV_MODEL_POOL_HEADS_H
#define KV_MODEL_POOL_HEADS_H

#include "lib/model/tensor_map.h"

/* What kv_model_pool_heads() does to tensors and shape. */
int kv_pool_heads(struct kv_model_weights *w, struct kv_config *c, size_t pool,
                  struct kv_err *e);

#endif
