/* One table for all sub-spaces of a head: each register of codes is looked up
 * in up to DIMS dimensions at once.  Registers hold the table for keys; for
 * values the sums, a dimension's own, and the first quarters of the planes.
 *
 * With 256 entries and 4 rows Intel's two ports for vectors have 17 and 18
 * micro-operations of 64 codes: the look-ups can go to one of them alone, the
 * products to both.  A core chooses when it takes an instruction in, by how
 * many wait for each port.  Products that wait for their look-ups are counted
 * too, and other products then go to the port that the look-ups need.  So
 * products use the look-ups of the previous register of codes, and the
 * instructions keep the order in which they are written.
 *
 * If pairs of registers are looked up at the price of one (AMD), half as many
 * look-ups suffice: `pairs`, which is a constant wherever it is passed on.
 * Registers then hold the table for values too, of two dimensions. */
#include "kernels/codebook/avx512.h"
#include "kernels/level.h"

enum { DIMS = 4 };

/* Calls f(n) from dimension j on, for up to `max` dimensions at a time; n is a
 * constant.  The calling block has b and j. */
#define EVERY_DIMS(f, max)                      \
    for (; (max) == 4 && j + 4 <= b->d; j += 4) \
        f(4);                                   \
    for (; j + 2 <= b->d; j += 2)               \
        f(2);                                   \
    if (j < b->d)                               \
        f(1);
_Static_assert(DIMS == 4, "EVERY_DIMS");

/* look_up(), kept where it is written. */
ALWAYS_INLINE vi32 look_up_here(const struct table *t, size_t n, int pairs,
                                struct codes c)
{
    vi32 x;

    if (pairs)
        return look_up_pairs(t, c);
    KV_PERMB_HERE(x, c.code, t->part[0]);
    if (n > 64) {
        KV_PERMB_WHERE_HERE(x, c.bit6, c.code, t->part[1]);
        KV_PERMB_WHERE_HERE(x, c.bit7, c.code, t->part[2]);
        KV_PERMB_WHERE_HERE(x, c.both, c.code, t->part[3]);
    }
    return x;
}

/* look_up_here() in a plane in memory, except the plane's first quarter. */
ALWAYS_INLINE vi32 look_up_at(vi32 first, const uint8_t *plane, size_t n,
                              struct codes c)
{
    vi32 x;

    KV_PERMB_HERE(x, c.code, first);
    if (n > 64) {
        KV_PERMB_WHERE_AT_HERE(x, c.bit6, c.code, plane + LINE);
        KV_PERMB_WHERE_AT_HERE(x, c.bit7, c.code, plane + 2 * LINE);
        KV_PERMB_WHERE_AT_HERE(x, c.both, c.code, plane + 3 * LINE);
    }
    return x;
}

/* add_products(), kept where it is written. */
ALWAYS_INLINE void add_products_here(vi32 *sum, vi32 u, vi32 v)
{
    KV_DPBUSD_HERE(*sum, u, v);
}

/* add_products_here() with the four bytes at v repeated. */
ALWAYS_INLINE void add_products_all4(vi32 *sum, vi32 u, const int8_t *v)
{
    KV_DPBUSD_ALL4_HERE(*sum, u, v);
}

/* Returns p and hides this from the compiler, which would keep the address of
 * every line in a register of its own. */
ALWAYS_INLINE const uint8_t *again(const uint8_t *p)
{
    __asm__("" : "+r"(p));
    return p;
}

/* The codes of four sub-vectors at `tile`: register i, of 16 tokens. */
ALWAYS_INLINE vi32 key_codes(const uint8_t *tile, size_t i, int halves)
{
    if (!halves)
        return load_ahead(tile + i * LINE);
    return i < 2 ? low_codes(load_ahead(tile + i * LINE))
                 : high_codes(v_load_i32(tile + (i - 2) * LINE));
}

/* Adds the products of dimension k to s [rows][chains]; dimensions take the
 * chains by turns. */
ALWAYS_INLINE void key_products(vi32 s[ROWS][DIMS], size_t chains, size_t k,
                                vi32 x, const int8_t *q8, size_t rows)
{
    UNROLL
    for (size_t r = 0; r < rows; r++)
        add_products_all4(&s[r][k % chains], x, q8 + (k * rows + r) * 4);
}

