#include "kernels/simd/lanes_avx2.h"
#include "kernels/simd/quads_avx2.h"
#include "kernels/transform/impl.h"

enum {
    ROWS = KV_QUAD_ROWS,
    LINE = KV_TILE_TOKENS,
    PART = KV_TILE_PART,
    EIGHTS = PART / 8
};

ALWAYS_INLINE __m256i half_bytes(const uint8_t *at, int bit)
{
    const __m256i x = _mm256_loadu_si256((const __m256i *)at);

    return _mm256_and_si256(bit ? _mm256_srli_epi16(x, bit) : x,
                            _mm256_set1_epi8(15));
}

ALWAYS_INLINE __m256i of_16(const uint8_t *table, __m256i at)
{
    return _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)),
        at);
}

/* The entries of 32 tokens; last: the bytes that states end in. */
ALWAYS_INLINE __m256i entries_of(const struct kv_transform_table *t,
                                 unsigned shift, const uint8_t *last)
{
    const uint8_t(*of)[16] = t->of_half[shift];
    const __m256i low = half_bytes(last, 0), high = half_bytes(last, 4);
    const __m256i low_before = half_bytes(last - LINE, 0);

    if (shift < 4)
        return _mm256_xor_si256(
            _mm256_xor_si256(of_16(of[0], low), of_16(of[1], high)),
            of_16(of[2], low_before));
    return _mm256_xor_si256(
        _mm256_xor_si256(of_16(of[0], high), of_16(of[1], low_before)),
        of_16(of[2], half_bytes(last - LINE, 4)));
}

/* The codes of entries of so many bits, 4 to 8, sixteen at a time; of two that
 * may be meant a bit of the entry, moved up, takes one.  bits: a constant. */
ALWAYS_INLINE __m256i look(const uint8_t *code, __m256i entry, unsigned bits)
{
    const __m256i low = _mm256_and_si256(entry, _mm256_set1_epi8(15));
    const size_t n = (size_t)1 << (bits - 4);
    __m256i x[KV_TRELLIS_ENTRIES / 16];

    UNROLL
    for (size_t i = 0; i < n; i++)
        x[i] = of_16(code + 16 * i, low);
    UNROLL
    for (unsigned bit = 4; bit < bits; bit++) {
        const __m256i by = _mm256_slli_epi16(entry, (int)(7 - bit));

        UNROLL
        for (size_t i = 0; i < n >> (bit - 3); i++)
            x[i] = _mm256_blendv_epi8(x[2 * i], x[2 * i + 1], by);
    }
    return x[0];
}

/* Codes of a coefficient: [64], as tokens stand in a line. */
static void look_up(const struct kv_transform_table *t,
                    struct kv_transform_place p, const uint8_t *tile,
                    uint8_t *code)
{
    for (size_t i = 0; i < LINE; i += 32) {
        const __m256i entry = entries_of(t, p.shift, tile + p.line + i);

        _mm256_store_si256((__m256i *)(code + i),
                           t->map->bits < 8 ? look(t->code, entry, 7)
                                            : look(t->code, entry, 8));
    }
}

/* Four lines of 32 tokens to x [32][4]. */
ALWAYS_INLINE void weave(const uint8_t code[][LINE], size_t i, uint8_t *x)
{
    const __m256i *const from = (const __m256i *)(code[0] + i);
    const __m256i lines[KV_QUAD] = {from[0], from[2], from[4], from[6]};
    __m256i *const to = (__m256i *)(x + i * KV_QUAD);
    __m256i y[KV_QUAD];

    kv_lanes_quads(lines, y);
    UNROLL
    for (size_t k = 0; k < 2; k++) {
        const __m256i low = y[2 * k], high = y[2 * k + 1];

        _mm256_storeu_si256(to + k, _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256(to + 2 + k,
                            _mm256_permute2x128_si256(low, high, 0x31));
    }
}

/* n <= 4 coefficients of a run from the j-th on: x [64][4]. */
static void quad(const struct kv_transform_head *h,
                 const struct kv_transform_run *run, size_t j, size_t n,
                 const uint8_t *tile, uint8_t *x)
{
    _Alignas(32) uint8_t code[KV_QUAD][LINE];

    for (size_t i = 0; i < n; i++)
        look_up(run->table, h->place[run->first + j + i], tile, code[i]);
    memset(code[n], 0, (KV_QUAD - n) * LINE);
    weave(code, 0, x);
    weave(code, 32, x);
}

static size_t quad_of(const struct kv_transform_run *run, size_t j)
{
    return run->n - j < KV_QUAD ? run->n - j : KV_QUAD;
}

static void codes(const struct kv_transform_head *h, const uint8_t *tile,
                  uint8_t *x)
{
    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = 0; j < h->run[i].n; j += KV_QUAD, x += KV_QUAD_LINE)
            quad(h, &h->run[i], j, quad_of(&h->run[i], j), tile, x);
}

