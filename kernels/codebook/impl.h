/* Internals of codebook.h, for kernels/codebook, its test, and the packing of
 * its tiles for a device.
 *
 * Path int8 in integers: a key's score is q_scale * sum(q8 * k8), where k8 are
 * entries of the rounded table and q8 the query times the table's scales,
 * rounded.  A value's channel is scale * sum over tiles of p_scale * sum(p8 *
 * v8).  Scores of many tokens use look-up tables instead (kv_codebook_tabled8()
 * and below). */
#ifndef KV_CODEBOOK_IMPL_H
#define KV_CODEBOOK_IMPL_H

#include "kernels/codebook/codebook.h"
#include "kernels/simd/common.h"
#include "kernels/tiles/impl.h"

#include <stdbool.h>
#include <string.h>

enum kv_codebook_order { KV_ORDER_SHARED, KV_ORDER_OWN, KV_ORDER_WIDE };

struct kv_codebook {
    enum kv_codebook_order order;
    size_t head_books, sub_books, n_sub, d, k;
    unsigned bits;
    const float *centers;
    struct kv_tiles_rope *rope;
    uint16_t *sub_of; /* [channels]: the sub-vector, in padding the last one */

    /* By channel c = sub * d + j: scales of tables [head_books][n_sub * d], and
     * the channel's index in a row of q8 (struct kv_codebook_q8) and in a row
     * of the values' sums (avx2 has its own indices for both) */
    float *scale;
    uint16_t *q_at, *sum_at;
    /* Rounded centroids, for keys plus 128: [head_books][sub_books][k][width],
     * width: d padded to 4, 8 or 16 */
    size_t width;
    uint8_t *entry;
    /* b <= 8: rounded centroids by channel, [head_books][channels][plane];
     * channels: d, or the channels of all sub-spaces, padded with zeros to a
     * multiple of 16; plane: 64 or 256 entries */
    size_t channels, plane;
    uint8_t *planes;
};

enum {
    KV_KEY_BIAS = 128,
    KV_CODEBOOK_DIM = 512, /* maximum number of channels */
    KV_CODEBOOK_ROWS = 4   /* queries processed together */
};

/* The table of (head, sub) among head_books x sub_books. */
static inline size_t kv_codebook_at(const struct kv_codebook *b, size_t head,
                                    size_t sub)
{
    return (b->head_books > 1 ? head : 0) * b->sub_books +
           (b->sub_books > 1 ? sub : 0);
}

/* The plane of dimension j of this table. */
static inline size_t kv_codebook_channel(const struct kv_codebook *b,
                                         size_t head, size_t sub, size_t j)
{
    return (b->head_books > 1 ? head : 0) * b->channels +
           (b->sub_books > 1 ? sub * b->d : 0) + j;
}

/* The scales of a head's channels. */
static inline const float *kv_codebook_scales(const struct kv_codebook *b,
                                              size_t head)
{
    return b->scale + (b->head_books > 1 ? head : 0) * b->n_sub * b->d;
}

/* Queries in the form that int8 qk reads. */
struct kv_codebook_q8 {
    float scale[KV_TILE_ROWS];
    int32_t start[KV_TILE_ROWS]; /* start of sums: -KV_KEY_BIAS * sum(q8) */
    int8_t plain[KV_TILE_ROWS][KV_CODEBOOK_DIM]; /* q8 by channel */
    /* q8 in fours of bytes (wide: in pieces of width bytes), in the order of a
     * register's bytes, with zeros as padding; the fours of KV_CODEBOOK_ROWS
     * rows, or of the remaining rows, are adjacent */
    _Alignas(64) int8_t q8[];
};

/* The number of fours of bytes in a row of q8. */
static inline size_t kv_codebook_quads(const struct kv_store *s)
{
    const struct kv_codebook *b = s->params;

    switch (b->order) {
    case KV_ORDER_SHARED:
        return (b->n_sub + 3) / 4 * b->d;
    case KV_ORDER_OWN:
        return (s->head_dim + 3) / 4;
    case KV_ORDER_WIDE:
        break;
    }
    return b->n_sub * b->width / 4;
}

