/* Path exact over many tiles of codes of 3 to 8 bits, without expanding them:
 * a sub-space has few centroids, and many tokens share each.
 *
 *   keys    q . centroid is computed once per centroid; a token's score is the
 *           sum of its codes' entries (the asymmetric distance computation of
 *           product quantization)
 *   values  the weights of all tokens with the same code are added up; then
 *           each centroid is multiplied once, by their sum
 *
 * In both cases one look-up serves QUERIES queries.  Codes of up to 4 bits are
 * looked up in pairs: two sub-spaces act as one with 256 centroids.  The tables
 * of SPACES spaces, 16 KB, stay in the first-level cache while the codes of a
 * chunk's tokens pass.
 *
 * Path int8 has tables for keys in 8 bits (impl.h).
 *
 * Included by c.c and avx2.c after the kernels/simd header of their level. */

#include "kernels/codebook/impl.h"
#include "kernels/simd/prefetch.h"

#include <math.h>
#include <stdlib.h>

enum {
    T = KV_TILE_TOKENS,
    HALF = T / 2,
    QUERIES = KV_TILE_FEW, /* queries processed together */
    SPACES = 4,            /* spaces with a table at one time */
    MAX_K = 256,
    PAIR_K = 16, /* maximum k of each of two paired sub-spaces */
    AHEAD = 2    /* tiles of codes */
};
_Static_assert(QUERIES * sizeof(float) == sizeof(vf32x4) && SPACES == 4,
               "transposing, four codes at a time, and their tables by name");

/* A space is one sub-space, or two if codes have up to 4 bits; the first
 * sub-space's codes are then the lower halves of bytes. */
static size_t in_space(const struct kv_codebook *b)
{
    return b->bits <= 4 ? 2 : 1;
}

static size_t n_spaces(const struct kv_codebook *b)
{
    return (b->n_sub + in_space(b) - 1) / in_space(b);
}

/* ---- codes --------------------------------------------------------------- */

/* Codes of SPACES spaces in a tile, bytes.  The four codes at row[i] + k *
 * step, k < 16, are
 *
 *   with STEP_TOKEN   of token 4 k + i: one for each space
 *   else              of the i-th space: of tokens 4 k to 4 k + 3 */
struct codes {
    const uint8_t *row[4];
    size_t step, ahead; /* ahead: prefetch distance */
};

enum { STEP_TOKEN = 16, STEP_SUB = 4, STEP_SHARED = 64 };

static size_t step_of(const struct kv_store *s)
{
    const struct kv_codebook *b = s->params;

    if (b->order == KV_ORDER_SHARED && !s->values)
        return STEP_TOKEN;
    return b->order == KV_ORDER_SHARED && b->bits > 4 ? STEP_SHARED : STEP_SUB;
}

ALWAYS_INLINE uint32_t four_at(const uint8_t *p)
{
    uint32_t four;

    memcpy(&four, p, sizeof(four));
    return four;
}

/* Rearranges half bytes: pairs of tokens t and t + 32 in one sub-space become
 * pairs of sub-spaces of one token.  For keys: `low` points to four sub-spaces
 * of a token, `high` to the next four. */
static void pair_keys(const uint8_t *low, const uint8_t *high, uint8_t *to)
{
    for (size_t t = 0; t < T; t++) {
        const unsigned shift = t < HALF ? 0 : 4;
        const uint32_t x = four_at(low + t % HALF * 4) >> shift & 0x0f0f0f0f;
        const uint32_t y = four_at(high + t % HALF * 4) >> shift & 0x0f0f0f0f;
        const uint32_t xx = x | x >> 4, yy = y | y >> 4;
        const uint32_t four = (xx & 0xff) | (xx >> 8 & 0xff00) |
                              (yy & 0xff) << 16 | (yy & 0xff0000) << 8;

        memcpy(to + t * 4, &four, sizeof(four));
    }
}

/* The same for values: `first` and `second` point to one sub-space each, with
 * four tokens every 64 bytes. */
