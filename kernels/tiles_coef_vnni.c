/* With AVX512-VBMI a table of 128 bytes is one instruction, one of 1024 eight
 * and a choice by three bits: a gather costs ten times as much.  Floats are
 * looked up byte by byte. */
#include "kernels/tiles_coef_impl.h"
#include "kernels/tiles_impl.h"
#include "kernels/unroll.h"

#include <immintrin.h>
#include <string.h>

enum {
    LINE = KV_TILE_TOKENS,
    BLOCK = 16, /* coefficients at a time */
    TABLES = KV_TRELLIS_STATES / 128,
    ROWS = KV_TILE_ROWS
};

ALWAYS_INLINE __m512i line(const uint8_t *tile, const struct kv_coef_place *p,
                           size_t i)
{
    return _mm512_load_si512(tile + p->line[i]);
}

/* The low 7 bits of the state, and of bit 7 whatever.  shift: a constant. */
ALWAYS_INLINE __m512i low_bits(const uint8_t *tile,
                               const struct kv_coef_place *p, unsigned shift)
{
    const __m512i last = line(tile, p, 0);

    if (!shift)
        return last;
    return _mm512_ternarylogic_epi32(
        _mm512_set1_epi8((char)(0xff >> shift)), _mm512_srli_epi16(last, shift),
        _mm512_slli_epi16(line(tile, p, 1), 8 - shift), 0xca);
}

/* Which tokens have bit i of the state. */
ALWAYS_INLINE __mmask64 bit(const uint8_t *tile, const struct kv_coef_place *p,
                            unsigned i)
{
    return _mm512_test_epi8_mask(line(tile, p, i / 8),
                                 _mm512_set1_epi8((char)(1 << i % 8)));
}

/* The table at the state of each token; t: [KV_TRELLIS_STATES]. */
ALWAYS_INLINE __m512i look(const __m512i *t, const uint8_t *tile,
                           const struct kv_coef_place *p, unsigned shift)
{
    const __m512i low = low_bits(tile, p, shift);
    const __mmask64 b7 = bit(tile, p, shift + 7), b8 = bit(tile, p, shift + 8),
                    b9 = bit(tile, p, shift + 9);
    __m512i x[TABLES];

    UNROLL
    for (size_t j = 0; j < TABLES; j++)
        x[j] = _mm512_permutex2var_epi8(t[2 * j], low, t[2 * j + 1]);
    UNROLL
    for (size_t j = 0; j < TABLES / 2; j++)
        x[j] = _mm512_mask_blend_epi8(b7, x[2 * j], x[2 * j + 1]);
    UNROLL
    for (size_t j = 0; j < TABLES / 4; j++)
        x[j] = _mm512_mask_blend_epi8(b8, x[2 * j], x[2 * j + 1]);
    return _mm512_mask_blend_epi8(b9, x[0], x[1]);
}

/* The same where 7 bits count. */
ALWAYS_INLINE __m512i look_small(const __m512i *t, const uint8_t *tile,
                                 const struct kv_coef_place *p, unsigned shift)
{
    return _mm512_permutex2var_epi8(t[0], low_bits(tile, p, shift), t[1]);
}

/* Coefficients [from, to) of a run: out lines, `apart` bytes apart. */
#define LOOP(HOW, SHIFT)                                           \
    for (; i < to && i < run->shift[SHIFT + 1]; i++, out += apart) \
        _mm512_store_si512(out, HOW(t, tile, place + i, SHIFT));
#define LOOPS(HOW) \
    LOOP(HOW, 0)   \
    LOOP(HOW, 1)   \
    LOOP(HOW, 2)   \
    LOOP(HOW, 3) LOOP(HOW, 4) LOOP(HOW, 5) LOOP(HOW, 6) LOOP(HOW, 7)