/* Scores the 16 tokens of register i in the dimensions of t.  tile and q8 begin
 * at the first four sub-vectors.  Sums start from `sum` if `some`, else from 0;
 * they are stored to `sum` if `more`, else to `to`. */
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
    const size_t max = pairs ? 1 : n > 64 ? 2 : 4; /* the fastest, measured */
    const size_t chains = dims < max ? dims : max;
    vi32 s[ROWS][DIMS], x[DIMS];

    UNROLL
    for (size_t r = 0; r < rows; r++) {
        s[r][0] =
            some ? v_load_i32(sum + r * T + i * 16) : v_set1_i32(to->start[r]);
        UNROLL
        for (size_t k = 1; k < chains; k++)
            s[r][k] = v_zero_i32();
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
        vi32 all = s[r][0];

        UNROLL
        for (size_t k = 1; k < chains; k++)
            all = v_add_i32(all, s[r][k]);

        if (more)
            v_store_i32(sum + r * T + i * 16, all);
        else
            put_scores(to, r, i * 16, all);
    }
}

/* Scores 64 tokens in dimensions [j, j + dims).  rows, dims, n, halves and
 * pairs are constants. */
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

/* The codes of 4 tokens of 16 sub-vectors, register i of 16. */
ALWAYS_INLINE vi32 value_codes(const uint8_t *tile, size_t i, int halves)
{
    if (!halves)
        return load_ahead(tile + i * LINE);
    return i < 8 ? low_codes(load_ahead(tile + i * LINE))
                 : high_codes(v_load_i32(tile + (i - 8) * LINE));
}

/* s [rows][dims] += products with the weights of register i of 16. */
ALWAYS_INLINE void value_products(vi32 s[ROWS][DIMS], size_t k, vi32 x,
                                  const vi32 by[ROWS], size_t rows)
{
    UNROLL
    for (size_t r = 0; r < rows; r++)
        add_products_here(&s[r][k], by[r], x);
}

ALWAYS_INLINE void weights_of(const int8_t *p8, size_t i, size_t rows,
                              vi32 by[ROWS])
{
    UNROLL
    for (size_t r = 0; r < rows; r++)
        by[r] = all4(p8 + r * T + i * 4);
}

/* The table of a plane; without `pairs`, its first quarter. */
ALWAYS_INLINE struct table value_table(const uint8_t *plane, size_t n,
                                       int pairs)
{
    return table(plane, pairs ? n : 64);
}

ALWAYS_INLINE vi32 look_up_value(const struct table *t, const uint8_t *plane,
                                 size_t n, int pairs, struct codes c)
{
    return pairs ? look_up_pairs(t, c) : look_up_at(t->part[0], plane, n, c);
}

/* Adds dimensions [j, j + dims) of 16 sub-vectors to acc [rows][dims][16].
 * rows, dims, n, halves and pairs are constants. */
ALWAYS_INLINE void shared_pv_some(const uint8_t *planes, const uint8_t *tile,
                                  const int8_t *p8, const float *scale,
                                  size_t rows, size_t dims, size_t n,
                                  int halves, int pairs, size_t n_acc,
                                  float *acc)
{
    const size_t side = DIMS / dims; /* registers */
    vi32 s[ROWS][DIMS], x[DIMS][DIMS], by[ROWS];
    struct table t[DIMS];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < dims; k++)
        s[r][k] = v_zero_i32();
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
    X(R, 256, 0, 0) X(R, 256, 0, 1)
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

#undef KINDS
#undef KIND

/* ---- keys by tables -------------------------------------------------------
 *
 * Keys by tables with AVX-512 VBMI: a register of 64 tokens' codes of one
 * sub-space is looked up in each query's table.  Tables of many sub-spaces do
 * not fit the first cache: a table that is loaded serves SIDE tiles.
 *
 * Bytes are added up two and two, as words: all = even + 256 odd, high = odd
 * (sums of even and of odd bytes). */

