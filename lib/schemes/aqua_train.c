/* Training of AQUA-KV, one layer after the other, upward: each layer is
 * predicted from the decoded form of the layer below. */
#include "kernels/eigen.h"
#include "kernels/nearest/kmeans.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/base/progress.h"
#include "lib/base/rng.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/moments.h"
#include "lib/schemes/aqua.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NORMAL = 1 << 17, ROUNDS = 200, TOGETHER = 256 /* tokens */ };

/* The ridge, as a share of the mean diagonal of the features' second
 * moments. */
static const double RIDGE = 1e-3;

struct training {
    const struct kv_spec *spec;
    struct kv_dump *dump;
    struct kv_calib_set *out;
    size_t n, row, n_layers; /* n: tokens */
    size_t run;
    const float *points[2]; /* points of the lowest layer, of the others */
    /* [n][row]: decoded keys and values of the layer, and before that, of the
     * layer below */
    float *seen[KV_SIDES];
    float *x; /* [n][row] */
};

/* ---- points -------------------------------------------------------------- */

static int add_points(struct training *t, const char *name, size_t n, size_t d,
                      const float **points, struct kv_err *e)
{
    const size_t dims[] = {n, d};
    float *x = kv_alloc(NORMAL * d, sizeof(*x));
    float *to =
        kv_calib_add(t->out, name, KV_ALL, KV_ALL, KV_ALL, 2, dims)->data;
    int rc;

    for (size_t i = 0; i < NORMAL * d; i++)
        x[i] = (float)kv_random_normal(kv_mix(n, d), i);
    rc = kv_kmeans(x, NORMAL, d, NULL, n, KV_KMEANS_RANDOM, ROUNDS, 1, to, NULL,
                   e);
    *points = to;
    free(x);
    return rc;
}

/* ---- a predictor --------------------------------------------------------- */

static size_t n_features(const struct training *t, enum kv_side side)
{
    return (side == KV_V ? 2 : 1) * t->row + 1;
}

/* Returns the features [n][features]; the last feature is 1. */
static float *features_of(const struct training *t, enum kv_side side)
{
    const size_t row = t->row, m = n_features(t, side);
    float *f = kv_alloc(t->n, m * sizeof(*f));

    for (size_t i = 0; i < t->n; i++) {
        for (size_t s = 0; s * row + 1 < m; s++)
            memcpy(f + i * m + s * row, t->seen[s] + i * row, row * sizeof(*f));
        f[i * m + m - 1] = 1;
    }
    return f;
}

/* Fits weight [features][row], rounded to fp16, by ridge regression. */
static int fit_weight(const struct training *t, const float *f, size_t m,
                      float *weight, struct kv_err *e)
{
    double *gram = kv_alloc(m, m * sizeof(*gram)), trace = 0;
    double *c = kv_alloc(m, t->row * sizeof(*c));
    int rc;

    kv_moments_cross(f, m, f, m, t->n, gram, m);
    kv_moments_cross(f, m, t->x, t->row, t->n, c, t->row);
    for (size_t i = 0; i < m; i++)
        trace += gram[i * m + i];
    for (size_t i = 0; i < m; i++)
        gram[i * m + i] += RIDGE * trace / (double)m;
    if ((rc = kv_solve(gram, m, c, t->row)))
        kv_fail(e, "the equations of its prediction have no solution");
    for (size_t i = 0; i < m * t->row && !rc; i++)
        weight[i] = kv_f16_to_f32(kv_f16_clamp((float)c[i]));
    free(c);
    free(gram);
    return rc;
}

/* Sets the side's `seen` to the decoded form of x, which weight [m][row]
 * predicts from f; weight NULL: no prediction. */
static void see(struct training *t, enum kv_side side, const struct kv_higgs *h,
                const float *f, size_t m, const float *weight)
{
    const size_t row = t->row;

#pragma omp parallel for schedule(dynamic, 1)
    for (size_t at = 0; at < t->n; at += TOGETHER) {
        const size_t n = t->n - at < TOGETHER ? t->n - at : TOGETHER;
        float *p = kv_alloc(n, row * sizeof(*p));
        float *rest = kv_alloc(row, sizeof(*rest));
        uint8_t *bytes = kv_alloc(h->bytes, 1);

        if (f)
            kv_vecops_times(f + at * m, m, n, weight, m, row, row, p, row);
        for (size_t i = 0; i < n; i++) {
            const float *x = t->x + (at + i) * row;
            float *to = t->seen[side] + (at + i) * row;

            for (size_t j = 0; j < row; j++)
                rest[j] = x[j] - p[i * row + j];
            kv_higgs_encode(h, rest, bytes);
            kv_higgs_decode(h, bytes, rest);
            for (size_t j = 0; j < row; j++)
                to[j] = p[i * row + j] + rest[j];
        }
        free(bytes);
        free(rest);
        free(p);
    }
}