static void pair_values(const uint8_t *first, const uint8_t *second,
                        uint8_t *to)
{
    for (size_t t = 0; t < HALF; t += 4) {
        const uint32_t x = four_at(first + t * 16),
                       y = four_at(second + t * 16);
        const uint32_t low = (x & 0x0f0f0f0f) | (y & 0x0f0f0f0f) << 4;
        const uint32_t high = (x >> 4 & 0x0f0f0f0f) | (y & 0xf0f0f0f0);

        memcpy(to + t, &low, sizeof(low));
        memcpy(to + HALF + t, &high, sizeof(high));
    }
}

static struct codes codes_of_pairs(const struct kv_store *s,
                                   const uint8_t *tile, size_t space,
                                   uint8_t scratch[SPACES * T])
{
    const struct kv_codebook *b = s->params;
    const size_t sub = 2 * space;
    const size_t ahead = AHEAD * s->tile_bytes;
    struct codes c = {.step = step_of(s)};

    if (b->order == KV_ORDER_OWN)
        c.ahead = ahead;
    for (size_t i = 0; i < SPACES; i++)
        if (b->order == KV_ORDER_OWN)
            c.row[i] = tile + kv_min(space + i, n_spaces(b) - 1) * T;
        else
            c.row[i] = scratch + i * (s->values ? T : 4);
    if (c.step == STEP_TOKEN) {
        const size_t next = kv_min(sub + 4, kv_round_up(b->n_sub, 4) - 4);

        kv_prefetch_near(tile + sub * HALF, ahead, 2 * SPACES * HALF);
        pair_keys(tile + sub * HALF, tile + next * HALF, scratch);
    } else if (b->order == KV_ORDER_SHARED) {
        const uint8_t *at = tile + sub / 16 * 16 * HALF + sub % 16 * 4;

        kv_prefetch_near(at, ahead, 16 * HALF);
        for (size_t i = 0; i < SPACES; i++)
            pair_values(at + i * 8, at + i * 8 + 4, scratch + i * T);
    }
    return c;
}

/* The codes of spaces [space, space + SPACES), space a multiple of SPACES.
 * Spaces past the last get arbitrary codes of the tile, since their tables are
 * zeros or unused.  scratch: receives the codes if the tile's order has to
 * change. */
static struct codes codes_of(const struct kv_store *s, const uint8_t *tile,
                             size_t space, uint8_t scratch[SPACES * T])
{
    const struct kv_codebook *b = s->params;
    struct codes c = {.step = step_of(s), .ahead = AHEAD * s->tile_bytes};

    if (b->bits <= 4)
        return codes_of_pairs(s, tile, space, scratch);
    for (size_t i = 0; i < SPACES; i++)
        if (c.step == STEP_TOKEN)
            c.row[i] = tile + space * T + i * 4;
        else if (c.step == STEP_SHARED)
            c.row[i] = tile + space / 16 * 16 * T + (space % 16 + i) * 4;
        else
            c.row[i] = tile + kv_min(space + i, b->n_sub - 1) * T;
    return c;
}

/* The table entry of the i-th of four codes. */
ALWAYS_INLINE vf32x4 *entry_of(vf32x4 *table, uint32_t four, size_t i)
{
    const uint32_t at = i ? four >> (8 * i - 4) : four << 4;

    return (vf32x4 *)((char *)table + (at & 255 * sizeof(vf32x4)));
}

/* ---- keys ---------------------------------------------------------------- */

/* Makes table [SPACES][entries] of the spaces from `space` on. */
static void key_tables(const struct kv_codebook *b, size_t head, size_t space,
                       const vf32x4 *q, vf32x4 *table)
{
    for (size_t i = space; i < space + SPACES;
         i++, table += kv_codebook_table_size(b)) {
        vf32x4 low[PAIR_K], high[PAIR_K];

        if (in_space(b) == 1) {
            kv_codebook_sub_table(b, head, i, q, table);
            continue;
        }
        kv_codebook_sub_table(b, head, 2 * i, q, low);
        kv_codebook_sub_table(b, head, 2 * i + 1, q, high);
        for (size_t j = 0; j < b->k; j++)
            for (size_t k = 0; k < b->k; k++)
                table[j * PAIR_K + k] = high[j] + low[k];
    }
}