static void look_up(const struct kv_coef_head *h, const struct kv_coef_run *run,
                    const uint8_t *table, const uint8_t *tile, size_t from,
                    size_t to, uint8_t *out, size_t apart)
{
    const struct kv_coef_place *place = h->place + run->first;
    __m512i t[2 * TABLES];
    size_t i = from;

    UNROLL
    for (size_t j = 0; j < 2 * TABLES; j++)
        t[j] = _mm512_load_si512(table + LINE * j);
    if (run->table->bits <= 7) {
        LOOPS(look_small)
    } else {
        LOOPS(look)
    }
}

/* Four lines of bytes to one of words of 32 bits for each 16 tokens. */
ALWAYS_INLINE void weave(const uint8_t *from, __m512i out[4])
{
    const __m512i a = _mm512_load_si512(from);
    const __m512i b = _mm512_load_si512(from + LINE);
    const __m512i c = _mm512_load_si512(from + 2 * LINE);
    const __m512i d = _mm512_load_si512(from + 3 * LINE);
    const __m512i ab0 = _mm512_unpacklo_epi8(a, b);
    const __m512i ab1 = _mm512_unpackhi_epi8(a, b);
    const __m512i cd0 = _mm512_unpacklo_epi8(c, d);
    const __m512i cd1 = _mm512_unpackhi_epi8(c, d);

    out[0] = _mm512_unpacklo_epi16(ab0, cd0);
    out[1] = _mm512_unpackhi_epi16(ab0, cd0);
    out[2] = _mm512_unpacklo_epi16(ab1, cd1);
    out[3] = _mm512_unpackhi_epi16(ab1, cd1);
}

/* Each head its part of a tile that all of them will read soon. */
static void fetch(const struct kv_store *s, size_t head, const uint8_t *tile)
{
    enum { TILES_AHEAD = 4 };
    const uint8_t *next = tile + TILES_AHEAD * s->tile_bytes;

    for (size_t i = s->tile_bytes * head / s->n_heads;
         i < s->tile_bytes * (head + 1) / s->n_heads; i += LINE)
        __builtin_prefetch(next + i, 0, 2);
}

/* ---- exact --------------------------------------------------------------- */

/* n <= BLOCK coefficients of a run from the i-th on: planes [n][4] lines. */
static void planes_of(const struct kv_coef_head *h,
                      const struct kv_coef_run *run, size_t i, size_t n,
                      const uint8_t *tile, uint8_t *planes)
{
    for (size_t b = 0; b < 4; b++)
        look_up(h, run, run->table->plane[b], tile, i, i + n, planes + b * LINE,
                4 * LINE);
}

static size_t block_of(const struct kv_coef_run *run, size_t i)
{
    return run->n - i < BLOCK ? run->n - i : BLOCK;
}

/* y: [2][n + 1][32]. */
static void expand(const struct kv_coef_head *h, const uint8_t *tile, float *y)
{
    _Alignas(LINE) uint8_t planes[BLOCK * 4 * LINE];
    float *const second = y + (h->n + 1) * KV_TILE_PART;

    for (size_t r = 0; r < h->n_runs; r++)
        for (size_t i = 0; i < h->run[r].n; i += BLOCK) {
            const size_t n = block_of(&h->run[r], i);

            planes_of(h, &h->run[r], i, n, tile, planes);
            for (size_t j = 0; j < n; j++) {
                const size_t at = (h->run[r].first + i + j) * KV_TILE_PART;
                __m512i x[4];

                weave(planes + j * 4 * LINE, x);
                _mm512_store_si512(y + at, x[0]);
                _mm512_store_si512(y + at + 16, x[1]);
                _mm512_store_si512(second + at, x[2]);
                _mm512_store_si512(second + at + 16, x[3]);
            }
        }
    for (size_t t = 0; t < KV_TILE_PART; t++)
        y[h->n * KV_TILE_PART + t] = second[h->n * KV_TILE_PART + t] = 1;
}

