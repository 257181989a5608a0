/* kvdump --about: the bytes of a model and of its cache. */
#ifndef KV_KVDUMP_ABOUT_H
#define KV_KVDUMP_ABOUT_H

#include "lib/base/err.h"
#include "lib/model/model.h"
#include "tools/common.h"

/* A row for one sequence of ctx tokens, and one for a batch of them when batch
 * is above 1; the cache in fp16. */
int kv_footprint_print(const struct kv_model_info *info, size_t ctx,
                       size_t batch, const struct kv_common *common,
                       struct kv_err *e);

#endif
