/* The operations of family "scaled": which version of the loops runs, and what
 * path int8 rounds for them. */
#include "kernels/level.h"
#include "kernels/scaled/impl.h"
#include "kernels/tiles/impl.h"

#include <string.h>

enum {
    ROWS = KV_TILE_ROWS,
    LINE = 64,
    MAX_SCALES = KV_SCALED_SCALES * KV_SCALED_PARTS
};

static const struct kv_scaled_loops *loops(void)
{
    static const struct kv_scaled_loops *const versions[] =
        KV_VERSIONS(&kv_scaled_loops_c, &kv_scaled_loops_avx2,
                    &kv_scaled_loops_avx512, &kv_scaled_loops_avx512);

    return versions[kv_level_version()];
}

static const struct kv_scaled_int8 *int8(void)
{
    static const struct kv_scaled_int8 *const versions[] =
        KV_VERSIONS(&kv_scaled_int8_c, &kv_scaled_int8_avx2,
                    &kv_scaled_int8_avx2, &kv_scaled_int8_vnni);

    return versions[kv_level_version()];
}

/* ---- exact --------------------------------------------------------------- */

void kv_scaled_expand(const struct kv_store *s, size_t head,
                      const uint8_t *tile, size_t part, float *x)
{
    (void)head;
    loops()->expand(s, tile, part, x);
}

static void qk(const struct kv_store *s, size_t head, const uint8_t *tile,
               const void *query, size_t rows, float *score, size_t stride)
{
    loops()->qk(s, head, tile, query, rows, score, stride);
}

static void pv(const struct kv_store *s, size_t head, const uint8_t *tile,
               const float *p, size_t stride, size_t rows, float *acc)
{
    loops()->pv(s, head, tile, p, stride, rows, acc);
}

/* ---- path int8 ----------------------------------------------------------- */

static size_t factors_bytes(const struct kv_store *s)
{
    return kv_round_up(kv_scaled_groups(s) * ROWS * sizeof(float), LINE);
}

static struct kv_scaled_query query_at(const struct kv_store *s,
                                       const void *query)
{
    char *const at = (char *)(uintptr_t)query;
    const size_t bytes = factors_bytes(s);

    return (struct kv_scaled_query){(float *)at, (int32_t *)(at + bytes),
                                    (int8_t *)(at + 2 * bytes)};
}

static size_t query8_bytes(const struct kv_store *s)
{
    return 2 * factors_bytes(s) + ROWS * kv_padded(s->head_dim);
}

static void prepare8(const struct kv_store *s, size_t head, const float *q,
                     size_t rows, void *query)
{
    const struct kv_scaled *c = kv_scaled_of(s);
    const struct kv_scaled_query to = query_at(s, query);
    const size_t d = s->head_dim, padded = kv_padded(c->group);
    float x[ROWS][KV_SCALED_MAX], unit[ROWS];
    int8_t code[ROWS][KV_SCALED_MAX];

    (void)head;
    memset(to.code, 0, rows * kv_padded(d));
    for (size_t r = 0; r < rows; r++) {
        memcpy(x[r], q + r * d, d * sizeof(*q));
        memset(x[r] + d, 0, (kv_padded(d) - d) * sizeof(*q));
    }
    for (size_t g = 0; g < kv_scaled_groups(s); g++) {
        const size_t first = g * c->group;

        kv_tile_loops()->round8(x[0] + first, KV_SCALED_MAX, rows, padded,
                                code[0], KV_SCALED_MAX, unit);
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

/* Sets scale [groups][64] to the numbers that values are multiplied with. */
static void scales_of(const struct kv_store *s, const uint8_t *tile,
                      float *scale)
{
    float of_part[KV_SCALED_SCALES];

    for (size_t part = 0; part < KV_SCALED_PARTS; part++) {
        loops()->scales(s, tile, part, of_part);
        for (size_t g = 0; g < kv_scaled_groups(s); g++)
            memcpy(scale + g * KV_TILE_TOKENS + part * KV_TILE_PART,
                   of_part + g * KV_TILE_PART, KV_TILE_PART * sizeof(*scale));
    }
}

static void qk8(const struct kv_store *s, size_t head, const uint8_t *tile,
                const void *query, size_t rows, float *score, size_t stride)
{
    float scale[MAX_SCALES];

    (void)head;
    scales_of(s, tile, scale);
    int8()->qk(s, tile, query_at(s, query), scale, rows, score, stride);
}

static void pv8(const struct kv_store *s, size_t head, const uint8_t *tile,
                const float *p, size_t stride, size_t rows, float *acc)
{
    const struct kv_scaled *c = kv_scaled_of(s);
    const struct kv_tile_loops *tiles = kv_tile_loops();
    float scale[MAX_SCALES], x[KV_TILE_ROWS * KV_TILE_TOKENS];
    struct kv_scaled_weights w[KV_SCALED_MAX / 16];

    (void)head;
    scales_of(s, tile, scale);
    for (size_t g = 0; g < kv_scaled_groups(s); g++) {
        tiles->mul(p, stride, rows, KV_TILE_TOKENS, scale + g * KV_TILE_TOKENS,
                   x);
        tiles->round8(x, KV_TILE_TOKENS, rows, KV_TILE_TOKENS, w[g].code[0],
                      KV_TILE_TOKENS, w[g].factor);
        for (size_t r = 0; r < rows; r++)
            w[g].factor[r] *= c->unit;
    }
    int8()->pv(s, tile, w, rows, acc);
}

/* ---- the table ----------------------------------------------------------- */

const struct kv_tile_ops *kv_scaled_ops(const struct kv_store *s,
                                        enum kv_path path)
{
    static const struct kv_tile_ops ops[KV_PATHS] = {
        [KV_PATH_EXACT] = {.query_bytes = kv_exact_query_bytes,
                           .prepare = kv_exact_prepare,
                           .qk = qk,
                           .acc_floats = kv_exact_acc_floats,
                           .pv = pv,
                           .finish = kv_exact_finish},
        [KV_PATH_INT8] = {.query_bytes = query8_bytes,
                          .prepare = prepare8,
                          .qk = qk8,
                          .acc_floats = kv_exact_acc_floats,
                          .pv = pv8,
                          .finish = kv_exact_finish},
    };

    if (path == KV_PATH_INT8 && kv_scaled_of(s)->bits > 4)
        return NULL;
    return &ops[path];
}
