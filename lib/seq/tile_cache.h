/* A cache's second layout, for fast attention: the same sinks, codes and tail,
 * in tiles (kernels/tiles/tiles.h).  Tiles hold the same codes in another
 * order; they are never coded again.  The cache is the definition, and bits are
 * measured on it. */
#ifndef KV_TILE_CACHE_H
#define KV_TILE_CACHE_H

#include "kernels/tiles/jobs.h"
#include "lib/seq/cache.h"

#include <stdbool.h>

struct kv_tile_cache;

/* Whether the codes of both sides can be put into tiles. */
bool kv_tile_cache_stored(const struct kv_cache *c);

/* Whether the CPU attends to both sides in tiles, and at least one side has its
 * own operations on this path.  The exact path of a scheme with an attend() is
 * attend(), not tiles, since tiles round less than attend(). */
bool kv_tile_cache_can(const struct kv_cache *c, enum kv_path path);
/* kv_tile_cache_can() for caches with these codecs [KV_SIDES]. */
bool kv_tile_codecs_can(struct kv_codec *const *codec, enum kv_path path);

/* Bytes of the tiles of a side that was given n tokens, without a cache; 0 if
 * its codes do not go into tiles.  An upper bound if tiles own memory. */
size_t kv_tile_cache_need(const struct kv_codec *c, size_t n);

/* The cache must outlive its tiles; only kv_tile_cache_update() reads it.  Call
 * only if kv_tile_cache_stored(c). */
struct kv_tile_cache *kv_tile_cache_new(const struct kv_cache *c);
void kv_tile_cache_free(struct kv_tile_cache *t); /* NULL is fine */

/* Takes over the tokens appended since the last update. */
void kv_tile_cache_update(struct kv_tile_cache *t);

/* Attention to view.n_seqs caches, as of their last update.  q, out:
 * [n_seqs][nq][n_heads][head_dim].  A side without operations for path takes
 * the exact path.  A view that tiles do not take (kv_tiles_takes()) goes
 * through the caches. */
void kv_tile_cache_attend(struct kv_tile_cache *const *t,
                          struct kv_attend_view view, enum kv_path path,
                          const float *q, float *out, size_t threads);

/* The job of kv_tiles_attend() for the newest nq tokens of a cache, each of
 * which sees all tokens up to its own.  q and out are NULL.  Valid until the
 * next update. */
struct kv_tiles_job kv_tile_cache_job(const struct kv_tile_cache *t, size_t nq);

size_t
kv_tile_cache_bytes(const struct kv_tile_cache *t); /* all tiles in use */

#endif
