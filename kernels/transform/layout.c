#include "kernels/gemm.h"
#include "kernels/level.h"
#include "kernels/tiles/impl.h"
#include "kernels/tiles/rope.h"
#include "kernels/transform/impl.h"
#include "lib/base/alloc.h"

#include <stdlib.h>
#include <string.h>

enum { PARTS = KV_TILE_TOKENS / KV_TILE_PART };

/* ---- stores -------------------------------------------------------------- */

void kv_store_transform(struct kv_store *s, const struct kv_transform *c)
{
    s->family = &kv_family_transform;
    s->params = c;
    s->together = 1;
    s->tile_bytes = (c->about.bitstream_bytes + 1) * KV_TILE_TOKENS;
}

void kv_store_put_bitstream(const struct kv_store *s, size_t t,
                            const uint8_t *bitstream, uint8_t *tile)
{
    for (size_t i = 0; i < kv_transform_of(s)->about.bitstream_bytes; i++)
        tile[(i + 1) * KV_TILE_TOKENS + kv_transform_at(t)] = bitstream[i];
}

static const struct kv_transform_loops *loops(void)
{
#ifdef __x86_64__
    if (kv_level_get() >= KV_LEVEL_AVX2)
        return &kv_transform_loops_avx2;
#endif
    return &kv_transform_loops_c;
}

/* ---- exact --------------------------------------------------------------- */

size_t kv_transform_query_bytes(const struct kv_store *s)
{
    const struct kv_transform *c = kv_transform_of(s);
    const size_t n = c->about.rope ? s->head_dim : c->most;

    return n * KV_TILE_ROWS * sizeof(float);
}

/* rotated: [rows][padded], the queries' coefficients and their product with the
 * mean. */
static void transform(const struct kv_store *s, size_t head, const float *q,
                      size_t rows, float *rotated)
{
    const struct kv_transform_head *h = &kv_transform_of(s)->head[head];

    memset(rotated, 0, rows * h->padded * sizeof(*rotated));
    kv_tile_loops()->add(KV_FLOAT_32, false, h->matrix, s->head_dim, h->padded,
                         q, s->head_dim, rows, rotated);
}

void kv_transform_prepare(const struct kv_store *s, size_t head, const float *q,
                          size_t rows, void *query)
{
    const struct kv_transform *c = kv_transform_of(s);
    const struct kv_transform_head *h = &c->head[head];
    float *rotated, *to = query;

    if (c->about.rope) {
        kv_exact_prepare(s, head, q, rows, query);
        return;
    }
    rotated = kv_alloc(rows, h->padded * sizeof(*rotated));
    transform(s, head, q, rows, rotated);
    for (size_t j = 0; j <= h->n; j++)
        for (size_t r = 0; r < rows; r++)
            to[j * rows + r] = rotated[r * h->padded + j];
    free(rotated);
}

static void rotate(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t part, float *x)
{
    kv_tiles_rope_rotate(kv_transform_of(s)->about.rope,
                         kv_store_position(s, head, tile) + part * KV_TILE_PART,
                         x);
}

void kv_transform_rotate(const struct kv_store *s, size_t head,
                         const uint8_t *tile, size_t part, float *x,
                         const float *q, size_t rows, float *score,
                         size_t stride)
{
    rotate(s, head, tile, part, x);
    kv_tile_loops()->dot(KV_FLOAT_32, false, x, 1, s->head_dim, q, rows, score,
                         stride);
}

/* Keys before RoPE: y [n + 1][32] to channels x [head_dim][32]. */
static void channels(const struct kv_transform_head *h, size_t d,
                     const float *y, float *x)
{
    for (size_t i = 0; i < d; i += KV_TRANSFORM_CHANNELS)
        kv_tile_loops()->dot(KV_FLOAT_32, false, y, 1, h->n + 1,
                             h->matrix + i * (h->n + 1),
                             kv_min(d - i, KV_TRANSFORM_CHANNELS),
                             x + i * KV_TILE_PART, KV_TILE_PART);
}

