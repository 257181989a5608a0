/* The law of lib/codec.h, checked on a spec by the bytes of its caches: for
 * schemes that no test of this tree knows (exec). */
#ifndef KV_LAW_H
#define KV_LAW_H

#include "lib/base/err.h"
#include "lib/codec.h"
#include "lib/seq/tokens.h"

#include <stdint.h>

enum kv_law_part {
    KV_LAW_REPEATED, /* the same tokens, after others, give the same bytes */
    KV_LAW_APART,    /* tokens that come one by one, by seven or all together */
    KV_LAW_THREADS,  /* four caches filled by four threads */
    KV_LAW_DECODED,  /* blocks decoded together, one by one, and again */
    KV_LAW_EXTREMES, /* zeros, the largest halves, denormals decode to finite
                      * values */
    KV_LAW_PARTS
};

const char *kv_law_name(enum kv_law_part part); /* "repeated" ... */
const char *kv_law_says(enum kv_law_part part); /* in a sentence */

struct kv_law_verdict {
    bool holds;
    char why[160]; /* it does not: where */
};

/* spec: fitted, not layered.  tokens: of one layer; at least 2, and of several
 * blocks where all is to be seen.  calib may be NULL.  out: [KV_LAW_PARTS]
 * verdicts of each side.  Fails where a codec does not open, and where tokens
 * do not enter its cache. */
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
