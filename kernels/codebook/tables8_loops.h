/* The tables of tiles_codebook_tables8.h, and sums of what codes point to:
 * those of four queries are one 64-bit integer, as AVX2 has no instruction that
 * looks up more than 16 entries.  Included by tiles_codebook_tables8_*.c, which
 * define NAME. */
#include "kernels/codebook/multiply.h"
#include "kernels/codebook/tables8.h"

#include <math.h>
#include <stdlib.h>

enum { T = KV_TILE_TOKENS, ROWS = KV_CODEBOOK_ROWS };
_Static_assert(ROWS * sizeof(float) == sizeof(v4), "a lane for each row");

typedef int32_t ints __attribute__((vector_size(16)));
typedef uint16_t words __attribute__((vector_size(8)));

/* Where `where` is -1 a, else b. */
ALWAYS_INLINE v4 choose(ints where, v4 a, v4 b)
{
    return (v4)(((ints)a & where) | ((ints)b & ~where));
}

/* The tables [n_sub][k] of some rows, from low [n_sub] on; gives the rows'
 * largest range. */
static v4 multiply_all(const struct kv_codebook *b, size_t head, const v4 *q,
                       v4 *table, v4 *low)
{
    v4 most = {0};

    for (size_t i = 0; i < b->n_sub; i++, table += b->k) {
        v4 high;

        sub_table(b, head, i, q, table);
        low[i] = high = table[0];
        for (size_t j = 1; j < b->k; j++) {
            low[i] = choose(table[j] < low[i], table[j], low[i]);
            high = choose(table[j] > high, table[j], high);
        }
        high -= low[i];
        most = choose(high > most, high, most);
    }
    return most;
}

/* x in [0, 255] to the nearest whole number, half to even. */
ALWAYS_INLINE ints to_8(v4 x)
{
    return (ints)(x + 0x1.8p23f) & 255;
}

/* [k] entries of a sub-space, x = (table - low) * by. */
ALWAYS_INLINE void put_lanes(const struct kv_codebook *b, const v4 *table,
                             v4 low, v4 by, kv_codebook_lanes8 *to)
{
    for (size_t j = 0; j < b->k; j++) {
        const words x =
            __builtin_convertvector(to_8((table[j] - low) * by), words);

        kv_codebook_lanes8 lanes;

        memcpy(&lanes, &x, sizeof(lanes));
        to[j] = lanes;
    }
}

ALWAYS_INLINE void put_planes(const struct kv_codebook *b, const v4 *table,
                              v4 low, v4 by, uint8_t *to)
{
    for (size_t j = 0; j < b->k; j += 4) {
        ints four = {0};

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
    v4 *const table = kv_lines_unset(b->n_sub * b->k, sizeof(*table));
    uint8_t *entry = to->entry;

    for (size_t r = 0; r < rows; r += ROWS, q += ROWS * s->head_dim) {
        const size_t some = kv_min(rows - r, ROWS);
        v4 x[KV_CODEBOOK_DIM], low[KV_CODEBOOK_DIM], sum = {0}, most;
        float scale[ROWS], by[ROWS];

        for (size_t c = 0; c < s->head_dim; c++) {
            x[c] = (v4){0};
            for (size_t i = 0; i < some; i++)
                x[c][i] = q[i * s->head_dim + c];
        }
        most = multiply_all(b, head, x, table, low);
        store4(scale, most);
        kv_units_of_four(255, 0x1p-93f, scale, by);
        for (size_t i = 0; i < b->n_sub; i++, entry += bytes) {
            sum += low[i];
            if (planes)
                put_planes(b, table + i * b->k, low[i], load4(by), entry);
            else
                put_lanes(b, table + i * b->k, low[i], load4(by),
                          (kv_codebook_lanes8 *)entry);
        }
        memcpy(to->scale + r, scale, sizeof(scale));
        store4(to->low + r, sum);
    }
    free(table);
}

void NAME(kv_codebook_lanes8)(const struct kv_store *s, size_t head,
                              const float *q, size_t rows, void *query)
{
    prepare8(s, head, q, rows, false, query);
}

/* sum [64] += what the codes of sub-vectors [i, i + 4) point to. */
static void add_four(const struct kv_codebook *b,
                     const kv_codebook_lanes8 *entry, const uint8_t *tile,
                     size_t i, kv_codebook_lanes8 *sum)
{
    const kv_codebook_lanes8 *const
        e0 = entry + i * b->k,
        *const e1 = e0 + b->k, *const e2 = e1 + b->k, *const e3 = e2 + b->k;

    tile += i * T;
    if (b->order == KV_ORDER_SHARED)
        for (size_t t = 0; t < T; t++, tile += 4)
            sum[t] += e0[tile[0]] + e1[tile[1]] + e2[tile[2]] + e3[tile[3]];
    else
        for (size_t t = 0; t < T; t++)
            sum[t] += e0[tile[t]] + e1[tile[T + t]] + e2[tile[2 * T + t]] +
                      e3[tile[3 * T + t]];
}

/* The same of sub-vector i. */
static void add_one(const struct kv_codebook *b,
                    const kv_codebook_lanes8 *entry, const uint8_t *tile,
                    size_t i, kv_codebook_lanes8 *sum)
{
    const int shared = b->order == KV_ORDER_SHARED;

    entry += i * b->k;
    tile += shared ? i / 4 * 4 * T + i % 4 : i * T;
    for (size_t t = 0; t < T; t++)
        sum[t] += entry[tile[shared ? 4 * t : t]];
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
        size_t i = 0;

        for (; i + 4 <= b->n_sub; i += 4)
            add_four(b, entry, tile, i, sum);
        for (; i < b->n_sub; i++)
            add_one(b, entry, tile, i, sum);
        for (size_t j = r; j < rows && j < r + ROWS; j++)
            for (size_t t = 0; t < T; t++)
                score[j * stride + t] =
                    fmaf(q->scale[j], (float)(uint16_t)(sum[t] >> 16 * (j - r)),
                         q->low[j]);
    }
}

void NAME(kv_codebook_qk8_tiles)(const struct kv_store *s, size_t head,
                                 const uint8_t *tile, size_t n,
                                 const void *query, size_t rows, float *score,
                                 size_t stride)
{
    for (size_t i = 0; i < n; i++)
        NAME(kv_codebook_qk8)
    (s, head, tile + i * s->tile_bytes, query, rows, score + i * T, stride);
}
