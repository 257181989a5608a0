/* Opens every registered scheme on a synthetic model, with its defaults,
 * without sinks and residual, with some of each, with every choice of every
 * word, and with the shortest possible blocks; also keys and values of
 * different schemes, and a layered scheme that exists only in the tests. */
#ifndef EVERY_SCHEME_H
#define EVERY_SCHEME_H

#include "lib/seq/cache.h"

enum { EVERY_SCHEME_SEED = 5 }; /* the caches' seed */

struct ready {
    struct kv_shape shape; /* head_dim 32; merged where the spec spans layers */
    struct kv_spec spec;
    struct kv_calib *calib;
    size_t layer; /* of the codecs: 1, or as many as they read below, or 0 of a
                   * merged shape */
    struct kv_codec *codec[KV_SIDES];
    struct kv_codecs *lower; /* codecs of the layers below that are read */
};

/* From main()'s arguments: every() covers only the scheme argv[1], if given.
 * Otherwise, under a sanitizer, it takes every ninth spec (of klt every 27th) if
 * `trained`, else all specs without calibration, since training takes most of
 * the time. */
void every_only(int argc, char **argv, bool trained);

/* A group's setup and teardown; made once for all its tests. */
int prepare_every(void **state);
int release_every(void **state);

void every(void (*check)(struct ready *));

/* Every third spec from the first-th on: for slow checks of code that all specs
 * share. */
void every_third(size_t first, void (*check)(struct ready *));

size_t row_values(const struct ready *r);   /* n_kv_heads * head_dim */
size_t query_values(const struct ready *r); /* n_heads * head_dim */

/* On top of caches of the lower layers, if these are read. */
struct kv_cache *new_cache(const struct ready *r);

/* kv_cache_append(), to the lower layers' caches first. */
int append_all(struct kv_cache *c, const float *q, const float *k,
               const float *v, size_t n, struct kv_err *e);

#endif
