/* With AVX512-VBMI a table of 64 bytes is one instruction, one of 512 eight:
 * under masks, of which each keeps what those before it have found; or four of
 * 128 bytes, where these are as fast (kv_level_pairs()).  A gather costs more,
 * up to ten times.  Floats are looked up byte by byte. */
#include "kernels/level.h"
#include "kernels/tiles_coef_impl.h"
#include "kernels/tiles_impl.h"
#include "kernels/tiles_rope.h"
#include "kernels/unroll.h"

#include <immintrin.h>
#include <string.h>

enum {
    LINE = KV_TILE_TOKENS,
    BLOCK = 16,      /* coefficients at a time */
    TILES_AHEAD = 4, /* from what is looked up to what is prefetched */
    ROWS = KV_TILE_ROWS
};

/* Sums of dpbusd are declared as what they are: gcc copies them else. */
typedef int32_t v16i __attribute__((vector_size(64)));

ALWAYS_INLINE __m512i line(const uint8_t *tile, const struct kv_coef_place *p,
                           size_t i)
{
    return _mm512_load_si512(tile + p->line[i]);
}

/* Bit i of each byte.  A test of the bit would be one instruction, but of the
 * unit that looks tables up, the busiest one. */
ALWAYS_INLINE __mmask64 bit(__m512i x, unsigned i)
{
    if (i == 7)
        return _mm512_movepi8_mask(x);
    if (i == 6)
        return _mm512_movepi8_mask(_mm512_add_epi8(x, x));
    return _mm512_movepi8_mask(_mm512_slli_epi16(x, 7 - i));
}

/* The low seven bits of each token's state as they stand, turned. */
ALWAYS_INLINE __m512i low_seven(__m512i last, __m512i before, unsigned shift)
{
    const __m512i below = _mm512_set1_epi8((char)((1 << shift) - 1));

    return !shift       ? last
           : shift == 7 ? before
                        : _mm512_ternarylogic_epi32(before, last, below, 0xe4);
}

/* The table at the state of each token, t: the shift's order.  Six bits are
 * looked up; two, and the state's highest, choose. */
ALWAYS_INLINE __m512i look(const __m512i *t, const uint8_t *tile,
                           const struct kv_coef_place *p, unsigned shift)
{
    const __m512i last = line(tile, p, 0), before = line(tile, p, 1);
    const __m512i at = low_seven(last, before, shift);
    const __mmask64 by0 = bit(at, 6), by1 = bit(last, 7);
    const __mmask64 both = _kand_mask64(by0, by1);
    __m512i x[2];

    UNROLL
    for (size_t i = 0; i < 2; i++) {
        x[i] = _mm512_permutexvar_epi8(at, t[4 * i]);
        x[i] = _mm512_mask_permutexvar_epi8(x[i], by0, at, t[4 * i + 1]);
        x[i] = _mm512_mask_permutexvar_epi8(x[i], by1, at, t[4 * i + 2]);
        x[i] = _mm512_mask_permutexvar_epi8(x[i], both, at, t[4 * i + 3]);
    }
    return _mm512_mask_blend_epi8(bit(before, shift), x[0], x[1]);
}
_Static_assert(KV_TRELLIS_STATES == 8 * LINE, "eight lines of a table");

/* The same where two lines are looked up at the price of one: seven bits. */
ALWAYS_INLINE __m512i look_pairs(const __m512i *t, const uint8_t *tile,
                                 const struct kv_coef_place *p, unsigned shift)
{
    const __m512i last = line(tile, p, 0), before = line(tile, p, 1);
    const __m512i at = low_seven(last, before, shift);
    const __mmask64 by1 = bit(last, 7);
    __m512i x[2];

    UNROLL
    for (size_t i = 0; i < 2; i++)
        x[i] = _mm512_mask_blend_epi8(
            by1, _mm512_permutex2var_epi8(t[4 * i], at, t[4 * i + 1]),
            _mm512_permutex2var_epi8(t[4 * i + 2], at, t[4 * i + 3]));
    return _mm512_mask_blend_epi8(
        _mm512_test_epi8_mask(before, _mm512_set1_epi8((char)(1 << shift))),
        x[0], x[1]);
}

