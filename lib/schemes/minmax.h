/* Groups between their extremes, asymmetric, as KIVI quantizes them: a value is
 * minimum + step * code.
 *
 * A group's head: | step: f16 | minimum: f16 |; a flat group is its minimum. */
#ifndef KV_MINMAX_H
#define KV_MINMAX_H

#include "lib/schemes/grouped.h"

extern const struct kv_group_quantizer kv_minmax_quantizer;

#endif