void kv_transform_qk_rotated(const struct kv_store *s, size_t head,
                             const uint8_t *tile, size_t part, const float *y,
                             const float *q, size_t rows, float *score,
                             size_t stride)
{
    _Alignas(64) float x[KV_TRANSFORM_MAX * KV_TILE_PART];

    channels(&kv_transform_of(s)->head[head], s->head_dim, y, x);
    kv_transform_rotate(s, head, tile, part, x, q, rows, score, stride);
}

static void qk(const struct kv_store *s, size_t head, const uint8_t *tile,
               const void *query, size_t rows, float *score, size_t stride)
{
    _Alignas(64) float y[(KV_TRANSFORM_MAX + 1) * KV_TILE_PART];
    const struct kv_transform *c = kv_transform_of(s);
    const struct kv_transform_head *h = &c->head[head];

    for (size_t i = 0; i < PARTS; i++) {
        float *at = score + i * KV_TILE_PART;

        loops()->expand(h, tile, i, KV_TILE_PART, 1, y);
        if (c->about.rope)
            kv_transform_qk_rotated(s, head, tile, i, y, query, rows, at,
                                    stride);
        else
            kv_tile_loops()->dot(KV_FLOAT_32, false, y, 1, h->n + 1, query,
                                 rows, at, stride);
    }
}

size_t kv_transform_acc_floats(const struct kv_store *s)
{
    return kv_transform_of(s)->most;
}

static void pv(const struct kv_store *s, size_t head, const uint8_t *tile,
               const float *p, size_t stride, size_t rows, float *acc)
{
    _Alignas(64) float y[KV_TILE_PART * (KV_TRANSFORM_MAX + KV_TRANSFORM_PAD)];
    const struct kv_transform *c = kv_transform_of(s);

    memset(y, 0, KV_TILE_PART * c->most * sizeof(*y));
    for (size_t i = 0; i < PARTS; i++) {
        loops()->expand(&c->head[head], tile, i, 1, c->most, y);
        kv_tile_loops()->add(KV_FLOAT_32, false, y, KV_TILE_PART, c->most,
                             p + i * KV_TILE_PART, stride, rows, acc);
    }
}

void kv_transform_finish(const struct kv_store *s, size_t head,
                         const float *acc, size_t rows, float *out)
{
    const struct kv_transform *c = kv_transform_of(s);
    const struct kv_transform_head *h = &c->head[head];
    const size_t wide = kv_padded(s->head_dim);
    float *sum = kv_alloc(rows, wide * sizeof(*sum));

    kv_tile_loops()->add(KV_FLOAT_32, false, h->matrix, h->n + 1, wide, acc,
                         c->most, rows, sum);
    for (size_t r = 0; r < rows; r++)
        memcpy(out + r * s->head_dim, sum + r * wide,
               s->head_dim * sizeof(*out));
    free(sum);
}

/* ---- int8 ---------------------------------------------------------------- */

size_t kv_transform_query8_size(const struct kv_transform_head *h)
{
    return 3 * KV_TRANSFORM_PER_ROW + (h->n4 * KV_TILE_ROWS + 63) / 64 * 64;
}

void kv_transform_round_row(const struct kv_transform_head *h,
                            const float *rotated, size_t r, size_t rows,
                            void *query)
{
    const struct kv_transform_query8 to = kv_transform_query8_at(query);
    float x[KV_TRANSFORM_MAX] = {0};
    int8_t code[KV_TRANSFORM_MAX];
    int32_t sum = 0;

    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = 0; j < h->run[i].n; j++)
            x[h->run[i].first + j] =
                rotated[h->run[i].first + j] * h->run[i].table->scale;
    kv_tile_loops()->round8(x, KV_TRANSFORM_MAX, 1, (h->n + 15) / 16 * 16, code,
                            KV_TRANSFORM_MAX, &to.factor[r]);
    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = 0; j < h->run[i].n; j++) {
            const size_t at = h->run[i].first4 + j;

            to.code[(at / 4 * rows + r) * 4 + at % 4] =
                code[h->run[i].first + j];
            sum += code[h->run[i].first + j];
        }
    to.bias[r] = -128 * sum;
    to.constant[r] = rotated[h->n];
}

