/* Codes of more than 8 bits: whole entries are copied to memory, where the
 * width bytes of a token are neighbours. */
#include "kernels/codebook/avx512.h"

/* The codes of a sub-space, to code [64]. */
static void wide_codes(const struct kv_codebook *b, const uint8_t *tile,
                       size_t sub, uint16_t *code)
{
    const uint8_t *low = tile + sub * T;
    const uint8_t *bits = tile + b->n_sub * T + sub * (b->bits - 8) * (T / 8);
    vi x[2];

    kv_prefetch_far(low, KV_FAR_CODES, LINE);
    UNROLL
    for (size_t h = 0; h < 2; h++)
        x[h] = _mm512_cvtepu8_epi16(
            _mm256_loadu_si256((const __m256i *)(low + h * 32)));
    for (unsigned i = 8; i < b->bits; i++, bits += T / 8) {
        const vi bit = _mm512_set1_epi16((short)(1u << i));

        UNROLL
        for (size_t h = 0; h < 2; h++) {
            __mmask32 has;

            memcpy(&has, bits + h * 4, sizeof(has));
            x[h] = _mm512_mask_add_epi16(x[h], has, x[h], bit);
        }
    }
    UNROLL
    for (size_t h = 0; h < 2; h++)
        _mm512_storeu_si512(code + h * 32, x[h]);
}

/* Word by word: pvs of wide instruction sets are slower. */
#define ENTRIES(TYPE)                                                     \
    for (size_t i = 0; i < T; i++) {                                      \
        TYPE one;                                                         \
                                                                          \
        memcpy(&one, entry + (size_t)code[i] * sizeof(one), sizeof(one)); \
        memcpy(x + i * sizeof(one), &one, sizeof(one));                   \
    }

/* Entries of one table by 64 codes, to x [64][width]. */
static void entries(const uint8_t *entry, size_t width, const uint16_t *code,
                    uint8_t *x)
{
    struct sixteen {
        uint64_t half[2];
    };

    if (width == 4) {
        _Pragma("GCC unroll 8") ENTRIES(uint32_t)
    } else if (width == 8) {
        _Pragma("GCC unroll 8") ENTRIES(uint64_t)
    } else {
        _Pragma("GCC unroll 4") ENTRIES(struct sixteen)
    }
}

void kv_codebook_entries(const struct kv_codebook *b, size_t head,
                         const uint8_t *tile, uint8_t *x)
{
    uint16_t code[2][T]; /* the next ones first: the stores are done then */

    wide_codes(b, tile, 0, code[0]);
    for (size_t i = 0; i < b->n_sub; i++) {
        if (i + 1 < b->n_sub)
            wide_codes(b, tile, i + 1, code[(i + 1) % 2]);
        entries(b->entry + kv_codebook_at(b, head, i) * b->k * b->width,
                b->width, code[i % 2], x + i * T * b->width);
    }
}

/* width bytes, over and over. */
ALWAYS_INLINE vi all_width(const int8_t *q, size_t width)
{
    int64_t x;

    if (width == 4)
        return all4(q);
    if (width == 16)
        return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)q));
    memcpy(&x, q, sizeof(x));
    return _mm512_set1_epi64(x);
}

/* Sums of neighbours of a and b, in their order. */
ALWAYS_INLINE vi pairs(vi a, vi b)
{
    const vi even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10,
                                     8, 6, 4, 2, 0);
    const vi odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11,
                                    9, 7, 5, 3, 1);

    return _mm512_add_epi32(_mm512_permutex2var_epi32(a, even, b),
                            _mm512_permutex2var_epi32(a, odd, b));
}

