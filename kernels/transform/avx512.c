/* AVX-512 with VBMI, VNNI and GFNI: entries of states by bit matrices, bytes of
 * entries by permutations, products of bytes four to a sum. */
#define V_VNNI
#include "kernels/simd/avx512.h"
#include "kernels/transform/impl.h"

enum {
    LINE = KV_TILE_TOKENS,
    PART = KV_TILE_PART,
    ROWS = KV_TILE_ROWS,
    TILES_AHEAD = 4 /* distance of prefetching */
};

#define EVERY_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
_Static_assert(ROWS == 8, "EVERY_ROWS");

/* The type of sums of dpbusd: with __m512i gcc copies them. */
typedef int32_t v16i __attribute__((vector_size(64)));

/* ---- look-ups ------------------------------------------------------------ */

/* The entries of a tile's tokens, a byte each.  Also prefetches a later tile's
 * bytes at this place, so that the prefetches come one by one, as memory likes
 * it. */
ALWAYS_INLINE __m512i entries_of(const struct kv_transform_table *t,
                                 struct kv_transform_place p,
                                 const uint8_t *tile, size_t tile_bytes)
{
    const __m512i last = _mm512_load_si512(tile + p.line);
    const __m512i before = _mm512_load_si512(tile + p.line - LINE);

    __builtin_prefetch(tile + TILES_AHEAD * tile_bytes + p.line, 0, 2);
    return _mm512_xor_si512(
        _mm512_gf2p8affine_epi64_epi8(
            last, _mm512_set1_epi64((int64_t)t->last[p.shift]), 0),
        _mm512_gf2p8affine_epi64_epi8(
            before, _mm512_set1_epi64((int64_t)t->before[p.shift]), 0));
}

/* Loads 128 or (wide) 256 bytes of a table. */
ALWAYS_INLINE void load_bytes(const uint8_t *from, bool wide, __m512i t[4])
{
    const size_t lines = wide ? 4 : 2;

    UNROLL
    for (size_t i = 0; i < lines; i++)
        t[i] = _mm512_load_si512(from + i * LINE);
}
_Static_assert(KV_TRELLIS_ENTRIES == 4 * LINE, "four lines of a table");

/* Looks up the entries' bytes; a gather instruction would cost far more. */
ALWAYS_INLINE __m512i look(const __m512i *t, __m512i entry, bool wide)
{
    const __m512i x = _mm512_permutex2var_epi8(t[0], entry, t[1]);

    if (!wide)
        return x;
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(entry), x,
                                  _mm512_permutex2var_epi8(t[2], entry, t[3]));
}

/* Loads four lines; v_interleave4_i8() makes them words of 32 bits, 16 tokens
 * each. */
ALWAYS_INLINE void load_lines(const uint8_t *from, __m512i x[4])
{
    UNROLL
    for (size_t i = 0; i < 4; i++)
        x[i] = _mm512_load_si512(from + i * LINE);
}

/* ---- exact --------------------------------------------------------------- */

/* Looks up n coefficients of a table, `apart` floats apart: writes the first 32
 * tokens to y, the others to second.  Floats are looked up byte by byte.  wide:
 * a constant.
 */
ALWAYS_INLINE void expand_some(const struct kv_transform_table *table,
                               const struct kv_transform_place *place, size_t n,
                               const uint8_t *tile, size_t tile_bytes, float *y,
                               float *second, size_t apart, bool wide)
{
    __m512i t[4][4];

    UNROLL
    for (size_t b = 0; b < 4; b++)
        load_bytes(table->plane[b], wide, t[b]);
    for (size_t j = 0; j < n; j++, y += apart, second += apart) {
        const __m512i entry = entries_of(table, place[j], tile, tile_bytes);
        const __m512i byte[4] = {
            look(t[0], entry, wide), look(t[1], entry, wide),
            look(t[2], entry, wide), look(t[3], entry, wide)};
        __m512i x[4];

        v_interleave4_i8(byte, x);
        _mm512_store_si512(y, x[0]);
        _mm512_store_si512(y + 16, x[1]);
        _mm512_store_si512(second, x[2]);
        _mm512_store_si512(second + 16, x[3]);
    }
}

static void expand_run(const struct kv_transform_table *table,
                       const struct kv_transform_place *place, size_t n,
                       const uint8_t *tile, size_t tile_bytes, float *y,
                       float *second, size_t apart)
{
    if (table->map->bits > 7)
        expand_some(table, place, n, tile, tile_bytes, y, second, apart, true);
    else
        expand_some(table, place, n, tile, tile_bytes, y, second, apart, false);
}