size_t kv_transform_query8_bytes(const struct kv_store *s)
{
    const struct kv_transform *c = kv_transform_of(s);
    size_t most = 0;

    for (size_t h = 0; h < s->n_heads; h++) {
        const size_t bytes = kv_transform_query8_size(&c->head[h]);

        most = bytes > most ? bytes : most;
    }
    return most;
}

void kv_transform_prepare8(const struct kv_store *s, size_t head,
                           const float *q, size_t rows, void *query)
{
    const struct kv_transform_head *h = &kv_transform_of(s)->head[head];
    float *rotated = kv_alloc(rows, h->padded * sizeof(*rotated));

    transform(s, head, q, rows, rotated);
    memset(kv_transform_query8_at(query).code, 0,
           h->n4 * rows); /* between runs */
    for (size_t r = 0; r < rows; r++)
        kv_transform_round_row(h, rotated + r * h->padded, r, rows, query);
    free(rotated);
}

static void qk8(const struct kv_store *s, size_t head, const uint8_t *tile,
                const void *query, size_t rows, float *score, size_t stride)
{
    _Alignas(64) uint8_t x[KV_TRANSFORM_CODES];
    const struct kv_transform_head *h = &kv_transform_of(s)->head[head];

    loops()->codes(h, tile, x);
    loops()->dot(h, x, kv_transform_query8_at(query), rows, score, stride);
}

/* Keys before RoPE: channels in integers, which rotate as floats. */
static void qk8_rotated(const struct kv_store *s, size_t head,
                        const uint8_t *tile, const void *query, size_t rows,
                        float *score, size_t stride)
{
    _Alignas(64) uint8_t code[KV_TRANSFORM_CODES];
    _Alignas(64) float x[PARTS][KV_TRANSFORM_MAX * KV_TILE_PART];
    const struct kv_transform_head *h = &kv_transform_of(s)->head[head];
    float some[2 * KV_TRANSFORM_PAIRS][PARTS][KV_TILE_PART];
    const size_t d = s->head_dim;

    loops()->codes(h, tile, code);
    for (size_t i = 0; i * KV_TRANSFORM_PAIRS < d / 2; i++) {
        const size_t n = 2 * kv_transform_pairs(d, i);

        loops()->dot(h, code, kv_transform_channels8(h, i), n, some[0][0],
                     KV_TILE_TOKENS);
        for (size_t r = 0; r < n; r++)
            for (size_t part = 0; part < PARTS; part++)
                memcpy(x[part] + kv_transform_channel(d, i, r) * KV_TILE_PART,
                       some[r][part], sizeof(some[r][part]));
    }
    for (size_t part = 0; part < PARTS; part++)
        kv_transform_rotate(s, head, tile, part, x[part], query, rows,
                            score + part * KV_TILE_PART, stride);
}

static void weigh(const float *p, size_t stride, size_t rows,
                  struct kv_transform_weights *w)
{
    for (size_t r = 0; r < rows; r++, p += stride) {
        int8_t code[KV_TILE_TOKENS];
        float part[16];
        int32_t sum = 0;

        kv_tile_loops()->round8(p, stride, 1, KV_TILE_TOKENS, code,
                                KV_TILE_TOKENS, &w->factor[r]);
        for (size_t t = 0; t < KV_TILE_TOKENS; t += 4)
            memcpy(w->code[r] + kv_transform_at(t), code + t, 4);
        for (size_t t = 0; t < KV_TILE_TOKENS; t++)
            sum += code[t];
        w->bias[r] = -128 * sum;
        for (size_t i = 0; i < 16; i++)
            part[i] = (p[i] + p[16 + i]) + (p[32 + i] + p[48 + i]);
        for (size_t n = 8; n; n /= 2)
            for (size_t i = 0; i < n; i++)
                part[i] += part[n + i];
        w->sum[r] = part[0];
    }
}

