/* One table for all sub-spaces of a head: it stays in registers while all codes
 * pass, one dimension after the other. */
#include "kernels/tiles_codebook_vnni.h"

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

#define KINDS(X, R) X(R, 64, 1) X(R, 64, 0) X(R, 128, 0) X(R, 256, 0)
#define KIND(R, N, HALVES) ((R) << 16 | (N) << 4 | (HALVES))

static size_t kind(const struct kv_tile_book *b, size_t rows)
{
    return KIND(rows, b->plane, (size_t)(b->bits <= 4));
}

void kv_code_scores_shared(const struct kv_tile_book *b, size_t head,
                           const uint8_t *from, const int8_t *q8, size_t rows,
                           size_t n, int32_t *sum)
{
    const uint8_t *planes = planes_of(b, head);

    switch (kind(b, n)) {
#define CASE(R, N, HALVES)                                           \
    case KIND(R, N, HALVES):                                         \
        shared_scores(b, planes, from, q8, rows, R, N, HALVES, sum); \
        break;
        EVERY_ROWS(KINDS, CASE)
#undef CASE
    }
}

void kv_code_gather_shared(const struct kv_tile_book *b, size_t head,
                           const uint8_t *from, const int8_t *p8,
                           const float *scale, size_t n, size_t n_acc,
                           float *acc)
{
    const uint8_t *planes = planes_of(b, head);

    switch (kind(b, n)) {
#define CASE(R, N, HALVES)                                                   \
    case KIND(R, N, HALVES):                                                 \
        shared_gather(b, planes, from, p8, scale, R, N, HALVES, n_acc, acc); \
        break;
        EVERY_ROWS(KINDS, CASE)
#undef CASE
    }
}
