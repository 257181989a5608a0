/* CacheGen's tables, variant=paper: how often each symbol occurs in each
 * channel of a layer, in windows cut to groups from their first token on. */
#include "kernels/range_coder.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/base/progress.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/schemes/cachegen.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { CHUNK = 64 * KV_CACHEGEN_GROUP }; /* tokens read at a time */

/* [row][n_symbols] each, and the squared errors of all values. */
struct counts {
    size_t n_delta;
    uint32_t *anchor, *delta;
    double error;
};

/* counts [n]: which tokens count; NULL: all. */
static void cachegen_count(const struct kv_cachegen *g, const bool *counts,
                           const uint16_t *symbol, size_t n, struct counts *to)
{
    for (size_t t = 0; t < n; t++, symbol += g->row)
        for (size_t i = 0; i < g->row && (!counts || counts[t]); i++)
            if (kv_cachegen_is_anchor(g, t))
                to->anchor[i * KV_CACHEGEN_ANCHOR_SYMBOLS + symbol[i]]++;
            else
                to->delta[i * to->n_delta + symbol[i]]++;
}

/* The sum of (a - b)^2. */
static double squares(const float *a, const float *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += pow((double)a[i] - (double)b[i], 2);
    return sum;
}

static enum kv_tensor cachegen_tensor_of(enum kv_side side)
{
    return side == KV_K ? KV_T_K : KV_T_V;
}

static int count_layer(const struct kv_cachegen *g, struct kv_dump *dump,
                       size_t layer, enum kv_side side, const bool *counts,
                       struct counts *to, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    const enum kv_tensor tensor = cachegen_tensor_of(side);
    float *x = kv_alloc(2 * CHUNK, g->row * sizeof(*x));
    float *back = x + CHUNK * g->row;
    uint16_t *max = kv_alloc(CHUNK, sizeof(*max));
    uint16_t *symbol = kv_alloc(CHUNK, g->row * sizeof(*symbol));
    int rc = -1;

    for (size_t w = 0; w < info->n_windows; w++)
        for (size_t at = 0; at < info->ctx; at += CHUNK) {
            const size_t left = info->ctx - at, n = left < CHUNK ? left : CHUNK;

            if (kv_interrupted(e) ||
                kv_dump_read(dump, layer, tensor, w * info->ctx + at, n, x, e))
                goto out;
            for (size_t i = 0; i < n * g->row; i++)
                x[i] = kv_f16_to_f32(kv_f16_clamp(x[i]));
            kv_cachegen_quantize(g, x, n, max, symbol);
            cachegen_count(g, counts ? counts + w * info->ctx + at : NULL,
                           symbol, n, to);
            kv_cachegen_restore(g, max, symbol, n, back);
            to->error += squares(x, back, n * g->row);
        }
    rc = 0;
out:
    free(symbol);
    free(max);
    free(x);
    return rc;
}

/* Adds a table of places.  Every count gets 1/2 more (the estimator of
 * Krichevsky and Trofimov), since unseen symbols may still occur. */
static struct kv_table *cachegen_add_table(struct kv_calib_set *out,
                                           const char *name, int side,
                                           int layer, size_t row,
                                           size_t n_symbols, uint32_t *counts)
{
    const size_t dims[] = {row, n_symbols};
    struct kv_table *t = kv_calib_add(out, name, side, layer, KV_ALL, 2, dims);
    uint32_t *cum = kv_alloc(n_symbols + 1, sizeof(*cum));

    for (size_t i = 0; i < row * n_symbols; i++)
        counts[i] = 2 * counts[i] + 1;
    for (size_t i = 0; i < row; i++) {
        kv_range_table(counts + i * n_symbols, n_symbols, cum);
        for (size_t s = 0; s < n_symbols; s++)
            t->data[i * n_symbols + s] = (float)(cum[s + 1] - cum[s]);
    }
    free(cum);
    return t;
}

static int train_layer(const struct kv_cachegen *g, struct kv_dump *dump,
                       size_t layer, enum kv_side side,
                       struct kv_calib_set *out, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    const size_t n_anchor = KV_CACHEGEN_ANCHOR_SYMBOLS;
    const size_t values = info->n_windows * info->ctx * g->row;
    struct counts c = {.n_delta = 2 * g->top + 1};
    int rc;

    c.anchor = kv_alloc(g->row * n_anchor, sizeof(*c.anchor));
    c.delta = kv_alloc(g->row * c.n_delta, sizeof(*c.delta));
    rc = count_layer(g, dump, layer, side, kv_calib_counts(out, info, layer),
                     &c, e);
    if (!rc) {
        cachegen_add_table(out, "anchor", (int)side, (int)layer, g->row,
                           n_anchor, c.anchor);
        cachegen_add_table(out, "delta", (int)side, (int)layer, g->row,
                           c.n_delta, c.delta)
            ->error = c.error / (double)values;
    }
    free(c.delta);
    free(c.anchor);
    return rc;
}

/* Whether the coder of this side has tables. */
static bool is_trained(const struct kv_spec *s, enum kv_side side)
{
    return kv_spec_is(s, side, "variant", "paper") &&
           kv_spec_is(s, side, "store", "wire");
}

static int cachegen_check_dump(const struct kv_spec *s, struct kv_dump *dump,
                               struct kv_err *e)
{
    for (int side = 0; side < KV_SIDES; side++)
        if (is_trained(s, (enum kv_side)side) &&
            kv_dump_want(dump, cachegen_tensor_of((enum kv_side)side), e))
            return kv_fail_in(e, "%c", kv_side_name((enum kv_side)side));
    return 0;
}

static int cachegen_calibrate(const struct kv_spec *s, struct kv_dump *dump,
                              uint64_t seed, struct kv_calib_set *out,
                              struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    const size_t n_layers = info->last_layer - info->first_layer + 1;

    (void)seed;
    for (int i = 0; i < kv_shape_sides(&info->shape); i++) {
        const enum kv_side side = (enum kv_side)i;

        if (!is_trained(s, side))
            continue;
        if (out->progress)
            out->progress->total += n_layers;
        for (size_t l = info->first_layer; l <= info->last_layer; l++) {
            const struct kv_cachegen g = kv_cachegen(s, side, l, &info->shape);

            if (train_layer(&g, dump, l, side, out, e))
                return kv_fail_in(e, "layer %zu, %c", l, kv_side_name(side));
            if (out->progress)
                kv_progress_step(out->progress, 1);
        }
    }
    if (!out->n_tables)
        snprintf(out->warning, sizeof(out->warning),
                 "cachegen has tables with variant=paper and store=wire alone: "
                 "nothing to calibrate");
    return 0;
}

const struct kv_training kv_cachegen_training = {
    .check_dump = cachegen_check_dump, .calibrate = cachegen_calibrate};