static void scores(const struct kv_store *s, size_t head, const uint8_t *tile,
                   const void *query, size_t rows, float *score, size_t stride)
{
    _Alignas(LINE) float y[2 * (KV_COEF_MOST + 1) * KV_TILE_PART];
    const struct kv_coefs *c = kv_coefs_of(s);
    const struct kv_coef_head *h = &c->head[head];

    fetch(s, head, tile);
    expand(h, tile, y);
    for (size_t i = 0; i < 2; i++) {
        const float *part = y + i * (h->n + 1) * KV_TILE_PART;
        float *at = score + i * KV_TILE_PART;

        if (c->about.rope)
            kv_coef_turned(s, head, tile, i, part, query, rows, at, stride);
        else
            kv_tile_loops()->dot(KV_FLOAT_32, part, h->n + 1, query, rows, at,
                                 stride);
    }
}

/* acc: [rows][most][16], of which lane l is the sum over tokens l, l + 16, ..*/
static size_t acc_floats(const struct kv_store *s)
{
    return kv_coefs_of(s)->most * 16;
}

ALWAYS_INLINE void add_rows(const uint8_t *planes, size_t n, size_t rows,
                            const float *p, size_t stride, float *acc,
                            size_t row)
{
    __m512 w[ROWS][4];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < 4; k++)
        w[r][k] = _mm512_loadu_ps(p + r * stride + 16 * k);
    for (size_t j = 0; j < n; j++) {
        __m512i x[4];

        weave(planes + j * 4 * LINE, x);
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            float *at = acc + r * row + j * 16;
            __m512 sum = _mm512_load_ps(at);

            UNROLL
            for (size_t k = 0; k < 4; k++)
                sum = _mm512_fmadd_ps(w[r][k], _mm512_castsi512_ps(x[k]), sum);
            _mm512_store_ps(at, sum);
        }
    }
}

static void add(const uint8_t *planes, size_t n, size_t rows, const float *p,
                size_t stride, float *acc, size_t row)
{
    switch (rows) {
#define CASE(R)                                      \
    case R:                                          \
        add_rows(planes, n, R, p, stride, acc, row); \
        break;
#define EVERY_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
        EVERY_ROWS(CASE)
#undef CASE
    }
}

static void gather(const struct kv_store *s, size_t head, const uint8_t *tile,
                   const float *p, size_t stride, size_t rows, float *acc)
{
    _Alignas(LINE) uint8_t planes[BLOCK * 4 * LINE];
    const struct kv_coef_head *h = &kv_coefs_of(s)->head[head];
    const size_t row = acc_floats(s);

    fetch(s, head, tile);
    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = 0; j < h->run[i].n; j += BLOCK) {
            const size_t n = block_of(&h->run[i], j);

            planes_of(h, &h->run[i], j, n, tile, planes);
            add(planes, n, rows, p, stride, acc + (h->run[i].first + j) * 16,
                row);
        }
    for (size_t r = 0; r < rows; r++) {
        float *at = acc + r * row + h->n * 16;
        __m512 sum = _mm512_load_ps(at);

        for (size_t k = 0; k < 4; k++)
            sum = _mm512_add_ps(sum, _mm512_loadu_ps(p + r * stride + 16 * k));
        _mm512_store_ps(at, sum);
    }
}

static void finish(const struct kv_store *s, size_t head, const float *acc,
                   size_t rows, float *out)
{
    float y[ROWS * (KV_COEF_MOST + KV_COEF_ONE)];
    const size_t most = kv_coefs_of(s)->most;

    for (size_t i = 0; i < rows * most; i++)
        y[i] = _mm512_reduce_add_ps(_mm512_load_ps(acc + i * 16));
    kv_coef_finish(s, head, y, rows, out);
}

/* ---- int8 ---------------------------------------------------------------- */

