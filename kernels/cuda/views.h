/* Causal attention on the device, in f32, over keys and values that exist in
 * two forms (kernels/attend.h says which a query sees).  For the forward pass
 * of a model: many queries, memory linear in the tokens. */
#ifndef KV_CUDA_VIEWS_H
#define KV_CUDA_VIEWS_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

/* As struct kv_attend_side. */
struct kv_gpu_forms_side {
    const float *unquantized,
        *quantized;        /* [n_windows][n][n_kv_heads][head_dim];
                            * one may be NULL */
    const uint32_t *until; /* [n], by query; NULL with one form */
    size_t sinks;
};

/* Of every window, queries [first, end). */
struct kv_gpu_forms {
    size_t n_windows, n, n_heads, n_kv_heads, head_dim;
    size_t first, end;
    float scale;
    const float *q; /* [n_windows][n][n_heads][head_dim], as out */
    float *out;
    struct kv_gpu_forms_side k, v;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Launches.  The same bits each time, however many windows there are. */
int kv_gpu_attend_forms(const struct kv_gpu_forms *f, struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
