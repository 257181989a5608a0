/* The inside of tiles_codebook.h; for tiles_codebook*.c and their test alone.
 *
 * Path int8 in integers: a key's score is q_scale * sum(q8 * k8), where k8 are
 * entries of the rounded table and q8 the query times the table's scales,
 * rounded; a value's channel is scale * sum over tiles of p_scale *
 * sum(p8 * v8). */
#ifndef KV_TILES_CODEBOOK_IMPL_H
#define KV_TILES_CODEBOOK_IMPL_H

#include "kernels/tiles_codebook.h"
#include "kernels/tiles_impl.h"

enum kv_code_order { KV_CODES_SHARED, KV_CODES_OWN, KV_CODES_WIDE };

struct kv_codebook {
    enum kv_code_order order;
    size_t head_books, sub_books, n_sub, d, k;
    unsigned bits;
    const float *centers;
    struct kv_tiles_rope *rope;

    float *scale; /* [head_books][sub_books][d] */
    /* Rounded centroids, keys' plus 128: [head_books][sub_books][k][width],
     * width: d filled up to 4, 8 or 16 */
    size_t width;
    uint8_t *entry;
    /* b <= 8: the same by dimensions, [head_books][sub_books][d][plane], plane:
     * 64, 128 or 256 entries */
    size_t plane;
    uint8_t *planes;
};

enum { KV_KEY_BIAS = 128 };

/* The table of (head, sub) among head_books x sub_books. */
static inline size_t kv_codebook_at(const struct kv_codebook *b, size_t head,
                                    size_t sub)
{
    return (b->head_books > 1 ? head : 0) * b->sub_books +
           (b->sub_books > 1 ? sub : 0);
}

/* What scores want of queries, path int8. */
struct kv_code_query {
    float scale[KV_TILE_ROWS];
    int32_t bias[KV_TILE_ROWS]; /* KV_KEY_BIAS * sum(q8) */
    /* [n][rows][4]: the bytes that a register of the order's wants beside each
     * other (kv_code_place), then [rows][head_dim padded to 64] as they are */
    _Alignas(64) int8_t q8[];
};

/* Where channel c of a key stands among the bytes of a row of q8. */
static inline size_t kv_code_place(const struct kv_codebook *b, size_t c)
{
    const size_t sub = c / b->d, j = c % b->d;

    switch (b->order) {
    case KV_CODES_SHARED:
        return (sub / 4 * b->d + j) * 4 + sub % 4;
    case KV_CODES_OWN:
        break;
    case KV_CODES_WIDE:
        return sub * b->width + j;
    }
    return c;
}

#endif
