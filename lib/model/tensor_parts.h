/* Which parts a layer has, and how large they are. */
#ifndef KV_MODEL_TENSOR_PARTS_H
#define KV_MODEL_TENSOR_PARTS_H

#include "lib/model/config.h"

/* For a bias, the part that it belongs to; else the part itself. */
enum kv_part kv_part_of(enum kv_part p);

bool kv_part_is(const struct kv_config *c, size_t layer, enum kv_part p);

/* The shape of a part in this layer; a vector has 0 columns. */
size_t kv_part_rows(const struct kv_config *c, size_t layer, enum kv_part p);
size_t kv_part_cols(const struct kv_config *c, size_t layer, enum kv_part p);

#endif
