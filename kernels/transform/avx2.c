#include "kernels/simd/avx2.h"
#include "kernels/simd/quads_avx2.h"
#include "kernels/transform/impl.h"

enum { ROWS = KV_QUAD_ROWS, LINE = KV_TILE_TOKENS, PART = KV_TILE_PART };

/* ---- exact --------------------------------------------------------------- */

/* Looks up a coefficient at the tokens of 8 places, one by one: a gather takes
 * longer (Zen 3). */
static __m256 eight(const float *table, struct kv_transform_place p,
                    const uint8_t *tile, size_t at)
{
    const uint8_t *const from = tile + p.line + at;
    const __m256i last =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from));
    const __m256i before =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(from - LINE)));
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

/* Places 16 l + 8 part to 16 l + 8 part + 7 have tokens 4 l to 4 l + 3 of a
 * part and those 16 later. */
static void expand(const struct kv_transform_head *h, const uint8_t *tile,
                   size_t tile_bytes, float *y)
{
    float *second = y + (h->n + 1) * PART;

    (void)tile_bytes;
    for (size_t k = 0; k < h->n_runs; k++) {
        const struct kv_transform_run *run = &h->run[k];

        for (size_t j = 0; j < run->n; j++, y += PART, second += PART)
            UNROLL
        for (size_t i = 0; i < 8; i++) {
            const __m256 x =
                eight(run->table->from, h->place[run->first + j], tile, 8 * i);
            float *const to = (i % 2 ? second : y) + i / 2 * 4;

            _mm_storeu_ps(to, _mm256_castps256_ps128(x));
            _mm_storeu_ps(to + 16, _mm256_extractf128_ps(x, 1));
        }
    }
    for (size_t t = 0; t < PART; t++)
        y[t] = second[t] = 1;
}

/* rows <= ROWS is a constant. */
ALWAYS_INLINE void pv_rows(const float *y, size_t n, const float *p,
                           size_t stride, size_t rows, float *acc, size_t row)
{
    for (size_t j = 0; j < n; j++, y += PART) {
        __m256 sum[ROWS];

        UNROLL
        for (size_t r = 0; r < rows; r++)
            sum[r] = _mm256_loadu_ps(acc + r * row + 8 * j);
        for (size_t t = 0; t < LINE; t += 8) {
            const __m256 x =
                _mm256_loadu_ps(y + t / PART * n * PART + t % PART);

            UNROLL
            for (size_t r = 0; r < rows; r++)
                sum[r] = _mm256_fmadd_ps(_mm256_loadu_ps(p + r * stride + t), x,
                                         sum[r]);
        }
        UNROLL
        for (size_t r = 0; r < rows; r++)
            _mm256_storeu_ps(acc + r * row + 8 * j, sum[r]);
    }
}

static void pv(const struct kv_transform_head *h, const uint8_t *tile,
               size_t tile_bytes, const float *p, size_t stride, size_t rows,
               float *acc, size_t row)
{
    _Alignas(32) float y[(KV_TRANSFORM_MAX + 1) * LINE];

    expand(h, tile, tile_bytes, y);
    for (size_t r = 0; r < rows; r += ROWS)
#define SOME(R) \
    pv_rows(y, h->n + 1, p + r * stride, stride, R, acc + r * row, row)
        KV_QUAD_CASES(kv_min(rows - r, ROWS), SOME)
#undef SOME
}

/* ---- int8 ---------------------------------------------------------------- */

ALWAYS_INLINE __m256i half_bytes(const uint8_t *at, int bit)
{
    const __m256i x = _mm256_loadu_si256((const __m256i *)at);

    return _mm256_and_si256(bit ? _mm256_srli_epi16(x, bit) : x,
                            _mm256_set1_epi8(15));
}

ALWAYS_INLINE __m256i of_16(const uint8_t *table, __m256i at)
{
    return v_lookup_i8(v_load_t16i8(table), at);
}

/* Returns the entries of 32 tokens; last: the states' last bytes. */
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

/* Looks up the codes of entries of 4 to 8 bits: first in each 16 codes by the
 * low four bits; then each higher bit, shifted up, chooses between two results.
 * bits: a constant. */
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

/* Codes of a coefficient: [64], in the tokens' order in a line. */
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

/* Interleaves four lines to x [64][4]. */
static void interleave(const uint8_t code[][LINE], uint8_t *x)
{
    for (size_t i = 0; i < LINE; i += 32) {
        const __m256i *const from = (const __m256i *)(code[0] + i);
        const __m256i lines[KV_QUAD] = {from[0], from[2], from[4], from[6]};
        __m256i *const to = (__m256i *)(x + i * KV_QUAD);
        __m256i y[KV_QUAD];

        v_interleave4_i8(lines, y);
        UNROLL
        for (size_t k = 0; k < 2; k++) {
            const __m256i low = y[2 * k], high = y[2 * k + 1];

            _mm256_storeu_si256(to + k,
                                _mm256_permute2x128_si256(low, high, 0x20));
            _mm256_storeu_si256(to + 2 + k,
                                _mm256_permute2x128_si256(low, high, 0x31));
        }
    }
}