/* The same where 7 bits count, of the table's own order. */
ALWAYS_INLINE __m512i look_small(const __m512i *t, const uint8_t *tile,
                                 const struct kv_coef_place *p, unsigned shift)
{
    __m512i at = line(tile, p, 0);

    if (shift)
        at = _mm512_srli_epi16(at, shift);
    if (shift > 1)
        at = _mm512_ternarylogic_epi32(
            _mm512_set1_epi8((char)(0xff >> shift)), at,
            _mm512_slli_epi16(line(tile, p, 1), 8 - shift), 0xca);
    return _mm512_permutex2var_epi8(t[0], at, t[1]);
}

enum how { SMALL, FOURS, PAIRS }; /* look_small, look, look_pairs */

/* Coefficients [from, to) of a run, which end alike: out lines, `apart` bytes
 * apart.  What a later tile has at their places is on its way then: little by
 * little, as memory likes it.  how, shift: constants. */
ALWAYS_INLINE void look_up_some(const struct kv_store *s,
                                const struct kv_coef_place *place,
                                const uint8_t *table, const uint8_t *tile,
                                size_t from, size_t to, uint8_t *out,
                                size_t apart, enum how how, unsigned shift)
{
    const size_t lines = how == SMALL ? 2 : KV_TRELLIS_STATES / LINE;
    const uint8_t *t_from =
        table + (how == SMALL ? 0 : shift) * KV_TRELLIS_STATES;
    const uint8_t *later = tile + TILES_AHEAD * s->tile_bytes;
    __m512i t[KV_TRELLIS_STATES / LINE];

    UNROLL
    for (size_t j = 0; j < lines; j++)
        t[j] = _mm512_load_si512(t_from + LINE * j);
    for (size_t i = from; i < to; i++, out += apart) {
        __builtin_prefetch(later + place[i].line[0], 0, 2);
        _mm512_store_si512(
            out, how == SMALL   ? look_small(t, tile, place + i, shift)
                 : how == PAIRS ? look_pairs(t, tile, place + i, shift)
                                : look(t, tile, place + i, shift));
    }
}

