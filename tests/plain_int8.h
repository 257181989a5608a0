/* Attention over groups of 8-bit integers in plain C, as a device computes it
 * on path int8: the same integers, sums in f32. */
#ifndef KV_PLAIN_INT8_H
#define KV_PLAIN_INT8_H

#include "kernels/tiles/jobs.h"
#include "tests/attention_setup.h"

#include <stdbool.h>

/* Whether these codes have a path int8. */
bool plain_int8_has(const struct kv_tiles_job *j);

/* Attends for a's queries.  Tokens that are not stored as codes come from a.
 * out: as a's output. */
void plain_int8(const struct kv_tiles_job *j, const struct attention *a,
                float *out);

#endif