/* Adds the entries of a tile's codes to sum [64].  step is a constant. */
ALWAYS_INLINE void add_entries(struct codes c, size_t step, size_t n,
                               vf32x4 *table, vf32x4 *sum)
{
    vf32x4 *const of[SPACES] = {table, table + n, table + 2 * n, table + 3 * n};

    for (size_t t = 0; t < T; t += 4) {
        uint32_t four[4];

        kv_prefetch_near(c.row[t / 4 % 4] + t / 4 * step, c.ahead, 1);
        UNROLL
        for (size_t i = 0; i < 4; i++)
            four[i] = four_at(c.row[i] + t / 4 * step);
        UNROLL
        for (size_t i = 0; i < 4; i++) {
            vf32x4 x = sum[t + i];

            UNROLL
            for (size_t j = 0; j < SPACES; j++)
                x += step == STEP_TOKEN ? *entry_of(of[j], four[i], j)
                                        : *entry_of(of[j], four[j], i);
            sum[t + i] = x;
        }
    }
}

/* Scores of n tiles with up to QUERIES queries q [channels]. */
static void sum_qk(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t n, const vf32x4 *q, vf32x4 *sum)
{
    const struct kv_codebook *b = s->params;
    const size_t k = kv_codebook_table_size(b);
    vf32x4 table[SPACES * MAX_K];
    uint8_t scratch[SPACES * T];

    memset(sum, 0, n * T * sizeof(*sum));
    for (size_t space = 0; space < n_spaces(b); space += SPACES) {
        key_tables(b, head, space, q, table);
        for (size_t i = 0; i < n; i++) {
            const struct codes c =
                codes_of(s, tile + i * s->tile_bytes, space, scratch);

            if (c.step == STEP_TOKEN)
                add_entries(c, STEP_TOKEN, k, table, sum + i * T);
            else
                add_entries(c, STEP_SUB, k, table, sum + i * T);
        }
    }
}

void NAME(kv_codebook_qk_tables)(const struct kv_store *s, size_t head,
                                 const uint8_t *tile, size_t n,
                                 const void *query, size_t rows, float *score,
                                 size_t stride)
{
    vf32x4 q[KV_CODEBOOK_DIM], sum[KV_TILE_CHUNK];

    for (size_t r = 0; r < rows; r += QUERIES, score += QUERIES * stride) {
        const size_t some = kv_min(rows - r, QUERIES);

        for (size_t c = 0; c < s->head_dim; c++) {
            q[c] = (vf32x4){0};
            memcpy(&q[c], (const float *)query + c * rows + r,
                   some * sizeof(float));
        }
        sum_qk(s, head, tile, n, q, sum);
        for (size_t t = 0; t < n * T; t += 4) {
            float x[QUERIES][4];

            v4_store_transposed(x[0], 4, sum[t], sum[t + 1], sum[t + 2],
                                sum[t + 3]);
            for (size_t i = 0; i < some; i++)
                memcpy(score + i * stride + t, x[i], sizeof(x[i]));
        }
    }
}

/* ---- values -------------------------------------------------------------- */

/* Adds the weights w [64] of a tile's tokens to the entries of their codes.
 * step is a constant. */
ALWAYS_INLINE void add_weights(struct codes c, size_t step, size_t n,
                               const vf32x4 *w, vf32x4 *table)
{
    vf32x4 *const of[SPACES] = {table, table + n, table + 2 * n, table + 3 * n};

    for (size_t t = 0; t < T; t += 4) {
        const vf32x4 x[4] = {w[t], w[t + 1], w[t + 2], w[t + 3]};

        kv_prefetch_near(c.row[t / 4 % 4] + t / 4 * step, c.ahead, 1);
        UNROLL
        for (size_t j = 0; j < SPACES; j++) {
            const uint32_t four = four_at(c.row[j] + t / 4 * step);

            UNROLL
            for (size_t i = 0; i < 4; i++)
                *entry_of(of[j], four, i) += x[i];
        }
    }
}