static void put_scores(const int32_t *sum, int32_t bias, float factor,
                       float constant, float *score)
{
    for (size_t t = 0; t < LINE; t += 4) {
        const __m128i four = _mm_add_epi32(
            _mm_loadu_si128((const __m128i *)(sum + kv_transform_at(t))),
            _mm_set1_epi32(bias));

        _mm_storeu_ps(score + t,
                      _mm_fmadd_ps(_mm_set1_ps(factor), _mm_cvtepi32_ps(four),
                                   _mm_set1_ps(constant)));
    }
}

static void dot8(const struct kv_transform_head *h, const uint8_t *x,
                 struct kv_transform_query8 q, size_t rows, float *score,
                 size_t stride)
{
    _Alignas(64)
        int16_t q16[KV_TRANSFORM_FOUR * KV_TRANSFORM_MAX * KV_TILE_ROWS];
    const size_t by_quad = rows * KV_QUAD;

    kv_quad_widen(q.code, (h->n4 * rows + 15) / 16 * 16, q16);
    for (size_t r = 0; r < rows; r += ROWS) {
        const size_t n = rows - r < ROWS ? rows - r : ROWS;
        const struct kv_quad_rows by = {q16 + r * KV_QUAD, by_quad, KV_QUAD};
        int32_t sum[ROWS][LINE];

        kv_quad_qk(x, h->n4 / KV_QUAD, by, n, sum[0]);
        for (size_t i = 0; i < n; i++)
            put_scores(sum[i], q.bias[r + i], q.factor[r + i],
                       q.constant[r + i], score + (r + i) * stride);
    }
}

/* Rows r to r + n of a quad whose first sums are at acc; rows is a constant. */
ALWAYS_INLINE void add_quad(const uint8_t *x, size_t some,
                            const __m256i (*p)[8], const float *factor,
                            size_t rows, float *acc, size_t most)
{
    __m128i sum[ROWS];

    kv_quad_pv(x, 128, p, rows, sum);
    for (size_t r = 0; r < rows; r++) {
        float each[KV_QUAD];

        _mm_storeu_ps(
            each, _mm_mul_ps(_mm_set1_ps(factor[r]), _mm_cvtepi32_ps(sum[r])));
        for (size_t i = 0; i < some; i++)
            acc[r * most + i] += each[i];
    }
}

ALWAYS_INLINE void add_rows(const struct kv_transform_head *h, const uint8_t *x,
                            const __m256i (*p)[8], const float *factor,
                            size_t rows, float *acc, size_t most)
{
    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = 0; j < h->run[i].n; j += KV_QUAD, x += KV_QUAD_LINE)
            add_quad(x, quad_of(&h->run[i], j), p, factor, rows,
                     acc + h->run[i].first + j, most);
}

static void add8(const struct kv_transform_head *h, const uint8_t *x,
                 const struct kv_transform_weights *w, size_t rows, float *acc,
                 size_t most)
{
    for (size_t r = 0; r < rows; r += ROWS, acc += ROWS * most) {
        const size_t n = rows - r < ROWS ? rows - r : ROWS;
        __m256i p[ROWS][8];

        for (size_t i = 0; i < n; i++)
            kv_quad_weights(w->code[r + i], p[i]);
#define SOME(R) add_rows(h, x, p, w->factor + r, R, acc, most)
        KV_QUAD_CASES(n, SOME)
#undef SOME
    }
}

