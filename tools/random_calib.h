/* Tables of the right shape and no meaning, for timing. */
#ifndef KV_TOOL_RANDOM_CALIB_H
#define KV_TOOL_RANDOM_CALIB_H

#include "lib/base/err.h"
#include "lib/calib.h"
#include "lib/spec.h"

/* Trains those of the fitted specs that need it on random tensors of this shape
 * (one layer); *calib stays as it is where none does. */
int kv_random_calibration(struct kv_calib **calib, const struct kv_spec *specs,
                          size_t n, const struct kv_shape *shape, uint64_t seed,
                          struct kv_err *e);

#endif
