/* One step of the search over vectors of LANES (8 or 16) lanes, in the vector
 * notation that gcc and clang share.  Included by trellis.c and, compiled for
 * wider registers, by trellis_avx2.c and trellis_avx512.c; NAME(f) adds the
 * level's suffix. */
#include "kernels/trellis_impl.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define STATES ((size_t)KV_TRELLIS_STATES)
typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));

INLINE vf load(const float *x)
{
    vf v;

    memcpy(&v, x, sizeof(v));
    return v;
}

INLINE vf splat(float x)
{
    return x - (vf){0};
}

INLINE vi splat_int(int32_t x)
{
    return x - (vi){0};
}

/* The best of the 2^bits predecessors of each group of states. */
INLINE void best_of(unsigned bits, const float *cost, float *best,
                    uint8_t *back)
{
    const size_t n = STATES >> bits;

    for (size_t r = 0; r < n; r += LANES) {
        vf least = load(cost + r);
        vi from = splat_int(0);

        for (size_t j = 1; j < (size_t)1 << bits; j++) {
            const vf c = load(cost + j * n + r);
            const vi less = c < least;

            least = (vf)((less & (vi)c) | (~less & (vi)least));
            from = (less & splat_int((int32_t)j)) | (~less & from);
        }
        memcpy(best + r, &least, sizeof(least));
        for (size_t i = 0; i < LANES; i++)
            back[r + i] = (uint8_t)from[i];
    }
}

/* The same where fewer groups than lanes are left. */
INLINE void best_of_few(unsigned bits, const float *cost, float *best,
                        uint8_t *back)
{
    const size_t n = STATES >> bits;

    for (size_t r = 0; r < n; r++) {
        best[r] = cost[r];
        back[r] = 0;
        for (size_t j = 1; j < (size_t)1 << bits; j++)
            if (cost[j * n + r] < best[r]) {
                best[r] = cost[j * n + r];
                back[r] = (uint8_t)j;
            }
    }
}

/* best of the groups that states s .. s + LANES belong to; reads no further
 * than best[s >> bits] + LANES. */
INLINE vf spread(unsigned bits, const float *best, size_t s)
{
    const vf v = load(best + (s >> bits));

    switch (bits) {
#if LANES == 16
    case 1:
        return __builtin_shufflevector(v, v, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5,
                                       6, 6, 7, 7);
    case 2:
        return __builtin_shufflevector(v, v, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2,
                                       3, 3, 3, 3);
    case 3:
        return __builtin_shufflevector(v, v, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1,
                                       1, 1, 1, 1);
#else
    case 1:
        return __builtin_shufflevector(v, v, 0, 0, 1, 1, 2, 2, 3, 3);
    case 2:
        return __builtin_shufflevector(v, v, 0, 0, 0, 0, 1, 1, 1, 1);
#endif
    default:
        return splat(best[s >> bits]);
    }
}

/* cost[s] = best[s >> bits] + error of state s. */
INLINE void extend(unsigned bits, const struct kv_trellis_step *step,
                   const float *x, const float *scale, const float *best,
                   float *cost)
{
    for (size_t s = 0; s < STATES; s += LANES) {
        vf error = splat(0), sum;

        for (unsigned v = 0; v < step->values; v++) {
            const vf e = splat(x[v]) -
                         splat(scale[v]) * load(step->table + v * STATES + s);

            error += e * e;
        }
        sum = spread(bits, best, s) + error;
        memcpy(cost + s, &sum, sizeof(sum));
    }
}

INLINE void advance(unsigned bits, const struct kv_trellis_step *step,
                    const float *x, const float *scale, float *cost,
                    uint8_t *back)
{
    float best[KV_TRELLIS_STATES / 2 + LANES];

    if (STATES >> bits >= LANES)
        best_of(bits, cost, best, back);
    else
        best_of_few(bits, cost, best, back);
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
