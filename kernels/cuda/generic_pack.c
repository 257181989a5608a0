/* Copies the CPU's tiles unchanged and describes them for generic_tiles.cuh. */
#include "kernels/codebook/impl.h"
#include "kernels/cuda/generic.h"
#include "kernels/hack/cuda_layout.h"
#include "kernels/hadamard.h"
#include "kernels/integers/impl.h"
#include "kernels/levels/levels.h"
#include "kernels/scaled/impl.h"
#include "kernels/tiles/rope.h"
#include "kernels/tiles/rotated.h"

#include <math.h>
#include <string.h>

enum { TILES = 2 /* CPU tiles in one device tile */ };

static bool is_levels(const struct kv_store *s)
{
    return s->family == &kv_family_levels;
}

static bool is_rotated(const struct kv_store *s)
{
    return s->family == &kv_family_rotated;
}

/* The RoPE of keys before RoPE; else NULL. */
static const struct kv_tiles_rope *rope_of(const struct kv_store *s)
{
    if (s->values)
        return NULL;
    if (is_levels(s))
        return ((const struct kv_levels_tiles *)s->params)->rope;
    if (s->family == &kv_family_codebook)
        return ((const struct kv_codebook *)s->params)->rope;
    if (is_rotated(s))
        return ((const struct kv_rotated_tiles *)s->params)->rope;
    return NULL;
}

/* ---- a tile ---------------------------------------------------------------
 */

static size_t codes_bytes(const struct kv_store *s)
{
    return s->tile_bytes - (is_levels(s) ? KV_LEVELS_LINE : 0);
}

/* The bytes of a tile's ends and outliers.  side->owned of a CPU tile also
 * counts a header, which is not copied. */
static size_t outliers_bytes(const struct kv_gpu_side *side)
{
    const size_t ends = KV_TILE_TOKENS * sizeof(uint16_t);

    return is_levels(side->store) ? ends + (side->owned + 15) / 16 * 16 : 0;
}

static size_t angles_at(const struct kv_gpu_side *side)
{
    return codes_bytes(side->store) + outliers_bytes(side);
}

static size_t angles_bytes(const struct kv_store *s)
{
    return rope_of(s) ? s->head_dim / 2 * 2 * sizeof(float) : 0;
}

static void pack_outliers(const struct kv_levels_outliers *o, uint8_t *to)
{
    const size_t n = o ? o->n : 0;
    uint16_t end[KV_TILE_TOKENS];

    for (size_t t = 0, i = 0; t < KV_TILE_TOKENS; t++) {
        while (i < n && o->x[i].place / KV_LEVELS_CHANNELS == t)
            i++;
        end[t] = (uint16_t)i;
    }
    memcpy(to, end, sizeof(end));
    if (n)
        memcpy(to + sizeof(end), o->x, n * sizeof(*o->x));
}

static void pack_one(const struct kv_gpu_side *side, size_t head, size_t i,
                     uint8_t *to)
{
    const struct kv_store *s = side->store;
    const uint8_t *tile = kv_store_tile(s, head, i);
    float angle[KV_GPU_MAX_DIM];

    memcpy(to, tile, codes_bytes(s));
    if (is_levels(s))
        pack_outliers(kv_store_outliers(s, tile), to + codes_bytes(s));
    if (rope_of(s)) {
        kv_tiles_rope_angles(rope_of(s), kv_store_position(s, head, tile),
                             angle);
        memcpy(to + angles_at(side), angle, angles_bytes(s));
    }
}

static void pack(const struct kv_gpu_side *side, size_t head, size_t i,
                 uint8_t *to)
{
    for (size_t j = 0; j < TILES; j++)
        pack_one(side, head, i * TILES + j, to + j * side->tile_bytes / TILES);
}

/* ---- the table ------------------------------------------------------------
 * Floats: the family's table; behind it, for keys before RoPE, the angles of
 * the positions within a tile. */

static size_t family_floats(const struct kv_store *s)
{
    const struct kv_codebook *b = s->params;

    if (is_levels(s))
        return KV_SCALED_TABLE + (s->values ? 0 : 2 * s->n_heads * s->head_dim);
    if (s->family == &kv_family_scaled)
        return kv_scaled_of(s)->bits <= 4 ? KV_SCALED_TABLE : 0;
    if (s->family == &kv_family_codebook)
        return b->head_books * b->sub_books * b->k * b->d;
    if (is_rotated(s))
        return s->n_heads * s->head_dim;
    return 0;
}

