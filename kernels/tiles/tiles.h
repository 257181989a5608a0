/* Attention of queries over the codes that a cache stores.
 *
 * A side of a cache is up to three runs of consecutive tokens: sinks, codes,
 * tail.  A run is a store: per KV head, tiles of 64 tokens in the order of its
 * family's loops, so that each byte is read once for all queries of the KV
 * head.  A family (a folder of kernels/) is a way of storing tokens.  It has
 * two operations on a tile, qk (keys) and pv (values), on up to two paths:
 *
 *   exact  the stored values times the queries in f32, sums in f32
 *   int8   queries and softmax weights rounded to 8 bits, products of codes in
 *          integers; plain C defines it, with the same integers
 *
 * Many queries (prefill) are processed in blocks, each over the tokens that its
 * last query sees; on the exact path a tile is then expanded once for a block.
 *
 * The softmax is online, 256 tokens or a chunk at a time.  Chunks of 4096
 * tokens are combined in order, so any number of threads gives the same
 * bits. */
#ifndef KV_TILES_H
#define KV_TILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KV_TILE_TOKENS = 64,
    KV_TILE_ROWS = 8,    /* queries that a family's operations take at a time */
    KV_TILE_FEW = 4,     /* queries at a time if both sides' operations work by
                          * chunks */
    KV_TILE_PART = 32,   /* tokens that expand() gives at a time */
    KV_TILE_CHUNK = 4096 /* tokens of a chunk */
};

enum kv_path { KV_PATH_EXACT, KV_PATH_INT8, KV_PATHS };

struct kv_store;

/* One version of a family's operations.  Keys have prepare and qk, values
 * pv and finish.  1 <= rows <= KV_TILE_ROWS. */
struct kv_tile_ops {
    /* q: [rows][head_dim], in the store's space and scaled; query: the prepared
     * queries that qk reads, query_bytes(s), 64-byte aligned.  It holds no
     * pointers into itself, and may be copied.  notes: qk caches facts about
     * tiles in it, so threads must not share it. */
    bool notes;
    size_t (*query_bytes)(const struct kv_store *s);
    void (*prepare)(const struct kv_store *s, size_t head, const float *q,
                    size_t rows, void *query);
    /* score: [rows][64], rows `stride` floats apart: q . k of the tile's
     * tokens; anything for those past the end of the run. */
    void (*qk)(const struct kv_store *s, size_t head, const uint8_t *tile,
               const void *query, size_t rows, float *score, size_t stride);

    /* p: [rows][64] weights in [0, 1], `stride` floats apart, 0 past the end
     * of the run.  Adds p v to acc: [rows][acc_floats(s)], in the family's own
     * order of channels.  acc starts at zero, may be rescaled between calls,
     * and sums over parts of the run may be added. */
    size_t (*acc_floats)(const struct kv_store *s);
    void (*pv)(const struct kv_store *s, size_t head, const uint8_t *tile,
               const float *p, size_t stride, size_t rows, float *acc);
    /* out: [rows][head_dim], written: the channels in their order. */
    void (*finish)(const struct kv_store *s, size_t head, const float *acc,
                   size_t rows, float *out);

    /* Scores and pv of n whole consecutive tiles, from one tile to a chunk's
     * tiles; score, p: [rows][64 n], all else as above.  NULL: tile by tile is
     * as fast.  by_chunks: fastest with all tiles of a chunk; else a few tiles
     * are enough. */
    bool by_chunks;
    void (*qk_tiles)(const struct kv_store *s, size_t head, const uint8_t *tile,
                     size_t n, const void *query, size_t rows, float *score,
                     size_t stride);
    void (*pv_tiles)(const struct kv_store *s, size_t head, const uint8_t *tile,
                     size_t n, const float *p, size_t stride, size_t rows,
                     float *acc);
};

struct kv_family {
    const char *name;
    /* The operations on this path at the level in use (kernels/level.h); NULL
     * if the family lacks the path. */
    const struct kv_tile_ops *(*ops)(const struct kv_store *s,
                                     enum kv_path path);
    /* Tokens [part * 32, part * 32 + 32) of a tile as values, for
     * kv_tiles_expanded() and conversion to another order.  Keys: x
     * [head_dim][32], values: x [32][head_dim padded to 16] (the padding 0). */
    void (*expand)(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t part, float *x);
    /* The bytes that a tile owns beyond its own bytes, and the function that
     * frees them; NULL if a tile owns nothing else.  A tile of zeros owns
     * nothing. */
    size_t (*owned)(const struct kv_store *s, const uint8_t *tile);
    void (*release)(const struct kv_store *s, uint8_t *tile);
};

/* The form of a transform that a device does without a matrix: a row x of a
 * head becomes ((x before) H) after, where H is the transform of
 * kernels/hadamard.h, or with hadamard = 0 the identity. */
struct kv_butterfly {
    int has; /* the transform has this form */
    int hadamard;
    const float *before, *after; /* [n_heads][head_dim]; NULL: ones */
};

/* A run of tokens of one side of one layer. */
struct kv_store {
    const struct kv_family *family;
    const void *params; /* the family's; not owned */
    int values;         /* side V: pv, not qk */
    size_t n_heads, head_dim;
    size_t first;      /* position of the run's first token */
    size_t tile_bytes; /* bytes of one head, a multiple of 64 */
    int together;      /* a tile holds all KV heads, each of which reads it */

    /* Transform into and out of the codes' space (rotations, smoothing): q and
     * out are [rows][head_dim], in place.  NULL: no transform. */
    void (*enter)(const void *space, size_t head, float *q, size_t rows);
    void (*leave)(const void *space, size_t head, float *out, size_t rows);
    const void *space;
    struct kv_butterfly butterfly; /* of keys, enter(); of values, leave() */

