/* The operations of family "transform" (tiles.h): a level's operations (impl.h)
 * between transforms of queries and of outputs. */
#include "kernels/gemm.h"
#include "kernels/level.h"
#include "kernels/tiles/impl.h"
#include "kernels/tiles/rope.h"
#include "kernels/transform/impl.h"

#include <stdlib.h>

enum { PART = KV_TILE_PART, LINE = KV_TILE_TOKENS };
_Static_assert(LINE == 2 * PART, "a tile has two parts");

static const struct kv_transform_ops *level_ops(void)
{
    static const struct kv_transform_ops *const versions[] =
        KV_VERSIONS(&kv_transform_c, &kv_transform_avx2, &kv_transform_avx2,
                    &kv_transform_vnni);

    return versions[kv_level_version()];
}

static const struct kv_transform_head *head_of(const struct kv_store *s,
                                               size_t head)
{
    return &kv_transform_of(s)->head[head];
}

/* Writes the queries' coefficients and their products with the mean to `to`
 * [rows][padded]. */
static void transform(const struct kv_store *s, size_t head, const float *q,
                      size_t rows, float *to)
{
    const struct kv_transform_head *h = head_of(s, head);

    memset(to, 0, rows * h->padded * sizeof(*to));
    kv_tile_loops()->add(KV_FLOAT_32, false, h->matrix, s->head_dim, h->padded,
                         q, s->head_dim, rows, to);
}

/* Transforms acc [rows][max], in units of the coefficients, to outputs. */
static void transform_back(const struct kv_store *s, size_t head,
                           const float *acc, size_t rows, float *out)
{
    const struct kv_transform_head *h = head_of(s, head);
    const size_t wide = kv_padded(s->head_dim);
    float *sum = kv_alloc(rows, wide * sizeof(*sum));

    kv_tile_loops()->add(KV_FLOAT_32, false, h->matrix, h->n + 1, wide, acc,
                         kv_transform_of(s)->max, rows, sum);
    for (size_t r = 0; r < rows; r++)
        memcpy(out + r * s->head_dim, sum + r * wide,
               s->head_dim * sizeof(*out));
    free(sum);
}

/* Rotates the channels x [head_dim][32] of a part's keys before RoPE and scores
 * them. */
static void qk_rotated(const struct kv_store *s, size_t head,
                       const uint8_t *tile, size_t part, float *x,
                       const float *q, size_t rows, float *score, size_t stride)
{
    kv_tiles_rope_rotate(kv_transform_of(s)->about.rope,
                         kv_store_position(s, head, tile) + part * PART, x);
    kv_tile_loops()->dot(KV_FLOAT_32, false, x, 1, s->head_dim, q, rows,
                         score + part * PART, stride);
}

/* The sum of n numbers, a power of two, `apart` floats apart. */
static float sum_lanes(const float *x, size_t n, size_t apart)
{
    float sum[16];

    for (size_t i = 0; i < n; i++)
        sum[i] = x[i * apart];
    for (; n > 1; n /= 2)
        for (size_t i = 0; i < n / 2; i++)
            sum[i] += sum[n / 2 + i];
    return sum[0];
}

/* ---- exact --------------------------------------------------------------- */

/* Transforms y [n + 1][32] to channels x [head_dim][32], for keys before
 * RoPE. */
static void channels(const struct kv_transform_head *h, size_t d,
                     const float *y, float *x)
{
    for (size_t i = 0; i < d; i += KV_TRANSFORM_CHANNELS)
        kv_tile_loops()->dot(
            KV_FLOAT_32, false, y, 1, h->n + 1, h->matrix + i * (h->n + 1),
            kv_min(d - i, KV_TRANSFORM_CHANNELS), x + i * PART, PART);
}

static size_t query_bytes(const struct kv_store *s)
{
    const struct kv_transform *c = kv_transform_of(s);
    const size_t n = c->about.rope ? s->head_dim : c->max;

    return n * KV_TILE_ROWS * sizeof(float);
}

/* query: [n + 1][rows], or before RoPE [head_dim][rows]. */
static void prepare(const struct kv_store *s, size_t head, const float *q,
                    size_t rows, void *query)
{
    const struct kv_transform_head *h = head_of(s, head);
    float *x, *to = query;

    if (kv_transform_of(s)->about.rope) {
        kv_exact_prepare(s, head, q, rows, query);
        return;
    }
    x = kv_alloc(rows, h->padded * sizeof(*x));
    transform(s, head, q, rows, x);
    for (size_t j = 0; j <= h->n; j++)
        for (size_t r = 0; r < rows; r++)
            *to++ = x[r * h->padded + j];
    free(x);
}