enum {
    SIDE = 4, /* tiles */
    PAIR = 2, /* rows whose tables are in registers */
    MAX_SUB = KV_CODEBOOK_TABLES8 / 64
};
_Static_assert(MAX_SUB % 4 == 0 && MAX_SUB * 255 <= UINT16_MAX,
               "fours of sub-vectors; sums of 16 bits");

/* Codes of sub-vectors [i, i + 4), a register each.  Shared: byte 16 l + 4 k +
 * j is of token 16 k + 4 l + j (l, k, j < 4); own: bytes are in the order of
 * tokens.  Codes past n_sub repeat the last sub-vector's (own) or are zeros. */
ALWAYS_INLINE void four_codes(const struct kv_codebook *b, const uint8_t *tile,
                              size_t i, int shared, vi32 x[4])
{
    const vi32 fours = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    vi32 y[4];

    if (!shared) {
        UNROLL
        for (size_t k = 0; k < 4; k++)
            x[k] = v_load_i32(tile + kv_min(i + k, b->n_sub - 1) * T);
        return;
    }
    UNROLL
    for (size_t k = 0; k < 4; k++)
        y[k] = v_lookup_i8(v_load_i32(tile + i * T + k * LINE), fours);
    v_transpose4x4(y, x);
}

/* Unpacks all codes of a tile to a line for each sub-vector, `apart` bytes
 * apart. */
ALWAYS_INLINE void codes_of(const struct kv_codebook *b, const uint8_t *tile,
                            int shared, uint8_t *to, size_t apart)
{
    for (size_t i = 0; i < b->n_sub; i += 4) {
        vi32 x[4];

        four_codes(b, tile, i, shared, x);
        UNROLL
        for (size_t k = 0; k < 4; k++, to += apart)
            _mm512_store_si512(to, x[k]);
    }
}

/* Scales and offsets that turn the sums of some rows into scores. */
struct rows {
    const uint8_t *next; /* the next tiles, to be prefetched */
    int shared;          /* the order of four_codes() */
    const float *scale, *low;
    float *score;
    size_t stride;
};

/* Writes the scores of 16 tokens. */
ALWAYS_INLINE void put_16(__m256i sum, vf32 scale, vf32 low, float *score)
{
    const vf32 x = v_from_i32(_mm512_cvtepu16_epi32(sum));

    v_store(score, v_fmadd(scale, x, low));
}

/* Writes the scores of row r for 64 tokens from t on. */
ALWAYS_INLINE void put_all(const struct rows *to, size_t r, size_t t, vi32 all,
                           vi32 high)
{
    const vi32 even = v_sub_i16(all, v_shl_i16(high, 8));
    const vi32 a = _mm512_unpacklo_epi16(even, high);
    const vi32 b = _mm512_unpackhi_epi16(even, high);
    const vi32 first = to->shared ? _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7)
                                  : _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const vi32 second = to->shared
                            ? _mm512_setr_epi64(8, 10, 12, 14, 9, 11, 13, 15)
                            : _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const vi32 x = _mm512_permutex2var_epi64(a, first, b);
    const vi32 y = _mm512_permutex2var_epi64(a, second, b);
    const vf32 scale = v_set1(to->scale[r]);
    const vf32 low = v_set1(to->low[r]);
    float *at = to->score + r * to->stride + t;

    put_16(_mm512_castsi512_si256(x), scale, low, at);
    put_16(_mm512_extracti64x4_epi64(x, 1), scale, low, at + 16);
    put_16(_mm512_castsi512_si256(y), scale, low, at + 32);
    put_16(_mm512_extracti64x4_epi64(y, 1), scale, low, at + 48);
}

/* Otherwise gcc 12 keeps a sum before and after in registers, and tables in
 * memory. */
ALWAYS_INLINE void add_to(vi32 *sum, vi32 x)
{
    *sum = v_add_i16(*sum, x);
    KV_STAYS(*sum);
}

/* Adds up the entries of all sub-spaces.  code: [n_sub][side][64], entry: the
 * first row's, [n_sub][KV_CODEBOOK_ROWS][n]. rows, side, n and pairs are
 * constants. */
