/* klt's prediction of a layer from layers below and of values from keys.
 *
 * Layers say much of each other.  A token's keys before RoPE, or values, of a
 * layer, all heads together, are first predicted from what its decoder has:
 *
 *   p = mean + C^T f
 *   f = | K, V of the next lower layer | of the one below | own K, for values |
 *
 * all decoded, of the same token; C by ridge regression.  What is left, x - p,
 * is coded as klt codes x - mean, in the same metric, and x' = p + decoded
 * rest.  f has one or two layers below with pred=1 and 2, with pred=pair the
 * even one below an odd one, with pred=vk none; the last two are read in place.
 *
 * C and the covariance of the rest are fitted on features as decoders will see
 * them: a coefficient y of which the trellis leaves the share m of its variance
 * becomes y (1 - m) + noise of variance m (1 - m), layer upon layer.  So they
 * depend on the bits, and b is in the calibration's key.
 *
 * Tables beside klt's (mean has C's part of the features' means in it):
 *   predictor  [features][row]  C, in fp16; side, layer; where there are any
 *
 * Prior art: AQUA-KV (arXiv 2501.19392, January 2025) predicts keys and values
 * from the decoded layer below, and values from keys, with ridge predictors
 * trained on reconstructions, as here; it codes the rest by HIGGS grids.  DPCM
 * and wavelet coders predict so too; MiniCache and xKV share what layers have
 * in common. */
#ifndef KV_KLT_PRED_H
#define KV_KLT_PRED_H

#include "lib/scheme.h"

struct kv_calib_set;

/* Sources of features at a place, each a row of values: at most so many. */
enum { KV_KLT_SOURCES = 2 * KV_MAX_BELOW + 1 };
size_t kv_klt_sources(size_t n_below, size_t layer, enum kv_side side);

struct kv_klt_pred {
    size_t row, n_sources;
    float *matrix; /* [n_sources][row][row]: f_i to x_j */
};

/* The codec's table; without sources none. */
int kv_klt_pred_load(struct kv_klt_pred *p, const struct kv_codec *c,
                     const struct kv_calib_set *set, struct kv_err *e);
void kv_klt_pred_clear(struct kv_klt_pred *p);

/* Adds C^T f of tokens [first, first + n) of the neighbours to x [n][row].  The
 * same bits for any n and at every level. */
void kv_klt_pred_add(const struct kv_klt_pred *p,
                     const struct kv_neighbours *at, size_t first, size_t n,
                     float *x);

#endif
