/* Tiles of the CPU as they are, and what generic.cuh must know of them. */
#include "kernels/cuda/generic.h"
#include "kernels/tiles_codebook_impl.h"
#include "kernels/tiles_grouped_impl.h"
#include "kernels/tiles_scaled_impl.h"

#include <string.h>

enum { TILES = 2 /* of the CPU in one of the device */ };

static void pack(const struct kv_gpu_side *side, size_t head, size_t i,
                 uint8_t *to)
{
    memcpy(to, kv_store_tile(side->store, head, i * TILES), side->tile_bytes);
}

static void keep_table(struct kv_gpu_side *side, const float *table,
                       size_t n_tables, size_t floats)
{
    side->n_tables = n_tables;
    side->table_bytes = floats * sizeof(*table);
    side->table = kv_alloc(n_tables, side->table_bytes);
    memcpy(side->table, table, n_tables * side->table_bytes);
}

static bool open_codes(struct kv_gpu_side *side)
{
    const struct kv_tile_book *b = side->store->params;

    if (b->rope)
        return false;
    keep_table(side, b->centers, b->head_books, b->sub_books * b->k * b->d);
    return true;
}

static bool open_family(struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;
    const struct kv_scaled *c = s->params;

    if (s->family == &kv_family_float)
        return true;
    if (s->family == &kv_family_grouped)
        return ((const struct kv_grouped *)s->params)->span <= TILES;
    if (s->family == &kv_family_codebook)
        return open_codes(side);
    if (s->family != &kv_family_scaled)
        return false;
    if (c->bits <= 4)
        keep_table(side, c->table, 1, KV_SCALED_TABLE);
    return true;
}

bool kv_gpu_generic_open(struct kv_gpu_side *side)
{
    if (side->store->head_dim > KV_GPU_MAX_DIM || !open_family(side))
        return false;
    side->path = KV_PATH_EXACT;
    side->tile_bytes = TILES * side->store->tile_bytes;
    side->pack = pack;
    return true;
}

/* ---- what the kernel is told ----------------------------------------------
 */

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
    const struct kv_tile_book *b = s->params;

    return (struct kv_generic_codes){
        .order = b->order == KV_CODES_SHARED ? KV_GENERIC_SHARED
                 : b->order == KV_CODES_OWN  ? KV_GENERIC_OWN
                                             : KV_GENERIC_WIDE,
        .d = (unsigned)b->d,
        .bits = b->bits,
        .n_sub = (unsigned)b->n_sub,
        .book = b->sub_books > 1 ? (unsigned)(b->k * b->d) : 0,
    };
}

struct kv_gpu_generic kv_gpu_generic_of(const struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;
    struct kv_gpu_generic g = {
        .head_dim = (unsigned)s->head_dim,
        .tile_bytes = (unsigned)s->tile_bytes,
        .span = 1,
        .table = side->device_table,
        .table_head =
            side->n_tables > 1 ? (unsigned)(side->table_bytes / 4) : 0};

    if (s->family == &kv_family_float) {
        g.kind = float_kind(s);
    } else if (s->family == &kv_family_grouped) {
        g.kind = KV_GENERIC_GROUPED;
        g.of.grouped = *(const struct kv_grouped *)s->params;
        g.head_bytes = (unsigned)g.of.grouped.head_bytes;
        g.span = (unsigned)g.of.grouped.span;
    } else if (s->family == &kv_family_scaled) {
        g.kind = KV_GENERIC_SCALED;
        g.of.scaled = scaled_of(s);
    } else {
        g.kind = KV_GENERIC_CODES;
        g.of.codes = codes_of(s);
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