static size_t within_floats(const struct kv_store *s)
{
    return rope_of(s) ? s->head_dim / 2 * KV_TILE_TOKENS * 2 : 0;
}

/* Offsets and halves of keys: [n_heads][2][head_dim]. */
static void put_channels(const struct kv_store *s, float *to)
{
    const struct kv_levels_tiles *n = s->params;
    const size_t d = s->head_dim;

    for (size_t h = 0; h < s->n_heads; h++, to += 2 * d) {
        memcpy(to, n->offset + h * d, d * sizeof(*to));
        memcpy(to + d, n->half + h * d, d * sizeof(*to));
    }
}

static void put_places(const struct kv_store *s, uint32_t *to)
{
    const struct kv_rotated_tiles *r = s->params;

    for (size_t i = 0; i < s->n_heads * s->head_dim; i++)
        to[i] = (uint32_t)r->place[i];
}

static void put_family(const struct kv_store *s, float *to)
{
    const struct kv_codebook *b = s->params;

    if (s->family == &kv_family_codebook)
        memcpy(to, b->centers, family_floats(s) * sizeof(*to));
    else if (is_rotated(s))
        put_places(s, (uint32_t *)(void *)to);
    else
        memcpy(to, kv_scaled_of(s)->table, KV_SCALED_TABLE * sizeof(*to));
    if (is_levels(s) && !s->values)
        put_channels(s, to + KV_SCALED_TABLE);
}

/* [head_dim / 2][64][2] */
static void put_within(const struct kv_store *s, float *to)
{
    float angle[KV_GPU_MAX_DIM];

    for (size_t t = 0; t < KV_TILE_TOKENS; t++) {
        kv_tiles_rope_angles(rope_of(s), t, angle);
        for (size_t i = 0; i < s->head_dim / 2; i++)
            memcpy(to + (i * KV_TILE_TOKENS + t) * 2, angle + 2 * i,
                   2 * sizeof(*to));
    }
}

static void make_table(struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;
    const size_t floats = family_floats(s) + within_floats(s);

    if (!floats)
        return;
    side->n_tables = 1;
    side->table_bytes = floats * sizeof(float);
    side->table = kv_alloc(floats, sizeof(float));
    put_family(s, side->table);
    if (rope_of(s))
        put_within(s, (float *)side->table + family_floats(s));
}

static bool is_hack(const struct kv_store *s)
{
    return s->family == &kv_family_hack;
}

static bool has_family(const struct kv_store *s)
{
    return s->family == &kv_family_float || s->family == &kv_family_integers ||
           s->family == &kv_family_scaled || s->family == &kv_family_codebook ||
           is_levels(s) || is_rotated(s) || is_hack(s);
}

bool kv_gpu_generic_open(struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;

    if (s->head_dim > KV_GPU_MAX_DIM || !has_family(s) ||
        (rope_of(s) && (s->head_dim % 8 || !kv_tiles_rope_halves(rope_of(s)))))
        return false;
    if (is_hack(s)) {
        kv_gpu_hack_open_generic(side);
        return true;
    }
    make_table(side);
    side->path = KV_PATH_EXACT;
    side->tile_bytes = TILES * (angles_at(side) + angles_bytes(s));
    if (s->family == &kv_family_integers)
        side->whole =
            ((const struct kv_integers *)s->params)->span * KV_TILE_TOKENS;
    side->pack = pack;
    side->together = s->together;
    return true;
}

/* ---- the kernel's arguments ---------------------------------------------- */

static enum kv_generic_kind float_kind(const struct kv_store *s)
{
    switch (*(const enum kv_float *)s->params) {
    case KV_FLOAT_32:
        return KV_GENERIC_F32;
    case KV_FLOAT_BF16:
        return KV_GENERIC_BF16;
    case KV_FLOAT_16:
        break;
    }
    return KV_GENERIC_F16;
}

static struct kv_generic_scaled scaled_of(const struct kv_store *s)
{
    const struct kv_scaled *c = kv_scaled_of(s);
    const unsigned high = kv_scaled_width(c->bits, 1);
    const bool small_float = c->bits > 4;

