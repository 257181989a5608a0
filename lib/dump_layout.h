/* Names and types inside dump.h5: for dump_write.c, dump_read.c and
 * dump_parts.c alone. */
#ifndef KV_DUMP_LAYOUT_H
#define KV_DUMP_LAYOUT_H

#include "lib/dump.h"
#include "lib/h5.h"

#define KV_DUMP_KIND "kvtools-dump"
/* Format numbers of files with rare shapes: the first such format
 * (lib/h5_head.h), the format that added latents and sink logits, and the
 * format that added which channels RoPE turns together. */
enum { KV_DUMP_SHAPES = 2, KV_DUMP_LATENTS = 3, KV_DUMP_FORMAT = 4 };
#define KV_DUMP_K_BIAS "/k_bias"
#define KV_DUMP_SINKS "/sink_logit"
#define KV_DUMP_CACHE_SCALE "/cache_scale"

struct kv_dump_name {
    char text[48];
};

/* "/layer_003", "/layer_003/k", "/layer_003/wo_gram". */
struct kv_dump_name kv_dump_group(size_t layer);
struct kv_dump_name kv_dump_set(size_t layer, enum kv_tensor t);
struct kv_dump_name kv_dump_gram_set(size_t layer);

/* Heads of a layer's tensor: n_heads for q, else n_kv_heads. */
size_t kv_dump_heads(const struct kv_dump_info *info, size_t layer,
                     enum kv_tensor t);

/* The stored type of a tensor: info's, but f32 for gradients. */
enum kv_dtype kv_dump_dtype(const struct kv_dump_info *info, enum kv_tensor t);
enum kv_h5_type kv_dump_type(const struct kv_dump_info *info, enum kv_tensor t);

/* kvdump's option that writes the tensor: "--fisher". */
const char *kv_dump_option(enum kv_tensor t);

/* As kv_dump_open(), but fails on a dump whose tensors are in parts. */
int kv_dump_open_part(struct kv_dump **d, const char *path, struct kv_err *e);

/* Whether the parts of the dump d, open as h, are dumps of the same model, text
 * and windows. */
int kv_dump_check_parts(struct kv_dump *d, const struct kv_h5 *h,
                        struct kv_err *e);

/* The index of the first value that is NaN or larger in magnitude than max; n
 * if all are good. */
size_t kv_dump_bad_value(const float *x, size_t n, float max);

#endif
