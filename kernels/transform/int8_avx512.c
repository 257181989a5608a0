/* Path int8: products of looked-up bytes, four to a sum. */
#include "kernels/simd/lanes_avx512.h"
#include "kernels/tiles/rope.h"
#include "kernels/transform/avx512.h"

/* Sums of dpbusd are declared as what they are: gcc copies them else. */
typedef int32_t v16i __attribute__((vector_size(64)));

/* All coefficients' codes, runs filled up to fours: [n4] lines. */
static void codes_of(const struct kv_store *s, size_t head, const uint8_t *tile,
                     uint8_t *codes)
{
    const struct kv_transform_head *h = &kv_transform_of(s)->head[head];

    for (size_t i = 0; i < h->n_runs; i++) {
        const struct kv_transform_run *run = &h->run[i];
        const size_t end = i + 1 < h->n_runs ? run[1].first4 : h->n4;
        uint8_t *to = codes + run->first4 * LINE;

        kv_transform_codes_vnni(s, head, run, tile, to);
        memset(to + run->n * LINE, 0, (end - run->first4 - run->n) * LINE);
    }
}

ALWAYS_INLINE void weave_lines(const uint8_t *codes, __m512i out[4])
{
    weave(_mm512_load_si512(codes), _mm512_load_si512(codes + LINE),
          _mm512_load_si512(codes + 2 * LINE),
          _mm512_load_si512(codes + 3 * LINE), out);
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

ALWAYS_INLINE __m512 scaled8(v16i sum, struct kv_transform_query8 q, size_t r)
{
    return _mm512_fmadd_ps(_mm512_set1_ps(q.factor[r]),
                           _mm512_cvtepi32_ps((__m512i)sum),
                           _mm512_set1_ps(q.constant[r]));
}

ALWAYS_INLINE void dot8_rows(const uint8_t *codes, size_t n4, size_t rows,
                             struct kv_transform_query8 q, float *score,
                             size_t stride)
{
    const size_t wide = rows <= 6 ? 4 : 2; /* of 32 registers */

    for (size_t k = 0; k < 4; k += wide) {
        struct sums8 sum;

        start8(&sum, rows, wide, q.bias);
        for (size_t j = 0; j < n4; j += 4) {
            __m512i x[4];

            weave_lines(codes + j * LINE, x);
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

static void qk8(const struct kv_store *s, size_t head, const uint8_t *tile,
                const void *query, size_t rows, float *score, size_t stride)
{
    _Alignas(LINE) uint8_t codes[KV_TRANSFORM_FOUR * KV_TRANSFORM_MAX * LINE];
    const struct kv_transform_head *h = &kv_transform_of(s)->head[head];
    const struct kv_transform_query8 q = kv_transform_query8_at(query);

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

        weave_lines(codes, x);
        UNROLL
        for (size_t k = 0; k < 4; k++)
            _mm512_store_si512(codes + k * LINE, x[k]);
    }
}

/* How a tile's keys rotate: of each half the first token's angles. */
struct rotation {
    float cosine[2][KV_ROPE_MOST], sine[2][KV_ROPE_MOST];
    const float *within;
    size_t n;
};

/* 16 tokens of a pair of channels. */
ALWAYS_INLINE void rotate(const struct rotation *t, size_t pair, size_t k,
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

/* The part of a group of channels in the qk of rows queries q
 * [head_dim][rows]: codes woven, sum [rows][64].  rows, pairs: constants. */
ALWAYS_INLINE void rotated8_rows(const struct kv_transform_head *h, size_t half,
                                 const uint8_t *codes, const struct rotation *t,
                                 size_t group, size_t pairs, const float *q,
                                 size_t rows, float *sum)
{
    const struct kv_transform_query8 by = kv_transform_channels8(h, group);
    const size_t first = group * KV_TRANSFORM_PAIRS;
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
            rotate(t, first + p, k, &low, &high);
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

static void qk8_rotated(const struct kv_store *s, size_t head,
                        const uint8_t *tile, const void *query, size_t rows,
                        float *score, size_t stride)
{
    _Alignas(LINE) uint8_t codes[KV_TRANSFORM_FOUR * KV_TRANSFORM_MAX * LINE];
    _Alignas(LINE) float sum[ROWS][LINE];
    const struct kv_transform *c = kv_transform_of(s);
    const struct kv_transform_head *h = &c->head[head];
    const size_t half = s->head_dim / 2;
    struct rotation t;

    memset(sum, 0, rows * sizeof(*sum));
    t.within = kv_tiles_rope_within(c->about.rope);
    t.n = kv_tiles_rope_pairs(c->about.rope);
    for (size_t i = 0; i < 2; i++)
        kv_tiles_rope_first(c->about.rope,
                            kv_store_position(s, head, tile) + i * KV_TILE_PART,
                            t.cosine[i], t.sine[i]);
    codes_of(s, head, tile, codes);
    weave_all(codes, h->n4);
    for (size_t i = 0; i * KV_TRANSFORM_PAIRS < half; i++)
        switch (rows * 2 + kv_transform_pairs(s->head_dim, i) - 1) {
#define CASE(R, PAIRS)                                                 \
    case R * 2 + PAIRS - 1:                                            \
        rotated8_rows(h, half, codes, &t, i, PAIRS, query, R, sum[0]); \
        break;
#define CASES(R) CASE(R, 1) CASE(R, 2)
            EVERY_ROWS(CASES)
#undef CASES
#undef CASE
        }
    for (size_t r = 0; r < rows; r++)
        memcpy(score + r * stride, sum[r], sizeof(sum[r]));
}
_Static_assert(KV_TRANSFORM_PAIRS == 2, "the cases above");

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
        __m512i line[4], x[4];
        v16i sum[ROWS];

        UNROLL
        for (size_t i = 0; i < 4; i++)
            line[i] = _mm512_load_si512(codes + i * LINE);
        kv_lanes_turn(line, x);
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
    return kv_transform_of(s)->most * 4;
}

/* Where coefficients end and four do not, codes are those of 0. */
static void pv8(const struct kv_store *s, size_t head, const uint8_t *tile,
                const float *p, size_t stride, size_t rows, float *acc)
{
    _Alignas(LINE) uint8_t codes[(KV_TRANSFORM_MAX + 4) * LINE];
    const struct kv_transform_head *h = &kv_transform_of(s)->head[head];
    const size_t row = acc8_floats(s), n4 = (h->n + 3) / 4 * 4;
    struct weights w;

    weigh(p, stride, rows, &w);
    for (size_t i = 0; i < h->n_runs; i++)
        kv_transform_codes_vnni(s, head, &h->run[i], tile,
                                codes + h->run[i].first * LINE);
    memset(codes + h->n * LINE, 128, (n4 - h->n) * LINE);
    add8(codes, n4, rows, &w, acc, row);
    for (size_t r = 0; r < rows; r++)
        acc[r * row + h->n / 4 * 16 + h->n % 4] += w.sum[r];
}

static void finish8(const struct kv_store *s, size_t head, const float *acc,
                    size_t rows, float *out)
{
    float y[ROWS * (KV_TRANSFORM_MAX + KV_TRANSFORM_PAD)];
    const size_t n = rows * kv_transform_of(s)->most;

    for (size_t i = 0; i < n; i++) {
        const float *x = acc + i / 4 * 16 + i % 4;

        y[i] = (x[0] + x[4]) + (x[8] + x[12]);
    }
    kv_transform_finish8(s, head, y, rows, out);
}

const struct kv_tile_ops kv_transform_int8_vnni = {
    .query_bytes = kv_transform_query8_bytes,
    .prepare = kv_transform_prepare8,
    .qk = qk8,
    .acc_floats = acc8_floats,
    .pv = pv8,
    .finish = finish8,
};

const struct kv_tile_ops kv_transform_rotated8_vnni = {
    .query_bytes = kv_transform_query_bytes,
    .prepare = kv_transform_prepare,
    .qk = qk8_rotated,
};
