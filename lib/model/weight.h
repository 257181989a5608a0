/* One tensor of a model's file, where it lies mapped. */
#ifndef KV_MODEL_WEIGHT_H
#define KV_MODEL_WEIGHT_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

enum kv_weight_type { KV_W_F32, KV_W_F16, KV_W_BF16, KV_W_OTHER };

enum { KV_WEIGHT_DIMS = 8 };

/* One tensor.  data may be at any address, not only at multiples of its
 * element's size. */
struct kv_weight {
    const char *name, *path; /* path: of its file; both live as long as it */
    const char *dtype;       /* as the file has it: "BF16", "Q4_K" */
    enum kv_weight_type type;
    size_t n_dims, dims[KV_WEIGHT_DIMS];
    size_t n; /* product of dims */
    const uint8_t *data;
    size_t bytes;
};

/* Fails, with the place of the first, when a value is a NaN or an infinity.
 * Reads all of the data.  The type must not be KV_W_OTHER. */
int kv_weight_check(const struct kv_weight *w, struct kv_err *e);

/* Elements [first, first + n) as f32.  The type must not be KV_W_OTHER. */
void kv_weight_dequantize(const struct kv_weight *w, size_t first, size_t n,
                          float *out);

/* Tells the system that the data will be read soon, or not again for a
 * while (its pages then stop counting as this process's memory). */
void kv_weight_will_need(const struct kv_weight *w);
void kv_weight_release(const struct kv_weight *w);

#endif