/* Tokens of lines [k, k + wide) of a run's codes; sums in integers. */
ALWAYS_INLINE void dot8_some(const uint8_t *codes, size_t n4, size_t rows,
                             size_t k, size_t wide, const int8_t *q,
                             const float *factor, const int32_t *bias,
                             float *score, size_t stride)
{
    __m512i sum[ROWS][4];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t i = 0; i < wide; i++)
        sum[r][i] = _mm512_set1_epi32(bias[r]);
    for (size_t j = 0; j < n4; j += 4) {
        __m512i x[4];

        weave(codes + j * LINE, x);
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            int32_t four;

            memcpy(&four, q + (j / 4 * rows + r) * 4, 4);
            UNROLL
            for (size_t i = 0; i < wide; i++)
                sum[r][i] = _mm512_dpbusd_epi32(sum[r][i], x[k + i],
                                                _mm512_set1_epi32(four));
        }
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t i = 0; i < wide; i++) {
        float *at = score + r * stride + (k + i) * 16;
        const __m512 add = _mm512_mul_ps(_mm512_set1_ps(factor[r]),
                                         _mm512_cvtepi32_ps(sum[r][i]));

        _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), add));
    }
}

ALWAYS_INLINE void dot8_rows(const uint8_t *codes, size_t n4, size_t rows,
                             const int8_t *q, const float *factor,
                             const int32_t *bias, float *score, size_t stride)
{
    const size_t wide = rows <= 6 ? 4 : 2; /* of 32 registers */

    for (size_t k = 0; k < 4; k += wide)
        dot8_some(codes, n4, rows, k, wide, q, factor, bias, score, stride);
}

static void dot8(const uint8_t *codes, size_t n4, size_t rows, const int8_t *q,
                 const float *factor, const int32_t *bias, float *score,
                 size_t stride)
{
    switch (rows) {
#define CASE(R)                                                  \
    case R:                                                      \
        dot8_rows(codes, n4, R, q, factor, bias, score, stride); \
        break;
        EVERY_ROWS(CASE)
#undef CASE
    }
}

static void scores8(const struct kv_store *s, size_t head, const uint8_t *tile,
                    const void *query, size_t rows, float *score, size_t stride)
{
    _Alignas(LINE) uint8_t codes[KV_COEF_MOST * LINE];
    const struct kv_coef_head *h = &kv_coefs_of(s)->head[head];
    const struct kv_coef_query8 q = kv_coef_query8_at(h, query);

    fetch(s, head, tile);
    for (size_t r = 0; r < rows; r++)
        for (size_t k = 0; k < 4; k++)
            _mm512_storeu_ps(score + r * stride + 16 * k,
                             _mm512_set1_ps(q.constant[r]));
    for (size_t i = 0; i < h->n_runs; i++) {
        const struct kv_coef_run *run = &h->run[i];
        const size_t n4 = (run->n + KV_COEF_FOUR - 1) / KV_COEF_FOUR * 4;

        look_up(h, run, run->table->code, tile, 0, run->n, codes, LINE);
        memset(codes + run->n * LINE, 0, (n4 - run->n) * LINE);
        dot8(codes, n4, rows, q.code + run->first4 * rows, q.factor + i * ROWS,
             q.bias + i * ROWS, score, stride);
    }
}

/* from [16] lines: to [16][16 lines][4]: words of 32 bits, turned over. */
static void turn_over(const uint8_t *from, uint8_t *to)
{
    __m512i a[BLOCK], b[BLOCK];

    for (size_t i = 0; i < BLOCK; i++)
        a[i] = _mm512_load_si512(from + i * LINE);
    UNROLL
    for (size_t i = 0; i < BLOCK; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    UNROLL
    for (size_t i = 0; i < BLOCK; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    UNROLL
    for (size_t i = 0; i < 4;
         i++) { /* word 4 l + i of lines 4 j .. in lane l */
        const __m512i lo0 = _mm512_shuffle_i32x4(a[i], a[4 + i], 0x88);
        const __m512i hi0 = _mm512_shuffle_i32x4(a[i], a[4 + i], 0xdd);
        const __m512i lo1 = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0x88);
        const __m512i hi1 = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0xdd);

        _mm512_store_si512(to + i * LINE, _mm512_shuffle_i32x4(lo0, lo1, 0x88));
        _mm512_store_si512(to + (8 + i) * LINE,
                           _mm512_shuffle_i32x4(lo0, lo1, 0xdd));
        _mm512_store_si512(to + (4 + i) * LINE,
                           _mm512_shuffle_i32x4(hi0, hi1, 0x88));
        _mm512_store_si512(to + (12 + i) * LINE,
                           _mm512_shuffle_i32x4(hi0, hi1, 0xdd));
    }
}