/* Coefficients [from, to) of a run of this head. */
static void look_up(const struct kv_store *s, size_t head,
                    const struct kv_coef_run *run, const uint8_t *table,
                    const uint8_t *tile, size_t from, size_t to, uint8_t *out,
                    size_t apart)
{
    const struct kv_coef_place *place =
        kv_coefs_of(s)->head[head].place + run->first;
    const enum how how = run->table->bits <= 7 ? SMALL
                         : kv_level_pairs()    ? PAIRS
                                               : FOURS;

    for (unsigned shift = 0; shift < 8; shift++) {
        const size_t *at = run->shift + shift;
        const size_t i = from > at[0] ? from : at[0];
        const size_t end = to < at[1] ? to : at[1];

        if (i >= end)
            continue;
        switch (shift * 4 + how) {
#define CASE(SHIFT, HOW)                                                      \
    case SHIFT * 4 + HOW:                                                     \
        look_up_some(s, place, table, tile, i, end, out + (i - from) * apart, \
                     apart, HOW, SHIFT);                                      \
        break;
#define CASES(SHIFT) CASE(SHIFT, SMALL) CASE(SHIFT, FOURS) CASE(SHIFT, PAIRS)
#define EVERY_SHIFT(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
            EVERY_SHIFT(CASES)
#undef EVERY_SHIFT
#undef CASES
#undef CASE
        }
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

/* ---- exact --------------------------------------------------------------- */

/* n <= BLOCK coefficients of a run from the i-th on: planes [n][4] lines. */
static void planes_of(const struct kv_store *s, size_t head,
                      const struct kv_coef_run *run, size_t i, size_t n,
                      const uint8_t *tile, uint8_t *planes)
{
    for (size_t b = 0; b < 4; b++)
        look_up(s, head, run, run->table->plane[b], tile, i, i + n,
                planes + b * LINE, 4 * LINE);
}

static size_t block_of(const struct kv_coef_run *run, size_t i)
{
    return run->n - i < BLOCK ? run->n - i : BLOCK;
}

void kv_coef_expand_vnni(const struct kv_store *s, size_t head,
                         const uint8_t *tile, float *y)
{
    const struct kv_coef_head *h = &kv_coefs_of(s)->head[head];
    _Alignas(LINE) uint8_t planes[BLOCK * 4 * LINE];
    float *const second = y + (h->n + 1) * KV_TILE_PART;

    for (size_t r = 0; r < h->n_runs; r++)
        for (size_t i = 0; i < h->run[r].n; i += BLOCK) {
            const size_t n = block_of(&h->run[r], i);

            planes_of(s, head, &h->run[r], i, n, tile, planes);
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

    kv_coef_expand_vnni(s, head, tile, y);
    for (size_t i = 0; i < 2; i++) {
        const float *part = y + i * (h->n + 1) * KV_TILE_PART;
        float *at = score + i * KV_TILE_PART;

        if (c->about.rope)
            kv_coef_turned(s, head, tile, i, part, query, rows, at, stride);
        else
            kv_tile_loops()->dot(KV_FLOAT_32, false, part, h->n + 1, query,
                                 rows, at, stride);
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

    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = 0; j < h->run[i].n; j += BLOCK) {
            const size_t n = block_of(&h->run[i], j);

            planes_of(s, head, &h->run[i], j, n, tile, planes);
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

/* All coefficients' codes, runs filled up to fours: [n4] lines. */
static void codes_of(const struct kv_store *s, size_t head, const uint8_t *tile,
                     uint8_t *codes)
{
    const struct kv_coef_head *h = &kv_coefs_of(s)->head[head];

    for (size_t i = 0; i < h->n_runs; i++) {
        const struct kv_coef_run *run = &h->run[i];
        const size_t end = i + 1 < h->n_runs ? run[1].first4 : h->n4;
        uint8_t *to = codes + run->first4 * LINE;

        look_up(s, head, run, run->table->code, tile, 0, run->n, to, LINE);
        memset(to + run->n * LINE, 0, (end - run->first4 - run->n) * LINE);
    }
}

/* Sums of rows and so many times 16 tokens. */
struct sums8 {
    v16i of[ROWS][4];
};

ALWAYS_INLINE void start8(struct sums8 *sum, size_t rows, size_t wide,
                          const int32_t *bias)
{
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t i = 0; i < wide; i++)
        sum->of[r][i] = (v16i)_mm512_set1_epi32(bias[r]);
}

/* Four coefficients of each token. */
ALWAYS_INLINE void dot8_four(const __m512i *x, size_t rows, size_t wide,
                             const int8_t *q, struct sums8 *sum)
{
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        int32_t four;

        memcpy(&four, q + r * 4, 4);
        UNROLL
        for (size_t i = 0; i < wide; i++)
            sum->of[r][i] = (v16i)_mm512_dpbusd_epi32(
                (__m512i)sum->of[r][i], x[i], _mm512_set1_epi32(four));
    }
}

ALWAYS_INLINE __m512 scaled8(v16i sum, struct kv_coef_query8 q, size_t r)
{
    return _mm512_fmadd_ps(_mm512_set1_ps(q.factor[r]),
                           _mm512_cvtepi32_ps((__m512i)sum),
                           _mm512_set1_ps(q.constant[r]));
}

ALWAYS_INLINE void dot8_rows(const uint8_t *codes, size_t n4, size_t rows,
                             struct kv_coef_query8 q, float *score,
                             size_t stride)
{
    const size_t wide = rows <= 6 ? 4 : 2; /* of 32 registers */

    for (size_t k = 0; k < 4; k += wide) {
        struct sums8 sum;

        start8(&sum, rows, wide, q.bias);
        for (size_t j = 0; j < n4; j += 4) {
            __m512i x[4];

            weave(codes + j * LINE, x);
            dot8_four(x + k, rows, wide, q.code + j * rows, &sum);
        }
        UNROLL
        for (size_t r = 0; r < rows; r++)
            UNROLL
        for (size_t i = 0; i < wide; i++)
            _mm512_storeu_ps(score + r * stride + 16 * (k + i),
                             scaled8(sum.of[r][i], q, r));
    }
}

static void scores8(const struct kv_store *s, size_t head, const uint8_t *tile,
                    const void *query, size_t rows, float *score, size_t stride)
{
    _Alignas(LINE) uint8_t codes[KV_COEF_FOUR * KV_COEF_MOST * LINE];
    const struct kv_coef_head *h = &kv_coefs_of(s)->head[head];
    const struct kv_coef_query8 q = kv_coef_query8_at(query);

    codes_of(s, head, tile, codes);
    switch (rows) {
#define CASE(R)                                       \
    case R:                                           \
        dot8_rows(codes, h->n4, R, q, score, stride); \
        break;
        EVERY_ROWS(CASE)
#undef CASE
    }
}

/* ---- int8, keys before RoPE ---------------------------------------------- */

static void weave_all(uint8_t *codes, size_t n4)
{
    for (size_t j = 0; j < n4; j += 4, codes += 4 * LINE) {
        __m512i x[4];

        weave(codes, x);
        UNROLL
        for (size_t k = 0; k < 4; k++)
            _mm512_store_si512(codes + k * LINE, x[k]);
    }
}

/* How a tile's keys turn: of each half the first token's angles. */
struct turns {
    float cosine[2][KV_ROPE_MOST], sine[2][KV_ROPE_MOST];
    const float *within;
    size_t n;
};

/* 16 tokens of a pair of channels. */
ALWAYS_INLINE void turn(const struct turns *t, size_t pair, size_t k,
                        __m512 *low, __m512 *high)
{
    const float *within = t->within + pair * 2 * KV_TILE_PART + k % 2 * 16;
    const __m512 c = _mm512_set1_ps(t->cosine[k / 2][pair]);
    const __m512 s = _mm512_set1_ps(t->sine[k / 2][pair]);
    const __m512 ct = _mm512_load_ps(within);
    const __m512 st = _mm512_load_ps(within + KV_TILE_PART);
    const __m512 cosine = _mm512_fmsub_ps(c, ct, _mm512_mul_ps(s, st));
    const __m512 sine = _mm512_fmadd_ps(s, ct, _mm512_mul_ps(c, st));
    const __m512 a = *low, b = *high;

    *low = _mm512_fmsub_ps(a, cosine, _mm512_mul_ps(b, sine));
    *high = _mm512_fmadd_ps(b, cosine, _mm512_mul_ps(a, sine));
}

/* The part of a group of channels in the scores of rows queries q
 * [head_dim][rows]: codes woven, sum [rows][64].  rows, pairs: constants. */
ALWAYS_INLINE void turned8_rows(const struct kv_coef_head *h, size_t half,
                                const uint8_t *codes, const struct turns *t,
                                size_t group, size_t pairs, const float *q,
                                size_t rows, float *sum)
{
    const struct kv_coef_query8 by = kv_coef_channels8(h, group);
    const size_t first = group * KV_COEF_PAIRS;
    struct sums8 code;

    start8(&code, 2 * pairs, 4, by.bias);
    for (size_t j = 0; j < h->n4; j += 4) {
        __m512i x[4];

        UNROLL
        for (size_t k = 0; k < 4; k++)
            x[k] = _mm512_load_si512(codes + (j + k) * LINE);
        dot8_four(x, 2 * pairs, 4, by.code + j * 2 * pairs, &code);
    }
    UNROLL
    for (size_t k = 0; k < 4; k++)
        UNROLL
    for (size_t p = 0; p < pairs; p++) {
        const float *q_low = q + (first + p) * rows,
                    *q_high = q_low + half * rows;
        __m512 low = scaled8(code.of[p][k], by, p);
        __m512 high = scaled8(code.of[pairs + p][k], by, pairs + p);

        if (first + p < t->n)
            turn(t, first + p, k, &low, &high);
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            float *at = sum + r * LINE + 16 * k;
            __m512 x = _mm512_load_ps(at);

            x = _mm512_fmadd_ps(_mm512_set1_ps(q_low[r]), low, x);
            x = _mm512_fmadd_ps(_mm512_set1_ps(q_high[r]), high, x);
            _mm512_store_ps(at, x);
        }
    }
}

static void scores8_turned(const struct kv_store *s, size_t head,
                           const uint8_t *tile, const void *query, size_t rows,
                           float *score, size_t stride)
{
    _Alignas(LINE) uint8_t codes[KV_COEF_FOUR * KV_COEF_MOST * LINE];
    _Alignas(LINE) float sum[ROWS][LINE];
    const struct kv_coefs *c = kv_coefs_of(s);
    const struct kv_coef_head *h = &c->head[head];
    const size_t half = s->head_dim / 2;
    struct turns t;

    memset(sum, 0, rows * sizeof(*sum));
    t.within = kv_tiles_rope_within(c->about.rope);
    t.n = kv_tiles_rope_pairs(c->about.rope);
    for (size_t i = 0; i < 2; i++)
        kv_tiles_rope_first(c->about.rope,
                            kv_store_position(s, head, tile) + i * KV_TILE_PART,
                            t.cosine[i], t.sine[i]);
    codes_of(s, head, tile, codes);
    weave_all(codes, h->n4);
    for (size_t i = 0; i * KV_COEF_PAIRS < half; i++)
        switch (rows * 2 + kv_coef_pairs(s->head_dim, i) - 1) {
#define CASE(R, PAIRS)                                                \
    case R * 2 + PAIRS - 1:                                           \
        turned8_rows(h, half, codes, &t, i, PAIRS, query, R, sum[0]); \
        break;
#define CASES(R) CASE(R, 1) CASE(R, 2)
            EVERY_ROWS(CASES)
#undef CASES
#undef CASE
        }
    for (size_t r = 0; r < rows; r++)
        memcpy(score + r * stride, sum[r], sizeof(sum[r]));
}
_Static_assert(KV_COEF_PAIRS == 2, "the cases above");

/* ---- int8, values -------------------------------------------------------- */

/* Weights of a tile.  Of four lines, dword i of each 128 bits goes into vector
 * i; of four tokens' codes, lane by lane, dword i is what vector i meets:
 *
 *   line a: | a0 a1 a2 a3 | a4 .. | a8 .. | a12 .. |     four tokens each
 *   vector i: | ai bi ci di | a(4 + i) b(4 + i) .. | ..  of four coefficients
 *   code[i]:  | wi wi wi wi | w(4 + i) w(4 + i) .. | ..
 *
 * so that every coefficient has four sums, one in each 128 bits. */
struct weights {
    __m512i code[ROWS][4], bias[ROWS];
    float factor[ROWS], sum[ROWS];
};

static void weigh(const float *p, size_t stride, size_t rows, struct weights *w)
{
    const __m512i lanes =
        _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    const __m512i zero_code = _mm512_set1_epi8((char)128);
    _Alignas(LINE) int8_t code[ROWS][LINE];

    kv_tile_loops()->round8(p, stride, rows, LINE, code[0], LINE, w->factor);
    for (size_t r = 0; r < rows; r++, p += stride) {
        __m512i bias = _mm512_setzero_si512();
        __m512 sum = _mm512_setzero_ps();

        UNROLL
        for (int i = 0; i < 4; i++) {
            w->code[r][i] = _mm512_permutexvar_epi32(
                _mm512_add_epi32(lanes, _mm512_set1_epi32(4 * i)),
                _mm512_load_si512(code[r]));
            bias = _mm512_dpbusd_epi32(bias, zero_code, w->code[r][i]);
            sum = _mm512_add_ps(sum, _mm512_loadu_ps(p + 16 * i));
        }
        w->bias[r] = _mm512_sub_epi32(_mm512_setzero_si512(), bias);
        w->sum[r] = _mm512_reduce_add_ps(sum);
    }
}

/* n lines of codes, a multiple of 4.  acc: [rows][n / 4][4][4], rows `row`
 * floats apart. */
ALWAYS_INLINE void add8_rows(const uint8_t *codes, size_t n, size_t rows,
                             const struct weights *w, float *acc, size_t row)
{
    for (size_t j = 0; j < n; j += 4, codes += 4 * LINE, acc += 16) {
        const __m512i a = _mm512_load_si512(codes);
        const __m512i b = _mm512_load_si512(codes + LINE);
        const __m512i c = _mm512_load_si512(codes + 2 * LINE);
        const __m512i d = _mm512_load_si512(codes + 3 * LINE);
        const __m512i ab0 = _mm512_unpacklo_epi32(a, b);
        const __m512i ab1 = _mm512_unpackhi_epi32(a, b);
        const __m512i cd0 = _mm512_unpacklo_epi32(c, d);
        const __m512i cd1 = _mm512_unpackhi_epi32(c, d);
        const __m512i x[4] = {
            _mm512_unpacklo_epi64(ab0, cd0), _mm512_unpackhi_epi64(ab0, cd0),
            _mm512_unpacklo_epi64(ab1, cd1), _mm512_unpackhi_epi64(ab1, cd1)};
        v16i sum[ROWS];

        UNROLL
        for (size_t r = 0; r < rows; r++)
            sum[r] = (v16i)w->bias[r];
        UNROLL
        for (size_t i = 0; i < 4; i++) /* rows within: no sum waits */
            UNROLL
        for (size_t r = 0; r < rows; r++)
            sum[r] =
                (v16i)_mm512_dpbusd_epi32((__m512i)sum[r], x[i], w->code[r][i]);
        UNROLL
        for (size_t r = 0; r < rows; r++)
            _mm512_store_ps(acc + r * row,
                            _mm512_fmadd_ps(_mm512_set1_ps(w->factor[r]),
                                            _mm512_cvtepi32_ps((__m512i)sum[r]),
                                            _mm512_load_ps(acc + r * row)));
    }
}

static void add8(const uint8_t *codes, size_t n, size_t rows,
                 const struct weights *w, float *acc, size_t row)
{
    switch (rows) {
#define CASE(R)                              \
    case R:                                  \
        add8_rows(codes, n, R, w, acc, row); \
        break;
        EVERY_ROWS(CASE)
#undef CASE
    }
}

/* acc: [rows][most / 4][4][4], four sums of each coefficient. */
static size_t acc8_floats(const struct kv_store *s)
{
    return kv_coefs_of(s)->most * 4;
}

/* Where coefficients end and four do not, codes are those of 0. */
static void gather8(const struct kv_store *s, size_t head, const uint8_t *tile,
                    const float *p, size_t stride, size_t rows, float *acc)
{
    _Alignas(LINE) uint8_t codes[(KV_COEF_MOST + 4) * LINE];
    const struct kv_coef_head *h = &kv_coefs_of(s)->head[head];
    const size_t row = acc8_floats(s), n4 = (h->n + 3) / 4 * 4;
    struct weights w;

    weigh(p, stride, rows, &w);
    for (size_t i = 0; i < h->n_runs; i++) {
        const struct kv_coef_run *run = &h->run[i];

        look_up(s, head, run, run->table->code, tile, 0, run->n,
                codes + run->first * LINE, LINE);
    }
    memset(codes + h->n * LINE, 128, (n4 - h->n) * LINE);
    add8(codes, n4, rows, &w, acc, row);
    for (size_t r = 0; r < rows; r++)
        acc[r * row + h->n / 4 * 16 + h->n % 4] += w.sum[r];
}

static void finish8(const struct kv_store *s, size_t head, const float *acc,
                    size_t rows, float *out)
{
    float y[ROWS * (KV_COEF_MOST + KV_COEF_ONE)];
    const size_t n = rows * kv_coefs_of(s)->most;

    for (size_t i = 0; i < n; i++) {
        const float *x = acc + i / 4 * 16 + i % 4;

        y[i] = (x[0] + x[4]) + (x[8] + x[12]);
    }
    kv_coef_finish8(s, head, y, rows, out);
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
    .acc_floats = acc8_floats,
    .gather = gather8,
    .finish = finish8,
};

const struct kv_tile_ops kv_coef_turned8_vnni = {
    .query_bytes = kv_coef_query_bytes,
    .prepare = kv_coef_prepare,
    .scores = scores8_turned,
};
