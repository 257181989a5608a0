#include "kernels/scaled/int8.h"
#include "kernels/level.h"
#include "kernels/tiles/impl.h"

#include <string.h>

enum {
    ROWS = KV_TILE_ROWS,
    LINE = 64,
    MOST_SCALES = KV_SCALED_SCALES * KV_SCALED_PARTS
};

/* ---- queries ------------------------------------------------------------- */

static size_t factors_bytes(const struct kv_store *s)
{
    return kv_round_up(kv_scaled_groups(s) * ROWS * sizeof(float), LINE);
}

struct kv_scaled_query kv_scaled_query_at(const struct kv_store *s,
                                          const void *query)
{
    char *const at = (char *)(uintptr_t)query;
    const size_t bytes = factors_bytes(s);

    return (struct kv_scaled_query){(float *)at, (int32_t *)(at + bytes),
                                    (int8_t *)(at + 2 * bytes)};
}

static size_t query_bytes(const struct kv_store *s)
{
    return 2 * factors_bytes(s) + ROWS * kv_padded(s->head_dim);
}

static void prepare(const struct kv_store *s, size_t head, const float *q,
                    size_t rows, void *query)
{
    const struct kv_scaled *c = kv_scaled_of(s);
    const struct kv_scaled_query to = kv_scaled_query_at(s, query);
    const size_t d = s->head_dim, padded = kv_padded(c->group);
    float x[ROWS][KV_SCALED_MOST], unit[ROWS];
    int8_t code[ROWS][KV_SCALED_MOST];

    (void)head;
    memset(to.code, 0, rows * kv_padded(d));
    for (size_t r = 0; r < rows; r++) {
        memcpy(x[r], q + r * d, d * sizeof(*q));
        memset(x[r] + d, 0, (kv_padded(d) - d) * sizeof(*q));
    }
    for (size_t g = 0; g < kv_scaled_groups(s); g++) {
        const size_t first = g * c->group;

        kv_tile_loops()->round8(x[0] + first, KV_SCALED_MOST, rows, padded,
                                code[0], KV_SCALED_MOST, unit);
        for (size_t r = 0; r < rows; r++) {
            int32_t sum = 0;

            for (size_t i = 0; i < c->group; i++) {
                size_t byte;
                const size_t quad = kv_scaled_quad(c->bits, first + i, &byte);

                to.code[(quad * rows + r) * 4 + byte] = code[r][i];
                sum += code[r][i];
            }
            to.factor[g * ROWS + r] = c->unit * unit[r];
            to.bias[g * ROWS + r] = -128 * sum;
        }
    }
}

/* ---- the operations ------------------------------------------------------ */

static const struct kv_scaled_int8 *level(void)
{
#ifdef __x86_64__
    if (kv_level_vnni())
        return &kv_scaled_int8_vnni;
    if (kv_level_get() >= KV_LEVEL_AVX2)
        return &kv_scaled_int8_avx2;
#endif
    return &kv_scaled_int8_c;
}

static void qk(const struct kv_store *s, size_t head, const uint8_t *tile,
               const void *query, size_t rows, float *score, size_t stride)
{
    float scale[MOST_SCALES];

    (void)head;
    kv_scaled_scales(s, tile, scale);
    level()->qk(s, tile, kv_scaled_query_at(s, query), scale, rows, score,
                stride);
}

static void pv(const struct kv_store *s, size_t head, const uint8_t *tile,
               const float *p, size_t stride, size_t rows, float *acc)
{
    float scale[MOST_SCALES];

    (void)head;
    kv_scaled_scales(s, tile, scale);
    level()->pv(s, tile, scale, p, stride, rows, acc);
}

const struct kv_tile_ops kv_scaled_int8_ops = {
    .query_bytes = query_bytes,
    .prepare = prepare,
    .qk = qk,
    .acc_floats = kv_exact_acc_floats,
    .pv = pv,
    .finish = kv_exact_finish,
};