static void qk(const struct kv_store *s, size_t head, const uint8_t *tile,
               const void *query, size_t rows, float *score, size_t stride)
{
    _Alignas(64) float y[(KV_TRANSFORM_MAX + 1) * LINE];
    _Alignas(64) float x[KV_TRANSFORM_MAX * PART];
    const struct kv_transform_head *h = head_of(s, head);

    level_ops()->expand(h, tile, s->tile_bytes, y);
    for (size_t part = 0; part < 2; part++) {
        const float *const from = y + part * (h->n + 1) * PART;

        if (kv_transform_of(s)->about.rope) {
            channels(h, s->head_dim, from, x);
            qk_rotated(s, head, tile, part, x, query, rows, score, stride);
        } else {
            kv_tile_loops()->dot(KV_FLOAT_32, false, from, 1, h->n + 1, query,
                                 rows, score + part * PART, stride);
        }
    }
}

static size_t acc_floats(const struct kv_store *s)
{
    return kv_transform_of(s)->max * level_ops()->lanes;
}

static void pv(const struct kv_store *s, size_t head, const uint8_t *tile,
               const float *p, size_t stride, size_t rows, float *acc)
{
    level_ops()->pv(head_of(s, head), tile, s->tile_bytes, p, stride, rows, acc,
                    acc_floats(s));
}

static void finish(const struct kv_store *s, size_t head, const float *acc,
                   size_t rows, float *out)
{
    const size_t n = rows * kv_transform_of(s)->max, lanes = level_ops()->lanes;
    float *sum = kv_alloc(n, sizeof(*sum));

    for (size_t j = 0; j < n; j++)
        sum[j] = sum_lanes(acc + j * lanes, lanes, 1);
    transform_back(s, head, sum, rows, out);
    free(sum);
}

/* ---- int8 ---------------------------------------------------------------- */

static size_t query8_bytes(const struct kv_store *s)
{
    size_t bytes = 0;

    for (size_t h = 0; h < s->n_heads; h++)
        bytes = kv_max(bytes, kv_transform_query8_bytes(head_of(s, h)));
    return bytes;
}

static void prepare8(const struct kv_store *s, size_t head, const float *q,
                     size_t rows, void *query)
{
    const struct kv_transform_head *h = head_of(s, head);
    float *x = kv_alloc(rows, h->padded * sizeof(*x));

    transform(s, head, q, rows, x);
    for (size_t r = 0; r < rows; r++)
        kv_transform_round_row(h, x + r * h->padded, r, rows, query);
    free(x);
}

static void qk8(const struct kv_store *s, size_t head, const uint8_t *tile,
                const void *query, size_t rows, float *score, size_t stride)
{
    _Alignas(64) uint8_t code[KV_TRANSFORM_CODES];
    const struct kv_transform_ops *ops = level_ops();
    const struct kv_transform_head *h = head_of(s, head);

    ops->codes(h, tile, s->tile_bytes, code);
    ops->qk8(code, h->n, kv_transform_query8_at(query), rows, score,
             score + PART, stride);
}

static void find_angles(const struct kv_tiles_rope *rope, size_t position,
                        struct kv_transform_angles *a)
{
    a->within = kv_tiles_rope_within(rope);
    a->n = kv_tiles_rope_pairs(rope);
    for (size_t i = 0; i < 2; i++)
        kv_tiles_rope_first(rope, position + i * PART, a->cosine[i],
                            a->sine[i]);
}
_Static_assert(KV_ROPE_MAX <= KV_TRANSFORM_MAX / 2, "angles");

/* Keys before RoPE: channels by integers, rotated as floats. */
static void qk8_rotated(const struct kv_store *s, size_t head,
                        const uint8_t *tile, const void *query, size_t rows,
                        float *score, size_t stride)
{
    enum { SOME = KV_TRANSFORM_CHANNELS8 };
    _Alignas(64) uint8_t code[KV_TRANSFORM_CODES];
    _Alignas(64) float x[(KV_TRANSFORM_MAX + SOME) * LINE];
    const struct kv_transform_ops *ops = level_ops();
    const struct kv_transform_head *h = head_of(s, head);
    const size_t d = s->head_dim, groups = kv_transform_groups8(d);
    const size_t apart = (d + SOME) * PART; /* zeros behind channels too */

    ops->codes(h, tile, s->tile_bytes, code);
    if (ops->qk8_rotated) {
        struct kv_transform_angles angles;

        find_angles(kv_transform_of(s)->about.rope,
                    kv_store_position(s, head, tile), &angles);
        ops->qk8_rotated(h, d, code, &angles, query, rows, score, stride);
        return;
    }
    for (size_t i = 0; i < 2 * groups; i++) {
        float *to = x + (i / groups * (d / 2) + i % groups * SOME) * PART;

        ops->qk8(code, h->n,
                 kv_transform_query8_at(h->channel + i * h->channel_bytes),
                 SOME, to, to + apart, PART);
    }
    for (size_t part = 0; part < 2; part++)
        qk_rotated(s, head, tile, part, x + part * apart, query, rows, score,
                   stride);
}

