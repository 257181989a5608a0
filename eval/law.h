/* Checks a spec against the law of lib/codec.h by the bytes of its caches.  It
 * serves schemes that no test of this tree knows (exec). */
#ifndef KV_LAW_H
#define KV_LAW_H

#include "lib/base/err.h"
#include "lib/codec.h"
#include "lib/seq/tokens.h"

#include <stdint.h>

enum kv_law_part {
    KV_LAW_REPEATED, /* tokens' bytes do not depend on the tokens before them */
    KV_LAW_APART,    /* tokens give the same bytes one by one, by seven or all
                      * together */
    KV_LAW_THREADS,  /* four caches filled by four threads are equal */
    KV_LAW_DECODED,  /* blocks decode to the same values together, one by one,
                      * and a second time */
    KV_LAW_EXTREMES, /* zeros, the largest halves, denormals decode to finite
                      * values */
    KV_LAW_PARTS
};

const char *kv_law_name(enum kv_law_part part); /* "repeated" ... */
const char *kv_law_says(enum kv_law_part part); /* the part as a sentence */

struct kv_law_verdict {
    bool holds;
    char why[160]; /* if it does not hold: the place that differs */
};

/* spec: fitted, not layered.  tokens: one layer's, at least 2; a full check
 * needs several blocks.  calib may be NULL.  out: [KV_LAW_PARTS], a verdict for
 * each side.  Fails if a codec does not open, or if tokens cannot enter its
 * cache. */
struct kv_law_plan {
    const struct kv_spec *spec;
    const struct kv_shape *shape;
    size_t layer;
    const struct kv_calib *calib;
    uint64_t seed;
    struct kv_tokens tokens;
};
int kv_law_check(const struct kv_law_plan *plan,
                 struct kv_law_verdict (*out)[KV_SIDES], struct kv_err *e);

#endif
