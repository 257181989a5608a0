/* Inside of tiles_coef.h; for tiles_coef*.c and the tests alone. */
#ifndef KV_TRANSFORM_IMPL_H
#define KV_TRANSFORM_IMPL_H

#include "kernels/transform/transform.h"
#include "kernels/trellis/trellis.h"

enum {
    KV_TRANSFORM_PAD = 16,  /* coefficients are padded to these */
    KV_TRANSFORM_FOUR = 4,  /* those of a table to these, in int8 */
    KV_TRANSFORM_MAX = 512, /* of a head, without the mean */
    KV_TRANSFORM_CHANNELS =
        KV_TILE_ROWS, /* before RoPE, that are made together */
    KV_TRANSFORM_PAIRS =
        2 /* of channels before RoPE, whose sums fit in registers */
};

/* A table by states, and for fast versions by entries: plane b holds byte b of
 * each float; code, rounded to 8 bits: scale (code - 128).
 *
 * Of a state that ends `shift` bits before a byte's end, the entry's number is
 * the XOR of two products of bit matrices (rows from bit 7 down to 0, a byte
 * each) with the last byte that it reaches into and with the byte before; and
 * of what three half bytes contribute, those from bit 0 on, or from bit 4 on if
 * the shift is 4 or more. */
struct kv_transform_table {
    const float *from;
    const struct kv_trellis_map *map;
    float scale;
    uint8_t *plane[4];           /* [KV_TRELLIS_ENTRIES], 64-byte aligned */
    uint8_t *code;               /* [KV_TRELLIS_ENTRIES], 64-byte aligned */
    uint8_t *entry;              /* [KV_TRELLIS_STATES] */
    uint64_t last[8], before[8]; /* by shift */
    uint8_t of_half[8][3][16];
};

/* Where a state stands: in the last byte that it reaches into and the one
 * before; `line` is where those of a tile's tokens begin, and a line earlier.
 * The state is these two bytes, the last lowest, shifted right. */
struct kv_transform_place {
    uint32_t line, shift;
};
_Static_assert(KV_TRELLIS_BITS <= 9, "two bytes hold a state at any shift");

/* Coefficients [first, first + n) of a head have this table; those from
 * shift[i] up to shift[i + 1] end i bits before a byte's end. */
struct kv_transform_run {
    const struct kv_transform_table *table;
    size_t first, n, shift[9];
    size_t first4; /* first, runs before it padded to multiples of 4 */
};

struct kv_transform_head {
    size_t n, padded; /* padded: n and the mean */
    size_t n_runs, n4;
    struct kv_transform_run *run;
    struct kv_transform_place *place;
    /* Values: inverse times scale [n + 1][head_dim padded], the mean last.
     * Keys after RoPE: its transpose [head_dim][padded].  Keys before it: 8
     * channels of all coefficients, then the next, [..][n + 1][8]; of the last
     * channels as many as there are. */
    float *matrix;
    /* Keys before RoPE, int8: a kv_transform_query8 of each KV_TRANSFORM_PAIRS,
     * as if these channels were asked for; channel_bytes apart. */
    char *channel;
    size_t channel_bytes;
};

struct kv_transform {
    struct kv_transform_about about;
    size_t most; /* the heads' largest `padded` */
    struct kv_transform_head *head;
    struct kv_transform_table *table;
    size_t n_tables;
};

static inline const struct kv_transform *
kv_transform_of(const struct kv_store *s)
{
    return s->params;
}

/* Where token t stands in a line. */
static inline size_t kv_transform_at(size_t t)
{
    return t / 4 % 4 * 16 + t / 16 * 4 + t % 4;
}

/* Keys before RoPE: y [n + 1][32] of tokens [part * 32, ..) to qk. */
void kv_transform_qk_rotated(const struct kv_store *s, size_t head,
                             const uint8_t *tile, size_t part, const float *y,
                             const float *q, size_t rows, float *score,
                             size_t stride);
/* The same from channels x [head_dim][32], which rotate in place. */
void kv_transform_rotate(const struct kv_store *s, size_t head,
                         const uint8_t *tile, size_t part, float *x,
                         const float *q, size_t rows, float *score,
                         size_t stride);

/* Exact queries: [n + 1][rows], or before RoPE [head_dim][rows]. */
size_t kv_transform_query_bytes(const struct kv_store *s);
void kv_transform_prepare(const struct kv_store *s, size_t head, const float *q,
                          size_t rows, void *query);

/* acc [rows][most], in units of the coefficients: out [rows][head_dim]. */
size_t kv_transform_acc_floats(const struct kv_store *s);
void kv_transform_finish(const struct kv_store *s, size_t head,
                         const float *acc, size_t rows, float *out);

/* What int8 qk want of the queries, of each row:
 *   score = factor (sum of (table code - 128) code) + constant
 * rounded once (fmaf).
 * bias: -128 times the sum of the codes. */
