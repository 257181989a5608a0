/* A cache's second layout, for fast attention: the same sinks, codes and tail,
 * in tiles (kernels/tiles/tiles.h).  Codes are put in another order, never
 * decoded and coded again; the cache remains the definition, and bits are
 * measured on it. */
#ifndef KV_TILE_CACHE_H
#define KV_TILE_CACHE_H

#include "kernels/tiles/jobs.h"
#include "lib/seq/cache.h"

#include <stdbool.h>

struct kv_tile_cache;

/* Whether both sides' codes go into tiles at all. */
bool kv_tile_cache_stored(const struct kv_cache *c);

/* Whether the CPU attends to both sides in tiles, and whether one of them has
 * operations of its own on this path.  Of a scheme with attention of its own
 * the exact path is that, not tiles: these round less than it says. */
bool kv_tile_cache_can(const struct kv_cache *c, enum kv_path path);
/* The same of caches of these codecs, [KV_SIDES]. */
bool kv_tile_codecs_can(struct kv_codec *const *codec, enum kv_path path);

/* Bytes of the tiles of a side that was given n tokens, without a cache; 0
 * where its codes do not go into tiles.  Of tiles that own memory, at most. */
size_t kv_tile_cache_need(const struct kv_codec *c, size_t n);

/* Reads the cache, which must outlive it, at kv_tile_cache_update() alone. Call
 * only where kv_tile_cache_stored(c). */
struct kv_tile_cache *kv_tile_cache_new(const struct kv_cache *c);
void kv_tile_cache_free(struct kv_tile_cache *t); /* NULL is fine */

/* Takes over the tokens appended since the last update. */
void kv_tile_cache_update(struct kv_tile_cache *t);

/* Attention to view.n_seqs caches, as of their last update.  q, out:
 * [n_seqs][nq][n_heads][head_dim].  path: where a side has it, else exact.  A
 * view that tiles do not take (kv_tiles_takes()) goes through the caches. */
void kv_tile_cache_attend(struct kv_tile_cache *const *t,
                          struct kv_attend_view view, enum kv_path path,
                          const float *q, float *out, size_t threads);

/* The newest nq tokens of a cache, which see all up to their own, as
 * kv_tiles_attend() takes them, q and out NULL; good until the next update. */
struct kv_tiles_job kv_tile_cache_job(const struct kv_tile_cache *t, size_t nq);

size_t
kv_tile_cache_bytes(const struct kv_tile_cache *t); /* of all tiles in use */

#endif