/* code: [n / 4 rounded up][64 places][4] */
static void codes(const struct kv_transform_head *h, const uint8_t *tile,
                  size_t tile_bytes, uint8_t *code)
{
    _Alignas(32) uint8_t line[KV_QUAD][LINE];
    size_t n = 0;

    (void)tile_bytes;
    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = 0; j < h->run[i].n; j++) {
            look_up(h->run[i].table, h->place[n], tile, line[n % KV_QUAD]);
            if (++n % KV_QUAD == 0) {
                interleave(line, code);
                code += KV_QUAD_LINE;
            }
        }
    if (n % KV_QUAD) {
        memset(line[n % KV_QUAD], 128, (KV_QUAD - n % KV_QUAD) * LINE);
        interleave(line, code);
    }
}

static void put_scores(const int32_t *sum, struct kv_transform_query8 q,
                       size_t r, float *score, float *second)
{
    for (size_t t = 0; t < LINE; t += 4) {
        float *const to = t < PART ? score + t : second + t - PART;
        const __m128i four = _mm_add_epi32(
            _mm_loadu_si128((const __m128i *)(sum + kv_transform_at(t))),
            _mm_set1_epi32(q.bias[r]));

        _mm_storeu_ps(to, _mm_fmadd_ps(_mm_set1_ps(q.scale[r]),
                                       _mm_cvtepi32_ps(four),
                                       _mm_set1_ps(q.constant[r])));
    }
}

static void qk8(const uint8_t *code, size_t n, struct kv_transform_query8 q,
                size_t rows, float *score, float *second, size_t stride)
{
    _Alignas(64) int16_t q16[KV_TRANSFORM_MAX * KV_TILE_ROWS];
    const size_t quads = kv_round_up(n, KV_QUAD) / KV_QUAD;

    kv_quad_widen(q.code, kv_round_up(quads * KV_QUAD * rows, 16), q16);
    for (size_t r = 0; r < rows; r += ROWS) {
        const size_t some = kv_min(rows - r, ROWS);
        const struct kv_quad_rows by = {q16 + r * KV_QUAD, rows * KV_QUAD,
                                        KV_QUAD};
        int32_t sum[ROWS][LINE];

        kv_quad_qk(code, quads, by, some, sum[0]);
        for (size_t i = r; i < r + some; i++)
            put_scores(sum[i - r], q, i, score + i * stride,
                       second + i * stride);
    }
}

/* rows <= ROWS is a constant. */
ALWAYS_INLINE void pv8_rows(const uint8_t *code, size_t n,
                            const __m256i (*p)[8], const float *scale,
                            size_t rows, float *acc, size_t row)
{
    for (size_t j = 0; j < n; j += KV_QUAD, code += KV_QUAD_LINE) {
        __m128i sum[ROWS];

        kv_quad_pv(code, 128, p, rows, sum);
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            float *const to = acc + r * row + j;

            _mm_storeu_ps(to, _mm_add_ps(_mm_loadu_ps(to),
                                         _mm_mul_ps(_mm_set1_ps(scale[r]),
                                                    _mm_cvtepi32_ps(sum[r]))));
        }
    }
}

/* A row's weights in the order of places. */
static void weights(const int8_t *weight, __m256i p[8])
{
    int8_t in_place[LINE];

    for (size_t t = 0; t < LINE; t += 4)
        memcpy(in_place + kv_transform_at(t), weight + t, 4);
    kv_quad_weights(in_place, p);
}

static void pv8(const uint8_t *code, size_t n, const int8_t *weight,
                const float *scale, size_t rows, float *acc, size_t row)
{
    for (size_t r = 0; r < rows; r += ROWS, acc += ROWS * row) {
        const size_t some = kv_min(rows - r, ROWS);
        __m256i p[ROWS][8];

        for (size_t i = 0; i < some; i++)
            weights(weight + (r + i) * LINE, p[i]);
#define SOME(R) pv8_rows(code, n, p, scale + r, R, acc, row)
        KV_QUAD_CASES(some, SOME)
#undef SOME
    }
}

const struct kv_transform_ops kv_transform_avx2 = {.expand = expand,
                                                   .lanes = 8,
                                                   .pv = pv,
                                                   .codes = codes,
                                                   .qk8 = qk8,
                                                   .lanes8 = 1,
                                                   .pv8 = pv8};
