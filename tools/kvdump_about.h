/* kvdump --about and --operations: the sizes of a model and of its cache, and
 * the work of its operations, from the model or from its shape alone. */
#ifndef KV_KVDUMP_ABOUT_H
#define KV_KVDUMP_ABOUT_H

#include "lib/base/err.h"
#include "lib/model/config.h"
#include "lib/model/model.h"
#include "tools/common.h"

/* One row: a batch of sequences of ctx tokens with the cache in fp16 and the
 * states of layers without attention in f32.  layer_bytes: the bytes of one
 * layer's matrices; 0: not known. */
struct kv_footprint {
    struct kv_model_info info;
    size_t layer_bytes, ctx, batch;
};

int kv_footprint_print(const struct kv_footprint *f, size_t n,
                       const struct kv_common *common, struct kv_err *e);

/* Rows from only a config.json, with weights as halves: with its own number of
 * KV heads, with one per query head (MHA), and with a single one (MQA).  ctx 0:
 * the model's. */
int kv_footprint_of_shape(const char *path, size_t ctx, size_t batch,
                          const struct kv_common *common, struct kv_err *e);

/* The model's name: the last part of the path of its folder, or of the folder
 * of its config.json. */
void kvdump_model_name(const char *path, char *name, size_t capacity);

/* Writes a row for each operation of one layer: 13 of a prefill of ctx tokens,
 * and 15 of a decoding step after them.  name: the model's. */
int kv_operations_print(const struct kv_config *c, const char *name, size_t ctx,
                        size_t batch, const struct kv_common *common,
                        struct kv_err *e);

/* The --columns help of each table. */
void kv_footprint_about(void);
void kv_operations_about(void);

#endif
