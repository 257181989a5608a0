/* AVX-512 with VNNI and VBMI.  A register of codes is looked up in one
 * dimension of a table at a time, in registers; four neighbouring bytes go into
 * one 32-bit sum. */
#include "kernels/tiles_codebook_impl.h"
#include "kernels/unroll.h"

#include <immintrin.h>
#include <string.h>

enum { T = KV_TILE_TOKENS, LINE = 64, AHEAD = 4096, MOST_DIM = 512, ROWS = 4 };

typedef __m512i vi;

ALWAYS_INLINE vi load(const void *p)
{
    return _mm512_loadu_si512(p);
}

ALWAYS_INLINE vi load_ahead(const uint8_t *p)
{
    __builtin_prefetch(p + AHEAD);
    return load(p);
}

ALWAYS_INLINE vi all4(const void *p)
{
    int32_t x;

    memcpy(&x, p, sizeof(x));
    return _mm512_set1_epi32(x);
}

/* sum += u * v in fours; u unsigned, v signed.  As an instruction by name: gcc
 * 12 copies the sums before and after the intrinsic. */
ALWAYS_INLINE void add_products(vi *sum, vi u, vi v)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(u), "v"(v));
}

/* One dimension of a table: 64, 128 or 256 entries. */
struct table {
    vi part[4];
};

ALWAYS_INLINE struct table table(const uint8_t *plane, size_t n)
{
    struct table t;

    UNROLL
    for (size_t i = 0; i < n / 64; i++)
        t.part[i] = load(plane + i * 64);
    return t;
}

ALWAYS_INLINE vi look_up(const struct table *t, size_t n, vi code)
{
    if (n == 64)
        return _mm512_permutexvar_epi8(code, t->part[0]);

    const vi low = _mm512_permutex2var_epi8(t->part[0], code, t->part[1]);

    if (n == 128)
        return low;
    return _mm512_mask_blend_epi8(
        _mm512_movepi8_mask(code), low,
        _mm512_permutex2var_epi8(t->part[2], code, t->part[3]));
}

/* How codes stand in bytes: whole, or low half first. */
ALWAYS_INLINE vi low_codes(vi x)
{
    return _mm512_and_si512(x, _mm512_set1_epi8(15));
}

ALWAYS_INLINE vi high_codes(vi x)
{
    return low_codes(_mm512_srli_epi16(x, 4));
}

/* ---- shared ---------------------------------------------------------------
 */

/* Four sub-vectors at `tile`: register i of 16 tokens each. */
ALWAYS_INLINE vi key_codes(const uint8_t *tile, size_t i, int halves)
{
    if (!halves)
        return load_ahead(tile + i * LINE);
    return i < 2 ? low_codes(load_ahead(tile + i * LINE))
                 : high_codes(load(tile + (i - 2) * LINE));
}

/* rows, n and halves are constants. */
ALWAYS_INLINE void shared_scores(const struct kv_tile_book *b,
                                 const uint8_t *planes, const uint8_t *tile,
                                 const int8_t *q8, size_t q_rows, size_t rows,
                                 size_t n, int halves, int32_t *sum)
{
    const size_t step = halves ? 2 * LINE : 4 * LINE,
                 fours = (b->n_sub + 3) / 4;
    vi s[ROWS][4];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t i = 0; i < 4; i++)
        s[r][i] = _mm512_setzero_si512();
    for (size_t j = 0; j < b->d; j++) {
        const struct table t = table(planes + j * n, n);

        for (size_t m = 0; m < fours; m++) {
            const int8_t *q = q8 + (m * b->d + j) * q_rows * 4;
            vi by[ROWS];

            UNROLL
            for (size_t r = 0; r < rows; r++)
                by[r] = all4(q + r * 4);
            UNROLL
            for (size_t i = 0; i < 4; i++) {
                const vi x =
                    look_up(&t, n, key_codes(tile + m * step, i, halves));

                UNROLL
                for (size_t r = 0; r < rows; r++)
                    add_products(&s[r][i], x, by[r]);
            }
        }
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t i = 0; i < 4; i++)
        _mm512_storeu_si512(sum + r * T + i * 16, s[r][i]);
}

/* 4 tokens of 16 sub-vectors: register i of 16. */
ALWAYS_INLINE vi value_codes(const uint8_t *tile, size_t i, int halves)
{
    if (!halves)
        return load_ahead(tile + i * LINE);
    return i < 8 ? low_codes(load_ahead(tile + i * LINE))
                 : high_codes(load(tile + (i - 8) * LINE));
}

