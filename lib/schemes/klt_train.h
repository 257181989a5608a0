/* Between klt_train.c, klt_tables.c and klt_pred_train.c. */
#ifndef KV_KLT_TRAIN_H
#define KV_KLT_TRAIN_H

#include "lib/dump.h"
#include "lib/schemes/klt.h"

/* A side of a layer: a place. */
struct kv_klt_job {
    const struct kv_spec *spec;
    struct kv_dump *dump;
    const struct kv_dump_info *info;
    struct kv_calib_set *out;
    struct kv_shape shape; /* of the layer */
    size_t layer, row;     /* values of a token */
    enum kv_side side;
    enum kv_tensor tensor;
};

/* Sets the place. */
void kv_klt_at(struct kv_klt_job *j, size_t layer, enum kv_side side);

/* The gradients of the loss by a side. */
enum kv_tensor kv_klt_gradient_of(enum kv_side side);

/* The pool that the trellis is trained on: coefficients over their sigma. */
struct kv_klt_pool {
    float *value;
    size_t n;
};

/* What each token counts in the metric and in the covariance, both [tokens],
 * above 0. */
int kv_klt_weigh(const struct kv_klt_job *j, float *metric, float *moments,
                 struct kv_err *e);

/* m: [row][row], cleared; its mean diagonal becomes 1, and *unit what 1 was. */
int kv_klt_metric(const struct kv_klt_job *j, const float *weight, double *m,
                  double *unit, struct kv_err *e);

/* A place's tables (klt.h), of parts of so many values. */
struct kv_klt_tables {
    size_t part;
    float *mean, *sigma, *unit, *forward, *inverse;
};

/* Adds those of a covariance in a metric, [row][row], of which blocks of a
 * part count. */
int kv_klt_add_tables(const struct kv_klt_job *j, const double *mean,
                      const double *metric, double unit, const double *cov,
                      struct kv_klt_tables *t, struct kv_err *e);

/* Adds the table of each kind, and its error. */
int kv_klt_train_trellis(struct kv_calib_set *out,
                         const struct kv_klt_pool *pool, uint64_t seed,
                         struct kv_err *e);

/* Trains the prediction across layers (klt_pred.h): all tables. */
int kv_klt_pred_calibrate(const struct kv_klt_job *j, uint64_t seed,
                          struct kv_err *e);

#endif
