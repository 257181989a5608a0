/* Shared by klt_train.c, klt_tables.c and klt_pred_train.c. */
#ifndef KV_KLT_TRAIN_H
#define KV_KLT_TRAIN_H

#include "lib/dump.h"
#include "lib/schemes/klt.h"

/* A place: one side of one layer. */
struct kv_klt_job {
    const struct kv_spec *spec;
    struct kv_dump *dump;
    const struct kv_dump_info *info;
    struct kv_calib_set *out;
    struct kv_shape shape; /* the shape of this layer */
    size_t layer, row;     /* values of a token */
    enum kv_side side;
    enum kv_tensor tensor;
};

/* Sets the place. */
void kv_klt_at(struct kv_klt_job *j, size_t layer, enum kv_side side);

/* The dump's tensor with the loss's gradients for a side. */
enum kv_tensor kv_klt_gradient_of(enum kv_side side);

/* The pool on which the trellis is trained: coefficients divided by their
 * sigma. */
struct kv_klt_pool {
    float *value;
    size_t n;
};

/* Sets each token's weight in the metric and in the covariance (moments), both
 * [tokens], above 0. */
int kv_klt_weigh(const struct kv_klt_job *j, float *metric, float *moments,
                 struct kv_err *e);

/* Computes the metric m [row][row], which comes cleared.  m is scaled so that
 * its mean diagonal is 1; *unit becomes the factor that undoes this. */
int kv_klt_metric(const struct kv_klt_job *j, const float *weight, double *m,
                  double *unit, struct kv_err *e);

/* Adds a place's tables (klt.h), with parts of `part` values. */
struct kv_klt_tables {
    size_t part;
    float *mean, *sigma, *unit, *forward, *inverse;
};

/* Adds the tables of a covariance in a metric, both [row][row]; only the
 * diagonal blocks of a part are used. */
int kv_klt_add_tables(const struct kv_klt_job *j, const double *mean,
                      const double *metric, double unit, const double *cov,
                      struct kv_klt_tables *t, struct kv_err *e);

/* Adds the table of each kind, and its error. */
int kv_klt_train_trellis(struct kv_calib_set *out,
                         const struct kv_klt_pool *pool, uint64_t seed,
                         struct kv_err *e);

/* Trains the prediction across layers (klt_pred.h), and adds all tables. */
int kv_klt_pred_calibrate(const struct kv_klt_job *j, uint64_t seed,
                          struct kv_err *e);

#endif
