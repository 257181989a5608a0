/* What the centroids of a sub-space give with four queries; for
 * tiles_codebook_tables*_loops.h alone. */
#ifndef KV_CODEBOOK_MULTIPLY_H
#define KV_CODEBOOK_MULTIPLY_H

#include "kernels/codebook/impl.h"
#include "kernels/simd/lanes4.h"

/* Channels that are multiplied together, of those that are left; EACH has all
 * such counts. */
static inline size_t together(size_t left)
{
    return left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}
#define EACH(X) X(1) X(2) X(4) X(8)

/* table [k] = or, more, += n channels of centroids, d apart, times q [n]. */
ALWAYS_INLINE void multiply(const float *center, size_t k, size_t d, size_t n,
                            bool more, const v4 *q, v4 *table)
{
    for (size_t i = 0; i < k; i++, center += d) {
        v4 x = q[0] * center[0];

        UNROLL
        for (size_t j = 1; j < n; j++)
            x += q[j] * center[j];
        table[i] = more ? table[i] + x : x;
    }
}

/* table [k]: each centroid of a sub-space with the queries q [channels]; 0
 * where there is no such sub-space. */
static inline void sub_table(const struct kv_codebook *b, size_t head,
                             size_t sub, const v4 *q, v4 *table)
{
    const size_t at = kv_codebook_at(b, head, sub) * b->k * b->d;

    if (sub >= b->n_sub) {
        memset(table, 0, b->k * sizeof(*table));
        return;
    }
    q += sub * b->d;
    for (size_t j = 0, n; j < b->d; j += n) {
        n = together(b->d - j);
        switch (n) {
#define CASE(N)                                                            \
    case N:                                                                \
        multiply(b->centers + at + j, b->k, b->d, N, j > 0, q + j, table); \
        break;
            EACH(CASE)
#undef CASE
        }
    }
}

#endif