    return (struct kv_generic_scaled){
        .bits = c->bits,
        .low = kv_scaled_width(c->bits, 0),
        .high = high,
        .low_vectors = (unsigned)kv_scaled_per_unit(c->bits, 0),
        .high_vectors = high ? (unsigned)kv_scaled_per_unit(c->bits, 1) : 1,
        .lane_bytes = kv_scaled_lane_bytes(c->bits),
        .plane_bytes = (unsigned)kv_scaled_plane_bytes(s, 0),
        .part_bytes = (unsigned)kv_scaled_part_bytes(s),
        .scale = c->scale,
        .group = (unsigned)c->group,
        .n_groups = (unsigned)(s->head_dim / c->group),
        .divisor = c->divisor,
        .e = small_float ? c->format->e : 0,
        .m = small_float ? c->format->m : 0,
    };
}

static struct kv_generic_codes codes_of(const struct kv_store *s)
{
    const struct kv_codebook *b = s->params;

    return (struct kv_generic_codes){
        .order = b->order == KV_ORDER_SHARED ? KV_GENERIC_SHARED
                 : b->order == KV_ORDER_OWN  ? KV_GENERIC_OWN
                                             : KV_GENERIC_WIDE,
        .d = (unsigned)b->d,
        .bits = b->bits,
        .n_sub = (unsigned)b->n_sub,
        .book = b->sub_books > 1 ? (unsigned)(b->k * b->d) : 0,
        .books = b->head_books > 1 ? (unsigned)(b->sub_books * b->k * b->d) : 0,
    };
}

static struct kv_generic_rotated rotated_of(const struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;
    const struct kv_rotated_tiles *r = s->params;
    const size_t block = kv_hadamard_size(r->rotated);

    return (struct kv_generic_rotated){
        .place = side->device_table,
        .after = r->after,
        .codes = (unsigned)(r->after ? r->rotated : s->n_heads * s->head_dim),
        .block = (unsigned)block,
        .scale = (float)(1 / sqrt((double)block)),
    };
}

/* The floats of the device's table from here on; NULL: no table yet. */
static const float *table_from(const struct kv_gpu_side *side, size_t from)
{
    return side->device_table ? (const float *)side->device_table + from : NULL;
}

struct kv_gpu_generic kv_gpu_generic_of(const struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;
    struct kv_gpu_generic g = {
        .head_dim = (unsigned)s->head_dim,
        .tile_bytes = (unsigned)(side->tile_bytes / TILES),
        .span = 1,
        .table = side->device_table,
    };

    if (is_hack(s)) {
        g.kind = KV_GENERIC_HACK;
    } else if (s->family == &kv_family_float) {
        g.kind = float_kind(s);
    } else if (s->family == &kv_family_integers) {
        g.kind = KV_GENERIC_INTEGERS;
        g.of.integers = *(const struct kv_integers *)s->params;
        g.head_bytes = (unsigned)g.of.integers.head_bytes;
        g.span = (unsigned)g.of.integers.span;
    } else if (s->family == &kv_family_codebook) {
        g.kind = KV_GENERIC_CODES;
        g.of.codes = codes_of(s);
    } else if (is_rotated(s)) {
        g.kind = KV_GENERIC_ROTATED;
        g.together = true;
        g.of.integers = ((const struct kv_rotated_tiles *)s->params)->row;
        g.head_bytes = (unsigned)g.of.integers.head_bytes;
        g.rotated = rotated_of(side);
        g.workspace = (unsigned)(sizeof(float) *
                                 (s->head_dim * KV_TILE_TOKENS +
                                  (size_t)g.rotated.codes * KV_ROTATED_TOKENS));
    } else {
        g.kind = is_levels(s) ? KV_GENERIC_LEVELS : KV_GENERIC_SCALED;
        g.of.scaled = scaled_of(s);
    }
    if (is_levels(s)) {
        g.levels.channels = table_from(side, KV_SCALED_TABLE);
        g.levels.outliers = (unsigned)codes_bytes(s);
        g.levels.offsets = g.levels.outliers - KV_LEVELS_OFFSETS;
    }
    if (rope_of(s)) {
        g.rotate.within = table_from(side, family_floats(s));
        g.rotate.angles = (unsigned)angles_at(side);
    }
    return g;
}

struct kv_gpu_generic kv_gpu_generic_halves(size_t head_dim)
{
    return (struct kv_gpu_generic){
        .kind = KV_GENERIC_HALVES,
        .head_dim = (unsigned)head_dim,
        .tile_bytes =
            (unsigned)(KV_TILE_TOKENS * kv_padded(head_dim) * sizeof(uint16_t)),
        .span = 1};
}
