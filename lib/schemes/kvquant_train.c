/* Training of KVQuant.  One pass over a layer's keys finds the thresholds of
 * its channels.  A second pass over keys, and one over values, sorts normalised
 * values into bins.  K-means of the bins makes the levels. */
#include "kernels/levels/kmeans1d.h"
#include "kernels/topk.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/base/progress.h"
#include "lib/base/rng.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/schemes/kvquant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- levels that are not trained ------------------------------------- */

void kv_kvquant_int_levels(unsigned bits, float *level)
{
    const size_t top = ((size_t)1 << bits) - 1;

    for (size_t i = 0; i <= top; i++)
        level[i] = (float)(2 * (double)i / (double)top - 1);
}

/* QLoRA's construction, n = 2^bits: the levels are quantiles of n / 2 + 1
 * probabilities from 1/2 to p for zero and above, and of n / 2 probabilities
 * for zero and below, with zero once, divided by the largest.  p is the value
 * for 4 bits at any number of bits, as in KVQuant's code. */
void kv_kvquant_nf_levels(unsigned bits, float *level)
{
    const size_t n = (size_t)1 << bits, zero = n / 2 - 1;
    const double p = 1 - (1.0 / 32 + 1.0 / 30) / 2;
    const double largest = kv_normal_quantile(p);

    for (size_t i = 0; i <= zero; i++)
        level[zero - i] =
            (float)(-kv_normal_quantile(0.5 +
                                        (p - 0.5) * (double)i / (double)zero) /
                    largest);
    for (size_t i = 1; i <= n / 2; i++)
        level[zero + i] =
            (float)(kv_normal_quantile(0.5 + (p - 0.5) * (double)i /
                                                 (double)(n / 2)) /
                    largest);
    level[zero] = 0;
}

/* ---- training ------------------------------------------------------- */

enum { CHUNK = 512 /* tokens read at a time */ };

/* The sums of the normalised z in a bin. */
struct bin {
    double w, wz;      /* weights, and weighted z */
    double n, z, zz;   /* moments without weights */
    double s, sz, szz; /* moments weighted by half^2, in the units of the
                        * values */
};

/* The state of training one side of one layer. */
struct job {
    const struct kv_spec *spec;
    struct kv_dump *dump;
    struct kv_calib_set *out;
    enum kv_side side;
    size_t layer, row, n_tokens;
    size_t ctx, skip;       /* bins skip some of each window's ctx tokens */
    const bool *counts;     /* [n_tokens]: which tokens count; NULL: all */
    bool weighted, squared; /* weighted: by F; squared: by F half^2 */
    size_t n_side;          /* outliers at each end of a row of values */
    const float *threshold; /* [row][2] of keys */
    struct kv_topk *top;    /* [row][2]: the highest and the lowest keys */
    struct bin *bin;        /* [KV_KVQUANT_BINS] */
    bool *outlier;          /* [row] */
};

/* Processes n tokens x [n][row], from token `first` on, with their Fisher
 * information. */
typedef void take_fn(struct job *j, size_t first, const float *x,
                     const float *fisher, size_t n);

static enum kv_tensor values_of(enum kv_side side)
{
    return side == KV_K ? KV_T_K_PRE : KV_T_V;
}

static enum kv_tensor kvquant_gradient_of(enum kv_side side)
{
    return side == KV_K ? KV_T_K_GRADIENT : KV_T_V_GRADIENT;
}

static int each_chunk(struct job *j, bool weighted, take_fn *take,
                      struct kv_err *e)
{
    const enum kv_tensor from = values_of(j->side),
                         by = kvquant_gradient_of(j->side);
    float *x = kv_alloc(2 * CHUNK, j->row * sizeof(*x));
    float *fisher = weighted ? x + CHUNK * j->row : NULL;
    int rc = -1;