static void expand(const struct kv_transform_head *h, const uint8_t *tile,
                   size_t tile_bytes, float *y)
{
    float *second = y + (h->n + 1) * PART;

    for (size_t i = 0; i < h->n_runs; i++) {
        const struct kv_transform_run *run = &h->run[i];

        expand_run(run->table, h->place + run->first, run->n, tile, tile_bytes,
                   y, second, PART);
        y += run->n * PART;
        second += run->n * PART;
    }
    for (size_t t = 0; t < PART; t++)
        y[t] = second[t] = 1;
}

/* y: [n][64] */
ALWAYS_INLINE void pv_rows(const float *y, size_t n, size_t rows,
                           const float *p, size_t stride, float *acc,
                           size_t row)
{
    __m512 w[ROWS][4];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < 4; k++)
        w[r][k] = _mm512_loadu_ps(p + r * stride + 16 * k);
    for (size_t j = 0; j < n; j++, y += LINE)
        UNROLL
    for (size_t r = 0; r < rows; r++) {
        float *at = acc + r * row + j * 16;
        __m512 sum = _mm512_load_ps(at);

        UNROLL
        for (size_t k = 0; k < 4; k++)
            sum = _mm512_fmadd_ps(w[r][k], _mm512_load_ps(y + 16 * k), sum);
        _mm512_store_ps(at, sum);
    }
}

static void pv_some(const float *y, size_t n, const float *p, size_t stride,
                    size_t rows, float *acc, size_t row)
{
    switch (rows) {
#define CASE(R)                                \
    case R:                                    \
        pv_rows(y, n, R, p, stride, acc, row); \
        break;
        EVERY_ROWS(CASE)
#undef CASE
    }
}

static void pv(const struct kv_transform_head *h, const uint8_t *tile,
               size_t tile_bytes, const float *p, size_t stride, size_t rows,
               float *acc, size_t row)
{
    enum { BLOCK = 16 }; /* coefficients at a time */
    _Alignas(LINE) float y[BLOCK * LINE];

    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = 0; j < h->run[i].n; j += BLOCK) {
            const size_t n = kv_min(h->run[i].n - j, BLOCK);

            expand_run(h->run[i].table, h->place + h->run[i].first + j, n, tile,
                       tile_bytes, y, y + PART, LINE);
            pv_some(y, n, p, stride, rows, acc + (h->run[i].first + j) * 16,
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

/* ---- int8 ---------------------------------------------------------------- */

/* wide: a constant. */
ALWAYS_INLINE void codes_some(const struct kv_transform_run *run,
                              const struct kv_transform_place *place,
                              const uint8_t *tile, size_t tile_bytes,
                              uint8_t *code, bool wide)
{
    __m512i t[4];

    load_bytes(run->table->code, wide, t);
    for (size_t j = run->first; j < run->first + run->n; j++)
        _mm512_store_si512(
            code + j * LINE,
            look(t, entries_of(run->table, place[j], tile, tile_bytes), wide));
}

/* code: a line for each coefficient. */
static void codes(const struct kv_transform_head *h, const uint8_t *tile,
                  size_t tile_bytes, uint8_t *code)
{
    for (size_t i = 0; i < h->n_runs; i++)
        if (h->run[i].table->map->bits > 7)
            codes_some(&h->run[i], h->place, tile, tile_bytes, code, true);
        else
            codes_some(&h->run[i], h->place, tile, tile_bytes, code, false);
    memset(code + h->n * LINE, 128, (kv_round_up(h->n, 4) - h->n) * LINE);
}

/* Scores tokens 16 first to 16 (first + n) - 1.  rows, n: constants. */
ALWAYS_INLINE void qk8_some(const uint8_t *code, size_t n_codes,
                            struct kv_transform_query8 q, size_t rows,
                            size_t first, size_t n, float *score, float *second,
                            size_t stride)
{
    v16i sum[ROWS][4];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t i = 0; i < n; i++)
        sum[r][i] = (v16i)_mm512_set1_epi32(q.bias[r]);
    for (size_t j = 0; j < n_codes; j += 4) {
        __m512i line[4], x[4];

        load_lines(code + j * LINE, line);
        v_interleave4_i8(line, x);
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            int32_t four;

            memcpy(&four, q.code + (j / 4 * rows + r) * 4, 4);
            UNROLL
            for (size_t i = 0; i < n; i++)
                sum[r][i] = (v16i)v_dot_i8((__m512i)sum[r][i], x[first + i],
                                           _mm512_set1_epi32(four));
        }
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t i = 0; i < n; i++)
        _mm512_storeu_ps((first + i < 2 ? score : second) + r * stride +
                             (first + i) % 2 * 16,
                         _mm512_fmadd_ps(_mm512_set1_ps(q.scale[r]),
                                         _mm512_cvtepi32_ps((__m512i)sum[r][i]),
                                         _mm512_set1_ps(q.constant[r])));
}

