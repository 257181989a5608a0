/* Tensors of a model's files that nothing uses. */
#ifndef KV_MODEL_TENSOR_SPARES_H
#define KV_MODEL_TENSOR_SPARES_H

#include "lib/model/tensor_map.h"

/* Fails on a tensor that is neither bound in m, nor part of a packed matrix,
 * nor known to have no effect: ignoring it could make the numbers wrong. */
int kv_tensor_spares(const struct kv_model_weights *m,
                     const struct kv_config *c, const struct kv_weights *w,
                     struct kv_err *e);

#endif
