/* One table for all sub-spaces of a head: each register of codes is looked up
 * in up to DIMS dimensions at once.  Registers hold the table for keys; for
 * values the sums, a dimension's own, and the first quarters of the planes.
 *
 * With 256 entries and 4 rows Intel's two ports for vectors have 17 and 18
 * micro-operations of 64 codes: the look-ups can go to one of them alone, the
 * products to both.  A core chooses when it takes an instruction in, by how
 * many wait for each port.  Products that wait for their look-ups are counted
 * too, and others then go where the look-ups must: so what is multiplied was
 * looked up one register of codes before, and the instructions stand in the
 * order in which they are written.
 *
 * Where pairs of registers are looked up at the price of one (AMD), half as
 * many look-ups do: `pairs`, a constant wherever it is handed on.  Registers
 * then hold the table for values too, of two dimensions. */
#include "kernels/codebook/avx512.h"
#include "kernels/level.h"

enum { DIMS = 4 };

/* f(n) from dimension j on, up to `most` at a time, n a constant; in a block
 * that has b and j. */
#define EVERY_DIMS(f, most)                      \
    for (; (most) == 4 && j + 4 <= b->d; j += 4) \
        f(4);                                    \
    for (; j + 2 <= b->d; j += 2)                \
        f(2);                                    \
    if (j < b->d)                                \
        f(1);
_Static_assert(DIMS == 4, "EVERY_DIMS");

/* look_up() in its place. */
ALWAYS_INLINE vi look_up_here(const struct table *t, size_t n, int pairs,
                              struct codes c)
{
    vi x;

    if (pairs)
        return look_up_pairs(t, n, c);
    KV_PERMB_HERE(x, c.code, t->part[0]);
    if (n > 64)
        KV_PERMB_WHERE_HERE(x, c.bit6, c.code, t->part[1]);
    if (n > 128) {
        KV_PERMB_WHERE_HERE(x, c.bit7, c.code, t->part[2]);
        KV_PERMB_WHERE_HERE(x, c.both, c.code, t->part[3]);
    }
    return x;
}

/* The same of a plane in memory but for its first quarter. */
ALWAYS_INLINE vi look_up_at(vi first, const uint8_t *plane, size_t n,
                            struct codes c)
{
    vi x;

    KV_PERMB_HERE(x, c.code, first);
    if (n > 64)
        KV_PERMB_WHERE_AT_HERE(x, c.bit6, c.code, plane + LINE);
    if (n > 128) {
        KV_PERMB_WHERE_AT_HERE(x, c.bit7, c.code, plane + 2 * LINE);
        KV_PERMB_WHERE_AT_HERE(x, c.both, c.code, plane + 3 * LINE);
    }
    return x;
}

/* add_products() in its place. */
ALWAYS_INLINE void add_products_here(vi *sum, vi u, vi v)
{
    KV_DPBUSD_HERE(*sum, u, v);
}

/* The same with four bytes at v over and over. */
ALWAYS_INLINE void add_products_all4(vi *sum, vi u, const int8_t *v)
{
    KV_DPBUSD_ALL4_HERE(*sum, u, v);
}

/* p, of which the compiler does not know that: it would keep an address in a
 * register for every line there. */
ALWAYS_INLINE const uint8_t *again(const uint8_t *p)
{
    __asm__("" : "+r"(p));
    return p;
}

/* Four sub-vectors at `tile`: register i of 16 tokens each. */
ALWAYS_INLINE vi key_codes(const uint8_t *tile, size_t i, int halves)
{
    if (!halves)
        return load_ahead(tile + i * LINE);
    return i < 2 ? low_codes(load_ahead(tile + i * LINE))
                 : high_codes(load(tile + (i - 2) * LINE));
}

/* s [rows][chains]: of dimensions by turns. */
ALWAYS_INLINE void key_products(vi s[ROWS][DIMS], size_t chains, size_t k, vi x,
                                const int8_t *q8, size_t rows)
{
    UNROLL
    for (size_t r = 0; r < rows; r++)
        add_products_all4(&s[r][k % chains], x, q8 + (k * rows + r) * 4);
}

/* The 16 tokens of register i in the dimensions of t.  tile and q8: of the
 * first four sub-vectors.  Sums begin as `sum` where some is there, and go
 * there where more is to come, else to `to`. */