/* Sets sum [n] to n channels of centroids, d apart, times the weights in table
 * [k], k even. */
ALWAYS_INLINE void weigh(const float *center, size_t k, size_t d, size_t n,
                         const vf32x4 *table, vf32x4 *sum)
{
    vf32x4 x[2][8] = {{{0}}};

    for (size_t i = 0; i < k; i += 2, center += 2 * d) {
        UNROLL
        for (size_t j = 0; j < n; j++) {
            x[0][j] += table[i] * center[j];
            x[1][j] += table[i + 1] * center[d + j];
        }
    }
    for (size_t j = 0; j < n; j++)
        sum[j] = x[0][j] + x[1][j];
}

/* Adds a sub-space's centroids times the weights in table [k] to acc
 * [rows][padded]. */
static void add_centers(const struct kv_codebook *b, size_t head, size_t sub,
                        const vf32x4 *table, size_t rows, size_t padded,
                        float *acc)
{
    const size_t at = kv_codebook_at(b, head, sub) * b->k * b->d;

    acc += sub * b->d;
    for (size_t j = 0, n; j < b->d; j += n, acc += n) {
        vf32x4 sum[8];

        n = kv_codebook_together(b->d - j);
        switch (n) {
#define CASE(N)                                                \
    case N:                                                    \
        weigh(b->centers + at + j, b->k, b->d, N, table, sum); \
        break;
            KV_CODEBOOK_EACH(CASE)
#undef CASE
        }
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < n; c++)
                acc[r * padded + c] += sum[c][r];
    }
}

/* Calls add_centers() for the spaces from `space` on, table
 * [SPACES][entries]. */
static void add_spaces(const struct kv_codebook *b, size_t head, size_t space,
                       const vf32x4 *table, size_t rows, size_t padded,
                       float *acc)
{
    const size_t end = kv_min(space + SPACES, n_spaces(b));

    for (size_t i = space; i < end; i++, table += kv_codebook_table_size(b)) {
        vf32x4 low[PAIR_K] = {{0}}, high[PAIR_K] = {{0}};

        if (in_space(b) == 1) {
            add_centers(b, head, i, table, rows, padded, acc);
            continue;
        }
        for (size_t j = 0; j < b->k; j++)
            for (size_t k = 0; k < b->k; k++) {
                low[k] += table[j * PAIR_K + k];
                high[j] += table[j * PAIR_K + k];
            }
        add_centers(b, head, 2 * i, low, rows, padded, acc);
        if (2 * i + 1 < b->n_sub)
            add_centers(b, head, 2 * i + 1, high, rows, padded, acc);
    }
}

/* Adds n tiles times their tokens' weights w to acc [rows][padded], rows <=
 * QUERIES.
 */
static void add_values(const struct kv_store *s, size_t head,
                       const uint8_t *tile, size_t n, const vf32x4 *w,
                       size_t rows, float *acc)
{
    const struct kv_codebook *b = s->params;
    const size_t k = kv_codebook_table_size(b);
    vf32x4 table[SPACES * MAX_K];
    uint8_t scratch[SPACES * T];

    for (size_t space = 0; space < n_spaces(b); space += SPACES) {
        memset(table, 0, SPACES * k * sizeof(*table));
        for (size_t i = 0; i < n; i++) {
            const struct codes c =
                codes_of(s, tile + i * s->tile_bytes, space, scratch);

            if (c.step == STEP_SHARED)
                add_weights(c, STEP_SHARED, k, w + i * T, table);
            else
                add_weights(c, STEP_SUB, k, w + i * T, table);
        }
        add_spaces(b, head, space, table, rows, kv_padded(s->head_dim), acc);
    }
}