static enum kv_tensor aqua_tensor(enum kv_side side)
{
    return side == KV_V ? KV_T_V : KV_T_K_PRE;
}

static int train_place(struct training *t, size_t layer, enum kv_side side,
                       struct kv_err *e)
{
    const size_t n = kv_spec_size(t->spec, side, "n"), m = n_features(t, side);
    const size_t dims[] = {m, t->row};
    float *f = NULL, *weight = NULL;
    struct kv_higgs h;
    int rc;

    if (kv_interrupted(e) ||
        kv_dump_read(t->dump, layer, aqua_tensor(side), 0, t->n, t->x, e))
        return -1;
    kv_higgs_init(&h, t->row, t->run,
                  layer ? kv_spec_size(t->spec, side, "d") : KV_AQUA_LOW_D,
                  kv_aqua_bits(layer ? n : KV_AQUA_LOW_N),
                  t->points[layer > 0]);
    if (layer) {
        struct kv_table *table = kv_calib_add(t->out, "predictor", (int)side,
                                              (int)layer, KV_ALL, 2, dims);

        table->type = KV_TABLE_F16;
        weight = table->data;
        f = features_of(t, side);
    }
    rc = layer ? fit_weight(t, f, m, weight, e) : 0;
    if (!rc)
        see(t, side, &h, f, m, weight);
    kv_higgs_clear(&h);
    free(f);
    return rc ? kv_fail_in(e, "layer %zu, %c", layer, kv_side_name(side)) : 0;
}

static int aqua_check_dump(const struct kv_spec *s, struct kv_dump *dump,
                           struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);

    (void)s;
    for (int side = 0; side < KV_SIDES; side++)
        if (kv_dump_want(dump, aqua_tensor((enum kv_side)side), e))
            return kv_fail_in(e, "%c", kv_side_name((enum kv_side)side));
    if (info->first_layer || info->last_layer + 1 != info->shape.n_layers)
        return kv_fail(e,
                       "%s has layers %zu to %zu: a prediction across layers "
                       "wants all %zu",
                       kv_dump_path(dump), info->first_layer, info->last_layer,
                       info->shape.n_layers);
    return 0;
}

static int run_training(struct training *t, struct kv_err *e)
{
    if (add_points(t, "points_low", KV_AQUA_LOW_N, KV_AQUA_LOW_D, &t->points[0],
                   e) ||
        add_points(t, "points", kv_spec_size(t->spec, KV_K, "n"),
                   kv_spec_size(t->spec, KV_K, "d"), &t->points[1], e))
        return -1;
    for (size_t i = 0; i < t->n_layers * KV_SIDES; i++) {
        if (train_place(t, i / KV_SIDES, (enum kv_side)(i % KV_SIDES), e))
            return -1;
        if (t->out->progress)
            kv_progress_step(t->out->progress, 1);
    }
    return 0;
}

static int aqua_calibrate(const struct kv_spec *s, struct kv_dump *dump,
                          uint64_t seed, struct kv_calib_set *out,
                          struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    struct training t = {.spec = s,
                         .dump = dump,
                         .out = out,
                         .n = info->n_windows * info->ctx,
                         .row = info->shape.n_kv_heads * info->shape.head_dim,
                         .n_layers = info->shape.n_layers,
                         .run = kv_spec_size(s, KV_K, "g")};
    int rc;

    (void)seed;
    if (aqua_check_dump(s, dump, e))
        return -1;
    if (out->progress)
        out->progress->total += KV_SIDES * t.n_layers;
    for (int side = 0; side < KV_SIDES; side++)
        t.seen[side] = kv_alloc(t.n, t.row * sizeof(float));
    t.x = kv_alloc(t.n, t.row * sizeof(float));
    rc = run_training(&t, e);
    free(t.x);
    free(t.seen[KV_K]);
    free(t.seen[KV_V]);
    return rc;
}

static bool aqua_together(const struct kv_spec *s)
{
    (void)s;
    return true;
}

const struct kv_training kv_aqua_training = {.check_dump = aqua_check_dump,
                                             .calibrate = aqua_calibrate,
                                             .together = aqua_together};