ALWAYS_INLINE void add_sum(float *acc, float scale, vi sum)
{
    const __m512 x =
        _mm512_mul_ps(_mm512_set1_ps(scale), _mm512_cvtepi32_ps(sum));

    _mm512_storeu_ps(acc, _mm512_add_ps(_mm512_loadu_ps(acc), x));
}

/* Dimensions [j, j + dims) of sixteens [g, g + sixteens); rows, dims,
 * sixteens, n and halves are constants. */
ALWAYS_INLINE void
shared_gather_some(const struct kv_tile_book *b, const uint8_t *planes,
                   const uint8_t *tile, const int8_t *p8, const float *scale,
                   size_t rows, size_t g, size_t sixteens, size_t j,
                   size_t dims, size_t n, int halves, size_t n_acc, float *acc)
{
    const size_t step = halves ? 8 * LINE : 16 * LINE;
    struct table t[2];
    vi s[ROWS][4]; /* [dims][sixteens] */

    UNROLL
    for (size_t k = 0; k < dims; k++)
        t[k] = table(planes + (j + k) * n, n);
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < dims; k++)
        UNROLL
    for (size_t h = 0; h < sixteens; h++)
        s[r][k * sixteens + h] = _mm512_setzero_si512();
    for (size_t i = 0; i < 16; i++) {
        vi by[ROWS];

        UNROLL
        for (size_t r = 0; r < rows; r++)
            by[r] = all4(p8 + r * T + i * 4);
        UNROLL
        for (size_t h = 0; h < sixteens; h++) {
            const vi code = value_codes(tile + (g + h) * step, i, halves);

            UNROLL
            for (size_t k = 0; k < dims; k++) {
                const vi x = look_up(&t[k], n, code);

                UNROLL
                for (size_t r = 0; r < rows; r++)
                    add_products(&s[r][k * sixteens + h], by[r], x);
            }
        }
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < dims; k++)
        UNROLL
    for (size_t h = 0; h < sixteens; h++)
        add_sum(acc + r * n_acc + ((g + h) * b->d + j + k) * 16, scale[r],
                s[r][k * sixteens + h]);
}

ALWAYS_INLINE void shared_gather(const struct kv_tile_book *b,
                                 const uint8_t *planes, const uint8_t *tile,
                                 const int8_t *p8, const float *scale,
                                 size_t rows, size_t n, int halves,
                                 size_t n_acc, float *acc)
{
    const size_t all = (b->n_sub + 15) / 16;
    size_t g = 0;

#define SOME(SIXTEENS, DIMS)                                                   \
    shared_gather_some(b, planes, tile, p8, scale, rows, g, SIXTEENS, j, DIMS, \
                       n, halves, n_acc, acc)
    for (; g + 4 <= all; g += 4)
        for (size_t j = 0; j < b->d; j++)
            SOME(4, 1);
    for (; g + 2 <= all; g += 2) {
        size_t j = 0;

        for (; j + 2 <= b->d; j += 2)
            SOME(2, 2);
        if (j < b->d)
            SOME(2, 1);
    }
    for (; g < all; g++) {
        size_t j = 0;

        for (; j + 2 <= b->d; j += 2)
            SOME(1, 2);
        if (j < b->d)
            SOME(1, 1);
    }
#undef SOME
}

/* ---- own ------------------------------------------------------------------
 */

/* The codes of a sub-space, 64 tokens. */
ALWAYS_INLINE vi own_codes(const uint8_t *tile, size_t sub, int halves)
{
    if (!halves)
        return load_ahead(tile + sub * T);

    const vi x = load_ahead(tile + sub / 2 * T);

    return sub % 2 ? high_codes(x) : low_codes(x);
}

/* Channels [c, c + 4) of 64 tokens; one: of one sub-vector. */
ALWAYS_INLINE void own_four(const struct kv_tile_book *b, const uint8_t *planes,
                            const uint8_t *tile, size_t c, size_t n, int halves,
                            int one, vi x[4])
{
    vi code = own_codes(tile, b->sub_of[c], halves);

    UNROLL
    for (size_t i = 0; i < 4; i++) {
        const struct table t = table(planes + (c + i) * n, n);

        if (i && !one)
            code = own_codes(tile, b->sub_of[c + i], halves);
        x[i] = look_up(&t, n, code);
    }
}

/* Channels [c, c + 4): x[k], 128-bit lane l: tokens 16 l + 4 k + [0, 4), each
 * its four channels. */
