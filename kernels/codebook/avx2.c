/* Path int8 with AVX2 (tiles_quads_avx2.h): a sub-vector is a quad, where d is
 * above 4 several, filled up with zeros; of d 1 and 2 a quad takes 4 and 2. */
#include "kernels/codebook/impl.h"
#include "kernels/simd/quads_avx2.h"

#include <stdbool.h>

enum {
    PART = KV_TILE_PART,
    ROWS = KV_QUAD_ROWS,
    MOST = 2 * KV_CODEBOOK_DIM + 3 * 16 /* numbers: d 9 takes 16; put_subs() */
};

/* Bytes of a sub-vector in quads. */
static size_t unit(const struct kv_codebook *b)
{
    return b->d <= 2 ? b->d : b->width;
}

static size_t n_quads(const struct kv_codebook *b)
{
    return (b->n_sub * unit(b) + KV_QUAD - 1) / KV_QUAD;
}

/* Of channel c among the numbers of all quads. */
static size_t place(const struct kv_codebook *b, size_t c)
{
    return c / b->d * unit(b) + c % b->d;
}

/* ---- entries --------------------------------------------------------------
 */

/* Where sub-vector i of token 0 stands. */
ALWAYS_INLINE uint8_t *sub_at(uint8_t *x, size_t i, size_t unit)
{
    return x + i * unit / KV_QUAD * KV_QUAD_LINE + i * unit % KV_QUAD;
}

/* One entry; unit is a constant, here and below. */
ALWAYS_INLINE void put(const uint8_t *table, size_t unit, size_t code,
                       uint8_t *x)
{
    const size_t some = unit < KV_QUAD ? unit : KV_QUAD;
    const uint8_t *entry = table + code * (unit < KV_QUAD ? KV_QUAD : unit);

    UNROLL
    for (size_t i = 0; i < unit; i += some)
        memcpy(x + i / KV_QUAD * KV_QUAD_LINE, entry + i, some);
}

/* A sub-vector of 64 tokens: four codes, a byte each, every `apart` bytes. */
ALWAYS_INLINE void put_tokens(const uint8_t *table, size_t unit,
                              const uint8_t *code, size_t apart, uint8_t *x)
{
    for (size_t t = 0; t < KV_TILE_TOKENS; t += 4, code += apart) {
        uint32_t four;

        memcpy(&four, code, sizeof(four));
        UNROLL
        for (size_t i = 0; i < 4; i++)
            put(table, unit, four >> 8 * i & 255, x + (t + i) * KV_QUAD);
    }
}

/* Shared keys: the codes of four sub-vectors, a byte each, token by token. */
ALWAYS_INLINE void put_subs(const uint8_t *table, size_t unit,
                            const uint8_t *code, size_t sub, uint8_t *x)
{
    uint8_t *to[4];

    UNROLL
    for (size_t i = 0; i < 4; i++)
        to[i] = sub_at(x, sub + i, unit);
    for (size_t t = 0; t < KV_TILE_TOKENS; t++) {
        uint32_t four;

        memcpy(&four, code + t * 4, sizeof(four));
        UNROLL
        for (size_t i = 0; i < 4; i++)
            put(table, unit, four >> 8 * i & 255, to[i] + t * KV_QUAD);
    }
}

/* A sub-vector of 32 tokens. */
ALWAYS_INLINE void put_wide(const uint8_t *table, size_t unit,
                            const uint16_t *code, uint8_t *x)
{
    for (size_t t = 0; t < PART; t += 4)
        UNROLL
    for (size_t i = 0; i < 4; i++)
        put(table, unit, code[t + i], x + (t + i) * KV_QUAD);
}

ALWAYS_INLINE void bytes(const struct kv_store *s, size_t head, size_t unit,
                         const uint8_t *tile, uint8_t *x)
{
    const struct kv_codebook *b = s->params;
    const bool shared = b->order == KV_ORDER_SHARED, keys = !s->values;
    const size_t step = shared && keys ? 4 : 1;

    for (size_t i = 0; i < b->n_sub; i += step) {
        const uint8_t *table =
            b->entry + kv_codebook_at(b, head, i) * b->k * b->width;

        if (!shared)
            put_tokens(table, unit, tile + i * KV_TILE_TOKENS, 4,
                       sub_at(x, i, unit));
        else if (keys)
            put_subs(table, unit, tile + i * KV_TILE_TOKENS, i, x);
        else
            put_tokens(table, unit,
                       tile + i / 16 * 16 * KV_TILE_TOKENS + i % 16 * 4, 64,
                       sub_at(x, i, unit));
    }
}

/* Codes of more than 8 bits. */
ALWAYS_INLINE void words(const struct kv_store *s, size_t head, size_t unit,
                         const uint8_t *tile, uint8_t *x)
{
    const struct kv_codebook *b = s->params;
    uint16_t code[KV_CODEBOOK_DIM * PART];

    for (size_t part = 0; part < KV_TILE_TOKENS / PART; part++) {
        const struct kv_codebook_part p =
            kv_store_get_codes(s, tile, part, code);

        for (size_t i = 0; i < b->n_sub; i++)
            put_wide(b->entry + kv_codebook_at(b, head, i) * b->k * b->width,
                     unit, code + kv_codebook_in_part(p, i, 0),
                     sub_at(x, i, unit) + part * PART * KV_QUAD);
    }
}