ALWAYS_INLINE void add8_rows(const uint8_t *turned, size_t rows,
                             const struct kv_coef_weights *w, float *acc,
                             size_t row)
{
    __m512i sum[ROWS];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        sum[r] = _mm512_set1_epi32(w->bias[r]);
    for (size_t g = 0; g < LINE / 4; g++) {
        const __m512i x = _mm512_load_si512(turned + g * LINE);

        UNROLL
        for (size_t r = 0; r < rows; r++) {
            int32_t four;

            memcpy(&four, w->code[r] + 4 * g, 4);
            sum[r] = _mm512_dpbusd_epi32(sum[r], x, _mm512_set1_epi32(four));
        }
    }
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        const __m512 add = _mm512_mul_ps(_mm512_set1_ps(w->factor[r]),
                                         _mm512_cvtepi32_ps(sum[r]));

        _mm512_storeu_ps(acc + r * row,
                         _mm512_add_ps(_mm512_loadu_ps(acc + r * row), add));
    }
}

static void add8(const uint8_t *turned, size_t rows,
                 const struct kv_coef_weights *w, float *acc, size_t row)
{
    switch (rows) {
#define CASE(R)                            \
    case R:                                \
        add8_rows(turned, R, w, acc, row); \
        break;
        EVERY_ROWS(CASE)
#undef CASE
    }
}

/* Where lines end and a block does not, codes are those of 0. */
static void gather8(const struct kv_store *s, size_t head, const uint8_t *tile,
                    const float *p, size_t stride, size_t rows, float *acc)
{
    _Alignas(LINE) uint8_t codes[(KV_COEF_MOST + BLOCK) * LINE];
    _Alignas(LINE) uint8_t turned[BLOCK * LINE];
    const struct kv_coefs *c = kv_coefs_of(s);
    const struct kv_coef_head *h = &c->head[head];
    struct kv_coef_weights w;

    fetch(s, head, tile);
    kv_coef_weigh(p, stride, rows, &w);
    for (size_t i = 0; i < h->n_runs; i++) {
        const struct kv_coef_run *run = &h->run[i];

        look_up(h, run, run->table->code, tile, 0, run->n,
                codes + run->first * LINE, LINE);
    }
    memset(codes + h->n * LINE, 128, BLOCK * LINE);
    for (size_t j = 0; j < h->n; j += BLOCK) {
        turn_over(codes + j * LINE, turned);
        add8(turned, rows, &w, acc + j, c->most);
    }
    for (size_t r = 0; r < rows; r++)
        acc[r * c->most + h->n] += w.sum[r];
}

const struct kv_tile_ops kv_coef_exact_vnni = {
    .query_bytes = kv_coef_query_bytes,
    .prepare = kv_coef_prepare,
    .scores = scores,
    .acc_floats = acc_floats,
    .gather = gather,
    .finish = finish,
};

const struct kv_tile_ops kv_coef_int8_vnni = {
    .query_bytes = kv_coef_query8_bytes,
    .prepare = kv_coef_prepare8,
    .scores = scores8,
    .acc_floats = kv_coef_acc_floats,
    .gather = gather8,
    .finish = kv_coef_finish8,
};
