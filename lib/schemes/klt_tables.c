/* Computes klt's tables for a side of a layer: the transform of each part. */
#include "kernels/eigen.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/calib.h"
#include "lib/schemes/klt_train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float *add_row(const struct kv_klt_job *j, const char *name)
{
    return kv_calib_add(j->out, name, (int)j->side, (int)j->layer, KV_ALL, 1,
                        &j->row)
        ->data;
}

static float *add_square(const struct kv_klt_job *j, const char *name,
                         size_t part)
{
    const size_t dims[] = {j->row / part, part, part};
    const bool all = part == j->row;
    struct kv_table *t = kv_calib_add(j->out, name, (int)j->side, (int)j->layer,
                                      KV_ALL, all ? 2 : 3, dims + all);

    t->type = KV_TABLE_F16;
    return t->data;
}

static float to_half(double x)
{
    return kv_f16_to_f32(kv_f16_clamp((float)x));
}

/* Stores, for the part that begins at `at`, row i of the inverse transform
 * (back), column i of the forward transform (there), and their unit. */
static void put_vector(const struct kv_klt_tables *t, size_t at, size_t i,
                       const double *there, const double *back, double unit)
{
    const size_t n = t->part;
    double length = 0;

    for (size_t k = 0; k < n; k++)
        length += there[k] * there[k];
    length = sqrt(length);
    t->unit[at + i] = (float)(length * unit);
    for (size_t k = 0; k < n; k++) {
        t->forward[(at + k) * n + i] = to_half(there[k] / length);
        t->inverse[(at + i) * n + k] = to_half(back[k] * length);
    }
}

/* Computes the transform of the part that begins at `at`; metric, cov:
 * [row][row]. */
static int add_part(const struct kv_klt_tables *t, size_t row, size_t at,
                    const double *metric, double unit, const double *cov)
{
    const size_t n = t->part;
    double *own_metric = kv_alloc(n, n * sizeof(*own_metric));
    double *own_cov = kv_alloc(n, n * sizeof(*own_cov));
    double *value = kv_alloc(n, sizeof(*value));
    int rc;

    for (size_t i = 0; i < n; i++) {
        memcpy(own_metric + i * n, metric + (at + i) * row + at,
               n * sizeof(*own_metric));
        memcpy(own_cov + i * n, cov + (at + i) * row + at,
               n * sizeof(*own_cov));
    }
    rc = kv_eigen_pair(own_cov, own_metric, n, value);
    for (size_t i = 0; i < n && !rc; i++) {
        const size_t from = n - 1 - i; /* eigenvalues ascend */

        t->sigma[at + i] =
            (float)(sqrt(value[from] > 0 ? value[from] : 0) * unit);
        put_vector(t, at, i, own_cov + from * n, own_metric + from * n, unit);
    }
    free(value);
    free(own_cov);
    free(own_metric);
    return rc;
}

/* The name of the tensor of the dump that the metric was computed from. */
static const char *metric_name(const struct kv_klt_job *j)
{
    if (kv_spec_is(j->spec, j->side, "metric", "fisher"))
        return kv_tensor_name(kv_klt_gradient_of(j->side));
    if (kv_spec_is(j->spec, j->side, "metric", "none"))
        return "nothing";
    return j->side == KV_K ? kv_tensor_name(KV_T_Q) : "wo_gram";
}

int kv_klt_add_tables(const struct kv_klt_job *j, const double *mean,
                      const double *metric, double unit, const double *cov,
                      struct kv_klt_tables *t, struct kv_err *e)
{
    const size_t part = kv_klt_part(j->spec, &j->shape);
    int rc = 0;

    *t = (struct kv_klt_tables){.part = part,
                                .mean = add_row(j, "mean"),
                                .sigma = add_row(j, "sigma"),
                                .unit = add_row(j, "unit"),
                                .forward = add_square(j, "forward", part),
                                .inverse = add_square(j, "inverse", part)};
    for (size_t i = 0; i < j->row; i++)
        t->mean[i] = (float)mean[i];
    for (size_t i = 0; i < j->row && !rc; i += part)
        rc = add_part(t, j->row, i, metric, unit, cov);
    return rc ? kv_fail(e,
                        "%s: no eigenvectors: the metric, of %s, is not finite "
                        "or not positive definite, or values are too large",
                        kv_dump_path(j->dump), metric_name(j))
              : 0;
}
