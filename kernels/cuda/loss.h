/* Losses and divergences of logits in device memory. */
#ifndef KV_CUDA_LOSS_H
#define KV_CUDA_LOSS_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

/* The sums over a row of logits x and a row b of the base; the caller takes the
 * logarithms. lse(x) = log(sum) + max, lse(b) = log(base_sum) + base_max,
 * KL(base || this) = cross / base_sum - lse(b) + lse(x). */
struct kv_gpu_loss {
    double sum, base_sum; /* sums of exp(x - max), exp(b - base_max) */
    double cross;         /* sum of exp(b - base_max) (b - x) */
    float max, base_max;
    float x, b;    /* values at the target */
    uint32_t same; /* the largest value of both has the same index (on ties the
                    * lowest) */
};

#ifdef __cplusplus
extern "C" {
#endif

/* logits, base: [rows][n_vocab]; base NULL: out's fields of the base are zeros.
 * target: [rows], below n_vocab; out: [rows].  Launches; sums have a fixed
 * order. */
int kv_gpu_score(const float *logits, const float *base, const int32_t *target,
                 size_t rows, size_t n_vocab, struct kv_gpu_loss *out,
                 struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