ALWAYS_INLINE void add_up(const uint8_t *code, size_t n_sub,
                          const uint8_t *entry, size_t rows, size_t side,
                          size_t n, int pairs, const struct rows *to)
{
    vi32 all[PAIR][SIDE], high[PAIR][SIDE];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < side; k++)
        all[r][k] = high[r][k] = v_zero_i32();
    for (size_t i = 0; i < n_sub; i++, entry += ROWS * n) {
        struct table t[PAIR];

        UNROLL
        for (size_t r = 0; r < rows; r++)
            t[r] = table(entry + r * n, n);
        UNROLL
        for (size_t k = 0; k < side; k++, code += T) {
            const struct codes c = codes(v_load_i32(code), n);
            const uint8_t *later = to->next + (i * side + k) * LINE;

            kv_prefetch_near(later, 0, LINE);
            kv_prefetch_far(later, KV_FAR_CODES, LINE);
            UNROLL
            for (size_t r = 0; r < rows; r++) {
                const vi32 x =
                    pairs ? look_up_pairs(&t[r], c) : look_up(&t[r], n, c);

                add_to(&all[r][k], x);
                add_to(&high[r][k], v_shr_i16(x, 8));
            }
        }
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < side; k++)
        put_all(to, r, k * T, all[r][k], high[r][k]);
}

#define KINDS(X) SIDES(X, 64, 0) SIDES(X, 256, 0) SIDES(X, 256, 1)
#define SIDES(X, N, PAIRS) \
    EVERY_PAIR(X, 1, N, PAIRS) EVERY_PAIR(X, SIDE, N, PAIRS)
#define EVERY_PAIR(X, S, N, PAIRS) X(1, S, N, PAIRS) X(2, S, N, PAIRS)
_Static_assert(PAIR == 2 && ROWS % PAIR == 0, "EVERY_PAIR");
#define KIND(R, S, N, PAIRS) ((R) << 16 | (S) << 12 | (N) << 1 | (PAIRS))

/* Scores `side` tiles, SIDE or 1; to: all rows. */
static void some_tiles(const struct kv_store *s, const uint8_t *tile,
                       size_t side, const uint8_t *entry, size_t rows,
                       struct rows to)
{
    const struct kv_codebook *b = s->params;
    const size_t pairs = b->plane > 64 && kv_level_pairs();
    _Alignas(LINE) uint8_t code[MAX_SUB * SIDE * T];

    for (size_t k = 0; k < side; k++, tile += s->tile_bytes)
        if (to.shared)
            codes_of(b, tile, 1, code + k * T, side * T);
        else
            codes_of(b, tile, 0, code + k * T, side * T);
    for (size_t r = 0, some; r < rows; r += some) {
        const uint8_t *at = entry + r / ROWS * kv_codebook_planes8_bytes(b) +
                            r % ROWS * b->plane;

        some = kv_min(rows - r, PAIR);
        switch (KIND(some, side, b->plane, pairs)) {
#define CASE(R, S, N, PAIRS)                             \
    case KIND(R, S, N, PAIRS):                           \
        add_up(code, b->n_sub, at, R, S, N, PAIRS, &to); \
        break;
            KINDS(CASE)
#undef CASE
        }
        to.scale += some;
        to.low += some;
        to.score += some * to.stride;
    }
}

void kv_codebook_qk8_tiles_vnni(const struct kv_store *s, size_t head,
                                const uint8_t *tile, size_t n,
                                const void *query, size_t rows, float *score,
                                size_t stride)
{
    const struct kv_codebook *b = s->params;
    const struct kv_codebook_tables8 *q = query;
    struct rows to = {.shared = b->order == KV_ORDER_SHARED,
                      .scale = q->scale,
                      .low = q->low,
                      .score = score,
                      .stride = stride};

    (void)head;
    for (size_t side; n; n -= side) {
        side = n < SIDE ? 1 : SIDE;
        to.next = tile + side * s->tile_bytes;
        some_tiles(s, tile, side, q->entry, rows, to);
        tile += side * s->tile_bytes;
        to.score += side * T;
    }
}

void kv_codebook_qk8_vnni(const struct kv_store *s, size_t head,
                          const uint8_t *tile, const void *query, size_t rows,
                          float *score, size_t stride)
{
    kv_codebook_qk8_tiles_vnni(s, head, tile, 1, query, rows, score, stride);
}
