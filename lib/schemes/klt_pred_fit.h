/* One upward pass of klt's prediction over the layers of a dump: from features
 * as decoders will see them to the residual's statistics. */
#ifndef KV_KLT_PRED_FIT_H
#define KV_KLT_PRED_FIT_H

#include "lib/schemes/klt_pred.h"

/* The tokens of a pass, their weights, and the decoded form, minus its mean, of
 * the current layer and the layers below. */
struct kv_klt_seen {
    size_t n, row, n_below;
    const float *weight; /* [n], weights for this layer and side; 0: the token
                          * is left out */
    float *x[KV_MAX_BELOW + 1][KV_SIDES];     /* [n][row]; [0]: this layer's;
                                               * zeros for tokens left out */
    double *mean[KV_MAX_BELOW + 1][KV_SIDES]; /* [row] */
    double *gram;  /* the features' second moments so far, [KV_KLT_SOURCES *
                    * row] squared */
    size_t n_gram; /* the number of sources in gram */
};

void kv_klt_seen_init(struct kv_klt_seen *s, size_t n, size_t row,
                      size_t n_below);
void kv_klt_seen_clear(struct kv_klt_seen *s);

/* Goes up a layer: this layer's features become the features of the next lower
 * layer. */
void kv_klt_seen_up(struct kv_klt_seen *s);

/* The prediction for a layer and side, and the parts of its tokens. */
struct kv_klt_parts {
    float *x, *predicted; /* [n][row].  x: the tokens, which kv_klt_predict()
                           * replaces by x - mean - predicted; predicted: the
                           * prediction without the mean */
    float *matrix;        /* [sources][row][row], rounded to fp16 */
    double *mean, *bias;  /* [row]: the mean of x, and the mean of x minus what
                           * the features predict */
    bool bytes;           /* the matrix is rounded to short tables' values
                           * (klt_short.h) */
};

/* Computes all parts from x, with features from n_below lower layers.  Fails if
 * the equations have no solution. */
int kv_klt_predict(struct kv_klt_seen *s, size_t n_below, enum kv_side side,
                   struct kv_klt_parts *p, struct kv_err *e);

/* The transform of a layer and side, and the share of each coefficient's
 * variance that the codes leave: share [row], 1 for a coefficient that is not
 * coded. */
struct kv_klt_coded {
    const float *sigma, *forward, *inverse;
    const double *share;
    uint64_t seed; /* seed of the noise */
    size_t part;   /* values that are transformed together */
};

/* Stores the decoded form of this layer and side as features. */
void kv_klt_seen_put(struct kv_klt_seen *s, enum kv_side side,
                     const struct kv_klt_coded *by,
                     const struct kv_klt_parts *p);

#endif
