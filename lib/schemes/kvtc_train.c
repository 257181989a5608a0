/* Training of KVTC.  For each side and layer (or all layers together), a pass
 * over the dump finds mean and covariance; then a sample of the tokens is
 * quantized with every type and size of group. */
#include "kernels/eigen.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/moments.h"
#include "lib/schemes/kvtc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK = 512,  /* tokens read at a time */
    SAMPLED = 512 /* tokens that are quantized with every type and size */
};

/* The training of one side of one layer, or of all layers together. */
struct job {
    const struct kv_spec *spec;
    struct kv_dump *dump;
    const struct kv_dump_info *info;
    struct kv_calib_set *out;
    size_t layer, n_layers; /* n_layers: from `layer` on */
    size_t row;             /* values of a token in all these layers */
    enum kv_side side;
};

static enum kv_tensor kvtc_tensor_of(enum kv_side side)
{
    return side == KV_V ? KV_T_V : KV_T_K_PRE;
}

/* The number of tokens of a window after its sinks. */
static size_t used(const struct kv_dump_info *info)
{
    return info->ctx > KV_KVTC_SINKS ? info->ctx - KV_KVTC_SINKS : 0;
}

/* Reads n tokens, from the i-th token after the window's sinks on. */
static int kvtc_read_tokens(const struct job *j, size_t window, size_t i,
                            size_t n, float *x, struct kv_err *e)
{
    const size_t row = j->row / j->n_layers;
    const size_t first = window * j->info->ctx + KV_KVTC_SINKS + i;
    float *one = kv_alloc(n, row * sizeof(*one));
    int rc = 0;

    for (size_t l = 0; l < j->n_layers && !rc; l++) {
        rc = kv_interrupted(e) ||
             kv_dump_read(j->dump, j->layer + l, kvtc_tensor_of(j->side), first,
                          n, one, e);
        for (size_t t = 0; t < n && !rc; t++)
            memcpy(x + t * j->row + l * row, one + t * row, row * sizeof(*x));
    }
    free(one);
    return rc ? -1 : 0;
}

/* Whether a token counts in every layer. */
static bool counted(const struct job *j, size_t token)
{
    for (size_t l = 0; l < j->n_layers; l++) {
        const bool *counts = kv_calib_counts(j->out, j->info, j->layer + l);

        if (counts && !counts[token])
            return false;
    }
    return true;
}

/* Moves the tokens that are not massive to the front of x, which has n tokens
 * from the i-th token after the window's sinks on; returns their number. */
static size_t keep_counted(const struct job *j, size_t window, size_t i,
                           size_t n, float *x)
{
    const size_t first = window * j->info->ctx + KV_KVTC_SINKS + i;
    size_t kept = 0;

    for (size_t t = 0; t < n; t++)
        if (counted(j, first + t))
            memmove(x + kept++ * j->row, x + t * j->row, j->row * sizeof(*x));
    return kept;
}

/* Adds up x to first, and x x^T to second, over the tokens that count; both
 * come cleared.  The first token is subtracted from x, to avoid cancellation,
 * and returned in origin [row]. */
static int add_up(const struct job *j, float *origin, double *first,
                  double *second, size_t *tokens, struct kv_err *e)
{
    float *x = kv_alloc(CHUNK, j->row * sizeof(*x));
    int rc = kvtc_read_tokens(j, 0, 0, 1, origin, e);

    for (size_t w = 0; w < j->info->n_windows; w++)
        for (size_t i = 0; i < used(j->info) && !rc; i += CHUNK) {
            const size_t left = used(j->info) - i;
            size_t n = left < CHUNK ? left : CHUNK;

            rc = kvtc_read_tokens(j, w, i, n, x, e);
            n = rc ? 0 : keep_counted(j, w, i, n, x);
            *tokens += n;
            for (size_t k = 0; k < n * j->row && !rc; k++) {
                x[k] -= origin[k % j->row];
                first[k % j->row] += (double)x[k];
            }
            if (!rc)
                kv_moments_add(x, n, 1, j->row, second);
        }
    free(x);
    return rc;
}

