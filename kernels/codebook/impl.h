/* The inside of tiles_codebook.h; for tiles_codebook*.c, their test, and who
 * packs such tiles for a device.
 *
 * Path int8 in integers: a key's score is q_scale * sum(q8 * k8), where k8 are
 * entries of the rounded table and q8 the query times the table's scales,
 * rounded; a value's channel is scale * sum over tiles of p_scale *
 * sum(p8 * v8).  Scores of many tokens are by tables instead:
 * kv_codebook_tabled8().
 */
#ifndef KV_CODEBOOK_IMPL_H
#define KV_CODEBOOK_IMPL_H

#include "kernels/codebook/codebook.h"
#include "kernels/tiles/impl.h"

#include <stdbool.h>

enum kv_codebook_order { KV_ORDER_SHARED, KV_ORDER_OWN, KV_ORDER_WIDE };

struct kv_codebook {
    enum kv_codebook_order order;
    size_t head_books, sub_books, n_sub, d, k;
    unsigned bits;
    const float *centers;
    struct kv_tiles_rope *rope;
    uint16_t *sub_of; /* [channels]: the sub-vector, or the last one */

    /* By channel c = sub * d + j: scales of tables [head_books][n_sub * d], and
     * where the channel is in a row of q8 (struct kv_codebook_q8) and in one of
     * the values' sums (avx2 has places of its own for both) */
    float *scale;
    uint16_t *q_at, *sum_at;
    /* Rounded centroids, keys' plus 128: [head_books][sub_books][k][width],
     * width: d filled up to 4, 8 or 16 */
    size_t width;
    uint8_t *entry;
    /* b <= 8: the same by channel, [head_books][channels][plane]; channels: d,
     * or of all sub-spaces and zeros up to a multiple of 16; plane: 64, 128 or
     * 256 entries */
    size_t channels, plane;
    uint8_t *planes;
};

enum {
    KV_KEY_BIAS = 128,
    KV_CODEBOOK_DIM = 512, /* most channels */
    KV_CODEBOOK_ROWS = 4   /* queries side by side */
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

/* What int8 qk want of queries. */
struct kv_codebook_q8 {
    float scale[KV_TILE_ROWS];
    int32_t start[KV_TILE_ROWS]; /* of sums: -KV_KEY_BIAS * sum(q8) */
    int8_t plain[KV_TILE_ROWS][KV_CODEBOOK_DIM]; /* q8 by channel */
    /* the same in fours (wide: width bytes) that meet neighbours in a register,
     * zeros between; a four of KV_CODEBOOK_ROWS rows, or of what is left of
     * them, side by side, then the next four */
    _Alignas(64) int8_t q8[];
};

/* Fours of bytes in a row of q8. */
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

/* Where in q8 row r and those beside it begin, r a multiple of
 * KV_CODEBOOK_ROWS. */
static inline size_t kv_codebook_rows_at(const struct kv_store *s, size_t r)
{
    return r * kv_codebook_quads(s) * 4;
}

/* Sums of int8 values: so many floats. */
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

/* qk and pv of path int8 (tiles.h); vnni: where kv_level_vnni().  avx2
 * has an order of its own for the values' sums. */
typedef void kv_codebook_qk_fn(const struct kv_store *s, size_t head,
                               const uint8_t *tile, const void *query,
                               size_t rows, float *score, size_t stride);
typedef void kv_codebook_pv_fn(const struct kv_store *s, size_t head,
                               const uint8_t *tile, const float *p,
                               size_t stride, size_t rows, float *acc);

kv_codebook_qk_fn kv_codebook_qk_c, kv_codebook_qk_avx2, kv_codebook_qk_vnni;
kv_codebook_pv_fn kv_codebook_pv_c, kv_codebook_pv_avx2, kv_codebook_pv_vnni;
size_t kv_codebook_sums_avx2(const struct kv_store *s);
void kv_codebook_finish_avx2(const struct kv_store *s, size_t head,
                             const float *acc, size_t rows, float *out);

/* avx2, codes of up to 4 bits: the rounded entries that a tile stands for, x
 * [quads][64][4]; what fills a sub-vector up to `unit` numbers, and the last
 * quad, is anything. */
void kv_codebook_few_entries_avx2(const struct kv_store *s, size_t head,
                                  const uint8_t *tile, size_t unit, uint8_t *x);

/* The entries of a table (tiles_codebook_tables_loops.h): of codes of up to 4
 * bits it is for two sub-spaces. */
static inline size_t kv_codebook_table_size(const struct kv_codebook *b)
{
    return b->bits <= 4 ? 256 : b->k;
}

/* Whether so many tokens can have tables, and are worth them: two per entry, as
 * measured.  Of 1 and 2 bits so few entries are in use that a thousand weights
 * would be added up in one, and their roundings. */
static inline bool kv_codebook_tabled(const struct kv_codebook *b, size_t n)
{
    return !b->rope && b->bits >= 3 && b->bits <= 8 &&
           n >= 2 * kv_codebook_table_size(b);
}

/* Bytes of a query's tables of path int8 at most, with one of 64 bytes or more
 * for each sub-space. */
enum { KV_CODEBOOK_TABLES8 = 8192 };

/* Whether qk of so many tokens on path int8 are by tables
 * (tiles_codebook_tables8.h): where that took less time, as measured.  One
 * table of centroids for all sub-spaces makes products of rounded centroids
 * faster, so that longer sub-vectors and smaller tables are wanted. */
static inline bool kv_codebook_tabled8(const struct kv_codebook *b, size_t n)
{
    const bool own = b->order == KV_ORDER_OWN;

    return !b->rope && b->bits > 4 && b->bits <= 8 && b->d > (own ? 2 : 4) &&
           b->n_sub * b->plane <= KV_CODEBOOK_TABLES8 / (own ? 1 : 2) &&
           n >= 64 * b->k;
}

/* qk_tiles and pv_tiles of path exact, by tables where the tokens are
 * worth them. */
typedef void kv_codebook_qk_tiles_fn(const struct kv_store *s, size_t head,
                                     const uint8_t *tile, size_t n,
                                     const void *query, size_t rows,
                                     float *score, size_t stride);
typedef void kv_codebook_pv_tiles_fn(const struct kv_store *s, size_t head,
                                     const uint8_t *tile, size_t n,
                                     const float *p, size_t stride, size_t rows,
                                     float *acc);

kv_codebook_qk_tiles_fn kv_codebook_qk_tiles_c, kv_codebook_qk_tiles_avx2;
kv_codebook_pv_tiles_fn kv_codebook_pv_tiles_c, kv_codebook_pv_tiles_avx2;

/* Codes of tokens [32 part, 32 part + 32), at most KV_CODEBOOK_DIM * 32, in the
 * order of the tile, which is: */
struct kv_codebook_part {
    size_t some, step,
        each;         /* of sub-vectors: so many, step apart, each apart */
    size_t four, one; /* of tokens: fours, and within */
};
struct kv_codebook_part kv_store_get_codes(const struct kv_store *s,
                                           const uint8_t *tile, size_t part,
                                           uint16_t *code);

static inline size_t kv_codebook_in_part(struct kv_codebook_part p, size_t sub,
                                         size_t t)
{
    return sub / p.some * p.step + sub % p.some * p.each + t / 4 * p.four +
           t % 4 * p.one;
}

#endif
