/* Shared by the two scalar baselines, absmax and zeropoint: with b bits, groups
 * of g, along tokens or channels, heads apart or together. */
#ifndef KV_RTN_H
#define KV_RTN_H

#include "lib/schemes/integers.h"

extern const struct kv_param kv_rtn_params[];

/* g0 is the whole row: head_dim, or all heads' channels. */
int kv_rtn_check(struct kv_spec *s, const struct kv_shape *shape,
                 struct kv_err *e);
/* The lecture counts the codes alone. */
double kv_rtn_nominal(const struct kv_spec *s, enum kv_side side,
                      const struct kv_shape *shape);
int kv_rtn_open(struct kv_codec *c, const struct kv_group_quantizer *q);

#endif