/* Computes mean [row] and cov [row][row], which come cleared. */
static int covariance(const struct job *j, double *mean, double *cov,
                      struct kv_err *e)
{
    float *origin = kv_alloc(j->row, sizeof(*origin));
    size_t n = 0;
    const int rc = add_up(j, origin, mean, cov, &n, e);
    const double tokens = (double)(n ? n : 1);

    for (size_t i = 0; i < j->row && !rc; i++)
        mean[i] /= tokens;
    for (size_t i = 0; i < j->row * j->row && !rc; i++)
        cov[i] = cov[i] / tokens - mean[i / j->row] * mean[i % j->row];
    for (size_t i = 0; i < j->row && !rc; i++)
        mean[i] += (double)origin[i];
    free(origin);
    return rc;
}

static float *kvtc_add_table(const struct job *j, const char *name,
                             enum kv_table_type type, size_t n_dims,
                             const size_t *dims)
{
    const int layer = kv_kvtc_spans(j->spec) ? KV_ALL : (int)j->layer;
    struct kv_table *t =
        kv_calib_add(j->out, name, (int)j->side, layer, KV_ALL, n_dims, dims);

    t->type = type;
    return t->data;
}

enum { STAGES = 3 }; /* a side's covariance, eigenvectors, errors */

/* Announces a stage, since over all layers together it takes minutes. */
static void begin(const struct job *j, const char *what)
{
    if (kv_kvtc_spans(j->spec))
        kv_note("span=all: %s of %c, %zu values a token", what,
                kv_side_name(j->side), j->row);
}

static void end(const struct job *j)
{
    if (j->out->progress)
        kv_progress_step(j->out->progress, 1);
}

/* Adds mean and basis. */
static int add_transform(const struct job *j, float **mean, float **basis,
                         struct kv_err *e)
{
    const size_t row = j->row, dims[] = {row, row};
    double *m = kv_alloc(row, sizeof(*m));
    double *cov = kv_alloc(row * row, sizeof(*cov));
    double *value = kv_alloc(row, sizeof(*value));
    int rc;

    begin(j, "covariance");
    rc = covariance(j, m, cov, e);
    end(j);
    begin(j, "eigenvectors");
    if (!rc && (rc = kv_eigen(cov, row, value)))
        kv_fail(e, "no eigenvectors: the covariance is not finite");
    end(j);
    *mean = kvtc_add_table(j, "mean", KV_TABLE_F32, 1, dims);
    *basis = kvtc_add_table(j, "basis", KV_TABLE_F16, 2, dims);
    for (size_t i = 0; i < row; i++)
        (*mean)[i] = (float)m[i];
    for (size_t i = 0; i < row * row; i++) /* eigenvalues ascend */
        (*basis)[i] = kv_f16_to_f32(
            kv_f32_to_f16((float)cov[i / row * row + row - 1 - i % row]));
    free(value);
    free(cov);
    free(m);
    return rc;
}

/* Computes the components y [n][row] of tokens evenly spaced in the text. */
static int kvtc_sample(const struct job *j, const float *mean,
                       const float *basis, size_t n, float *y, struct kv_err *e)
{
    const size_t row = j->row, tokens = j->info->n_windows * used(j->info);
    float *x = kv_alloc(row, sizeof(*x));
    int rc = 0;

    for (size_t i = 0; i < n && !rc; i++) {
        const size_t at = i * tokens / n;

        rc = kvtc_read_tokens(j, at / used(j->info), at % used(j->info), 1, x,
                              e);
        for (size_t k = 0; k < row; k++)
            x[k] -= mean[k];
        kv_vecops_times(x, row, 1, basis, row, row, row, y + i * row, row);
    }
    free(x);
    return rc;
}

/* The squared error of a group of n values, a mean over the tokens; type NULL:
 * the mean sum of squares. */
static double group_error(const float *y, size_t n_tokens, size_t row, size_t n,
                          const struct kv_kvtc_type *type)
{
    uint16_t code[KV_KVTC_MAX_SIZE];
    float back[KV_KVTC_MAX_SIZE] = {0};
    uint8_t head[KV_KVTC_HEAD_BITS / 8];
    double sum = 0;

    for (size_t t = 0; t < n_tokens; t++, y += row) {
        if (type) {
            type->quantizer->encode(y, n, type->bits, head, code);
            type->quantizer->decode(code, n, type->bits, head, back);
        }
        for (size_t i = 0; i < n; i++)
            sum += pow((double)y[i] - (double)back[i], 2);
    }
    return sum / (double)n_tokens;
}