/* ---- exact --------------------------------------------------------------- */

/* A coefficient at 8 tokens of a part, 4 from token 4 i on and 4 from 16 + 4 i
 * on, which a line has side by side.  Looked up one by one: a pv
 * takes longer (Zen 3). */
static __m256 eight(struct kv_transform_place p, const float *table,
                    const uint8_t *tile, size_t part, size_t i)
{
    const uint8_t *const at =
        tile + p.line + kv_transform_at(part * PART + 4 * i);
    const __m256i last =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at));
    const __m256i before =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(at - LINE)));
    const __m256i two = _mm256_or_si256(last, _mm256_slli_epi32(before, 8));
    const __m256i shifted =
        _mm256_srl_epi32(two, _mm_cvtsi32_si128((int)p.shift));
    uint32_t s[8];

    _mm256_storeu_si256(
        (__m256i *)s,
        _mm256_and_si256(shifted, _mm256_set1_epi32(KV_TRELLIS_STATES - 1)));
    return _mm256_setr_ps(table[s[0]], table[s[1]], table[s[2]], table[s[3]],
                          table[s[4]], table[s[5]], table[s[6]], table[s[7]]);
}

/* y [n + 1][32] */
static void expand_keys(const struct kv_transform_head *h, const uint8_t *tile,
                        size_t part, float *y)
{
    for (size_t i = 0; i < h->n_runs; i++) {
        const struct kv_transform_run *run = &h->run[i];

        for (size_t j = 0; j < run->n; j++, y += PART)
            for (size_t g = 0; g < EIGHTS; g++) {
                const __m256 x = eight(h->place[run->first + j],
                                       run->table->from, tile, part, g);

                _mm_storeu_ps(y + 4 * g, _mm256_castps256_ps128(x));
                _mm_storeu_ps(y + 16 + 4 * g, _mm256_extractf128_ps(x, 1));
            }
    }
    for (size_t t = 0; t < PART; t++)
        y[t] = 1;
}

/* Rows of 8 become columns. */
ALWAYS_INLINE void turn8(__m256i *x)
{
    kv_lanes_turn(x, x);
    kv_lanes_turn(x + 4, x + 4);
    UNROLL
    for (size_t i = 0; i < 4; i++) {
        const __m256i low = x[i], high = x[4 + i];

        x[i] = _mm256_permute2x128_si256(low, high, 0x20);
        x[4 + i] = _mm256_permute2x128_si256(low, high, 0x31);
    }
}

/* y [32][stride], 8 coefficients at a time; zeros fill up those of the 1. */
static void expand_values(const struct kv_transform_head *h,
                          const uint8_t *tile, size_t part, float *y,
                          size_t stride)
{
    const float *table[KV_TRANSFORM_MAX];

    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = 0; j < h->run[i].n; j++)
            table[h->run[i].first + j] = h->run[i].table->from;
    for (size_t j = 0; j <= h->n; j += 8)
        for (size_t g = 0; g < EIGHTS; g++) {
            float *const to = y + 4 * g * stride + j;
            __m256i x[8];

            for (size_t i = 0; i < 8; i++)
                x[i] = _mm256_castps_si256(
                    j + i < h->n
                        ? eight(h->place[j + i], table[j + i], tile, part, g)
                        : _mm256_set1_ps(j + i == h->n));
            turn8(x);
            for (size_t i = 0; i < 4; i++) {
                _mm256_storeu_si256((__m256i *)(to + i * stride), x[i]);
                _mm256_storeu_si256((__m256i *)(to + (16 + i) * stride),
                                    x[4 + i]);
            }
        }
}

static void expand(const struct kv_transform_head *h, const uint8_t *tile,
                   size_t part, size_t by_coef, size_t by_token, float *y)
{
    if (by_coef == 1)
        expand_values(h, tile, part, y, by_token);
    else
        expand_keys(h, tile, part, y);
}

const struct kv_transform_loops kv_transform_loops_avx2 = {expand, codes, dot8,
                                                           add8};
