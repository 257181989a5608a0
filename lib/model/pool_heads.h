/* Fewer KV heads: from multi-head to grouped-query or multi-query attention by
 * mean pooling of projection matrices.  The usual training afterwards is not
 * done here. */
#ifndef KV_MODEL_POOL_HEADS_H
#define KV_MODEL_POOL_HEADS_H

#include "lib/model/tensor_map.h"

/* The changes of kv_model_pool_heads() to tensors and shape. */
int kv_pool_heads(struct kv_model_weights *w, struct kv_config *c, size_t pool,
                  struct kv_err *e);

#endif