    for (size_t first = 0; first < j->n_tokens; first += CHUNK) {
        const size_t left = j->n_tokens - first;
        const size_t n = left < CHUNK ? left : CHUNK;

        if (kv_interrupted(e) ||
            kv_dump_read(j->dump, j->layer, from, first, n, x, e) ||
            (fisher &&
             kv_dump_fisher(j->dump, j->layer, by, first, n, fisher, e)))
            goto out;
        for (size_t i = 0; i < n * j->row; i++)
            x[i] = kv_f16_to_f32(kv_f16_clamp(x[i]));
        take(j, first, x, fisher, n);
    }
    rc = 0;
out:
    free(x);
    return rc;
}

/* Whether a token is left out: massive tokens and the first `skip` of each
 * window. */
static bool is_skipped(const struct job *j, size_t skip, size_t token)
{
    return token % j->ctx < skip || (j->counts && !j->counts[token]);
}

static size_t n_left(const struct job *j, size_t skip)
{
    size_t n = 0;

    for (size_t i = 0; i < j->n_tokens; i++)
        n += !is_skipped(j, skip, i);
    return n;
}

/* ---- thresholds of keys ------------------------------------------------ */

static void take_extremes(struct job *j, size_t first, const float *x,
                          const float *fisher, size_t n)
{
    (void)fisher;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < j->row; i++)
        for (size_t t = 0; t < n; t++) {
            if (is_skipped(j, 0, first + t))
                continue;

            const uint64_t key = kv_topk_key(x[t * j->row + i], 0);

            kv_topk_push(&j->top[2 * i], key);
            kv_topk_push(&j->top[2 * i + 1], ~key);
        }
}

/* Adds the table of thresholds.  A threshold is the number next to the
 * kv_kvquant_each_side() furthest ones. */
static int find_range(struct job *j, struct kv_err *e)
{
    const struct kv_shape *shape = &kv_dump_info(j->dump)->shape;
    const size_t dims[] = {shape->n_kv_heads, shape->head_dim, 2};
    const size_t capacity =
        kv_kvquant_each_side(j->spec, KV_K, n_left(j, 0)) + 1;
    uint64_t *key = kv_alloc(2 * j->row, capacity * sizeof(*key));
    int rc;

    j->top = kv_alloc(2 * j->row, sizeof(*j->top));
    for (size_t i = 0; i < 2 * j->row; i++)
        j->top[i] =
            (struct kv_topk){.key = key + i * capacity, .capacity = capacity};
    rc = each_chunk(j, false, take_extremes, e);
    if (!rc) {
        float *range =
            kv_calib_add(j->out, "range", KV_K, (int)j->layer, KV_ALL, 3, dims)
                ->data;

        for (size_t i = 0; i < j->row; i++) {
            range[2 * i] = kv_topk_value(~j->top[2 * i + 1].key[0]);
            range[2 * i + 1] = kv_topk_value(j->top[2 * i].key[0]);
        }
        j->threshold = range;
    }
    free(j->top);
    free(key);
    return rc;
}

/* ---- bins -------------------------------------------------------------- */

/* Adds one inlier to its bin; a flat range cannot be normalised. */
static void take_value(struct job *j, struct kv_kvquant_range r, float x,
                       float fisher)
{
    if (r.half <= 0)
        return;

    const double z = (double)((x - r.offset) / r.half);
    const double s = (double)r.half * (double)r.half;
    const double w = j->squared ? (double)fisher * s : (double)fisher;
    const double at = (z + 1) / 2 * KV_KVQUANT_BINS;
    struct bin *b = &j->bin[at < 0                     ? 0
                            : at < KV_KVQUANT_BINS - 1 ? (size_t)at
                                                       : KV_KVQUANT_BINS - 1];

    b->w += w;
    b->wz += w * z;
    b->n++;
    b->z += z;
    b->zz += z * z;
    b->s += s;
    b->sz += s * z;
    b->szz += s * z * z;
}

static void take_keys(struct job *j, size_t first, const float *x,
                      const float *fisher, size_t n)
{
    for (size_t at = 0; at < n * j->row; at++) {
        const float *threshold = j->threshold + at % j->row * 2;

        if (!is_skipped(j, j->skip, first + at / j->row) &&
            x[at] >= threshold[0] && x[at] <= threshold[1])
            take_value(j, kv_kvquant_between(threshold[0], threshold[1]), x[at],
                       fisher ? fisher[at] : 1);
    }
}