static void pv8(const struct kv_store *s, size_t head, const uint8_t *tile,
                const float *p, size_t stride, size_t rows, float *acc)
{
    _Alignas(64) uint8_t x[KV_TRANSFORM_CODES];
    const struct kv_transform *c = kv_transform_of(s);
    const struct kv_transform_head *h = &c->head[head];
    struct kv_transform_weights w;

    weigh(p, stride, rows, &w);
    loops()->codes(h, tile, x);
    loops()->add(h, x, &w, rows, acc, c->most);
    for (size_t r = 0; r < rows; r++)
        acc[r * c->most + h->n] += w.sum[r];
}

void kv_transform_finish8(const struct kv_store *s, size_t head,
                          const float *acc, size_t rows, float *out)
{
    const struct kv_transform *c = kv_transform_of(s);
    const struct kv_transform_head *h = &c->head[head];
    float *x = kv_alloc(rows, c->most * sizeof(*x));

    memcpy(x, acc, rows * c->most * sizeof(*x));
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < h->n_runs; i++)
            for (size_t j = 0; j < h->run[i].n; j++)
                x[r * c->most + h->run[i].first + j] *= h->run[i].table->scale;
    kv_transform_finish(s, head, x, rows, out);
    free(x);
}

/* ---- the family ---------------------------------------------------------- */

static const struct kv_tile_ops *ops8(const struct kv_transform *c)
{
    static const struct kv_tile_ops plain = {
        .query_bytes = kv_transform_query8_bytes,
        .prepare = kv_transform_prepare8,
        .qk = qk8,
        .acc_floats = kv_transform_acc_floats,
        .pv = pv8,
        .finish = kv_transform_finish8};
    static const struct kv_tile_ops rotated = {.query_bytes =
                                                   kv_transform_query_bytes,
                                               .prepare = kv_transform_prepare,
                                               .qk = qk8_rotated};

    if (!c->about.int8)
        return NULL;
#ifdef __x86_64__
    if (kv_level_vnni())
        return c->about.rope ? &kv_transform_rotated8_vnni
                             : &kv_transform_int8_vnni;
#endif
    return c->about.rope ? &rotated : &plain;
}

static const struct kv_tile_ops *ops(const struct kv_store *s,
                                     enum kv_path path)
{
    static const struct kv_tile_ops exact = {
        .query_bytes = kv_transform_query_bytes,
        .prepare = kv_transform_prepare,
        .qk = qk,
        .acc_floats = kv_transform_acc_floats,
        .pv = pv,
        .finish = kv_transform_finish,
    };

    if (path == KV_PATH_INT8)
        return ops8(kv_transform_of(s));
#ifdef __x86_64__
    if (kv_level_vnni())
        return &kv_transform_exact_vnni;
#endif
    return &exact;
}

/* Coefficients become channels. */
static void expand_channels(const struct kv_store *s, size_t head,
                            const uint8_t *tile, size_t part, float *x)
{
    _Alignas(64) float room[PARTS * (KV_TRANSFORM_MAX + 1) * KV_TILE_PART];
    const struct kv_transform *c = kv_transform_of(s);
    const struct kv_transform_head *h = &c->head[head];
    const size_t d = s->head_dim, wide = kv_padded(d);
    float *y = room;

#ifdef __x86_64__
    if (kv_level_vnni()) {
        kv_transform_expand_vnni(s, head, tile, room);
        y = room + part * (h->n + 1) * KV_TILE_PART;
    } else
#endif
        loops()->expand(h, tile, part, KV_TILE_PART, 1, y);
    if (c->about.values) {
        kv_gemm_a_trans(KV_TILE_PART, wide, h->n + 1, 1, y, KV_TILE_PART,
                        h->matrix, wide, 0, x, wide);
    } else if (!c->about.rope) {
        kv_gemm(false, d, KV_TILE_PART, h->n + 1, 1, h->matrix, h->padded, y,
                KV_TILE_PART, 0, x, KV_TILE_PART);
    } else {
        channels(h, d, y, x);
        rotate(s, head, tile, part, x);
    }
}

const struct kv_family kv_family_transform = {
    .name = "transform", .ops = ops, .expand = expand_channels};
