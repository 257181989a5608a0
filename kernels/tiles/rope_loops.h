/* The loops of tiles_rope_impl.h in plain C, for the compiler to make wide;
 * included by tiles_rope_c.c, tiles_rope_avx2.c and tiles_rope_avx512.c. */
#include "kernels/tiles/rope_impl.h"

void NAME(kv_tiles_first)(const double *const digit[KV_ROPE_DIGITS],
                          size_t n_rot, float *restrict cosine,
                          float *restrict sine)
{
    const double *const zero = digit[0], *const one = digit[1];
    const double *const two = digit[2], *const three = digit[3];

    for (size_t i = 0; i < n_rot; i++) {
        const double *const by[] = {one + i, two + i, three + i};
        double c = zero[i], s = zero[n_rot + i];

        for (size_t d = 0; d < KV_ROPE_DIGITS - 1; d++) {
            const double was = c, by_c = by[d][0], by_s = by[d][n_rot];

            c = was * by_c - s * by_s;
            s = s * by_c + was * by_s;
        }
        cosine[i] = (float)c;
        sine[i] = (float)s;
    }
}

static void turn_pair(float c, float s, const float *restrict within,
                      float *restrict low, float *restrict high)
{
    for (size_t t = 0; t < KV_TILE_PART; t++) {
        const float ct = within[t], st = within[KV_TILE_PART + t];
        const float cosine = c * ct - s * st, sine = s * ct + c * st;
        const float a = low[t], b = high[t];

        low[t] = a * cosine - b * sine;
        high[t] = b * cosine + a * sine;
    }
}

void NAME(kv_tiles_turn)(const float *cosine, const float *sine,
                         const float *within, size_t n_rot, size_t half,
                         float *x)
{
    for (size_t i = 0; i < n_rot; i++)
        turn_pair(cosine[i], sine[i], within + i * 2 * KV_TILE_PART,
                  x + i * KV_TILE_PART, x + (half + i) * KV_TILE_PART);
}