static void take_values(struct job *j, size_t first, const float *x,
                        const float *fisher, size_t n)
{
    for (size_t t = 0; t < n; t++) {
        const float *at = x + t * j->row;
        uint8_t head[4];

        if (is_skipped(j, j->skip, first + t))
            continue;

        const struct kv_kvquant_range r =
            kv_kvquant_row_range(at, j->row, j->n_side, j->outlier, head);

        for (size_t i = 0; i < j->row; i++)
            if (!j->outlier[i])
                take_value(j, r, at[i], fisher ? fisher[t * j->row + i] : 1);
    }
}

/* ---- levels ------------------------------------------------------------ */

static int nuq_levels(const struct job *j, unsigned bits, float *level,
                      struct kv_err *e)
{
    const size_t k = (size_t)1 << bits;
    double *x = kv_alloc(KV_KVQUANT_BINS, sizeof(*x));
    double *weight = kv_alloc(KV_KVQUANT_BINS, sizeof(*weight));
    double *centers = kv_alloc(k, sizeof(*centers));
    size_t n = 0;
    int rc;

    for (size_t i = 0; i < KV_KVQUANT_BINS; i++) {
        const struct bin *b = &j->bin[i];

        if (b->w <= 0)
            continue;
        x[n] = b->wz / b->w;
        if (n && x[n] < x[n - 1]) /* rounding at the edge of two bins */
            x[n] = x[n - 1];
        weight[n++] = b->w;
    }
    rc = kv_kmeans1d(x, weight, n, k, centers, NULL, e);
    for (size_t c = 0; c < k && !rc; c++)
        level[c] = (float)centers[c];
    free(centers);
    free(weight);
    free(x);
    return rc;
}

/* The code of the mean z in a bin; if a midpoint cuts the bin, some z have
 * another code. */
static uint16_t bin_code(const struct bin *b, const float *mid, unsigned bits)
{
    return kv_kvquant_code(mid, bits, (float)(b->z / b->n));
}

/* Q-Norm: the values that levels decode to. */
static void normalise(const struct job *j, const float *mid, unsigned bits,
                      const float *level, float *to)
{
    double n = 0, z = 0, zz = 0, c = 0, cc = 0;

    for (size_t i = 0; i < KV_KVQUANT_BINS; i++) {
        const struct bin *b = &j->bin[i];

        if (b->n <= 0)
            continue;

        const double at = (double)level[bin_code(b, mid, bits)];

        n += b->n;
        z += b->z;
        zz += b->zz;
        c += b->n * at;
        cc += b->n * at * at;
    }
    if (n <= 0)
        return; /* nothing was normalised */

    const double is = zz / n - z * z / n / n, was = cc / n - c * c / n / n;
    const double by = was > 0 && is > 0 ? sqrt(is / was) : 1;

    for (size_t i = 0; i < (size_t)1 << bits; i++)
        to[i] = (float)(((double)level[i] - c / n) * by + z / n);
}

/* The mean squared error per value; outliers have no error. */
static double error_of(const struct job *j, const float *mid, unsigned bits,
                       const float *to)
{
    double sum = 0;

    for (size_t i = 0; i < KV_KVQUANT_BINS; i++) {
        const struct bin *b = &j->bin[i];

        if (b->n <= 0)
            continue;

        const double at = (double)to[bin_code(b, mid, bits)];

        sum += b->szz - 2 * at * b->sz + at * at * b->s;
    }
    return sum / (double)(n_left(j, j->skip) * j->row);
}

