/* One step of the search, in loops that compilers turn into vectors.  Included
 * by trellis.c and, compiled for wider registers, by trellis_avx2.c and
 * trellis_avx512.c; NAME(f) adds the level's suffix. */
#include "kernels/trellis_impl.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define STATES ((size_t)KV_TRELLIS_STATES)

/* The best of the 2^bits predecessors of each group of states. */
INLINE void best_of(unsigned bits, const float *restrict cost,
                    float *restrict best, uint8_t *restrict back)
{
    const size_t n = STATES >> bits;
    int32_t from[KV_TRELLIS_STATES];

    for (size_t r = 0; r < n; r++) {
        best[r] = cost[r];
        from[r] = 0;
    }
    for (size_t j = 1; j < (size_t)1 << bits; j++)
        for (size_t r = 0; r < n; r++) {
            const float c = cost[j * n + r];
            const int less = c < best[r];

            best[r] = less ? c : best[r];
            from[r] = less ? (int32_t)j : from[r];
        }
    for (size_t r = 0; r < n; r++)
        back[r] = (uint8_t)from[r];
}

/* cost[s] = best[s >> bits] + error of state s. */
INLINE void extend(unsigned bits, const struct kv_trellis_step *step,
                   const float *x, const float *scale,
                   const float *restrict best, float *restrict cost)
{
    float error[KV_TRELLIS_STATES];

    for (unsigned v = 0; v < step->values; v++) {
        const float *restrict table = step->table + v * STATES;
        const float x0 = x[v], a = scale[v];

        for (size_t s = 0; s < STATES; s++) {
            const float e = x0 - a * table[s];

            error[s] = (v ? error[s] : 0) + e * e;
        }
    }
    for (size_t r = 0; r < STATES >> bits; r++)
        for (size_t u = 0; u < (size_t)1 << bits; u++)
            cost[(r << bits) + u] = best[r] + error[(r << bits) + u];
}

INLINE void advance(unsigned bits, const struct kv_trellis_step *step,
                    const float *x, const float *scale, float *cost,
                    uint8_t *back)
{
    float best[KV_TRELLIS_STATES];

    best_of(bits, cost, best, back);
    extend(bits, step, x, scale, best, cost);
}

void NAME(kv_trellis_advance)(const struct kv_trellis_step *step,
                              const float *x, const float *scale, float *cost,
                              uint8_t *back)
{
    switch (step->bits) { /* a constant each: the loops unroll */
    case 1:
        advance(1, step, x, scale, cost, back);
        break;
    case 2:
        advance(2, step, x, scale, cost, back);
        break;
    case 3:
        advance(3, step, x, scale, cost, back);
        break;
    case 4:
        advance(4, step, x, scale, cost, back);
        break;
    default:
        advance(step->bits, step, x, scale, cost, back);
    }
}