ALWAYS_INLINE void unit_entries(const struct kv_store *s, size_t head,
                                size_t unit, const uint8_t *tile, uint8_t *x)
{
    const struct kv_codebook *b = s->params;

    if (b->bits <= 8)
        bytes(s, head, unit, tile, x);
    else
        words(s, head, unit, tile, x);
}

/* The rounded entries that a tile stands for: x [quads][64][4], and room for
 * three sub-vectors more. */
static void entries(const struct kv_store *s, size_t head, const uint8_t *tile,
                    uint8_t *x)
{
    const struct kv_codebook *b = s->params;

    if (b->bits <= 4) {
        kv_codebook_few_entries_avx2(s, head, tile, unit(b), x);
        return;
    }
    if (b->n_sub * unit(b) % KV_QUAD)
        memset(x + (n_quads(b) - 1) * KV_QUAD_LINE, 0, KV_QUAD_LINE);
    switch (unit(b)) {
#define CASE(N)                            \
    case N:                                \
        unit_entries(s, head, N, tile, x); \
        break;
        CASE(1) CASE(2) CASE(4) CASE(8) CASE(16)
#undef CASE
    }
}

/* ---- products -------------------------------------------------------------
 */

/* The queries' codes as 16-bit numbers, [rows][quads][4]. */
static void widen(const struct kv_codebook *b,
                  const int8_t (*plain)[KV_CODEBOOK_DIM], size_t rows,
                  int16_t *q)
{
    const size_t n = n_quads(b) * KV_QUAD, d = b->n_sub * b->d;

    for (size_t r = 0; r < rows; r++, q += n) {
        if (b->d == unit(b)) { /* zeros after the last channel */
            kv_quad_widen(plain[r], (n + 15) / 16 * 16, q);
            continue;
        }
        memset(q, 0, n * sizeof(*q));
        for (size_t c = 0; c < d; c++)
            q[place(b, c)] = plain[r][c];
    }
}

void kv_codebook_qk_avx2(const struct kv_store *s, size_t head,
                         const uint8_t *tile, const void *query, size_t rows,
                         float *score, size_t stride)
{
    const struct kv_codebook *b = s->params;
    const struct kv_codebook_q8 *q = query;
    const size_t quads = n_quads(b);
    _Alignas(64) uint8_t x[MOST * KV_TILE_TOKENS];
    _Alignas(64) int16_t q16[ROWS * MOST];

    entries(s, head, tile, x);
    for (size_t r = 0; r < rows; r += ROWS, score += ROWS * stride) {
        const size_t n = rows - r < ROWS ? rows - r : ROWS;
        const struct kv_quad_rows by = {q16, KV_QUAD, quads * KV_QUAD};
        int32_t sum[ROWS][KV_TILE_TOKENS];

        widen(b, q->plain + r, n, q16);
        kv_quad_qk(x, quads, by, n, sum[0]);
        for (size_t i = 0; i < n; i++)
            for (size_t t = 0; t < KV_TILE_TOKENS; t++)
                score[i * stride + t] =
                    q->scale[r + i] * (float)(q->start[r + i] + sum[i][t]);
    }
}

size_t kv_codebook_sums_avx2(const struct kv_store *s)
{
    return n_quads(s->params) * KV_QUAD;
}

/* acc: [rows][quads][4].  rows is a constant. */
ALWAYS_INLINE void pv_some(const uint8_t *x, size_t quads,
                           const __m256i (*p)[8], const float *scale,
                           size_t rows, float *acc)
{
    for (size_t k = 0; k < quads; k++) {
        __m128i sum[ROWS];

        kv_quad_pv(x + k * KV_QUAD_LINE, 0, p, rows, sum);
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            float *at = acc + (r * quads + k) * KV_QUAD;

            _mm_storeu_ps(at, _mm_fmadd_ps(_mm_set1_ps(scale[r]),
                                           _mm_cvtepi32_ps(sum[r]),
                                           _mm_loadu_ps(at)));
        }
    }
}

void kv_codebook_pv_avx2(const struct kv_store *s, size_t head,
                         const uint8_t *tile, const float *p, size_t stride,
                         size_t rows, float *acc)
{
    const size_t quads = n_quads(s->params);
    _Alignas(64) uint8_t x[MOST * KV_TILE_TOKENS];

    entries(s, head, tile, x);
    for (size_t r = 0; r < rows;
         r += ROWS, p += ROWS * stride, acc += ROWS * quads * KV_QUAD) {
        const size_t n = rows - r < ROWS ? rows - r : ROWS;
        int8_t p8[ROWS][KV_TILE_TOKENS];
        float scale[ROWS];
        __m256i by[ROWS][8];

        kv_tile_loops_avx2.round8(p, stride, n, KV_TILE_TOKENS, p8[0],
                                  KV_TILE_TOKENS, scale);
        for (size_t i = 0; i < n; i++)
            kv_quad_weights(p8[i], by[i]);
#define SOME(R) pv_some(x, quads, by, scale, R, acc)
        KV_QUAD_CASES(n, SOME)
#undef SOME
    }
}

void kv_codebook_finish_avx2(const struct kv_store *s, size_t head,
                             const float *acc, size_t rows, float *out)
{
    const struct kv_codebook *b = s->params;
    const float *scale = kv_codebook_scales(b, head);

    for (size_t r = 0; r < rows; r++, acc += n_quads(b) * KV_QUAD)
        for (size_t c = 0; c < s->head_dim; c++)
            *out++ = acc[place(b, c)] * scale[c];
}