/* The offset in q8 of row r and the rows beside it, r a multiple of
 * KV_CODEBOOK_ROWS. */
static inline size_t kv_codebook_rows_at(const struct kv_store *s, size_t r)
{
    return r * kv_codebook_quads(s) * 4;
}

/* Number of floats in the sums of int8 values. */
static inline size_t kv_codebook_sums(const struct kv_store *s)
{
    const struct kv_codebook *b = s->params;

    switch (b->order) {
    case KV_ORDER_SHARED:
        return (b->n_sub + 15) / 16 * 16 * b->d;
    case KV_ORDER_OWN:
        return kv_padded(s->head_dim);
    case KV_ORDER_WIDE:
        break;
    }
    return kv_padded(b->n_sub * b->width);
}

/* The types of qk, pv, qk_tiles and pv_tiles (tiles.h); versions named vnni are
 * for kv_level_vnni(). */
typedef void kv_codebook_qk_fn(const struct kv_store *s, size_t head,
                               const uint8_t *tile, const void *query,
                               size_t rows, float *score, size_t stride);
typedef void kv_codebook_pv_fn(const struct kv_store *s, size_t head,
                               const uint8_t *tile, const float *p,
                               size_t stride, size_t rows, float *acc);
typedef void kv_codebook_qk_tiles_fn(const struct kv_store *s, size_t head,
                                     const uint8_t *tile, size_t n,
                                     const void *query, size_t rows,
                                     float *score, size_t stride);
typedef void kv_codebook_pv_tiles_fn(const struct kv_store *s, size_t head,
                                     const uint8_t *tile, size_t n,
                                     const float *p, size_t stride, size_t rows,
                                     float *acc);
typedef void kv_codebook_prepare_fn(const struct kv_store *s, size_t head,
                                    const float *q, size_t rows, void *query);

/* Path int8 by products; avx2 has an order of its own for the values' sums. */
kv_codebook_qk_fn kv_codebook_qk_c, kv_codebook_qk_avx2, kv_codebook_qk_vnni;
kv_codebook_pv_fn kv_codebook_pv_c, kv_codebook_pv_avx2, kv_codebook_pv_vnni;
size_t kv_codebook_sums_avx2(const struct kv_store *s);
void kv_codebook_finish_avx2(const struct kv_store *s, size_t head,
                             const float *acc, size_t rows, float *out);

/* Path exact by tables (tables.h), for many tiles. */
kv_codebook_qk_tiles_fn kv_codebook_qk_tables_c, kv_codebook_qk_tables_avx2;
kv_codebook_pv_tiles_fn kv_codebook_pv_tables_c, kv_codebook_pv_tables_avx2;

/* Path int8 with look-up tables, only for keys; lanes8 and planes8 are two
 * table layouts. */
kv_codebook_prepare_fn kv_codebook_lanes8_c, kv_codebook_lanes8_avx2;
kv_codebook_prepare_fn kv_codebook_planes8_avx2;
kv_codebook_qk_fn kv_codebook_qk8_c, kv_codebook_qk8_avx2, kv_codebook_qk8_vnni;
kv_codebook_qk_tiles_fn kv_codebook_qk8_tiles_vnni;

/* The number of entries of a table (tables.h); for codes of up to 4 bits a
 * table covers two sub-spaces. */
static inline size_t kv_codebook_table_size(const struct kv_codebook *b)
{
    return b->bits <= 4 ? 256 : b->k;
}

/* Whether n tokens use tables, which are faster from two tokens per entry on
 * (measured).  Codes of 1 and 2 bits use none: one entry would add up a
 * thousand weights and their rounding errors. */
static inline bool kv_codebook_tabled(const struct kv_codebook *b, size_t n)
{
    return !b->rope && b->bits >= 3 && b->bits <= 8 &&
           n >= 2 * kv_codebook_table_size(b);
}

/* The maximum size in bytes of a query's tables on path int8; each sub-space
 * has a table of 64 bytes or more. */
