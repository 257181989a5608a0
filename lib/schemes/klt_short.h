/* klt's tables with tables=short: a third of the bytes.
 *
 * A row of the inverse transform is multiplied by a coefficient of R bits a
 * value.  Few bits more than R suffice for the row: its errors then are small
 * beside the coefficient's.  A coefficient that is never coded needs no row,
 * and no column of the forward transform.  So the tables depend on the
 * allocation, and b, share and code are in the calibration's key.
 *
 * Each side of a layer has these tables in place of unit, forward and inverse,
 * for the n coded coefficients in the order of a token's bitstream (u8: a table
 * of bytes):
 *
 *   forward        u8 [n][part]: x_i to y_j, (code - 128) forward_step_j
 *   forward_step   [n]
 *   inverse        u8, row after row: y_j to x_i,
 *                  (code - (2^bits - 1) / 2) inverse_step_j, in codes of
 *                  bits = ceil(R) + 3, each row padded to a whole byte
 *                  (kernels/bitpack.h)
 *   inverse_step   [n]
 *
 * and in place of predictor (klt_pred.h), for each of its sources:
 *
 *   predictor       u8 [features][row]: (code - 128) predictor_step
 *   predictor_step  [sources][row]
 *
 * If no coefficient is coded, the first four tables are absent. */
#ifndef KV_KLT_SHORT_H
#define KV_KLT_SHORT_H

#include "lib/schemes/klt_coding.h"

bool kv_klt_is_short(const struct kv_spec *s);

/* Replaces the tables of all layers and sides that the set has.  shape: the
 * dump's. */
int kv_klt_shorten(const struct kv_spec *s, const struct kv_shape *shape,
                   struct kv_calib_set *set, struct kv_err *e);

/* Fills the codec's transforms from its short tables.  g: the coding of the
 * codec's layer and side; part: kv_klt_part(); forward, inverse: [row][row],
 * cleared, the caller's; forward may be NULL.  Fails on a missing table. */
int kv_klt_short_load(const struct kv_codec *c, const struct kv_calib_set *set,
                      const struct kv_klt_coding *g, size_t part,
                      float *forward, float *inverse, struct kv_err *e);

/* Fills matrix [n_sources][row][row] with the predictor of the codec's layer
 * and side. */
int kv_klt_short_predictor(const struct kv_codec *c,
                           const struct kv_calib_set *set, size_t n_sources,
                           float *matrix, struct kv_err *e);

/* Rounds each column of x [n][row] to whole steps, as the table predictor
 * needs; step [row] gets the steps, 0 for a column of zeros.  A second call
 * changes nothing. */
void kv_klt_round_columns(float *x, size_t n, size_t row, float *step);

#endif
