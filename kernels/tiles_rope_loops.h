/* The loop of tiles_rope_impl.h in plain C, for the compiler to make wide;
 * included by tiles_rope_c.c, tiles_rope_avx2.c and tiles_rope_avx512.c. */
#include "kernels/tiles_rope_impl.h"

static void add_angles(const double *restrict by, size_t n,
                       double *restrict cosine, double *restrict sine)
{
    for (size_t i = 0; i < n; i++) {
        const double c = cosine[i], s = sine[i];
        const double by_c = by[i], by_s = by[n + i];

        cosine[i] = c * by_c - s * by_s;
        sine[i] = s * by_c + c * by_s;
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

void NAME(kv_tiles_turn)(const double *const digit[KV_ROPE_DIGITS],
                         const float *within, size_t n_rot, size_t half,
                         float *x)
{
    double cosine[KV_ROPE_MOST], sine[KV_ROPE_MOST];

    for (size_t i = 0; i < n_rot; i++) {
        cosine[i] = digit[0][i];
        sine[i] = digit[0][n_rot + i];
    }
    for (size_t d = 1; d < KV_ROPE_DIGITS; d++)
        add_angles(digit[d], n_rot, cosine, sine);
    for (size_t i = 0; i < n_rot; i++)
        turn_pair((float)cosine[i], (float)sine[i],
                  within + i * 2 * KV_TILE_PART, x + i * KV_TILE_PART,
                  x + (half + i) * KV_TILE_PART);
}
