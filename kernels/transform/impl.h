/* Internals of transform.h: the layout of its tables, heads and queries, and
 * the operations of a level.  Only for kernels/transform and the tests. */
#ifndef KV_TRANSFORM_IMPL_H
#define KV_TRANSFORM_IMPL_H

#include "kernels/transform/transform.h"
#include "kernels/trellis/trellis.h"

enum {
    KV_TRANSFORM_MAX =
        KV_TRANSFORM_COEFS, /* coefficients of a head, without the mean */
    KV_TRANSFORM_PAD = 16,  /* sums are padded to multiples of it */
    /* Keys before RoPE: the number of channels computed together; in int8, in
     * each half of the head, with their partners in the other half. */
    KV_TRANSFORM_CHANNELS = KV_TILE_ROWS,
    KV_TRANSFORM_CHANNELS8 = 4,
    /* The bytes of a tile's codes. */
    KV_TRANSFORM_CODES = KV_TRANSFORM_MAX * KV_TILE_TOKENS
};

/* A table by entries (struct kv_trellis_map): plane b holds byte b of each
 * float, `code` the float rounded to 8 bits: scale (code - 128).
 *
 * The entry of a state that ends `shift` bits before a byte's end is the XOR of
 * two products of bit matrices (rows from bit 7 down to 0, a byte each), one
 * with the state's last byte and one with the byte before; or of the
 * contributions of three half bytes: from bit 0 of the last byte on, or from
 * bit 4 on if shift >= 4. */
struct kv_transform_table {
    const float *from;
    const struct kv_trellis_map *map;
    float scale;
    uint8_t *plane[4], *code;    /* [KV_TRELLIS_ENTRIES], 64-byte aligned */
    uint64_t last[8], before[8]; /* indexed by the shift */
    uint8_t of_half[8][3][16];
};

/* A state is two bytes shifted right by `shift`: the low byte from the line at
 * `line`, the high byte from the previous line. */
struct kv_transform_place {
    uint32_t line, shift;
};
_Static_assert(KV_TRELLIS_BITS <= 9, "two bytes hold a state at any shift");

/* Coefficients [first, first + n) of a head have this table. */
struct kv_transform_run {
    const struct kv_transform_table *table;
    size_t first, n;
};

struct kv_transform_head {
    size_t n, padded; /* padded: n and the mean */
    size_t n_runs;
    struct kv_transform_run *run;
    struct kv_transform_place *place; /* [n] */
    /* Values: inverse times scale [n + 1][head_dim padded], the mean last.
     * Keys after RoPE: its transpose [head_dim][padded].  Keys before it, for
     * each KV_TRANSFORM_CHANNELS: [n + 1][channels], fewer in the last. */
    float *matrix;
    /* Keys before RoPE, int8: for each KV_TRANSFORM_CHANNELS8 of the first
     * half, then of the second, a kv_transform_query8 of that many rows, the
     * last filled up with zeros; channel_bytes apart. */
    char *channel;
    size_t channel_bytes;
};

struct kv_transform {
    struct kv_transform_about about;
    size_t max; /* maximum of the heads' `padded` */
    struct kv_transform_head *head;
    struct kv_transform_table *table;
    size_t n_tables;
};

static inline const struct kv_transform *
kv_transform_of(const struct kv_store *s)
{
    return s->params;
}

/* The index of token t in a line. */
static inline size_t kv_transform_at(size_t t)
{
    return t / 4 % 4 * 16 + t / 16 * 4 + t % 4;
}

/* A query of int8 qk, per row: score = scale (sum_j (table code - 128)_j
 * code_j) + constant, rounded once (fmaf); bias = -128 sum_j code_j.  Codes
 * from n to a multiple of 4 are 0. */
struct kv_transform_query8 {
    float *scale;    /* [KV_TILE_ROWS] */
    int32_t *bias;   /* [KV_TILE_ROWS] */
    float *constant; /* [KV_TILE_ROWS], the mean's part */
    int8_t *code;    /* [n / 4 rounded up][rows][4] */
};

struct kv_transform_query8 kv_transform_query8_at(const void *query);
size_t kv_transform_query8_bytes(const struct kv_transform_head *h);
/* Sets row r of a query of `rows` rows from coefficients and the constant, x [n
 * + 1]. */
void kv_transform_round_row(const struct kv_transform_head *h, const float *x,
                            size_t r, size_t rows, void *query);

/* The number of groups of channels: group i has the 4 channels from 4 i on and
 * their partners from head_dim / 2 + 4 i on. */
static inline size_t kv_transform_groups8(size_t head_dim)
{
    return (head_dim / 2 + KV_TRANSFORM_CHANNELS8 - 1) / KV_TRANSFORM_CHANNELS8;
}

/* The first n pairs of channels of token 32 k + t are rotated by two angles:
 * (cosine[k][pair], sine[k][pair]) and (within[pair][0][t],
 * within[pair][1][t]). */
struct kv_transform_angles {
    float cosine[2][KV_TRANSFORM_MAX / 2], sine[2][KV_TRANSFORM_MAX / 2];
    const float *within;
    size_t n;
};

/* A level's operations.  tile_bytes: distance to the next tile, which may be
 * prefetched.  The order of codes is the level's own; codes past n represent 0.
 */
struct kv_transform_ops {
    /* y: [2][n + 1][32], for each of the two parts of 32 tokens the unscaled
     * coefficients from the tables, and 1. */
    void (*expand)(const struct kv_transform_head *h, const uint8_t *tile,
                   size_t tile_bytes, float *y);
    /* Adds p times the same coefficients to acc [rows][row]: acc[j * lanes + l]
     * is a part of the sum of coefficient j. */
    size_t lanes;
    void (*pv)(const struct kv_transform_head *h, const uint8_t *tile,
               size_t tile_bytes, const float *p, size_t stride, size_t rows,
               float *acc, size_t row);
    /* Looks up the codes of all coefficients. */
    void (*codes)(const struct kv_transform_head *h, const uint8_t *tile,
                  size_t tile_bytes, uint8_t *code);
    /* score: [rows][32], rows `stride` floats apart; second: the same for the
     * other 32 tokens. */
    void (*qk8)(const uint8_t *code, size_t n, struct kv_transform_query8 q,
                size_t rows, float *score, float *second, size_t stride);
    /* Keys before RoPE: the channels of all groups, rotated, times queries q
     * [head_dim][rows]; score as in tiles.h.  NULL: qk8 is called for each
     * group, and rotation is in floats. */
    void (*qk8_rotated)(const struct kv_transform_head *h, size_t head_dim,
                        uint8_t *code, const struct kv_transform_angles *angles,
                        const float *q, size_t rows, float *score,
                        size_t stride);
    /* Adds weight codes [rows][64] times scale, times codes, to acc
     * [rows][row]; acc[j / 4 * 4 * lanes8 + 4 l + j % 4] is a part of the sum
     * of j. */
    size_t lanes8;
    void (*pv8)(const uint8_t *code, size_t n, const int8_t *weight,
                const float *scale, size_t rows, float *acc, size_t row);
};

extern const struct kv_transform_ops kv_transform_c;
extern const struct kv_transform_ops kv_transform_avx2; /* x86-64 only */
extern const struct kv_transform_ops kv_transform_vnni; /* x86-64 only */

#endif
