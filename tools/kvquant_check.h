/* kvquant --check. */
#ifndef KV_KVQUANT_CHECK_H
#define KV_KVQUANT_CHECK_H

#include "lib/base/err.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "tools/common.h"

/* Makes the random dump of one layer that --check uses if no dump is given. */
int kvquant_check_dump(struct kv_dump **dump, uint64_t seed, struct kv_err *e);

/* Writes a row for each spec, side and part of the law (eval/law.h), checked on
 * the dump's first layer; *broken counts the parts that do not hold.  calib
 * NULL: specs that need a calibration are trained on the dump. */
struct kvquant_check {
    const struct kv_common *common;
    struct kv_dump *dump;
    const struct kv_calib *calib;
    const struct kv_spec *spec; /* [n_all], the other shards' specs follow
                                 * n_specs */
    size_t n_specs, n_all;
};
int kvquant_check(const struct kvquant_check *a, size_t *broken,
                  struct kv_err *e);

/* --columns help. */
void kvquant_about_check(void);

#endif
