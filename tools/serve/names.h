/* The models that a server has: one model, under a name, with any spec. */
#ifndef KV_SERVE_NAMES_H
#define KV_SERVE_NAMES_H

#include "eval/sweep.h"
#include "lib/calib.h"

struct kv_names {
    const char *name;
    const struct kv_shape *shape;
    const struct kv_calib *calib; /* may be NULL */
    const struct kv_spec *listed; /* [n_listed >= 1]; the first is NAME's */
    size_t n_listed;
    bool on_gpu; /* on the GPU unless a policy runs */
};

/* A request's model: NAME, "NAME,SPEC" or a SPEC.  Fails, with *code for
 * programs, on another name, on a spec that kvgen would refuse, and on one that
 * names a file or has sides, and is not listed. */
int kv_names_find(const struct kv_names *n, const char *model,
                  struct kv_spec *spec, const char **code, struct kv_err *e);

/* Checks that kvgen makes of fitted specs [n_specs]. */
int kv_names_check(const struct kv_names *n, const struct kv_spec *specs,
                   size_t n_specs, struct kv_err *e);

#endif