void NAME(kv_codebook_pv_tables)(const struct kv_store *s, size_t head,
                                 const uint8_t *tile, size_t n, const float *p,
                                 size_t stride, size_t rows, float *acc)
{
    const size_t padded = kv_padded(s->head_dim);
    vf32x4 w[KV_TILE_CHUNK];

    for (size_t r = 0; r < rows; r += QUERIES) {
        const size_t some = kv_min(rows - r, QUERIES);

        for (size_t t = 0; t < n * T; t += 4) {
            vf32x4 x[QUERIES] = {{0}};

            for (size_t i = 0; i < some; i++)
                x[i] = v4_load(p + (r + i) * stride + t);
            v4_store_transposed((float *)(w + t), QUERIES, x[0], x[1], x[2],
                                x[3]);
        }
        add_values(s, head, tile, n, w, some, acc + r * padded);
    }
}

/* ---- keys on path int8 ----------------------------------------------------
 *
 * Sums of table entries: the entries of four queries are one 64-bit integer, as
 * AVX2 has no instruction that looks up more than 16 entries. */

enum { ROWS = KV_CODEBOOK_ROWS };
_Static_assert(ROWS * sizeof(float) == sizeof(vf32x4), "a lane for each row");

typedef uint16_t vu16x4 __attribute__((vector_size(8)));

/* Makes the tables [n_sub][k] of some rows and their minima low [n_sub];
 * returns the rows' largest range. */
static vf32x4 multiply_all(const struct kv_codebook *b, size_t head,
                           const vf32x4 *q, vf32x4 *table, vf32x4 *low)
{
    vf32x4 max = {0};

    for (size_t i = 0; i < b->n_sub; i++, table += b->k) {
        vf32x4 high;

        kv_codebook_sub_table(b, head, i, q, table);
        low[i] = high = table[0];
        for (size_t j = 1; j < b->k; j++) {
            low[i] = v4_select(table[j] < low[i], table[j], low[i]);
            high = v4_select(table[j] > high, table[j], high);
        }
        high -= low[i];
        max = v4_select(high > max, high, max);
    }
    return max;
}

/* x in [0, 255] to the nearest whole number, half to even. */
ALWAYS_INLINE vi32x4 to_8(vf32x4 x)
{
    return (vi32x4)(x + 0x1.8p23f) & 255;
}

/* Writes the k entries of a sub-space, round((table - low) * by). */
ALWAYS_INLINE void put_lanes(const struct kv_codebook *b, const vf32x4 *table,
                             vf32x4 low, vf32x4 by, kv_codebook_lanes8 *to)
{
    for (size_t j = 0; j < b->k; j++) {
        const vu16x4 x =
            __builtin_convertvector(to_8((table[j] - low) * by), vu16x4);

        kv_codebook_lanes8 lanes;

        memcpy(&lanes, &x, sizeof(lanes));
        to[j] = lanes;
    }
}

ALWAYS_INLINE void put_planes(const struct kv_codebook *b, const vf32x4 *table,
                              vf32x4 low, vf32x4 by, uint8_t *to)
{
    for (size_t j = 0; j < b->k; j += 4) {
        vi32x4 four = {0};

        UNROLL
        for (int i = 0; i < 4; i++)
            four |= to_8((table[j + (size_t)i] - low) * by) << (8 * i);
        UNROLL
        for (size_t r = 0; r < ROWS; r++)
            memcpy(to + r * b->plane + j, (int32_t *)&four + r,
                   sizeof(int32_t));
    }
}

ALWAYS_INLINE void prepare8(const struct kv_store *s, size_t head,
                            const float *q, size_t rows, bool planes,
                            struct kv_codebook_tables8 *to)
{
    const struct kv_codebook *b = s->params;
    const size_t bytes =
        (planes ? kv_codebook_planes8_bytes(b) : kv_codebook_lanes8_bytes(b)) /
        b->n_sub;
    vf32x4 *const table = kv_lines_unset(b->n_sub * b->k, sizeof(*table));
    uint8_t *entry = to->entry;