enum { KV_CODEBOOK_TABLES8 = 8192 };

/* Whether scores of n tokens on path int8 use tables (below), by measured
 * times.  If all sub-spaces share one table of centroids, products of rounded
 * centroids are faster, so tables need longer sub-vectors and fewer entries to
 * win. */
static inline bool kv_codebook_tabled8(const struct kv_codebook *b, size_t n)
{
    const bool own = b->order == KV_ORDER_OWN;

    return !b->rope && b->bits > 4 && b->bits <= 8 && b->d > (own ? 2 : 4) &&
           b->n_sub * kv_max(b->k, 64) <= KV_CODEBOOK_TABLES8 / (own ? 1 : 2) &&
           n >= 64 * b->k;
}

/* ---- keys on path int8 by tables ------------------------------------------
 *
 * For many tokens per centroid.  A table holds q . centroid of each sub-space,
 * quantized to 8 bits over the largest range of any sub-space,
 *
 *   entry = round((q . centroid - low_i) / scale), 0 to 255
 *   low_i = the least of sub-space i,  scale = the largest range / 255
 *
 * and score(token) = scale * sum_i entry_i[code_i] + sum_i low_i, rounded once
 * (fmaf).  Neither the query nor the centroids are rounded before.  A sub-space
 * with a large range leaves the others fewer bits.  The scores of a query that
 * overflows or is NaN are NaN. */
/* Queries in the form that qk reads: tables of KV_CODEBOOK_ROWS queries,
 * followed by the tables of the next ones. */
struct kv_codebook_tables8 {
    float scale[KV_TILE_ROWS], low[KV_TILE_ROWS];
    _Alignas(64) uint8_t entry[];
};

/* One centroid's entries for KV_CODEBOOK_ROWS queries, 16 bits each so that
 * their sums do not overlap: [n_sub][k]. */
typedef uint64_t kv_codebook_lanes8;

/* With AVX-512 the entries are bytes [n_sub][KV_CODEBOOK_ROWS][plane]
 * instead. */
static inline size_t kv_codebook_planes8_bytes(const struct kv_codebook *b)
{
    return b->n_sub * KV_CODEBOOK_ROWS * b->plane;
}

static inline size_t kv_codebook_lanes8_bytes(const struct kv_codebook *b)
{
    return b->n_sub * b->k * sizeof(kv_codebook_lanes8);
}

/* Where kv_store_get_codes() puts the codes of tokens [32 part, 32 part + 32),
 * at most KV_CODEBOOK_DIM * 32 of them: they keep the tile's order. */
struct kv_codebook_part {
    size_t some, step, each; /* sub-vectors: how many lie together; strides of
                              * these groups and within them */
    size_t four, one;        /* strides of tokens: between fours, and within a
                              * four */
};

/* Expands n codes to 16 bits.  from: n bytes, which hold a code each or two;
 * shift and mask are constants if a byte is one code. */
static inline void kv_codebook_widen(const uint8_t *from, size_t n,
                                     unsigned shift, uint8_t mask, uint16_t *to)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (uint8_t)(from[i] >> shift) & mask;
}

/* Adds the upper bits to the low bytes of 32 codes of more than 8 bits. */
static inline void kv_codebook_add_bits(const struct kv_codebook *b,
                                        const uint8_t *bits, uint16_t *code)
{
    typedef uint16_t eights __attribute__((vector_size(16)));
    static const eights one = {1, 2, 4, 8, 16, 32, 64, 128};

    for (size_t t = 0; t < KV_TILE_PART; t += 8) {
        eights x;

        memcpy(&x, code + t, sizeof(x));
        for (unsigned bit = 8; bit < b->bits; bit++) {
            const uint16_t eight =
                bits[(bit - 8) * (KV_TILE_TOKENS / 8) + t / 8];

            x |= (eights)((one & eight) != 0) & (uint16_t)(1u << bit);
        }
        memcpy(code + t, &x, sizeof(x));
    }
}