/* Adds the tables none and coded. */
static void add_errors(const struct job *j, const float *y, size_t n_tokens)
{
    const size_t row = j->row, dims[] = {KV_KVTC_TYPES, KV_KVTC_SIZES, row};
    float *none = kvtc_add_table(j, "none", KV_TABLE_F32, 1, &dims[2]);
    float *coded = kvtc_add_table(j, "coded", KV_TABLE_F32, 3, dims);
    const size_t step = kv_kvtc_step(j->spec, row);

#pragma omp parallel for schedule(dynamic, 8)
    for (size_t i = 0; i < row; i++) {
        none[i] = (float)group_error(y + i, n_tokens, row, 1, NULL);
        for (size_t s = 0; s < KV_KVTC_SIZES && i % step == 0; s++)
            for (size_t k = 0; kv_kvtc_sizes[s] % step == 0 &&
                               i + kv_kvtc_sizes[s] <= row && k < KV_KVTC_TYPES;
                 k++)
                coded[(k * KV_KVTC_SIZES + s) * row + i] = (float)group_error(
                    y + i, n_tokens, row, kv_kvtc_sizes[s], &kv_kvtc_types[k]);
    }
}

static int train_side(const struct job *j, struct kv_err *e)
{
    const size_t tokens = j->info->n_windows * used(j->info);
    const size_t n = tokens < SAMPLED ? tokens : SAMPLED;
    float *y = kv_alloc(n, j->row * sizeof(*y));
    float *mean, *basis;
    const int rc =
        add_transform(j, &mean, &basis, e) ||
                kvtc_sample(j, mean, basis, n, y, e)
            ? kv_fail_in(e, "%s %zu, %c",
                         kv_kvtc_spans(j->spec) ? "all layers from" : "layer",
                         j->layer, kv_side_name(j->side))
            : 0;

    begin(j, "errors of every code");
    if (!rc)
        add_errors(j, y, n);
    end(j);
    free(y);
    return rc;
}

static int kvtc_check_dump(const struct kv_spec *s, struct kv_dump *dump,
                           struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);

    if (kv_kvtc_spans(s) &&
        (info->first_layer || info->last_layer + 1 != info->shape.n_layers))
        return kv_fail(e, "%s has layers %zu to %zu: span=all wants all %zu",
                       kv_dump_path(dump), info->first_layer, info->last_layer,
                       info->shape.n_layers);
    if (!used(kv_dump_info(dump)))
        return kv_fail(e, "windows of %zu tokens: the first %d are left out",
                       kv_dump_info(dump)->ctx, KV_KVTC_SINKS);
    for (int side = 0; side < KV_SIDES; side++)
        if (kv_dump_want(dump, kvtc_tensor_of((enum kv_side)side), e))
            return kv_fail_in(e, "%c", kv_side_name((enum kv_side)side));
    return 0;
}

static int kvtc_calibrate(const struct kv_spec *s, struct kv_dump *dump,
                          uint64_t seed, struct kv_calib_set *out,
                          struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    const size_t n = info->last_layer + 1 - info->first_layer;
    const size_t n_sides = (size_t)kv_shape_sides(&info->shape);
    struct job j = {.spec = s,
                    .dump = dump,
                    .info = info,
                    .out = out,
                    .n_layers = kv_kvtc_spans(s) ? n : 1};

    (void)seed;
    if (kvtc_check_dump(s, dump, e))
        return -1;
    j.row = j.n_layers * info->shape.n_kv_heads * info->shape.head_dim;
    if (out->progress)
        out->progress->total += STAGES * n_sides * n / j.n_layers;
    for (j.layer = info->first_layer; j.layer <= info->last_layer;
         j.layer += j.n_layers)
        for (size_t side = 0; side < n_sides; side++) {
            j.side = (enum kv_side)side;
            if (train_side(&j, e))
                return -1;
        }
    return 0;
}

const struct kv_training kv_kvtc_training = {.check_dump = kvtc_check_dump,
                                             .calibrate = kvtc_calibrate,
                                             .together = kv_kvtc_spans};
