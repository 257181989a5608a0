/* Attention over integers of 8 bits in groups as a device does it on path int8,
 * in plain C: the same integers, sums in f32. */
#ifndef KV_PLAIN_INT8_H
#define KV_PLAIN_INT8_H

#include "kernels/tiles/jobs.h"
#include "tests/attention_setup.h"

#include <stdbool.h>

/* Whether these codes have a path int8. */
bool plain_int8_has(const struct kv_tiles_job *j);

/* Of a's queries; tokens that are no codes as a has them.  out: as a's. */
void plain_int8(const struct kv_tiles_job *j, const struct attention *a,
                float *out);

#endif
