/* Bitstreams and tables in the order of transform.h and cuda.h. */
#include "kernels/tiles/rope.h"
#include "kernels/transform/cuda.h"
#include "kernels/transform/impl.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"

#include <math.h>
#include <string.h>

enum { TILES = 2 /* CPU tiles in one device tile */ };

static bool rotated(const struct kv_store *s)
{
    return kv_transform_of(s)->about.rope != NULL;
}

static size_t n_words(const struct kv_store *s)
{
    return (kv_transform_of(s)->about.bitstream_bytes + 3) / 4;
}

static size_t tile_bytes(const struct kv_store *s)
{
    return n_words(s) * KV_TILE_TOKENS * 4 +
           (rotated(s) ? s->head_dim / 2 * 2 * sizeof(float) : 0);
}

/* ---- a tile -------------------------------------------------------------- */

static void pack_one(const struct kv_store *s, const uint8_t *tile, uint8_t *to)
{
    const size_t bytes = kv_transform_of(s)->about.bitstream_bytes;
    float angle[KV_GPU_MAX_DIM];

    for (size_t i = 0; i < bytes; i++) /* words are little-endian */
        for (size_t t = 0; t < KV_TILE_TOKENS; t++)
            to[(i / 4 * KV_TILE_TOKENS + t) * 4 + 3 - i % 4] =
                tile[(i + 1) * KV_TILE_TOKENS + kv_transform_at(t)];
    if (rotated(s)) {
        kv_tiles_rope_angles(kv_transform_of(s)->about.rope,
                             kv_store_position(s, 0, tile), angle);
        memcpy(to + n_words(s) * KV_TILE_TOKENS * 4, angle,
               s->head_dim / 2 * 2 * sizeof(*angle));
    }
}

static void pack(const struct kv_gpu_side *side, size_t head, size_t i,
                 uint8_t *to)
{
    const struct kv_store *s = side->store;

    for (size_t j = 0; j < TILES; j++)
        pack_one(s, kv_store_tile(s, head, i * TILES + j),
                 to + j * tile_bytes(s));
}

/* ---- the table -----------------------------------------------------------
 * The arrays of struct kv_gpu_transform_side in their order. */

struct layout {
    size_t place, n, mean, matrix, within, fragment, bytes; /* where */
};

/* Returns the offset *to for n words, and advances *to past them. */
static size_t words(size_t n, size_t *to)
{
    const size_t at = *to;

    *to += (n * 4 + 15) / 16 * 16;
    return at;
}

static struct layout layout_of(const struct kv_store *s)
{
    const size_t d = s->head_dim, h = s->n_heads;
    struct layout l = {0};

    words(kv_transform_of(s)->n_tables * KV_TRELLIS_STATES / 2, &l.bytes);
    l.place = words(h * d, &l.bytes);
    l.n = words(h, &l.bytes);
    l.mean = words(h * d, &l.bytes);
    l.matrix = words(rotated(s) ? 0 : h * d * d, &l.bytes);
    l.within = words(rotated(s) ? 2 * 8 * d : 0, &l.bytes);
    l.fragment = words(rotated(s) ? h * d * d / 2 : 0, &l.bytes);
    return l;
}

/* The entry of channel i and slot j; j = n: the mean.  The same matrix as
 * fill_matrix() in layout.c. */
static float element(const struct kv_store *s, size_t head, size_t j, size_t i)
{
    const struct kv_transform_head *h = &kv_transform_of(s)->head[head];

    if (s->values)
        return h->matrix[j * kv_padded(s->head_dim) + i];
    if (!rotated(s))
        return h->matrix[i * h->padded + j];
    return h->matrix[i / KV_TILE_ROWS * KV_TILE_ROWS * (h->n + 1) +
                     j * KV_TILE_ROWS + i % KV_TILE_ROWS];
}

static void put_tables(const struct kv_store *s, uint16_t *to)
{
    const struct kv_transform *c = kv_transform_of(s);

    for (size_t t = 0; t < c->n_tables; t++)
        for (size_t i = 0; i < KV_TRELLIS_STATES; i++)
            *to++ = kv_f16_clamp(c->table[t].from[i]);
}

static void put_places(const struct kv_store *s, size_t head, uint32_t *to)
{
    const struct kv_transform *c = kv_transform_of(s);
    const struct kv_transform_head *h = &c->head[head];

    for (size_t i = 0; i < h->n_runs; i++) {
        const struct kv_transform_run *run = &h->run[i];

        for (size_t j = 0; j < run->n; j++) {
            const struct kv_transform_place p = h->place[run->first + j];
            const size_t end = p.line / KV_TILE_TOKENS * 8 - p.shift;

            to[run->first + j] =
                (uint32_t)((end - 1) / 32 << (KV_PLACE_SHIFT + KV_PLACE_TABLE) |
                           (size_t)(run->table - c->table) << KV_PLACE_SHIFT |
                           (31 - (end - 1) % 32));
        }
    }
}