/* rows: a constant. */
ALWAYS_INLINE void qk8_rows(const uint8_t *code, size_t n,
                            struct kv_transform_query8 q, size_t rows,
                            float *score, float *second, size_t stride)
{
    if (rows <= 6) { /* sums fit in 32 registers */
        qk8_some(code, n, q, rows, 0, 4, score, second, stride);
    } else {
        qk8_some(code, n, q, rows, 0, 2, score, second, stride);
        qk8_some(code, n, q, rows, 2, 2, score, second, stride);
    }
}

static void qk8(const uint8_t *code, size_t n, struct kv_transform_query8 q,
                size_t rows, float *score, float *second, size_t stride)
{
    switch (rows) {
#define CASE(R)                                         \
    case R:                                             \
        qk8_rows(code, n, q, R, score, second, stride); \
        break;
        EVERY_ROWS(CASE)
#undef CASE
    }
}

/* ---- int8, keys before RoPE ---------------------------------------------- */

enum { PAIRS = KV_TRANSFORM_CHANNELS8 };

/* Computes channels of 32 tokens, whose codes are every other two lines: q[0]
 * for the first of each pair, q[1] for the second; x [2][pair][i], of tokens
 * from 16 i on. */
ALWAYS_INLINE void channels8(const uint8_t *code, size_t n,
                             const struct kv_transform_query8 q[2],
                             __m512 x[2][PAIRS][2])
{
    v16i sum[2][PAIRS][2];

    UNROLL
    for (size_t k = 0; k < 2 * PAIRS; k++)
        sum[k / PAIRS][k % PAIRS][0] = sum[k / PAIRS][k % PAIRS][1] =
            (v16i)_mm512_set1_epi32(q[k / PAIRS].bias[k % PAIRS]);
    for (size_t j = 0; j < n; j += 4, code += 4 * LINE) {
        const __m512i y[2] = {_mm512_load_si512(code),
                              _mm512_load_si512(code + LINE)};

        UNROLL
        for (size_t k = 0; k < 2 * PAIRS; k++) {
            int32_t four;

            memcpy(&four, q[k / PAIRS].code + j * PAIRS + k % PAIRS * 4, 4);
            UNROLL
            for (size_t i = 0; i < 2; i++)
                sum[k / PAIRS][k % PAIRS][i] =
                    (v16i)v_dot_i8((__m512i)sum[k / PAIRS][k % PAIRS][i], y[i],
                                   _mm512_set1_epi32(four));
        }
    }
    UNROLL
    for (size_t k = 0; k < 2 * PAIRS; k++)
        UNROLL
    for (size_t i = 0; i < 2; i++)
        x[k / PAIRS][k % PAIRS][i] = _mm512_fmadd_ps(
            _mm512_set1_ps(q[k / PAIRS].scale[k % PAIRS]),
            _mm512_cvtepi32_ps((__m512i)sum[k / PAIRS][k % PAIRS][i]),
            _mm512_set1_ps(q[k / PAIRS].constant[k % PAIRS]));
}

/* Rotates a pair of channels of 16 tokens, from 32 part + 16 i on. */
ALWAYS_INLINE void rotate(const struct kv_transform_angles *a, size_t pair,
                          size_t part, size_t i, __m512 *low, __m512 *high)
{
    const float *within = a->within + pair * LINE + 16 * i;
    const __m512 c = _mm512_set1_ps(a->cosine[part][pair]);
    const __m512 s = _mm512_set1_ps(a->sine[part][pair]);
    const __m512 ct = _mm512_load_ps(within);
    const __m512 st = _mm512_load_ps(within + LINE / 2);
    const __m512 cosine = _mm512_fmsub_ps(c, ct, _mm512_mul_ps(s, st));
    const __m512 sine = _mm512_fmadd_ps(s, ct, _mm512_mul_ps(c, st));
    const __m512 x = *low, y = *high;

    *low = _mm512_fmsub_ps(x, cosine, _mm512_mul_ps(y, sine));
    *high = _mm512_fmadd_ps(y, cosine, _mm512_mul_ps(x, sine));
}

