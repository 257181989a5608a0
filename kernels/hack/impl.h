/* The versions of the loops behind homomorphic.h; for homomorphic*.c alone. */
#ifndef KV_HACK_IMPL_H
#define KV_HACK_IMPL_H

#include "kernels/hack/hack.h"

/* Each as in homomorphic.h, but: top is 2^bits - 1; round wants a scale > 0
 * and returns the sum of the codes; arrange and multiply agree on the order of
 * the arranged codes. */
struct kv_hack_loops {
    struct kv_hack_range (*range)(const float *x, size_t n, float top);
    int32_t (*round)(const float *x, size_t n, struct kv_hack_range r,
                     float top, const float *u, uint8_t *code);
    void (*quantize)(const float *x, size_t x_stride, size_t n_rows, size_t n,
                     float top, const float *u, size_t u_stride, uint8_t *code,
                     size_t code_stride, struct kv_hack_row *row);
    void (*uniform)(uint64_t key, uint64_t first, uint64_t step, size_t n,
                    float *u);
    void (*arrange)(const uint8_t *packed, size_t stride, unsigned bits,
                    size_t n_columns, size_t n, uint8_t *code);
    void (*sums)(const uint8_t *arranged, size_t n_columns, size_t n,
                 int32_t *sum);
    void (*multiply)(const struct kv_hack_row *row, size_t n_rows,
                     const struct kv_hack_columns *c, double *out,
                     size_t stride);
    void (*turn)(const uint8_t *bytes, size_t stride, size_t n_rows, size_t n,
                 uint32_t *word);
    void (*dots)(const float *x, const float *m, size_t stride, size_t n_rows,
                 size_t n, double *out);
    void (*add)(const float *x, const float *m, size_t stride, size_t n_rows,
                size_t n, double *out);
    void (*scale)(const float *x, size_t x_stride, size_t n_rows, size_t n,
                  const float *by, float *out, size_t out_stride);
    void (*narrow)(const double *x, size_t n, double by, float *out);
};

extern const struct kv_hack_loops kv_hack_c;
/* x86-64 only; vnni: kv_level_vnni(), else level avx512 runs the AVX2 one. */
extern const struct kv_hack_loops kv_hack_avx2, kv_hack_vnni;

#endif