/* 64 tokens, a part of 256 / width at a time; rows and width are constants. */
ALWAYS_INLINE void wide_qk(const struct kv_codebook *b, const uint8_t *x,
                           const int8_t *q8, size_t rows, size_t width,
                           const struct qk *to)
{
    const size_t tokens = 256 / width;

    for (size_t part = 0; part < T / tokens; part++) {
        vi s[ROWS][4];

        UNROLL
        for (size_t r = 0; r < rows; r++)
            UNROLL
        for (size_t k = 0; k < 4; k++)
            s[r][k] = _mm512_setzero_si512();
        for (size_t i = 0; i < b->n_sub; i++) {
            const uint8_t *from = x + i * T * width + part * 256;
            vi key[4];

            UNROLL
            for (size_t k = 0; k < 4; k++)
                key[k] = load(from + k * LINE);
            UNROLL
            for (size_t r = 0; r < rows; r++) {
                const vi by = all_width(q8 + (i * rows + r) * width, width);

                UNROLL
                for (size_t k = 0; k < 4; k++)
                    add_products(&s[r][k], key[k], by);
            }
        }
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            const size_t at = part * tokens;

            if (width == 4) {
                UNROLL
                for (size_t k = 0; k < 4; k++)
                    put_sums(to, r, at + k * 16, s[r][k]);
                continue;
            }

            const vi low = pairs(s[r][0], s[r][1]);
            const vi high = pairs(s[r][2], s[r][3]);

            if (width == 16) {
                put_sums(to, r, at, pairs(low, high));
                continue;
            }
            put_sums(to, r, at, low);
            put_sums(to, r, at + 16, high);
        }
    }
}

/* From [tokens][width] to [fours of tokens][width][4 tokens]. */
ALWAYS_INLINE vi turn_order(size_t width)
{
    uint8_t from[64];

    for (size_t i = 0; i < 64; i++)
        from[i] =
            (uint8_t)((i / (4 * width) * 4 + i % 4) * width + i / 4 % width);
    return load(from);
}

/* rows and width are constants. */
ALWAYS_INLINE void wide_pv(const struct kv_codebook *b, const uint8_t *x,
                           const int8_t *p8, const float *scale, size_t rows,
                           size_t width, size_t n_acc, float *acc)
{
    const size_t subs = 16 / width; /* whose sums fill a register */
    const vi turn = turn_order(width);
    vi by[ROWS][16]; /* [register of 64 / width tokens] */

    for (size_t k = 0; k < width; k++) {
        int32_t from[16];

        for (size_t i = 0; i < 16; i++)
            from[i] = (int32_t)(k * subs + i / width);
        for (size_t r = 0; r < rows; r++)
            by[r][k] = _mm512_permutexvar_epi32(load(from), load(p8 + r * T));
    }
    for (size_t i = 0; i < b->n_sub; i += subs) {
        vi s[ROWS][4];

        UNROLL
        for (size_t h = 0; h < subs; h++) {
            UNROLL
            for (size_t r = 0; r < rows; r++)
                s[r][h] = _mm512_setzero_si512();
            if (i + h >= b->n_sub)
                continue;
            UNROLL
            for (size_t k = 0; k < width; k++) {
                const vi v = _mm512_permutexvar_epi8(
                    turn, load(x + ((i + h) * width + k) * LINE));

                UNROLL
                for (size_t r = 0; r < rows; r++)
                    add_products(&s[r][h], by[r][k], v);
            }
        }
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            vi all = s[r][0];

            if (width == 8)
                all = _mm512_add_epi32(
                    _mm512_shuffle_i32x4(s[r][0], s[r][1], 0x44),
                    _mm512_shuffle_i32x4(s[r][0], s[r][1], 0xee));
            else if (width == 4)
                all = sum_lanes(s[r]);
            add_sum(acc + r * n_acc + i * width, scale[r], all);
        }
    }
}

#define WIDTHS(X, R) X(R, 4) X(R, 8) X(R, 16)

void kv_codebook_qk_wide(const struct kv_codebook *b, size_t head,
                         const uint8_t *from, const int8_t *q8, size_t n,
                         const struct qk *to)
{
    (void)head;
    switch (n << 8 | b->width) {
#define CASE(R, W)                      \
    case R << 8 | W:                    \
        wide_qk(b, from, q8, R, W, to); \
        break;
        EVERY_ROWS(WIDTHS, CASE)
#undef CASE
    }
}

void kv_codebook_pv_wide(const struct kv_codebook *b, size_t head,
                         const uint8_t *from, const int8_t *p8,
                         const float *scale, size_t n, size_t n_acc, float *acc)
{
    (void)head;
    switch (n << 8 | b->width) {
#define CASE(R, W)                                     \
    case R << 8 | W:                                   \
        wide_pv(b, from, p8, scale, R, W, n_acc, acc); \
        break;
        EVERY_ROWS(WIDTHS, CASE)
#undef CASE
    }
}
