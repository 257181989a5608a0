/* The specs that a run measures. */
#ifndef KV_SWEEP_H
#define KV_SWEEP_H

#include "eval/protocol.h"
#include "lib/base/err.h"
#include "lib/base/opt.h"
#include "lib/base/shard.h"
#include "lib/spec.h"

#include <stddef.h>

struct kv_sweep {
    const char *base;  /* the base line's spec, always first; NULL: none */
    const char *floor; /* a spec that then follows; NULL: none */
    const struct kv_strings *specs; /* the arguments of -s, sweeps included */
    const struct kv_shape *shape;   /* the shape to fit specs to */
    const struct kv_protocol
        *protocol; /* applied by kv_protocol_spec(), except to a policy that
                    * drops tokens, which needs steps; NULL: specs unchanged */
    struct kv_shard shard; /* every n-th spec, from the i-th on */
};

/* Lists the specs, expanded and fitted, in order.  A spec that equals an
 * earlier one (because of the protocol, after fitting to the shape, or as the
 * base line) is skipped, with a note that gives the reason.  The shards of a
 * sweep together give each spec once.  *list is the caller's to free: this
 * shard's n specs (n may be 0), then the other shards' specs, n_all in total.
 * All shards' tables have the same columns, for all n_all. */
int kv_sweep_list(const struct kv_sweep *s, struct kv_spec **list, size_t *n,
                  size_t *n_all, struct kv_err *e);

#endif
