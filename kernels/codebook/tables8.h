/* Keys on path int8 where many tokens share each centroid, by tables: what a
 * centroid of a sub-space gives with a query, in 8 bits of the query's largest
 * range,
 *
 *   entry = round((q . centroid - low_i) / scale), 0 to 255
 *   low_i = the least of sub-space i,  scale = the largest range / 255
 *
 * and a token's score is scale * (the sum of what its codes point to) + the sum
 * of low_i, rounded once (fmaf).  Neither the query nor the centroids are
 * rounded before; a sub-space with a larger range than the others costs them
 * bits.  A query that overflows or is no number has no number as its qk. */
#ifndef KV_CODEBOOK_TABLES8_H
#define KV_CODEBOOK_TABLES8_H

#include "kernels/codebook/impl.h"

/* What qk want of queries: tables of KV_CODEBOOK_ROWS rows, then of the next.
 */
struct kv_codebook_tables8 {
    float scale[KV_TILE_ROWS], low[KV_TILE_ROWS];
    _Alignas(64) uint8_t entry[];
};

/* One centroid's entries with KV_CODEBOOK_ROWS queries, 16 bits each, so that
 * sums of them stay apart: [n_sub][k]. */
typedef uint64_t kv_codebook_lanes8;

/* With AVX-512 instead: bytes [n_sub][KV_CODEBOOK_ROWS][plane]. */
static inline size_t kv_codebook_planes8_bytes(const struct kv_codebook *b)
{
    return b->n_sub * KV_CODEBOOK_ROWS * b->plane;
}

static inline size_t kv_codebook_lanes8_bytes(const struct kv_codebook *b)
{
    return b->n_sub * b->k * sizeof(kv_codebook_lanes8);
}

/* prepare (tiles.h); lanes and planes: the two orders of tables. */
typedef void kv_codebook_prepare8_fn(const struct kv_store *s, size_t head,
                                     const float *q, size_t rows, void *query);

kv_codebook_prepare8_fn kv_codebook_lanes8_c, kv_codebook_lanes8_avx2;
kv_codebook_prepare8_fn kv_codebook_planes8_avx2;

/* qk and qk_tiles; c, avx2: from lanes, vnni: from planes */
kv_codebook_qk_fn kv_codebook_qk8_c, kv_codebook_qk8_avx2;
kv_codebook_qk_fn kv_codebook_qk8_vnni;
kv_codebook_qk_tiles_fn kv_codebook_qk8_tiles_c, kv_codebook_qk8_tiles_avx2;
kv_codebook_qk_tiles_fn kv_codebook_qk8_tiles_vnni;

#endif
