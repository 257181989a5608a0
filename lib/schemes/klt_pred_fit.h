/* One pass of klt's prediction up the layers of a dump: from features as
 * decoders will see them to the statistics of the rest. */
#ifndef KV_KLT_PRED_FIT_H
#define KV_KLT_PRED_FIT_H

#include "lib/schemes/klt_pred.h"

/* Tokens of a pass, those that count, and what decoders of the layers so far
 * would have of them, less its mean. */
struct kv_klt_seen {
    size_t n, row, n_below;
    const float *weight; /* [n], of the place; a token of 0 is left out */
    float *x[KV_MAX_BELOW + 1][KV_SIDES];     /* [n][row]; [0]: this layer's;
                                               * zeros where left out */
    double *mean[KV_MAX_BELOW + 1][KV_SIDES]; /* [row] */
    double *gram;  /* of the features so far, [KV_KLT_SOURCES * row] squared */
    size_t n_gram; /* sources that it has */
};

void kv_klt_seen_init(struct kv_klt_seen *s, size_t n, size_t row,
                      size_t n_below);
void kv_klt_seen_clear(struct kv_klt_seen *s);

/* Goes up a layer: what was seen of this one becomes that of the next lower. */
void kv_klt_seen_up(struct kv_klt_seen *s);

/* What a place (layer, side) is predicted by, and the parts of its tokens. */
struct kv_klt_parts {
    float *x, *predicted; /* [n][row]: the tokens, which kv_klt_predict()
                           * replaces by x - mean - predicted; the prediction
                           * without the mean */
    float *matrix;        /* [sources][row][row], values of halves */
    double *mean, *bias;  /* [row]: of x; of x less the features' part */
};

/* From x to all parts, by so many of the lower layers that were seen.  Fails
 * where the equations have no solution. */
int kv_klt_predict(struct kv_klt_seen *s, size_t n_below, enum kv_side side,
                   struct kv_klt_parts *p, struct kv_err *e);

/* The transform of a place, and what its codes leave of each coefficient's
 * variance: share [row], 1 where none is coded. */
struct kv_klt_coded {
    const float *sigma, *forward, *inverse;
    const double *share;
    uint64_t seed; /* of the noise */
    size_t part;   /* values that are transformed together */
};

/* Keeps what decoders would have of the place. */
void kv_klt_seen_put(struct kv_klt_seen *s, enum kv_side side,
                     const struct kv_klt_coded *by,
                     const struct kv_klt_parts *p);

#endif