static int add_levels(struct job *j, struct kv_err *e)
{
    const unsigned bits = (unsigned)kv_spec_size(j->spec, j->side, "b");
    const size_t n = (size_t)1 << bits, dims[] = {2, n};
    float mid[1 << KV_KVQUANT_MAX_BITS];
    struct kv_table *t = kv_calib_add(j->out, "levels", (int)j->side,
                                      (int)j->layer, KV_ALL, 2, dims);
    float *level = t->data, *to = level + n;

    if (kv_spec_is(j->spec, j->side, "type", "int"))
        kv_kvquant_int_levels(bits, level);
    else if (kv_spec_is(j->spec, j->side, "type", "nf"))
        kv_kvquant_nf_levels(bits, level);
    else if (nuq_levels(j, bits, level, e))
        return -1;
    memcpy(to, level, n * sizeof(*to));
    kv_kvquant_midpoints(level, bits, mid);
    if (kv_spec_is(j->spec, j->side, "qnorm", "yes"))
        normalise(j, mid, bits, level, to);
    t->error = error_of(j, mid, bits, to);
    return 0;
}

static int kvquant_train(struct job *j, struct kv_err *e)
{
    int rc = -1;

    j->bin = kv_alloc(KV_KVQUANT_BINS, sizeof(*j->bin));
    j->outlier = kv_alloc(j->row, sizeof(*j->outlier));
    if (j->side == KV_K && find_range(j, e))
        goto out;
    if (each_chunk(j, j->weighted, j->side == KV_K ? take_keys : take_values,
                   e) ||
        add_levels(j, e))
        goto out;
    rc = 0;
out:
    free(j->outlier);
    free(j->bin);
    return rc;
}

static int kvquant_check_dump(const struct kv_spec *s, struct kv_dump *dump,
                              struct kv_err *e)
{
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;

        if (kv_dump_want(dump, values_of(side), e) ||
            (!kv_spec_is(s, side, "w", "none") &&
             kv_dump_want(dump, kvquant_gradient_of(side), e)))
            return kv_fail_in(e, "%c", kv_side_name(side));
    }
    return 0;
}

static int kvquant_calibrate(const struct kv_spec *s, struct kv_dump *dump,
                             uint64_t seed, struct kv_calib_set *out,
                             struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    const size_t n_layers = info->last_layer - info->first_layer + 1;
    const size_t n_sides = (size_t)kv_shape_sides(&info->shape);

    (void)seed;
    for (int i = 0; i < KV_SIDES; i++)
        if (kv_spec_size(s, (enum kv_side)i, "first") >= info->ctx)
            return kv_fail(e,
                           "first=%zu leaves nothing of a window of %zu tokens "
                           "to train on",
                           kv_spec_size(s, (enum kv_side)i, "first"),
                           info->ctx);
    if (out->progress)
        out->progress->total += n_layers * n_sides;
    for (size_t i = 0; i < n_layers * n_sides; i++) {
        const enum kv_side side = (enum kv_side)(i % n_sides);
        const size_t row = info->shape.n_kv_heads * info->shape.head_dim;
        struct job j = {.spec = s,
                        .dump = dump,
                        .out = out,
                        .side = side,
                        .layer = info->first_layer + i / n_sides,
                        .row = row,
                        .n_tokens = info->n_windows * info->ctx,
                        .ctx = info->ctx,
                        .counts = kv_calib_counts(
                            out, info, info->first_layer + i / n_sides),
                        .skip = kv_spec_size(s, side, "first"),
                        .weighted = !kv_spec_is(s, side, "w", "none"),
                        .squared = kv_spec_is(s, side, "w", "fisher-s2"),
                        .n_side = kv_kvquant_each_side(s, side, row)};

        if (!n_left(&j, j.skip))
            kv_fail(e, "first=%zu and massive tokens leave nothing to train on",
                    j.skip);
        if (!n_left(&j, j.skip) || kvquant_train(&j, e))
            return kv_fail_in(e, "layer %zu, %c", j.layer, kv_side_name(side));
        if (out->progress)
            kv_progress_step(out->progress, 1);
    }
    return 0;
}

const struct kv_training kv_kvquant_training = {
    .check_dump = kvquant_check_dump, .calibrate = kvquant_calibrate};
