/* One tensor of a memory-mapped model file. */
#ifndef KV_MODEL_WEIGHT_H
#define KV_MODEL_WEIGHT_H

#include "kernels/weights/rows.h"
#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { KV_WEIGHT_DIMS = 8 };

/* One tensor.  data may be at any address, not only at multiples of its
 * element's size.  head to pool_rows are as in struct kv_stored_rows. */
struct kv_weight {
    const char *name, *path; /* path: the file's path; both live as long as the
                              * file is open */
    const char *dtype;       /* the file's name for the type: "BF16", "Q4_K" */
    enum kv_stored type;
    size_t n_dims, dims[KV_WEIGHT_DIMS];
    size_t n; /* product of dims */
    const uint8_t *data;
    size_t bytes;
    size_t head, run, step, start, turned;
    float add;
    size_t pool, pool_rows;
    const struct kv_packed *packed; /* data holds this packed matrix's codes; or
                                     * NULL */
    const struct kv_weight *next;   /* the next piece, for a part stored in
                                     * pieces */
};

/* In all functions below, w's type must not be KV_STORED_OTHER. */
struct kv_stored_rows kv_weight_rows(const struct kv_weight *w);

/* Fails on a NaN or an infinity, with the place of the first.
 * Reads all of the data. */
int kv_weight_check(const struct kv_weight *w, struct kv_err *e);

/* Elements [first, first + n) as f32. */
void kv_weight_dequantize(const struct kv_weight *w, size_t first, size_t n,
                          float *out);

/* Tells the system that the data will be read soon, or not again for a
 * while (its pages then stop counting as this process's memory). */
void kv_weight_will_need(const struct kv_weight *w);
void kv_weight_release(const struct kv_weight *w);

#endif