ALWAYS_INLINE void own_tokens(const struct kv_tile_book *b,
                              const uint8_t *planes, const uint8_t *tile,
                              size_t c, size_t n, int halves, int one, vi x[4])
{
    vi y[4];

    own_four(b, planes, tile, c, n, halves, one, y);

    const vi low01 = _mm512_unpacklo_epi8(y[0], y[1]);
    const vi high01 = _mm512_unpackhi_epi8(y[0], y[1]);
    const vi low23 = _mm512_unpacklo_epi8(y[2], y[3]);
    const vi high23 = _mm512_unpackhi_epi8(y[2], y[3]);

    x[0] = _mm512_unpacklo_epi16(low01, low23);
    x[1] = _mm512_unpackhi_epi16(low01, low23);
    x[2] = _mm512_unpacklo_epi16(high01, high23);
    x[3] = _mm512_unpackhi_epi16(high01, high23);
}

/* The same, lane l: channel by channel its tokens 16 l + 4 k + [0, 4). */
ALWAYS_INLINE void own_channels(const struct kv_tile_book *b,
                                const uint8_t *planes, const uint8_t *tile,
                                size_t c, size_t n, int halves, int one,
                                vi x[4])
{
    vi y[4];

    own_four(b, planes, tile, c, n, halves, one, y);

    const vi low01 = _mm512_unpacklo_epi32(y[0], y[1]);
    const vi high01 = _mm512_unpackhi_epi32(y[0], y[1]);
    const vi low23 = _mm512_unpacklo_epi32(y[2], y[3]);
    const vi high23 = _mm512_unpackhi_epi32(y[2], y[3]);

    x[0] = _mm512_unpacklo_epi64(low01, low23);
    x[1] = _mm512_unpackhi_epi64(low01, low23);
    x[2] = _mm512_unpacklo_epi64(high01, high23);
    x[3] = _mm512_unpackhi_epi64(high01, high23);
}

/* out[i], lane l = x[l], lane i. */
ALWAYS_INLINE void turn_lanes(const vi x[4], vi out[4])
{
    const vi a = _mm512_shuffle_i32x4(x[0], x[1], 0x44);
    const vi b = _mm512_shuffle_i32x4(x[2], x[3], 0x44);
    const vi c = _mm512_shuffle_i32x4(x[0], x[1], 0xee);
    const vi d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);

    out[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    out[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    out[2] = _mm512_shuffle_i32x4(c, d, 0x88);
    out[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

/* Lane i: the sum of x[i]'s lanes. */
ALWAYS_INLINE vi sum_lanes(const vi x[4])
{
    const vi a = _mm512_add_epi32(_mm512_shuffle_i32x4(x[0], x[1], 0x44),
                                  _mm512_shuffle_i32x4(x[0], x[1], 0xee));
    const vi b = _mm512_add_epi32(_mm512_shuffle_i32x4(x[2], x[3], 0x44),
                                  _mm512_shuffle_i32x4(x[2], x[3], 0xee));

    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88),
                            _mm512_shuffle_i32x4(a, b, 0xdd));
}

ALWAYS_INLINE void own_scores(const struct kv_tile_book *b,
                              const uint8_t *planes, const uint8_t *tile,
                              const int8_t *q8, size_t q_rows, size_t rows,
                              size_t n, int halves, int one, int32_t *sum)
{
    vi s[ROWS][4];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < 4; k++)
        s[r][k] = _mm512_setzero_si512();
    for (size_t c = 0; c < b->n_sub * b->d; c += 4) {
        vi x[4];

        own_tokens(b, planes, tile, c, n, halves, one, x);
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            const vi by = all4(q8 + (c / 4 * q_rows + r) * 4);

            UNROLL
            for (size_t k = 0; k < 4; k++)
                add_products(&s[r][k], x[k], by);
        }
    }
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        vi out[4];

        turn_lanes(s[r], out);
        UNROLL
        for (size_t l = 0; l < 4; l++)
            _mm512_storeu_si512(sum + r * T + l * 16, out[l]);
    }
}

ALWAYS_INLINE void own_gather(const struct kv_tile_book *b,
                              const uint8_t *planes, const uint8_t *tile,
                              const int8_t *p8, const float *scale, size_t rows,
                              size_t n, int halves, int one, size_t n_acc,
                              float *acc)
{
    vi by[ROWS][4]; /* [k], lane l: tokens 16 l + 4 k + [0, 4), four times */

    UNROLL
    for (size_t r = 0; r < rows; r++) {
        const vi p = load(p8 + r * T);

        by[r][0] = _mm512_shuffle_epi32(p, 0x00);
        by[r][1] = _mm512_shuffle_epi32(p, 0x55);
        by[r][2] = _mm512_shuffle_epi32(p, 0xaa);
        by[r][3] = _mm512_shuffle_epi32(p, 0xff);
    }
    for (size_t c = 0; c < b->n_sub * b->d; c += 16) {
        vi s[ROWS][4];

        UNROLL
        for (size_t i = 0; i < 4; i++) {
            vi x[4];

            own_channels(b, planes, tile, c + 4 * i, n, halves, one, x);
            UNROLL
            for (size_t r = 0; r < rows; r++) {
                s[r][i] = _mm512_setzero_si512();
                UNROLL
                for (size_t k = 0; k < 4; k++)
                    add_products(&s[r][i], by[r][k], x[k]);
            }
        }
        UNROLL
        for (size_t r = 0; r < rows; r++)
            add_sum(acc + r * n_acc + c, scale[r], sum_lanes(s[r]));
    }
}

