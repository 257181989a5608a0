/* Tables that another program trained, as a calibration.
 *
 * Names of the arrays are words of the table, k or v, the layer, the KV head:
 * layers.0.k.codebook, codebook.k.0, layers.0.heads.1.v.codebook.  An array
 * without a layer, side or head is for all of them.  Arrays by scheme, in C
 * order:
 *
 *   vecinfer, cq, pq, million   codebook [books of a head][2^b][channels of a
 *                 code], or [KV heads][books]... in one array; smooth [KV
 *                 heads][head_dim] of k where t=S, SH or HS
 *   kvquant       levels [2][2^b] of each side: ascending levels that choose
 *                 the code, and levels that it decodes to; range [KV
 *                 heads][head_dim][2] of k: thresholds of outliers
 *   oscar         rotation [head_dim][head_dim] of each side
 *   rotatekv      order [KV heads * head_dim] of k
 *
 * Codebooks are rounded to fp16, as kvtools stores them. */
#ifndef KV_CALIB_TABLES_H
#define KV_CALIB_TABLES_H

#include "lib/arrays/arrays.h"
#include "lib/calib.h"

/* spec: fitted to the dump's shape.  The model is the dump's, and its text
 * counts as trained on.  Fails on another scheme, on a name that is none of the
 * spec's tables, and if a table is missing or has another shape. */
int kv_calib_take_tables(struct kv_calib **c, struct kv_dump *dump,
                         const struct kv_spec *spec, struct kv_arrays *tables,
                         uint64_t seed, struct kv_err *e);

#endif