static size_t acc8_floats(const struct kv_store *s)
{
    return kv_transform_of(s)->max * level_ops()->lanes8;
}

static float sum_of(const float *p)
{
    float sum[16];

    for (size_t i = 0; i < 16; i++)
        sum[i] = p[i] + p[16 + i] + p[32 + i] + p[48 + i];
    return sum_lanes(sum, 16, 1);
}

static void pv8(const struct kv_store *s, size_t head, const uint8_t *tile,
                const float *p, size_t stride, size_t rows, float *acc)
{
    _Alignas(64) uint8_t code[KV_TRANSFORM_CODES];
    _Alignas(64) int8_t weight[KV_TILE_ROWS * LINE];
    const struct kv_transform_ops *ops = level_ops();
    const struct kv_transform_head *h = head_of(s, head);
    const size_t row = kv_transform_of(s)->max * ops->lanes8;
    float scale[KV_TILE_ROWS];

    kv_tile_loops()->round8(p, stride, rows, LINE, weight, LINE, scale);
    ops->codes(h, tile, s->tile_bytes, code);
    ops->pv8(code, h->n, weight, scale, rows, acc, row);
    for (size_t r = 0; r < rows; r++)
        acc[r * row + h->n / 4 * 4 * ops->lanes8 + h->n % 4] +=
            sum_of(p + r * stride);
}

static void finish8(const struct kv_store *s, size_t head, const float *acc,
                    size_t rows, float *out)
{
    const struct kv_transform_head *h = head_of(s, head);
    const size_t max = kv_transform_of(s)->max, lanes = level_ops()->lanes8;
    float *sum = kv_alloc(rows, max * sizeof(*sum));

    for (size_t j = 0; j < rows * max; j++)
        sum[j] = sum_lanes(acc + j / 4 * 4 * lanes + j % 4, lanes, 4);
    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t r = 0; r < rows; r++)
            for (size_t j = 0; j < h->run[i].n; j++)
                sum[r * max + h->run[i].first + j] *= h->run[i].table->scale;
    transform_back(s, head, sum, rows, out);
    free(sum);
}

/* ---- the family ---------------------------------------------------------- */

static const struct kv_tile_ops *ops(const struct kv_store *s,
                                     enum kv_path path)
{
    static const struct kv_tile_ops exact = {.query_bytes = query_bytes,
                                             .prepare = prepare,
                                             .qk = qk,
                                             .acc_floats = acc_floats,
                                             .pv = pv,
                                             .finish = finish};
    static const struct kv_tile_ops int8 = {.query_bytes = query8_bytes,
                                            .prepare = prepare8,
                                            .qk = qk8,
                                            .acc_floats = acc8_floats,
                                            .pv = pv8,
                                            .finish = finish8};
    static const struct kv_tile_ops int8_rotated = {
        .query_bytes = query_bytes, .prepare = prepare, .qk = qk8_rotated};
    const struct kv_transform *c = kv_transform_of(s);

    if (path == KV_PATH_EXACT)
        return &exact;
    if (!c->about.int8 ||
        (c->about.rope && !kv_tiles_rope_halves(c->about.rope)))
        return NULL;
    return c->about.rope ? &int8_rotated : &int8;
}

/* Coefficients become channels. */
static void expand(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t part, float *x)
{
    _Alignas(64) float both[(KV_TRANSFORM_MAX + 1) * LINE];
    const struct kv_transform *c = kv_transform_of(s);
    const struct kv_transform_head *h = head_of(s, head);
    const size_t d = s->head_dim, wide = kv_padded(d);
    const float *const y = both + part * (h->n + 1) * PART;

    level_ops()->expand(h, tile, s->tile_bytes, both);
    if (c->about.values) {
        kv_gemm_a_trans(PART, wide, h->n + 1, 1, y, PART, h->matrix, wide, 0, x,
                        wide);
    } else if (!c->about.rope) {
        kv_gemm(false, d, PART, h->n + 1, 1, h->matrix, h->padded, y, PART, 0,
                x, PART);
    } else {
        channels(h, d, y, x);
        kv_tiles_rope_rotate(c->about.rope,
                             kv_store_position(s, head, tile) + part * PART, x);
    }
}

const struct kv_family kv_family_transform = {
    .name = "transform", .ops = ops, .expand = expand};