ALWAYS_INLINE void shared_qk_some(const struct kv_codebook *b,
                                  const struct table t[DIMS],
                                  const uint8_t *tile, size_t i,
                                  const int8_t *q8, size_t rows, size_t dims,
                                  size_t n, int halves, int pairs, int some,
                                  int more, int32_t *sum, const struct qk *to)
{
    const size_t step = halves ? 2 * LINE : 4 * LINE, q_step = b->d * rows * 4;
    const uint8_t *end = tile + (b->n_sub + 3) / 4 * step;
    struct codes c = codes(key_codes(tile, i, halves), n);
    const size_t most = pairs ? 1 : n > 128 ? 2 : 4; /* as measured */
    const size_t chains = dims < most ? dims : most;
    vi s[ROWS][DIMS], x[DIMS];

    UNROLL
    for (size_t r = 0; r < rows; r++) {
        s[r][0] =
            some ? load(sum + r * T + i * 16) : _mm512_set1_epi32(to->start[r]);
        UNROLL
        for (size_t k = 1; k < chains; k++)
            s[r][k] = _mm512_setzero_si512();
    }
    UNROLL
    for (size_t k = 0; k < dims; k++)
        x[k] = look_up_here(&t[k], n, pairs, c);
    for (tile += step; tile < end; tile += step, q8 += q_step) {
        c = codes(key_codes(tile, i, halves), n);
        UNROLL
        for (size_t k = 0; k < dims; k++) {
            key_products(s, chains, k, x[k], q8, rows);
            x[k] = look_up_here(&t[k], n, pairs, c);
        }
    }
    UNROLL
    for (size_t k = 0; k < dims; k++)
        key_products(s, chains, k, x[k], q8, rows);
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        vi all = s[r][0];

        UNROLL
        for (size_t k = 1; k < chains; k++)
            all = _mm512_add_epi32(all, s[r][k]);

        if (more)
            _mm512_storeu_si512(sum + r * T + i * 16, all);
        else
            put_scores(to, r, i * 16, all);
    }
}

/* Dimensions [j, j + dims) of 64 tokens.  rows, dims, n, halves and pairs are
 * constants. */
ALWAYS_INLINE void shared_qk_dims(const struct kv_codebook *b,
                                  const uint8_t *planes, const uint8_t *tile,
                                  const int8_t *q8, size_t rows, size_t j,
                                  size_t dims, size_t n, int halves, int pairs,
                                  int32_t *sum, const struct qk *to)
{
    struct table t[DIMS];

    UNROLL
    for (size_t k = 0; k < dims; k++)
        t[k] = table(planes + (j + k) * n, n);
    for (size_t i = 0; i < 4; i++)
        shared_qk_some(b, t, tile, i, q8 + j * rows * 4, rows, dims, n, halves,
                       pairs, j > 0, j + dims < b->d, sum, to);
}