static void put_matrix(const struct kv_store *s, size_t head, float *to)
{
    const size_t d = s->head_dim, n = kv_transform_of(s)->head[head].n;

    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < d; i++)
            to[s->values ? j * d + i : i * d + j] = element(s, head, j, i);
}

/* to: [d / 32][4][d / 16][lane][2], two halves each. */
static void put_fragments(const struct kv_store *s, size_t head, uint32_t *to)
{
    const size_t d = s->head_dim, n = kv_transform_of(s)->head[head].n;

    for (size_t i = 0; i < d * d / 2; i++) {
        const size_t word = i % 2, lane = i / 2 % 32, k = i / 64 % (d / 16);
        const size_t f = i / 64 / (d / 16) % 4, chunk = i / 64 / (d / 16) / 4;
        const size_t j = 16 * k + lane % 4 * 2 + 8 * word;
        const size_t c = f / 2 * (d / 2) + 16 * chunk + f % 2 * 8 + lane / 4;
        const float low = j < n ? element(s, head, j, c) : 0;
        const float high = j + 1 < n ? element(s, head, j + 1, c) : 0;

        to[i] = kv_f32_to_f16(low) | (uint32_t)kv_f32_to_f16(high) << 16;
    }
}

/* [2][8][head_dim / 2][2] */
static void put_within(const struct kv_store *s, float *to)
{
    const struct kv_tiles_rope *rope = kv_transform_of(s)->about.rope;

    for (size_t t = 0; t < 8; t++) {
        kv_tiles_rope_angles(rope, t, to + t * s->head_dim);
        kv_tiles_rope_angles(rope, 8 * t, to + (8 + t) * s->head_dim);
    }
}

static void make_table(struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;
    const size_t d = s->head_dim;
    const struct layout l = layout_of(s);
    uint8_t *to = kv_alloc(l.bytes, 1);
    uint32_t *n = (uint32_t *)(void *)(to + l.n);
    uint32_t *place = (uint32_t *)(void *)(to + l.place);
    float *mean = (float *)(void *)(to + l.mean);
    float *matrix = (float *)(void *)(to + l.matrix);
    uint32_t *fragment = (uint32_t *)(void *)(to + l.fragment);

    memset(to, 0, l.bytes);
    put_tables(s, (uint16_t *)(void *)to);
    for (size_t h = 0; h < s->n_heads; h++) {
        n[h] = (uint32_t)kv_transform_of(s)->head[h].n;
        put_places(s, h, place + h * d);
        for (size_t i = 0; i < d; i++)
            mean[h * d + i] = element(s, h, n[h], i);
        if (rotated(s))
            put_fragments(s, h, fragment + h * d * d / 2);
        else
            put_matrix(s, h, matrix + h * d * d);
    }
    if (rotated(s))
        put_within(s, (float *)(void *)(to + l.within));
    side->table = to;
    side->n_tables = 1;
    side->table_bytes = l.bytes;
}

/* Whether a head's coefficients have enough slots, and halves can hold all
 * values not stored as floats. */
static bool fits(const struct kv_store *s)
{
    for (size_t h = 0; h < s->n_heads; h++)
        if (kv_transform_of(s)->head[h].n > s->head_dim)
            return false;
    for (size_t h = 0; rotated(s) && h < s->n_heads; h++)
        for (size_t j = 0; j < kv_transform_of(s)->head[h].n; j++)
            for (size_t i = 0; i < s->head_dim; i++)
                if (!(fabsf(element(s, h, j, i)) <= 65504))
                    return false;
    return true;
}

static bool has_dim(size_t head_dim)
{
#define SAME(D)        \
    if (head_dim == D) \
        return true;
    KV_TRANSFORM_DIMS(SAME)
#undef SAME
    return false;
}

bool kv_gpu_transform_open(struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;

    if (s->family != &kv_family_transform || !has_dim(s->head_dim) ||
        !fits(s) ||
        (rotated(s) && !kv_tiles_rope_halves(kv_transform_of(s)->about.rope)))
        return false;
    side->path = KV_PATH_EXACT;
    side->tile_bytes = TILES * tile_bytes(s);
    side->pack = pack;
    side->together = true;
    make_table(side);
    return true;
}

struct kv_gpu_transform_side
kv_gpu_transform_side_of(const struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;
    const struct layout l = layout_of(s);
    const uint8_t *from = side->device_table;
    struct kv_gpu_transform_side g = {
        .n_words = (unsigned)n_words(s),
        .n_tables = (unsigned)kv_transform_of(s)->n_tables,
        .rotated = rotated(s)};

    if (!from) /* not on the device yet */
        return g;
    g.tables = (const uint16_t *)(const void *)from;
    g.place = (const uint32_t *)(const void *)(from + l.place);
    g.n = (const uint32_t *)(const void *)(from + l.n);
    g.mean = (const float *)(const void *)(from + l.mean);
    g.matrix = (const float *)(const void *)(from + l.matrix);
    g.within = (const float *)(const void *)(from + l.within);
    g.fragment = (const uint32_t *)(const void *)(from + l.fragment);
    return g;
}
