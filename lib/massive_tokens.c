#include "lib/massive_tokens.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/dump.h"
#include "lib/k_bias.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char kv_massive_rule[] =
    "left out: the first token of each window, and tokens whose key's or "
    "value's norm is further from the layer's median than a factor of 3 and "
    "8 median absolute deviations of the logarithms";

_Static_assert(KV_MASSIVE_FIRST == 1 && KV_MASSIVE_FACTOR == 3 &&
                   KV_MASSIVE_DEVIATIONS == 8,
               "the rule's sentence");

enum { CHUNK = 512 /* tokens read at a time */ };

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *x, size_t n)
{
    qsort(x, n, sizeof(*x), by_value);
    return x[n / 2];
}

struct kv_norm_range kv_norm_range_of(const float *norm, size_t n)
{
    double *x = kv_alloc(n, sizeof(*x)), middle, far;

    if (!n) {
        free(x);
        return (struct kv_norm_range){0, INFINITY};
    }
    for (size_t i = 0; i < n; i++)
        x[i] = log((double)fmaxf(norm[i], FLT_MIN));
    middle = median(x, n);
    for (size_t i = 0; i < n; i++)
        x[i] = fabs(x[i] - middle);
    far = fmax(log(KV_MASSIVE_FACTOR), KV_MASSIVE_DEVIATIONS * median(x, n));
    free(x);
    return (struct kv_norm_range){(float)exp(middle - far),
                                  (float)fmin(exp(middle + far), FLT_MAX)};
}

/* norm [n]: the norms of n tokens x [n][n_kv_heads][head_dim]. */
static void norms_of(const struct kv_shape *shape, enum kv_side side,
                     bool pre_rope, size_t first, const float *x, size_t n,
                     float *norm)
{
    const size_t row = shape->n_kv_heads * shape->head_dim;
    float *less = NULL;

    if (side == KV_K && shape->k_bias) {
        less = kv_alloc(n, row * sizeof(*less));
        kv_k_bias_take(shape, pre_rope, first, x, n, less);
        x = less;
    }
    for (size_t t = 0; t < n; t++) {
        double sum = 0;

        for (size_t i = 0; i < row; i++)
            sum += (double)x[t * row + i] * (double)x[t * row + i];
        norm[t] = (float)sqrt(sum);
    }
    free(less);
}

static bool is_outside(struct kv_norm_range r, float norm)
{
    return norm < r.low || norm > r.high;
}

void kv_massive_find(const struct kv_shape *shape, bool pre_rope,
                     const struct kv_norm_range *range, size_t first,
                     const float *k, const float *v, size_t n, bool *massive)
{
    float *norm = kv_alloc(2 * n, sizeof(*norm));

    norms_of(shape, KV_K, pre_rope, first, k, n, norm);
    norms_of(shape, KV_V, pre_rope, first, v, n, norm + n);
    for (size_t t = 0; t < n; t++)
        massive[t] = first + t < KV_MASSIVE_FIRST ||
                     is_outside(range[KV_K], norm[t]) ||
                     is_outside(range[KV_V], norm[n + t]);
    free(norm);
}

/* Reads all norms of a side, window by window, [n_windows * ctx].  The dump
 * must have the tensor. */
static int read_norms(struct kv_dump *d, size_t layer, enum kv_side side,
                      float *norm, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(d);
    const struct kv_shape shape = kv_shape_layer(&info->shape, layer);
    const bool pre = info->have[KV_T_K_PRE];
    const enum kv_tensor t = side == KV_V ? KV_T_V : pre ? KV_T_K_PRE : KV_T_K;
    const size_t row = shape.n_kv_heads * shape.head_dim;
    float *x = kv_alloc(CHUNK, row * sizeof(*x));
    int rc = 0;

    for (size_t at = 0, n; at < info->n_windows * info->ctx && !rc; at += n) {
        const size_t left = info->ctx - at % info->ctx;

        n = left < CHUNK ? left : CHUNK;
        rc = kv_interrupted(e) || kv_dump_read(d, layer, t, at, n, x, e);
        if (!rc)
            norms_of(&shape, side, pre, at % info->ctx, x, n, norm + at);
    }
    free(x);
    return rc ? -1 : 0;
}

int kv_massive_of_dump(struct kv_dump *d, size_t layer,
                       struct kv_norm_range *range, bool *counts,
                       struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(d);
    const size_t n = info->n_windows * info->ctx;
    const bool have[] = {info->have[KV_T_K] || info->have[KV_T_K_PRE],
                         info->have[KV_T_V]};
    float *norm = kv_alloc(n, sizeof(*norm));
    int rc = 0;

    for (size_t i = 0; counts && i < n; i++)
        counts[i] = i % info->ctx >= KV_MASSIVE_FIRST;
    for (int side = 0; side < KV_SIDES && !rc; side++) {
        rc = have[side] && read_norms(d, layer, (enum kv_side)side, norm, e);
        if (rc)
            break;
        range[side] = kv_norm_range_of(norm, have[side] ? n : 0);
        for (size_t i = 0; counts && have[side] && i < n; i++)
            counts[i] &= !is_outside(range[side], norm[i]);
    }
    free(norm);
    return rc ? -1 : 0;
}