ALWAYS_INLINE void shared_qk(const struct kv_codebook *b, const uint8_t *planes,
                             const uint8_t *tile, const int8_t *q8, size_t rows,
                             size_t n, int halves, int pairs,
                             const struct qk *to)
{
    _Alignas(LINE) int32_t sum[ROWS * T];
    size_t j = 0;

#define SOME(N) \
    shared_qk_dims(b, planes, tile, q8, rows, j, N, n, halves, pairs, sum, to)
    EVERY_DIMS(SOME, DIMS)
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

/* s [rows][dims] += products with the weights of register i of 16. */
ALWAYS_INLINE void value_products(vi s[ROWS][DIMS], size_t k, vi x,
                                  const vi by[ROWS], size_t rows)
{
    UNROLL
    for (size_t r = 0; r < rows; r++)
        add_products_here(&s[r][k], by[r], x);
}

ALWAYS_INLINE void weights_of(const int8_t *p8, size_t i, size_t rows,
                              vi by[ROWS])
{
    UNROLL
    for (size_t r = 0; r < rows; r++)
        by[r] = all4(p8 + r * T + i * 4);
}

/* The table of a plane; of more than pairs, its first quarter. */
ALWAYS_INLINE struct table value_table(const uint8_t *plane, size_t n,
                                       int pairs)
{
    return table(plane, pairs ? n : 64);
}

ALWAYS_INLINE vi look_up_value(const struct table *t, const uint8_t *plane,
                               size_t n, int pairs, struct codes c)
{
    return pairs ? look_up_pairs(t, n, c) : look_up_at(t->part[0], plane, n, c);
}

/* Dimensions [j, j + dims) of 16 sub-vectors, to acc [rows][dims][16].  rows,
 * dims, n, halves and pairs are constants. */
ALWAYS_INLINE void shared_pv_some(const uint8_t *planes, const uint8_t *tile,
                                  const int8_t *p8, const float *scale,
                                  size_t rows, size_t dims, size_t n,
                                  int halves, int pairs, size_t n_acc,
                                  float *acc)
{
    const size_t side = DIMS / dims; /* registers */
    vi s[ROWS][DIMS], x[DIMS][DIMS], by[ROWS];
    struct table t[DIMS];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < dims; k++)
        s[r][k] = _mm512_setzero_si512();
    UNROLL
    for (size_t k = 0; k < dims; k++)
        t[k] = value_table(planes + k * n, n, pairs);
    UNROLL
    for (size_t h = 0; h < side; h++) {
        const struct codes c = codes(value_codes(tile, h, halves), n);

        UNROLL
        for (size_t k = 0; k < dims; k++)
            x[h][k] = look_up_value(&t[k], planes + k * n, n, pairs, c);
    }
    for (size_t i = side; i < 16; i += side) {
        planes = again(planes);
        UNROLL
        for (size_t h = 0; h < side; h++) {
            const struct codes c = codes(value_codes(tile, i + h, halves), n);

            weights_of(p8, i + h - side, rows, by);
            UNROLL
            for (size_t k = 0; k < dims; k++) {
                value_products(s, k, x[h][k], by, rows);
                x[h][k] = look_up_value(&t[k], planes + k * n, n, pairs, c);
            }
        }
    }
    UNROLL
    for (size_t h = 0; h < side; h++) {
        weights_of(p8, 16 - side + h, rows, by);
        UNROLL
        for (size_t k = 0; k < dims; k++)
            value_products(s, k, x[h][k], by, rows);
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < dims; k++)
        add_sum(acc + r * n_acc + k * 16, scale[r], s[r][k]);
}

ALWAYS_INLINE void shared_pv(const struct kv_codebook *b, const uint8_t *planes,
                             const uint8_t *tile, const int8_t *p8,
                             const float *scale, size_t rows, size_t n,
                             int halves, int pairs, size_t n_acc, float *acc)
{
    const size_t step = halves ? 8 * LINE : 16 * LINE;

    for (size_t g = 0; g < (b->n_sub + 15) / 16; g++) {
        size_t j = 0;

#define SOME(N)                                                            \
    shared_pv_some(planes + j * n, tile + g * step, p8, scale, rows, N, n, \
                   halves, pairs, n_acc, acc + (g * b->d + j) * 16)
        EVERY_DIMS(SOME, pairs ? 2 : DIMS)
#undef SOME
    }
}

#define KINDS(X, R) \
    X(R, 64, 1, 0)  \
    X(R, 64, 0, 0)  \
    X(R, 128, 0, 0) X(R, 128, 0, 1) X(R, 256, 0, 0) X(R, 256, 0, 1)
#define KIND(R, N, HALVES, PAIRS) \
    ((R) << 16 | (N) << 4 | (HALVES) << 1 | (PAIRS))

static size_t kind(const struct kv_codebook *b, size_t rows)
{
    return KIND(rows, b->plane, (size_t)(b->bits <= 4),
                (size_t)(b->plane > 64 && kv_level_pairs()));
}

void kv_codebook_qk_shared(const struct kv_codebook *b, size_t head,
                           const uint8_t *from, const int8_t *q8, size_t n,
                           const struct qk *to)
{
    const uint8_t *planes = planes_of(b, head);

    switch (kind(b, n)) {
#define CASE(R, N, HALVES, PAIRS)                                \
    case KIND(R, N, HALVES, PAIRS):                              \
        shared_qk(b, planes, from, q8, R, N, HALVES, PAIRS, to); \
        break;
        EVERY_ROWS(KINDS, CASE)
#undef CASE
    }
}

void kv_codebook_pv_shared(const struct kv_codebook *b, size_t head,
                           const uint8_t *from, const int8_t *p8,
                           const float *scale, size_t n, size_t n_acc,
                           float *acc)
{
    const uint8_t *planes = planes_of(b, head);

    switch (kind(b, n)) {
#define CASE(R, N, HALVES, PAIRS)                                         \
    case KIND(R, N, HALVES, PAIRS):                                       \
        shared_pv(b, planes, from, p8, scale, R, N, HALVES, PAIRS, n_acc, \
                  acc);                                                   \
        break;
        EVERY_ROWS(KINDS, CASE)
#undef CASE
    }
}