/* ---- more than 8 bits ------------------------------------------------------
 */

/* The codes of a sub-space, to code [64]. */
static void wide_codes(const struct kv_tile_book *b, const uint8_t *tile,
                       size_t sub, uint16_t *code)
{
    const uint8_t *low = tile + sub * T;
    const uint8_t *bits = tile + b->n_sub * T + sub * (b->bits - 8) * (T / 8);
    vi x[2];

    __builtin_prefetch(low + AHEAD);
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

/* Entries of all sub-spaces, to x [n_sub][64][width]. */
static void wide_entries(const struct kv_tile_book *b, size_t head,
                         const uint8_t *tile, uint8_t *x)
{
    for (size_t i = 0; i < b->n_sub; i++) {
        uint16_t code[T];

        wide_codes(b, tile, i, code);
        kv_code_entries(b->entry +
                            kv_tile_book_at(b, head, i) * b->k * b->width,
                        b->width, code, x + i * T * b->width);
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
ALWAYS_INLINE void wide_scores(const struct kv_tile_book *b, const uint8_t *x,
                               const int8_t *q8, size_t q_rows, size_t rows,
                               size_t width, int32_t *sum)
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
                const vi by = all_width(q8 + (i * q_rows + r) * width, width);

                UNROLL
                for (size_t k = 0; k < 4; k++)
                    add_products(&s[r][k], key[k], by);
            }
        }
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            int32_t *to = sum + r * T + part * tokens;

            if (width == 4) {
                UNROLL
                for (size_t k = 0; k < 4; k++)
                    _mm512_storeu_si512(to + k * 16, s[r][k]);
                continue;
            }

            const vi low = pairs(s[r][0], s[r][1]);
            const vi high = pairs(s[r][2], s[r][3]);

            if (width == 16) {
                _mm512_storeu_si512(to, pairs(low, high));
                continue;
            }
            _mm512_storeu_si512(to, low);
            _mm512_storeu_si512(to + 16, high);
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
ALWAYS_INLINE void wide_gather(const struct kv_tile_book *b, const uint8_t *x,
                               const int8_t *p8, const float *scale,
                               size_t rows, size_t width, size_t n_acc,
                               float *acc)
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

/* ---- by rows and kind ------------------------------------------------------
 */

#define SHARED_KINDS(X, R) X(R, 64, 1) X(R, 64, 0) X(R, 128, 0) X(R, 256, 0)
#define OWN_KINDS(X, R) \
    X(R, 64, 1, 0)      \
    X(R, 64, 0, 0)      \
    X(R, 128, 0, 0)     \
    X(R, 256, 0, 0)     \
    X(R, 64, 1, 1) X(R, 64, 0, 1) X(R, 128, 0, 1) X(R, 256, 0, 1)
#define WIDTHS(X, R) X(R, 4) X(R, 8) X(R, 16)
#define EVERY_ROWS(X, Y) X(Y, 1) X(Y, 2) X(Y, 3) X(Y, 4)
_Static_assert(ROWS == 4, "EVERY_ROWS and the unrolling");

#define KIND(R, N, HALVES, ONE) ((R) << 16 | (N) << 4 | (HALVES) << 1 | (ONE))

static size_t kind(const struct kv_tile_book *b, size_t rows)
{
    return KIND(rows, b->plane, (size_t)(b->bits <= 4),
                b->order == KV_CODES_OWN && b->d % 4 == 0);
}

static void narrow_scores(const struct kv_tile_book *b, const uint8_t *planes,
                          const uint8_t *tile, const int8_t *q8, size_t q_rows,
                          size_t rows, int32_t *sum)
{
    if (b->order == KV_CODES_SHARED)
        switch (kind(b, rows)) {
#define CASE(R, N, HALVES)                                             \
    case KIND(R, N, HALVES, 0):                                        \
        shared_scores(b, planes, tile, q8, q_rows, R, N, HALVES, sum); \
        break;
            EVERY_ROWS(SHARED_KINDS, CASE)
#undef CASE
        }
    else
        switch (kind(b, rows)) {
#define CASE(R, N, HALVES, ONE)                                          \
    case KIND(R, N, HALVES, ONE):                                        \
        own_scores(b, planes, tile, q8, q_rows, R, N, HALVES, ONE, sum); \
        break;
            EVERY_ROWS(OWN_KINDS, CASE)
#undef CASE
        }
}

static void narrow_gather(const struct kv_tile_book *b, const uint8_t *planes,
                          const uint8_t *tile, const int8_t *p8,
                          const float *scale, size_t rows, size_t n_acc,
                          float *acc)
{
    if (b->order == KV_CODES_SHARED)
        switch (kind(b, rows)) {
#define CASE(R, N, HALVES)                                                   \
    case KIND(R, N, HALVES, 0):                                              \
        shared_gather(b, planes, tile, p8, scale, R, N, HALVES, n_acc, acc); \
        break;
            EVERY_ROWS(SHARED_KINDS, CASE)
#undef CASE
        }
    else
        switch (kind(b, rows)) {
#define CASE(R, N, HALVES, ONE)                                                \
    case KIND(R, N, HALVES, ONE):                                              \
        own_gather(b, planes, tile, p8, scale, R, N, HALVES, ONE, n_acc, acc); \
        break;
            EVERY_ROWS(OWN_KINDS, CASE)
#undef CASE
        }
}

void kv_code_scores_vnni(const struct kv_store *s, size_t head,
                         const uint8_t *tile, const void *query, size_t rows,
                         float *score, size_t stride)
{
    const struct kv_tile_book *b = s->params;
    const struct kv_code_query *q = query;
    const size_t at = kv_tile_book_channel(b, head, 0, 0) * b->plane;
    _Alignas(LINE) int32_t sum[KV_TILE_ROWS * T];
    _Alignas(LINE) uint8_t x[MOST_DIM * T * 4];

    if (b->order == KV_CODES_WIDE)
        wide_entries(b, head, tile, x);
    for (size_t r = 0; r < rows; r += ROWS) {
        const size_t n = rows - r < ROWS ? rows - r : ROWS;

        if (b->order != KV_CODES_WIDE) {
            narrow_scores(b, b->planes + at, tile, q->q8 + r * 4, rows, n,
                          sum + r * T);
            continue;
        }
        switch (n << 8 | b->width) {
#define CASE(R, W)                                                 \
    case R << 8 | W:                                               \
        wide_scores(b, x, q->q8 + r * W, rows, R, W, sum + r * T); \
        break;
            EVERY_ROWS(WIDTHS, CASE)
#undef CASE
        }
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t t = 0; t < T; t += 16) {
            const vi unbiased = _mm512_sub_epi32(load(sum + r * T + t),
                                                 _mm512_set1_epi32(q->bias[r]));

            _mm512_storeu_ps(score + r * stride + t,
                             _mm512_mul_ps(_mm512_set1_ps(q->scale[r]),
                                           _mm512_cvtepi32_ps(unbiased)));
        }
}

void kv_code_gather_vnni(const struct kv_store *s, size_t head,
                         const uint8_t *tile, const float *p, size_t stride,
                         size_t rows, float *acc)
{
    const struct kv_tile_book *b = s->params;
    const size_t at = kv_tile_book_channel(b, head, 0, 0) * b->plane;
    const size_t n_acc = kv_code_sums(s);
    _Alignas(LINE) int8_t p8[KV_TILE_ROWS * T];
    float scale[KV_TILE_ROWS];
    _Alignas(LINE) uint8_t x[MOST_DIM * T * 4];

    for (size_t r = 0; r < rows; r++)
        scale[r] = kv_tile_loops_avx512.round8(p + r * stride, T, p8 + r * T);
    if (b->order == KV_CODES_WIDE)
        wide_entries(b, head, tile, x);
    for (size_t r = 0; r < rows; r += ROWS) {
        const size_t n = rows - r < ROWS ? rows - r : ROWS;

        if (b->order != KV_CODES_WIDE) {
            narrow_gather(b, b->planes + at, tile, p8 + r * T, scale + r, n,
                          n_acc, acc + r * n_acc);
            continue;
        }
        switch (n << 8 | b->width) {
#define CASE(R, W)                                            \
    case R << 8 | W:                                          \
        wide_gather(b, x, p8 + r * T, scale + r, R, W, n_acc, \
                    acc + r * n_acc);                         \
        break;
            EVERY_ROWS(WIDTHS, CASE)
#undef CASE
        }
    }
}
