/* Random tables of the right shape, which suffice for timing. */
#ifndef KV_TOOL_RANDOM_CALIB_H
#define KV_TOOL_RANDOM_CALIB_H

#include "lib/base/err.h"
#include "lib/calib.h"
#include "lib/spec.h"

/* Trains the fitted specs that need a calibration on random tensors of this
 * shape (one layer); *calib is unchanged if none needs it. */
int kv_random_calibration(struct kv_calib **calib, const struct kv_spec *specs,
                          size_t n, const struct kv_shape *shape, uint64_t seed,
                          struct kv_err *e);

#endif
