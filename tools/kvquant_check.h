/* kvquant --check. */
#ifndef KV_KVQUANT_CHECK_H
#define KV_KVQUANT_CHECK_H

#include "lib/base/err.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "tools/common.h"

/* The dump that --check takes where none is given: random, of one layer. */
int kvquant_check_dump(struct kv_dump **dump, uint64_t seed, struct kv_err *e);

/* A row for each spec, side and part of the law, of the dump's first layer;
 * *broken counts the parts that do not hold.  calib NULL: none was given, and
 * specs that need one are trained on the dump. */
struct kvquant_check {
    const struct kv_common *common;
    struct kv_dump *dump;
    const struct kv_calib *calib;
    const struct kv_spec *spec; /* [n_all], of other shards behind n_specs */
    size_t n_specs, n_all;
};
int kvquant_check(const struct kvquant_check *a, size_t *broken,
                  struct kv_err *e);

/* --columns help. */
void kvquant_about_check(void);

#endif
