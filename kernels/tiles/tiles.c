#include "kernels/level.h"
#include "kernels/tiles/impl.h"
#include "lib/base/alloc.h"

#include <stdlib.h>
#include <string.h>

const struct kv_tile_loops *kv_tile_loops(void)
{
    static const struct kv_tile_loops *const versions[] =
        KV_VERSIONS(&kv_tile_loops_c, &kv_tile_loops_avx2,
                    &kv_tile_loops_avx512, &kv_tile_loops_avx512);

    return versions[kv_level_version()];
}

/* ---- stores -------------------------------------------------------------- */

void kv_store_resize(struct kv_store *s, size_t n)
{
    const size_t tiles = (n + KV_TILE_TOKENS - 1) / KV_TILE_TOKENS;

    if (tiles > s->capacity) {
        const struct kv_store old = *s;

        s->capacity = old.capacity ? tiles + tiles / 2 : tiles;
        s->tiles = kv_lines(kv_store_heads(s) * s->capacity, s->tile_bytes);
        for (size_t h = 0; h < kv_store_heads(s) && old.tiles; h++)
            memcpy(kv_store_tile(s, h, 0), kv_store_tile(&old, h, 0),
                   kv_store_tiles(&old) * s->tile_bytes);
        free(old.tiles);
    }
    s->n = n;
}

void kv_store_clear(struct kv_store *s, size_t head, size_t i)
{
    uint8_t *tile = kv_store_tile(s, head, i);

    if (s->family->release)
        s->family->release(s, tile);
    memset(tile, 0, s->tile_bytes);
}

void kv_store_free(struct kv_store *s)
{
    for (size_t h = 0; s->tiles && h < kv_store_heads(s); h++)
        for (size_t i = 0; s->family->release && i < s->capacity; i++)
            s->family->release(s, kv_store_tile(s, h, i));
    free(s->tiles);
    s->tiles = NULL;
    s->n = s->capacity = 0;
}

size_t kv_store_bytes(const struct kv_store *s)
{
    size_t bytes = kv_store_heads(s) * kv_store_tiles(s) * s->tile_bytes;

    for (size_t h = 0; s->family->owned && h < kv_store_heads(s); h++)
        for (size_t i = 0; i < kv_store_tiles(s); i++)
            bytes += s->family->owned(s, kv_store_tile(s, h, i));
    return bytes;
}

int kv_store_has(const struct kv_store *s, enum kv_path path)
{
    return s->family->ops(s, path) != NULL;
}
