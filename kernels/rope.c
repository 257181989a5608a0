#include "kernels/rope.h"

/* Inlined, so that step is a constant. */
static inline void turn(const float *cosine, const float *sine, size_t n,
                        size_t step, float *low, float *high)
{
    for (size_t i = 0; i < n; i++) {
        const float a = low[i * step], b = high[i * step];

        low[i * step] = a * cosine[i] - b * sine[i];
        high[i * step] = b * cosine[i] + a * sine[i];
    }
}

void kv_rotate_heads(const float *table, struct kv_rope_pairs pairs, float *x,
                     size_t rows, size_t heads, size_t head_dim)
{
    const size_t n = pairs.n;

    for (size_t t = 0; t < rows; t++) {
        const float *cosine = table + t * 2 * n, *sine = cosine + n;

        for (size_t h = 0; h < heads; h++) {
            float *low = x + (t * heads + h) * head_dim;

            if (pairs.step == 1)
                turn(cosine, sine, n, 1, low, low + pairs.apart);
            else
                turn(cosine, sine, n, pairs.step, low, low + pairs.apart);
        }
    }
}