struct kv_transform_query8 {
    float *factor;   /* [KV_TILE_ROWS] */
    int32_t *bias;   /* [KV_TILE_ROWS] */
    float *constant; /* [KV_TILE_ROWS], the mean's */
    int8_t *code;    /* [n4 / 4][rows][4] */
};

enum { KV_TRANSFORM_PER_ROW = 64 }; /* bytes for a number of each row */
_Static_assert(KV_TILE_ROWS * sizeof(float) <= KV_TRANSFORM_PER_ROW, "query8");

static inline struct kv_transform_query8
kv_transform_query8_at(const void *query)
{
    char *at = (char *)query;

    return (struct kv_transform_query8){
        .factor = (float *)(void *)at,
        .bias = (int32_t *)(void *)(at + KV_TRANSFORM_PER_ROW),
        .constant = (float *)(void *)(at + 2 * KV_TRANSFORM_PER_ROW),
        .code = (int8_t *)(at + 3 * KV_TRANSFORM_PER_ROW)};
}

/* Keys before RoPE: group i of channels that are worked on together, so many
 * pairs.  Its rows are their first channels and then their second ones. */
static inline struct kv_transform_query8
kv_transform_channels8(const struct kv_transform_head *h, size_t i)
{
    return kv_transform_query8_at(h->channel + i * h->channel_bytes);
}

static inline size_t kv_transform_pairs(size_t head_dim, size_t i)
{
    const size_t left = head_dim / 2 - i * KV_TRANSFORM_PAIRS;

    return left < KV_TRANSFORM_PAIRS ? left : KV_TRANSFORM_PAIRS;
}

static inline size_t kv_transform_channel(size_t head_dim, size_t i, size_t r)
{
    const size_t pairs = kv_transform_pairs(head_dim, i);

    return i * KV_TRANSFORM_PAIRS + (r < pairs ? r : head_dim / 2 + r - pairs);
}

/* Bytes of such a query. */
size_t kv_transform_query8_size(const struct kv_transform_head *h);
/* One row of coefficients and the constant, rotated [n + 1], as row r of a
 * query of `rows`. */
void kv_transform_round_row(const struct kv_transform_head *h,
                            const float *rotated, size_t r, size_t rows,
                            void *query);

size_t kv_transform_query8_bytes(const struct kv_store *s);
void kv_transform_prepare8(const struct kv_store *s, size_t head,
                           const float *q, size_t rows, void *query);

/* Weights p [rows][64] of a tile as codes in the tile's order, what a code
 * stands for, -128 times their sum, and the sum of the weights themselves. */
struct kv_transform_weights {
    int8_t code[KV_TILE_ROWS][KV_TILE_TOKENS];
    float factor[KV_TILE_ROWS], sum[KV_TILE_ROWS];
    int32_t bias[KV_TILE_ROWS];
};

/* Codes of a tile's coefficients, places of tokens as in a line: [n4 / 4][64]
 * [4], zeros where a run is filled up. */
enum {
    KV_TRANSFORM_CODES = KV_TRANSFORM_FOUR * KV_TRANSFORM_MAX * KV_TILE_TOKENS
};

static inline size_t kv_transform_code_at(size_t coef4, size_t place)
{
    return (coef4 / 4 * KV_TILE_TOKENS + place) * 4 + coef4 % 4;
}

/* What the family takes its time for, as plain C and with AVX2. */
struct kv_transform_loops {
    /* Coefficients of a part as the tables have them, and 1, to y: [n + 1][32]
     * with by_coef = 32 and by_token = 1; or [32][by_token] with by_coef = 1,
     * where columns after the 1, below `padded`, may become 0. */
    void (*expand)(const struct kv_transform_head *h, const uint8_t *tile,
                   size_t part, size_t by_coef, size_t by_token, float *y);
    void (*codes)(const struct kv_transform_head *h, const uint8_t *tile,
                  uint8_t *x);
    /* score: [rows][64], rows `stride` floats apart. */
    void (*dot)(const struct kv_transform_head *h, const uint8_t *x,
                struct kv_transform_query8 q, size_t rows, float *score,
                size_t stride);
    /* acc [rows][most] += the products with weights, but for the mean. */
    void (*add)(const struct kv_transform_head *h, const uint8_t *x,
                const struct kv_transform_weights *w, size_t rows, float *acc,
                size_t most);
};

extern const struct kv_transform_loops kv_transform_loops_c;
extern const struct kv_transform_loops
    kv_transform_loops_avx2; /* x86-64 only */

/* acc [rows][most] in units of table codes; the mean's at n. */
void kv_transform_finish8(const struct kv_store *s, size_t head,
                          const float *acc, size_t rows, float *out);

/* y [2][n + 1][32], of both parts of a tile: its coefficients as the tables
 * have them, and 1.  With AVX512-VBMI. */
void kv_transform_expand_vnni(const struct kv_store *s, size_t head,
                              const uint8_t *tile, float *y);

/* With AVX512-VBMI and -VNNI; turned8: keys before RoPE, in int8. */
extern const struct kv_tile_ops kv_transform_exact_vnni, kv_transform_int8_vnni,
    kv_transform_rotated8_vnni;

#endif