static void qk8_rotated(const struct kv_transform_head *h, size_t head_dim,
                        uint8_t *code, const struct kv_transform_angles *angles,
                        const float *q, size_t rows, float *score,
                        size_t stride)
{
    const size_t half = head_dim / 2, groups = kv_transform_groups8(head_dim);

    for (size_t j = 0; j < h->n; j += 4) {
        __m512i line[4], x[4];

        load_lines(code + j * LINE, line);
        v_interleave4_i8(line, x);
        UNROLL
        for (size_t i = 0; i < 4; i++)
            _mm512_store_si512(code + (j + i) * LINE, x[i]);
    }
    for (size_t r = 0; r < rows; r++)
        memset(score + r * stride, 0, LINE * sizeof(*score));
    for (size_t g = 0; g < 2 * groups; g++) {
        const size_t part = g % 2, first = g / 2 * PAIRS;
        const char *by = h->channel + g / 2 * h->channel_bytes;
        const struct kv_transform_query8 pair[2] = {
            kv_transform_query8_at(by),
            kv_transform_query8_at(by + groups * h->channel_bytes)};
        __m512 x[2][PAIRS][2];

        channels8(code + 2 * part * LINE, h->n, pair, x);
        UNROLL
        for (size_t p = 0; p < PAIRS; p++)
            UNROLL
        for (size_t i = 0; i < 2; i++)
            if (first + p < angles->n)
                rotate(angles, first + p, part, i, &x[0][p][i], &x[1][p][i]);
        for (size_t r = 0; r < rows; r++)
            UNROLL
        for (size_t i = 0; i < 2; i++) {
            float *at = score + r * stride + 32 * part + 16 * i;
            __m512 sum = _mm512_loadu_ps(at);

            UNROLL
            for (size_t p = 0; p < PAIRS; p++) {
                /* past the half channels are 0 */
                const float *by_q = q + kv_min(first + p, half - 1) * rows + r;

                sum = _mm512_fmadd_ps(_mm512_set1_ps(*by_q), x[0][p][i], sum);
                sum = _mm512_fmadd_ps(_mm512_set1_ps(by_q[half * rows]),
                                      x[1][p][i], sum);
            }
            _mm512_storeu_ps(at, sum);
        }
    }
}

/* ---- int8, values -------------------------------------------------------- */

/* Weights of a tile.  Dword i of each 128 bits of four lines goes into vector
 * i, and code[i] has the weights of vector i's tokens, lane by lane:
 *
 *   line a: | a0 a1 a2 a3 | a4 .. | a8 .. | a12 .. |     four tokens each
 *   vector i: | ai bi ci di | a(4 + i) b(4 + i) .. | ..  of four coefficients
 *   code[i]:  | wi wi wi wi | w(4 + i) w(4 + i) .. | ..
 *
 * so that every coefficient has four sums, one in each 128 bits. */
struct weights {
    __m512i code[4], bias;
};

static struct weights weights_of(const int8_t *weight)
{
    const __m512i lanes =
        _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    const __m512i zero_code = _mm512_set1_epi8((char)128);
    struct weights w;
    __m512i bias = _mm512_setzero_si512();

    UNROLL
    for (int i = 0; i < 4; i++) {
        w.code[i] = _mm512_permutexvar_epi32(
            _mm512_add_epi32(lanes, _mm512_set1_epi32(4 * i)),
            _mm512_load_si512(weight));
        bias = v_dot_i8(bias, zero_code, w.code[i]);
    }
    w.bias = _mm512_sub_epi32(_mm512_setzero_si512(), bias);
    return w;
}

/* rows: a constant. */
ALWAYS_INLINE void pv8_rows(const uint8_t *code, size_t n,
                            const struct weights *w, const float *scale,
                            size_t rows, float *acc, size_t row)
{
    for (size_t j = 0; j < n; j += 4, code += 4 * LINE, acc += 16) {
        __m512i line[4], x[4];
        v16i sum[ROWS];

        load_lines(code, line);
        v_transpose4x4(line, x);
        UNROLL
        for (size_t r = 0; r < rows; r++)
            sum[r] = (v16i)w[r].bias;
        UNROLL
        for (size_t i = 0; i < 4; i++) /* rows in the inner loop, so that no sum
                                        * waits */
            UNROLL
        for (size_t r = 0; r < rows; r++)
            sum[r] = (v16i)v_dot_i8((__m512i)sum[r], x[i], w[r].code[i]);
        UNROLL
        for (size_t r = 0; r < rows; r++)
            _mm512_store_ps(acc + r * row,
                            _mm512_fmadd_ps(_mm512_set1_ps(scale[r]),
                                            _mm512_cvtepi32_ps((__m512i)sum[r]),
                                            _mm512_load_ps(acc + r * row)));
    }
}

static void pv8(const uint8_t *code, size_t n, const int8_t *weight,
                const float *scale, size_t rows, float *acc, size_t row)
{
    struct weights w[ROWS];

    for (size_t r = 0; r < rows; r++)
        w[r] = weights_of(weight + r * LINE);
    switch (rows) {
#define CASE(R)                                   \
    case R:                                       \
        pv8_rows(code, n, w, scale, R, acc, row); \
        break;
        EVERY_ROWS(CASE)
#undef CASE
    }
}

const struct kv_transform_ops kv_transform_vnni = {.expand = expand,
                                                   .lanes = 16,
                                                   .pv = pv,
                                                   .codes = codes,
                                                   .qk8 = qk8,
                                                   .qk8_rotated = qk8_rotated,
                                                   .lanes8 = 4,
                                                   .pv8 = pv8};
