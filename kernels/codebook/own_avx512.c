/* A table for each sub-space: a register holds one channel of 64 tokens, and
 * four of them are turned so that neighbours meet. */
#include "kernels/codebook/avx512.h"

/* The codes of a sub-space, 64 tokens. */
ALWAYS_INLINE vi own_codes(const uint8_t *tile, size_t sub, int halves)
{
    if (!halves)
        return load_ahead(tile + sub * T);

    const vi x = load_ahead(tile + sub / 2 * T);

    return sub % 2 ? high_codes(x) : low_codes(x);
}

/* Channels [c, c + 4) of 64 tokens; one: of one sub-vector. */
ALWAYS_INLINE void own_four(const struct kv_codebook *b, const uint8_t *planes,
                            const uint8_t *tile, size_t c, size_t n, int halves,
                            int one, vi x[4])
{
    struct codes code = codes(own_codes(tile, b->sub_of[c], halves), n);

    UNROLL
    for (size_t i = 0; i < 4; i++) {
        const struct table t = table(planes + (c + i) * n, n);

        if (i && !one)
            code = codes(own_codes(tile, b->sub_of[c + i], halves), n);
        x[i] = look_up(&t, n, code);
    }
}

/* Channels [c, c + 4): x[k], 128-bit lane l: tokens 16 l + 4 k + [0, 4), each
 * its four channels. */
ALWAYS_INLINE void own_tokens(const struct kv_codebook *b,
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
ALWAYS_INLINE void own_channels(const struct kv_codebook *b,
                                const uint8_t *planes, const uint8_t *tile,
                                size_t c, size_t n, int halves, int one,
                                vi x[4])
{
    vi y[4];

    own_four(b, planes, tile, c, n, halves, one, y);
    kv_lanes_turn(y, x);
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

ALWAYS_INLINE void own_qk(const struct kv_codebook *b, const uint8_t *planes,
                          const uint8_t *tile, const int8_t *q8, size_t rows,
                          size_t n, int halves, int one, const struct qk *to)
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
            const vi by = all4(q8 + (c / 4 * rows + r) * 4);

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
            put_sums(to, r, l * 16, out[l]);
    }
}

ALWAYS_INLINE void own_pv(const struct kv_codebook *b, const uint8_t *planes,
                          const uint8_t *tile, const int8_t *p8,
                          const float *scale, size_t rows, size_t n, int halves,
                          int one, size_t n_acc, float *acc)
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

#define KINDS(X, R) \
    X(R, 64, 1, 0)  \
    X(R, 64, 0, 0)  \
    X(R, 128, 0, 0) \
    X(R, 256, 0, 0) \
    X(R, 64, 1, 1) X(R, 64, 0, 1) X(R, 128, 0, 1) X(R, 256, 0, 1)
#define KIND(R, N, HALVES, ONE) ((R) << 16 | (N) << 4 | (HALVES) << 1 | (ONE))

static size_t kind(const struct kv_codebook *b, size_t rows)
{
    return KIND(rows, b->plane, (size_t)(b->bits <= 4), b->d % 4 == 0);
}

void kv_codebook_qk_own(const struct kv_codebook *b, size_t head,
                        const uint8_t *from, const int8_t *q8, size_t n,
                        const struct qk *to)
{
    const uint8_t *planes = planes_of(b, head);

    switch (kind(b, n)) {
#define CASE(R, N, HALVES, ONE)                             \
    case KIND(R, N, HALVES, ONE):                           \
        own_qk(b, planes, from, q8, R, N, HALVES, ONE, to); \
        break;
        EVERY_ROWS(KINDS, CASE)
#undef CASE
    }
}

void kv_codebook_pv_own(const struct kv_codebook *b, size_t head,
                        const uint8_t *from, const int8_t *p8,
                        const float *scale, size_t n, size_t n_acc, float *acc)
{
    const uint8_t *planes = planes_of(b, head);

    switch (kind(b, n)) {
#define CASE(R, N, HALVES, ONE)                                            \
    case KIND(R, N, HALVES, ONE):                                          \
        own_pv(b, planes, from, p8, scale, R, N, HALVES, ONE, n_acc, acc); \
        break;
        EVERY_ROWS(KINDS, CASE)
#undef CASE
    }
}
