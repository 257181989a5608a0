/* Opens every registered scheme on a synthetic model: with its defaults,
 * without sinks and residual, with some of both, with every choice of every
 * word, and with the shortest possible blocks.  Also opens specs whose keys and
 * values have different schemes, and a layered scheme that exists only in the
 * tests. */
#ifndef EVERY_SCHEME_H
#define EVERY_SCHEME_H

#include "lib/seq/cache.h"

enum { EVERY_SCHEME_SEED = 5 }; /* the caches' seed */

struct ready {
    struct kv_shape shape; /* head_dim 32; merged where the spec spans layers */
    struct kv_spec spec;
    struct kv_calib *calib;
    size_t layer; /* the codecs' layer: 1, or the number of lower layers that
                   * they read; 0 with a merged shape */
    struct kv_codec *codec[KV_SIDES];
    struct kv_codecs *lower; /* codecs of the lower layers that the codecs
                              * read */
};

/* From main()'s arguments: every() covers only the scheme argv[1], if given.
 * Otherwise, under a sanitizer, it takes every ninth spec (of klt every 27th)
 * if `trained`, else all specs without calibration, since training takes most
 * of the time. */
void every_only(int argc, char **argv, bool trained);

/* Setup and teardown of a test group; the specs are opened once for all its
 * tests. */
int prepare_every(void **state);
int release_every(void **state);

void every(void (*check)(struct ready *));

/* Checks every third spec, beginning with spec number `first`; for slow checks
 * of code that all specs share. */
void every_third(size_t first, void (*check)(struct ready *));

size_t row_values(const struct ready *r);   /* n_kv_heads * head_dim */
size_t query_values(const struct ready *r); /* n_heads * head_dim */

/* Makes an empty cache, with caches of the lower layers if the codecs read
 * them. */
struct kv_cache *new_cache(const struct ready *r);

/* Appends tokens to the lower layers' caches, then to c. */
int append_all(struct kv_cache *c, const float *q, const float *k,
               const float *v, size_t n, struct kv_err *e);

#endif
