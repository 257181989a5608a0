#include "lib/rope_table.h"
#include "kernels/rope.h"

#include <math.h>

void kv_rope_table(const struct kv_shape *shape, size_t n, size_t first,
                   float *table)
{
    const size_t n_rot = shape->n_rot;

#pragma omp parallel for schedule(static) if (n > 1)
    for (size_t t = 0; t < n; t++) {
        float *cosine = table + t * 2 * n_rot, *sine = cosine + n_rot;

        for (size_t i = 0; i < n_rot; i++) {
            /* exact: the position has at most 29 bits, the frequency 24 */
            const double angle =
                (double)(first + t) * (double)shape->inv_freq[i];

            cosine[i] = (float)cos(angle);
            sine[i] = (float)sin(angle);
        }
    }
}

void kv_rope_rotate(const struct kv_shape *shape, const float *table, float *x,
                    size_t n, size_t heads)
{
    const size_t d = shape->head_dim, latent = shape->latent;
    const struct kv_rope_pairs pairs = kv_shape_pairs(shape);

    if (!latent) {
        kv_rotate_heads(table, pairs, x, n, heads, d);
        return;
    }
    for (size_t i = 0; i < n * heads; i++)
        kv_rotate_heads(table + i / heads * 2 * pairs.n, pairs,
                        x + i * d + latent, 1, 1, d - latent);
}

/* Rotates x by its positions; back: by the negative angles. */
static void turn(const struct kv_shape *shape, float *x, size_t n, size_t heads,
                 size_t first, bool back)
{
    const size_t row = heads * shape->head_dim, n_rot = shape->n_rot;
    float table[KV_MAX_HEAD_DIM];

    for (size_t t = 0; t < n; t++) {
        kv_rope_table(shape, 1, first + t, table);
        for (size_t i = 0; back && i < n_rot; i++)
            table[n_rot + i] = -table[n_rot + i];
        kv_rope_rotate(shape, table, x + t * row, 1, heads);
    }
}

void kv_rope(const struct kv_shape *shape, float *x, size_t n, size_t heads,
             size_t first)
{
    turn(shape, x, n, heads, first, false);
}

void kv_rope_back(const struct kv_shape *shape, float *x, size_t n,
                  size_t heads, size_t first)
{
    turn(shape, x, n, heads, first, true);
}