    for (size_t r = 0; r < rows; r += ROWS, q += ROWS * s->head_dim) {
        const size_t some = kv_min(rows - r, ROWS);
        vf32x4 x[KV_CODEBOOK_DIM], low[KV_CODEBOOK_DIM], sum = {0}, max;
        float scale[ROWS], by[ROWS];

        for (size_t c = 0; c < s->head_dim; c++) {
            x[c] = (vf32x4){0};
            for (size_t i = 0; i < some; i++)
                x[c][i] = q[i * s->head_dim + c];
        }
        max = multiply_all(b, head, x, table, low);
        v4_store(scale, max);
        kv_units_of_four(255, 0x1p-93f, scale, by);
        for (size_t i = 0; i < b->n_sub; i++, entry += bytes) {
            sum += low[i];
            if (planes)
                put_planes(b, table + i * b->k, low[i], v4_load(by), entry);
            else
                put_lanes(b, table + i * b->k, low[i], v4_load(by),
                          (kv_codebook_lanes8 *)entry);
        }
        memcpy(to->scale + r, scale, sizeof(scale));
        v4_store(to->low + r, sum);
    }
    free(table);
}

void NAME(kv_codebook_lanes8)(const struct kv_store *s, size_t head,
                              const float *q, size_t rows, void *query)
{
    prepare8(s, head, q, rows, false, query);
}

/* sum [64] += the entries of the codes of sub-vectors [i, i + n); n is 1, or 4
 * where i is a multiple of 4.  n and shared are constants. */
ALWAYS_INLINE void add_lanes(const struct kv_codebook *b,
                             const kv_codebook_lanes8 *entry,
                             const uint8_t *tile, size_t i, size_t n,
                             bool shared, kv_codebook_lanes8 *sum)
{
    const size_t step = shared ? 4 : 1, apart = shared ? 1 : T;

    entry += i * b->k;
    tile += shared ? i / 4 * 4 * T + i % 4 : i * T;
    for (size_t t = 0; t < T; t++, tile += step)
        UNROLL
    for (size_t j = 0; j < n; j++)
        sum[t] += entry[j * b->k + tile[j * apart]];
}

/* add_lanes() for all sub-vectors. */
ALWAYS_INLINE void add_all_lanes(const struct kv_codebook *b,
                                 const kv_codebook_lanes8 *entry,
                                 const uint8_t *tile, bool shared,
                                 kv_codebook_lanes8 *sum)
{
    size_t i = 0;

    for (; i + 4 <= b->n_sub; i += 4)
        add_lanes(b, entry, tile, i, 4, shared, sum);
    for (; i < b->n_sub; i++)
        add_lanes(b, entry, tile, i, 1, shared, sum);
}

void NAME(kv_codebook_qk8)(const struct kv_store *s, size_t head,
                           const uint8_t *tile, const void *query, size_t rows,
                           float *score, size_t stride)
{
    const struct kv_codebook *b = s->params;
    const struct kv_codebook_tables8 *q = query;
    const kv_codebook_lanes8 *entry = (const kv_codebook_lanes8 *)q->entry;

    (void)head;
    for (size_t r = 0; r < rows; r += ROWS, entry += b->n_sub * b->k) {
        kv_codebook_lanes8 sum[T] = {0};

        if (b->order == KV_ORDER_SHARED)
            add_all_lanes(b, entry, tile, true, sum);
        else
            add_all_lanes(b, entry, tile, false, sum);
        for (size_t j = r; j < rows && j < r + ROWS; j++)
            for (size_t t = 0; t < T; t++)
                score[j * stride + t] =
                    fmaf(q->scale[j], (float)(uint16_t)(sum[t] >> 16 * (j - r)),
                         q->low[j]);
    }
}
