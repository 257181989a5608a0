/* klt's tables with tables=short: a third of the bytes.
 *
 * A row of the inverse that is multiplied by a coefficient of R bits a value
 * needs few bits more than R itself: errors of the row then are small beside
 * the coefficient's.  What is never coded needs no row, and no column of the
 * forward transform.  So the tables depend on the allocation, and b, share and
 * code are in the calibration's key.
 *
 * Of a side of a layer, in place of unit, forward and inverse, of the n
 * coefficients that are coded, in the order of a token's bitstream; u8 are
 * tables of bytes:
 *   forward       u8 [n][part]  x_i to y_j: (code - 128) forward_step_j
 *   forward_step  [n]
 *   inverse       u8, row after row in codes of ceil(R) + 3 bits, each row
 *                 filled up to a whole byte (kernels/bitpack.h); y_j to x_i:
 *                 (code - (2^bits - 1) / 2) inverse_step_j
 *   inverse_step  [n]
 * and in place of predictor (klt_pred.h), of each of its sources:
 *   predictor       u8 [features][row]  (code - 128) predictor_step
 *   predictor_step  [sources][row]
 * Where nothing is coded there are none of the first four. */
#ifndef KV_KLT_SHORT_H
#define KV_KLT_SHORT_H

#include "lib/schemes/klt_coding.h"

bool kv_klt_is_short(const struct kv_spec *s);

/* Replaces the tables of all places that the set has.  shape: the dump's. */
int kv_klt_shorten(const struct kv_spec *s, const struct kv_shape *shape,
                   struct kv_calib_set *set, struct kv_err *e);

/* forward, inverse: [row][row], cleared; of the codec's place, whose coding g
 * is, in parts.  forward NULL: not wanted. */
int kv_klt_short_load(const struct kv_codec *c, const struct kv_calib_set *set,
                      const struct kv_klt_coding *g, size_t part,
                      float *forward, float *inverse, struct kv_err *e);

/* matrix: [n_sources][row][row] of the codec's place. */
int kv_klt_short_predictor(const struct kv_codec *c,
                           const struct kv_calib_set *set, size_t n_sources,
                           float *matrix, struct kv_err *e);

/* Rounds each column of x [n][row] to steps as predictor's; returns the steps
 * in step [row], 0 where a column is.  What was rounded stays. */
void kv_klt_round_columns(float *x, size_t n, size_t row, float *step);

#endif