static inline struct kv_codebook_part
kv_store_get_codes(const struct kv_store *s, const uint8_t *tile, size_t part,
                   uint16_t *code)
{
    const struct kv_codebook *b = s->params;
    const int halves = b->bits <= 4;
    const unsigned shift = halves ? (unsigned)(4 * part) : 0;
    const size_t some = s->values ? 16 : 4; /* sub-vectors processed together */

    if (b->order == KV_ORDER_SHARED) {
        const size_t n = some * KV_TILE_PART, step = halves ? n : 2 * n;

        for (size_t i = 0; i < kv_round_up(b->n_sub, some) / some; i++)
            if (halves)
                kv_codebook_widen(tile + i * step, n, shift, 15, code + i * n);
            else
                kv_codebook_widen(tile + i * step + part * n, n, 0, 255,
                                  code + i * n);
        return s->values ? (struct kv_codebook_part){16, n, 4, 64, 1}
                         : (struct kv_codebook_part){4, n, 1, 16, 4};
    }
    for (size_t i = 0; i < b->n_sub; i++) {
        uint16_t *to = code + i * KV_TILE_PART;

        if (halves)
            kv_codebook_widen(tile + i / 2 * KV_TILE_TOKENS +
                                  part * KV_TILE_PART,
                              KV_TILE_PART, i % 2 ? 4 : 0, 15, to);
        else
            kv_codebook_widen(tile + i * KV_TILE_TOKENS + part * KV_TILE_PART,
                              KV_TILE_PART, 0, 255, to);
        if (b->bits > 8)
            kv_codebook_add_bits(b,
                                 tile + b->n_sub * KV_TILE_TOKENS +
                                     i * (b->bits - 8) * (KV_TILE_TOKENS / 8) +
                                     part * (KV_TILE_PART / 8),
                                 code + i * KV_TILE_PART);
    }
    return (struct kv_codebook_part){1, KV_TILE_PART, 0, 4, 1};
}

static inline size_t kv_codebook_in_part(struct kv_codebook_part p, size_t sub,
                                         size_t t)
{
    return sub / p.some * p.step + sub % p.some * p.each + t / 4 * p.four +
           t % 4 * p.one;
}

/* ---- products of centroids and four queries; for tables.h ---------------- */

/* The number of channels that are multiplied together when `left` remain;
 * KV_CODEBOOK_EACH lists all counts. */
static inline size_t kv_codebook_together(size_t left)
{
    return left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}
#define KV_CODEBOOK_EACH(X) X(1) X(2) X(4) X(8)

/* Sets table [k] to n channels of centroids, d apart, times q [n]; more: adds
 * them. */
ALWAYS_INLINE void kv_codebook_multiply(const float *center, size_t k, size_t d,
                                        size_t n, bool more, const vf32x4 *q,
                                        vf32x4 *table)
{
    for (size_t i = 0; i < k; i++, center += d) {
        vf32x4 x = q[0] * center[0];

        UNROLL
        for (size_t j = 1; j < n; j++)
            x += q[j] * center[j];
        table[i] = more ? table[i] + x : x;
    }
}

/* Sets table [k] to the products of each centroid of a sub-space with the
 * queries q [channels]; 0 past the last sub-space. */
static inline void kv_codebook_sub_table(const struct kv_codebook *b,
                                         size_t head, size_t sub,
                                         const vf32x4 *q, vf32x4 *table)
{
    const size_t at = kv_codebook_at(b, head, sub) * b->k * b->d;

    if (sub >= b->n_sub) {
        memset(table, 0, b->k * sizeof(*table));
        return;
    }
    q += sub * b->d;
    for (size_t j = 0, n; j < b->d; j += n) {
        n = kv_codebook_together(b->d - j);
        switch (n) {
#define CASE(N)                                                                \
    case N:                                                                    \
        kv_codebook_multiply(b->centers + at + j, b->k, b->d, N, j > 0, q + j, \
                             table);                                           \
        break;
            KV_CODEBOOK_EACH(CASE)
#undef CASE
        }
    }
}

#endif
