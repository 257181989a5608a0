#include "kernels/simd/c.h"

#include "kernels/scaled/loops.h"

/* ---- path int8 ----------------------------------------------------------- */

/* The rounded table's numbers for the codes of a tile: x [64][head_dim]. */
static void look_up(const struct kv_store *s, const uint8_t *tile, int8_t *x)
{
    const struct kv_scaled *c = kv_scaled_of(s);
    uint16_t code[KV_SCALED_MAX];
    float scale[KV_SCALED_MAX / 16];

    for (size_t t = 0; t < KV_TILE_TOKENS; t++) {
        kv_store_get_scaled(s, t, tile, code, scale);
        for (size_t i = 0; i < s->head_dim; i++)
            *x++ = c->near[code[i]];
    }
}

/* The sum of the products of row r's codes in group g with a token's x. */
static int32_t group_sum(const struct kv_scaled *c, size_t g,
                         struct kv_scaled_query q, size_t rows, size_t r,
                         const int8_t *x)
{
    int32_t sum = 0;

    for (size_t i = g * c->group; i < (g + 1) * c->group; i++) {
        size_t byte;
        const size_t quad = kv_scaled_quad(c->bits, i, &byte);

        sum += q.code[(quad * rows + r) * 4 + byte] * x[i];
    }
    return sum;
}

static void qk8(const struct kv_store *s, const uint8_t *tile,
                struct kv_scaled_query q, const float *scale, size_t rows,
                float *score, size_t stride)
{
    const struct kv_scaled *c = kv_scaled_of(s);
    int8_t x[KV_TILE_TOKENS * KV_SCALED_MAX];

    look_up(s, tile, x);
    for (size_t t = 0; t < KV_TILE_TOKENS; t++)
        for (size_t r = 0; r < rows; r++) {
            float *to = &score[r * stride + t];

            for (size_t g = 0; g < kv_scaled_groups(s); g++) {
                const int32_t sum =
                    group_sum(c, g, q, rows, r, x + t * s->head_dim);
                const float y = q.factor[g * KV_TILE_ROWS + r] * (float)sum;
                const float by = scale[g * KV_TILE_TOKENS + t];

                *to = g ? fmaf(by, y, *to) : by * y;
            }
        }
}

static void pv8(const struct kv_store *s, const uint8_t *tile,
                const struct kv_scaled_weights *w, size_t rows, float *acc)
{
    const size_t padded = kv_padded(s->head_dim);
    int8_t x[KV_TILE_TOKENS * KV_SCALED_MAX];

    look_up(s, tile, x);
    for (size_t i = 0; i < s->head_dim; i++) {
        const struct kv_scaled_weights *of = &w[i / kv_scaled_of(s)->group];

        for (size_t r = 0; r < rows; r++) {
            int32_t sum = 0;

            for (size_t t = 0; t < KV_TILE_TOKENS; t++)
                sum += of->code[r][t] * x[t * s->head_dim + i];
            acc[r * padded + i] =
                fmaf(of->factor[r], (float)sum, acc[r * padded + i]);
        }
    }
}

const struct kv_scaled_int8 kv_scaled_int8_c = {qk8, pv8};
