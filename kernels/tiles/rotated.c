#include "kernels/tiles/rotated.h"
#include "kernels/hadamard.h"
#include "kernels/tiles/impl.h"
#include "kernels/tiles/rope.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_rotated_tiles *rotated_of(const struct kv_store *s)
{
    return s->params;
}

void kv_store_rotated(struct kv_store *s, const struct kv_rotated_tiles *r)
{
    s->family = &kv_family_rotated;
    s->params = r;
    s->tile_bytes = r->row.tile_bytes;
    s->together = 1;
}

struct kv_store kv_rotated_row(const struct kv_store *s)
{
    struct kv_store row = {.n_heads = 1, .head_dim = s->n_heads * s->head_dim};

    kv_store_integers(&row, &rotated_of(s)->row);
    return row;
}

/* Computes channels [first, first + n) of kv_hadamard() of x [..][32], in
 * blocks of m channels, for 32 adjacent tokens; returns their address. */
static float *rotate_back(float *x, size_t first, size_t n, size_t m)
{
    const float scale = (float)(1 / sqrt((double)m));
    const size_t begin = first / m * m, end = first + n;
    float *const at = x + begin * KV_TILE_PART;

    if (end <= begin + m)
        return kv_vecops_hadamard(at, m, KV_TILE_PART, first - begin, n, scale);
    for (size_t i = begin; i < end; i += m)
        kv_vecops_hadamard(x + i * KV_TILE_PART, m, KV_TILE_PART, 0, m, scale);
    return x + first * KV_TILE_PART;
}

/* to: [n][32], values of channels [first, first + n). */
static void pick(const struct kv_store *s, const float *row, size_t first,
                 size_t n, float *to)
{
    const size_t *place = rotated_of(s)->place + first;

    for (size_t c = 0; c < n; c++)
        memcpy(to + c * KV_TILE_PART, row + place[c] * KV_TILE_PART,
               KV_TILE_PART * sizeof(*to));
}

static void expand(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t part, float *x)
{
    const struct kv_rotated_tiles *r = rotated_of(s);
    const struct kv_store row = kv_rotated_row(s);
    const size_t m = kv_hadamard_size(r->rotated);
    const size_t d = s->head_dim, first = head * d;
    const size_t begin = first / r->rotated * r->rotated;
    float *z = kv_lines_unset(row.head_dim, KV_TILE_PART * sizeof(*z));
    float *run = kv_lines_unset(r->rotated, KV_TILE_PART * sizeof(*run));

    kv_family_integers.expand(&row, 0, tile, part, z);
    if (r->after) {
        pick(s, z, begin, r->rotated, run);
        memcpy(x, rotate_back(run, first - begin, d, m),
               d * KV_TILE_PART * sizeof(*x));
    } else {
        for (size_t i = 0; i < row.head_dim; i += m)
            rotate_back(z + i * KV_TILE_PART, 0, m, m);
        pick(s, z, first, d, x);
    }
    kv_tiles_rope_rotate(
        r->rope, kv_store_position(s, head, tile) + part * KV_TILE_PART, x);
    free(run);
    free(z);
}

static const struct kv_tile_ops *ops(const struct kv_store *s,
                                     enum kv_path path)
{
    return path == KV_PATH_EXACT ? kv_tiles_expanded(s) : NULL; /* RoPE rotates
                                                                 * keys */
}

const struct kv_family kv_family_rotated = {
    .name = "rotated", .ops = ops, .expand = expand};
