#include "kernels/rope.h"

void kv_rotate_heads(const float *table, size_t n_rot, float *x, size_t rows,
                     size_t heads, size_t head_dim)
{
    for (size_t t = 0; t < rows; t++) {
        const float *cosine = table + t * 2 * n_rot, *sine = cosine + n_rot;

        for (size_t h = 0; h < heads; h++) {
            float *low = x + (t * heads + h) * head_dim;
            float *high = low + head_dim / 2;

            for (size_t i = 0; i < n_rot; i++) {
                const float a = low[i], b = high[i];

                low[i] = a * cosine[i] - b * sine[i];
                high[i] = b * cosine[i] + a * sine[i];
            }
        }
    }
}
