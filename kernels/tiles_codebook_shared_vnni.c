/* One table for all sub-spaces of a head: each register of codes is looked up
 * in up to DIMS dimensions at once.  Registers hold the table for keys; for
 * values the sums, a dimension's own. */
#include "kernels/tiles_codebook_vnni.h"

enum { DIMS = 4 };

/* f(n) from dimension j on, so many at a time that n is a constant; in a block
 * that has b and j. */
#define EVERY_DIMS(f)             \
    for (; j + 4 <= b->d; j += 4) \
        f(4);                     \
    for (; j + 2 <= b->d; j += 2) \
        f(2);                     \
    if (j < b->d)                 \
        f(1);
_Static_assert(DIMS == 4, "EVERY_DIMS");

/* Four sub-vectors at `tile`: register i of 16 tokens each. */
ALWAYS_INLINE vi key_codes(const uint8_t *tile, size_t i, int halves)
{
    if (!halves)
        return load_ahead(tile + i * LINE);
    return i < 2 ? low_codes(load_ahead(tile + i * LINE))
                 : high_codes(load(tile + (i - 2) * LINE));
}

/* The 16 tokens of register i in the dimensions of t.  tile and q8: of the
 * first four sub-vectors; first: nothing is in sum yet. */
ALWAYS_INLINE void
shared_scores_some(const struct kv_tile_book *b, const struct table t[DIMS],
                   const uint8_t *tile, size_t i, const int8_t *q8, size_t rows,
                   size_t dims, size_t n, int halves, int first, int32_t *sum)
{
    const size_t step = halves ? 2 * LINE : 4 * LINE, q_step = b->d * rows * 4;
    const uint8_t *end = tile + (b->n_sub + 3) / 4 * step;
    vi s[ROWS][2]; /* of even and odd dimensions: shorter chains */

    UNROLL
    for (size_t r = 0; r < rows; r++) {
        s[r][0] = first ? _mm512_setzero_si512() : load(sum + r * T);
        s[r][1] = _mm512_setzero_si512();
    }
    for (; tile < end; tile += step, q8 += q_step) {
        const struct codes c = codes(key_codes(tile, i, halves), n);
        vi x[DIMS]; /* first: look-ups have but one port */

        UNROLL
        for (size_t k = 0; k < dims; k++)
            x[k] = look_up(&t[k], n, c);
        UNROLL
        for (size_t k = 0; k < dims; k++)
            UNROLL
        for (size_t r = 0; r < rows; r++)
            add_products_all4(&s[r][k % 2], x[k], q8 + (k * rows + r) * 4);
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        _mm512_storeu_si512(sum + r * T, _mm512_add_epi32(s[r][0], s[r][1]));
}

/* Dimensions [j, j + dims) of 64 tokens.  rows, dims, n and halves are
 * constants. */
ALWAYS_INLINE void shared_scores_dims(const struct kv_tile_book *b,
                                      const uint8_t *planes,
                                      const uint8_t *tile, const int8_t *q8,
                                      size_t rows, size_t j, size_t dims,
                                      size_t n, int halves, int32_t *sum)
{
    struct table t[DIMS];

    UNROLL
    for (size_t k = 0; k < dims; k++)
        t[k] = table(planes + (j + k) * n, n);
    for (size_t i = 0; i < 4; i++)
        shared_scores_some(b, t, tile, i, q8 + j * rows * 4, rows, dims, n,
                           halves, !j, sum + i * 16);
}

ALWAYS_INLINE void shared_scores(const struct kv_tile_book *b,
                                 const uint8_t *planes, const uint8_t *tile,
                                 const int8_t *q8, size_t rows, size_t n,
                                 int halves, int32_t *sum)
{
    size_t j = 0;

#define SOME(N) \
    shared_scores_dims(b, planes, tile, q8, rows, j, N, n, halves, sum)
    EVERY_DIMS(SOME)
#undef SOME
}

/* 4 tokens of 16 sub-vectors: register i of 16. */
ALWAYS_INLINE vi value_codes(const uint8_t *tile, size_t i, int halves)
{
    if (!halves)
        return load_ahead(tile + i * LINE);
    return i < 8 ? low_codes(load_ahead(tile + i * LINE))
                 : high_codes(load(tile + (i - 8) * LINE));
}

/* Dimensions [j, j + dims) of 16 sub-vectors, to acc [rows][dims][16].  rows,
 * dims, n and halves are constants. */
ALWAYS_INLINE void shared_gather_some(const uint8_t *planes,
                                      const uint8_t *tile, const int8_t *p8,
                                      const float *scale, size_t rows,
                                      size_t dims, size_t n, int halves,
                                      size_t n_acc, float *acc)
{
    vi s[ROWS][DIMS];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < dims; k++)
        s[r][k] = _mm512_setzero_si512();
    for (size_t i = 0; i < 16; i++) {
        const struct codes c = codes(value_codes(tile, i, halves), n);
        vi by[ROWS];

        UNROLL
        for (size_t r = 0; r < rows; r++)
            by[r] = all4(p8 + r * T + i * 4);
        UNROLL
        for (size_t k = 0; k < dims; k++) {
            const struct table t = table(planes + k * n, n);
            const vi x = look_up(&t, n, c);

            UNROLL
            for (size_t r = 0; r < rows; r++)
                add_products(&s[r][k], by[r], x);
        }
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < dims; k++)
        add_sum(acc + r * n_acc + k * 16, scale[r], s[r][k]);
}

ALWAYS_INLINE void shared_gather(const struct kv_tile_book *b,
                                 const uint8_t *planes, const uint8_t *tile,
                                 const int8_t *p8, const float *scale,
                                 size_t rows, size_t n, int halves,
                                 size_t n_acc, float *acc)
{
    const size_t step = halves ? 8 * LINE : 16 * LINE;

    for (size_t g = 0; g < (b->n_sub + 15) / 16; g++) {
        size_t j = 0;

#define SOME(N)                                                                \
    shared_gather_some(planes + j * n, tile + g * step, p8, scale, rows, N, n, \
                       halves, n_acc, acc + (g * b->d + j) * 16)
        EVERY_DIMS(SOME)
#undef SOME
    }
}

#define KINDS(X, R) X(R, 64, 1) X(R, 64, 0) X(R, 128, 0) X(R, 256, 0)
#define KIND(R, N, HALVES) ((R) << 16 | (N) << 4 | (HALVES))

static size_t kind(const struct kv_tile_book *b, size_t rows)
{
    return KIND(rows, b->plane, (size_t)(b->bits <= 4));
}

void kv_code_scores_shared(const struct kv_tile_book *b, size_t head,
                           const uint8_t *from, const int8_t *q8, size_t n,
                           int32_t *sum)
{
    const uint8_t *planes = planes_of(b, head);

    switch (kind(b, n)) {
#define CASE(R, N, HALVES)                                     \
    case KIND(R, N, HALVES):                                   \
        shared_scores(b, planes, from, q8, R, N, HALVES, sum); \
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
