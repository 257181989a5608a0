/* The model names that a server accepts: one model, whose name may have a
 * spec. */
#ifndef KV_SERVE_NAMES_H
#define KV_SERVE_NAMES_H

#include "eval/sweep.h"
#include "lib/calib.h"

struct kv_names {
    const char *name;
    const struct kv_shape *shape;
    const struct kv_calib *calib; /* may be NULL */
    const struct kv_spec *listed; /* [n_listed >= 1]; NAME alone means the
                                   * first */
    size_t n_listed;
    bool on_gpu;
};

/* Finds the spec of a request's model: NAME, "NAME,SPEC" or a SPEC.  Fails,
 * with *code for programs, on another name, on a spec that kvgen would refuse,
 * and on a spec that names a file or a command or has sides, unless it is
 * listed. */
int kv_names_find(const struct kv_names *n, const char *model,
                  struct kv_spec *spec, const char **code, struct kv_err *e);

/* Makes kvgen's checks of fitted specs [n_specs]. */
int kv_names_check(const struct kv_names *n, const struct kv_spec *specs,
                   size_t n_specs, struct kv_err *e);

#endif