    /* Filled by kv_store_resize(): tiles [n_heads, or 1 if heads are
     * together][capacity][tile_bytes], 64-byte aligned. */
    size_t n, capacity;
    uint8_t *tiles;
};

/* Sets the length to n tokens.  Existing tiles keep their contents, also if n
 * shrinks and grows again; new tiles are zero. */
void kv_store_resize(struct kv_store *s, size_t n);
void kv_store_free(struct kv_store *s); /* frees tiles */
/* Sets tile i of a head to zeros. */
void kv_store_clear(struct kv_store *s, size_t head, size_t i);
/* The bytes of the tiles in use and of the memory that they own. */
size_t kv_store_bytes(const struct kv_store *s);

/* Number of heads with tiles of their own. */
static inline size_t kv_store_heads(const struct kv_store *s)
{
    return s->together ? 1 : s->n_heads;
}

static inline uint8_t *kv_store_tile(const struct kv_store *s, size_t head,
                                     size_t i)
{
    return s->tiles +
           ((s->together ? 0 : head) * s->capacity + i) * s->tile_bytes;
}

/* Position of the first token of a tile of this head. */
static inline size_t kv_store_position(const struct kv_store *s, size_t head,
                                       const uint8_t *tile)
{
    const size_t at = (size_t)(tile - kv_store_tile(s, head, 0));

    return s->first + at / s->tile_bytes * KV_TILE_TOKENS;
}

static inline size_t kv_store_tiles(const struct kv_store *s)
{
    return (s->n + KV_TILE_TOKENS - 1) / KV_TILE_TOKENS;
}

/* The smaller of both. */
static inline size_t kv_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t kv_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* n rounded up to a multiple of `whole`. */
static inline size_t kv_round_up(size_t n, size_t whole)
{
    return (n + whole - 1) / whole * whole;
}

/* head_dim rounded up to whole registers of 16. */
static inline size_t kv_padded(size_t head_dim)
{
    return kv_round_up(head_dim, 16);
}

/* Exact operations of any family that has expand(), at the level in use. */
const struct kv_tile_ops *kv_tiles_expanded(const struct kv_store *s);

/* Whether the family has operations on this path. */
int kv_store_has(const struct kv_store *s, enum kv_path path);

/* ---- floats: f32, f16, bf16 (kernels/float/layout.c) ----------------- */

enum kv_float { KV_FLOAT_32, KV_FLOAT_16, KV_FLOAT_BF16 };

extern const struct kv_family kv_family_float;

/* Makes s a store of floats of this kind. */
void kv_store_floats(struct kv_store *s, enum kv_float kind, int values,
                     size_t n_heads, size_t head_dim);

/* Puts one token's row [head_dim] (of the kind) at index t of a tile. */
void kv_store_put_float_row(const struct kv_store *s, size_t t,
                            const void *from, uint8_t *tile);

/* Puts n tokens of rows from [n][n_heads][head_dim] (of the kind) at tokens
 * [at, at + n) of the run, which is that long already. */
void kv_store_put_floats(struct kv_store *s, size_t at, const void *from,
                         size_t n);

/* ---- integers with a scale and an offset (kernels/integers/layout.c) ----- */

enum kv_offset {
    KV_OFFSET_LOW,  /* f16: x = low + scale * code */
    KV_OFFSET_ZERO, /* whole, below 2^23: x = scale * (code - zero) */
    KV_OFFSET_SAME  /* the same zero for every group */
};

/* The params of a store; bits (1 to 8), offset, zero (of KV_OFFSET_SAME) and
 * negative (some scales are below 0) are the caller's, kv_integers_init() sets
 * the rest.  integers/layout.c draws the tile that they describe.
 */
struct kv_integers {
    unsigned bits;
    enum kv_offset offset;
    float zero;
    int negative;

    int folded;
    size_t inner, lanes;
    size_t run, n_runs;
    size_t span;
    size_t head_bytes, tile_bytes;
};

extern const struct kv_family kv_family_integers;

/* A group is len channels of one token, or (of_tokens) len tokens of one
 * channel.  Channels: len divides head_dim (keys: the last group may be
 * shorter); if len is smaller than head_dim, it is a multiple of 4 (keys) or 16
 * (values).  Tokens: 16, 32 or a multiple of 64 (values: also 4 and 8).
 * Returns whether len is valid; if not, g must not be used. */
int kv_integers_init(struct kv_integers *g, int values, size_t head_dim,
                     int of_tokens, size_t len);

/* Makes s a store of g; s's values, n_heads and head_dim must be set. */
void kv_store_integers(struct kv_store *s, const struct kv_integers *g);

/* Puts one token's codes [head_dim] at place t of a tile of zeros. */
void kv_store_put_codes(const struct kv_store *s, size_t t,
                        const uint16_t *code, uint8_t *tile);

/* Puts the head of value (t, c)'s group; t: a token of the tile, which is the
 * i-th of its run.  offset: low or zero, not used with KV_OFFSET_SAME. */
void kv_store_put_group(const struct kv_store *s, size_t i, size_t t, size_t c,
                        uint16_t scale, float offset, uint8_t *tile);

/* Reads back the code of value (t, c) of a tile of this store, and scale and
 * offset of its group (zero also with KV_OFFSET_SAME). */
unsigned kv_store_code(const struct kv_store *s, const uint8_t *tile, size_t t,
                       size_t c);
void kv_store_group(const struct kv_store *s, size_t head, const uint8_t *tile,
                    size_t t, size_t c, float *scale, float *offset);

#endif
