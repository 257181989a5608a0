/* klt's prediction of a layer from layers below and of values from keys.
 *
 * Layers predict each other well.  A token's keys (before RoPE) or values in a
 * layer, all heads together, are first predicted from decoded features f:
 *
 *   p = mean + C^T f
 *   f = | K, V of the next lower layer | of the one below | own K, for values |
 *
 * All features belong to the same token, and C comes from ridge regression.
 * The residual x - p is coded as klt codes x - mean, in the same metric;
 * x' = p + decoded residual.  f has one or two layers below with pred=1 and 2,
 * the even layer below an odd one with pred=pair, and none with pred=vk;
 * attention in place works with the last two.
 *
 * C and the residual's covariance are fitted on features as decoders will see
 * them, one layer after the other: if the trellis leaves a share m of a
 * coefficient's variance, y becomes y (1 - m) + noise of variance m (1 - m).
 * So the tables depend on the bits, and b is in the calibration's key.
 *
 * Tables beside klt's (mean includes C's part of the features' means):
 *   predictor  [features][row]  C, in fp16; per side and layer with features
 *
 * Prior art: AQUA-KV (arXiv 2501.19392, January 2025) predicts keys and values
 * from the decoded layer below, and values from keys, with ridge predictors
 * trained on reconstructions, as here; it codes the rest by HIGGS grids.  DPCM
 * and wavelet coders predict in the same way; MiniCache and xKV store the
 * common part of layers once. */
#ifndef KV_KLT_PRED_H
#define KV_KLT_PRED_H

#include "lib/scheme.h"

struct kv_calib_set;

/* The maximum number of sources of features for a layer and side; each source
 * is a row of values. */
enum { KV_KLT_SOURCES = 2 * KV_MAX_BELOW + 1 };
size_t kv_klt_sources(size_t n_below, size_t layer, enum kv_side side);

struct kv_klt_pred {
    size_t row, n_sources;
    float *matrix; /* [n_sources][row][row]: maps f_i to x_j */
};

/* Loads the codec's predictor; no table is needed if there are no sources. */
int kv_klt_pred_load(struct kv_klt_pred *p, const struct kv_codec *c,
                     const struct kv_calib_set *set, struct kv_err *e);
void kv_klt_pred_clear(struct kv_klt_pred *p);

/* Adds C^T f of tokens [first, first + n) of the neighbours to x [n][row].  Any
 * n and any level give the same bits. */
void kv_klt_pred_add(const struct kv_klt_pred *p,
                     const struct kv_neighbours *at, size_t first, size_t n,
                     float *x);

#endif
