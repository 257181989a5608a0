#include "eval/measure.h"
#include "eval/coefficients.h"
#include "eval/measure_span.h"
#include "eval/measure_tensors.h"
#include "eval/policy_check.h"
#include "eval/policy_error.h"
#include "eval/rd_bound.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/codec_place.h"
#include "lib/dump.h"
#include "lib/mixed.h"
#include "lib/rope_table.h"
#include "lib/scheme.h"
#include "lib/seq/bits.h"
#include "lib/seq/cache_bytes.h"
#include "lib/seq/codes_file.h"
#include "lib/seq/seq.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* One spec's results on one window of a layer. */
struct item {
    struct kv_measured sums;
    double *power[KV_SIDES];  /* [n_kv_heads * head_dim]: sums of squares of the
                               * coefficients; NULL without a transform */
    uint8_t *codes[KV_SIDES]; /* NULL unless they are written or read */
    struct kv_side_bytes side[KV_SIDES]; /* bytes of the codes */
    uint64_t held_bytes[KV_SIDES];       /* the bytes of the codes that kv_bits
                                          * counts */
    float *decoded[KV_SIDES];            /* for the plan's sink, or NULL */
    struct kv_err error;
    int failed;
};

/* The state of one layer: the codecs of every spec, and the tensors of some
 * windows. */
struct layer {
    const struct kv_measure_plan *plan;
    const struct kv_dump_info *info;
    size_t layer;
    struct kv_shape shape;         /* the layer's */
    struct kv_codecs **codecs;     /* [n_specs] */
    struct kv_codecs **below;      /* [n_specs]: of the layer below */
    struct kv_measure_span **span; /* [n_specs]: for specs that code all layers
                                    * together */
    struct kv_seq **seq;       /* [n_specs][all windows], without a policy */
    double **power;            /* [n_specs][KV_SIDES]: the items' sums so far */
    size_t n_windows, first;   /* in memory: windows first .. + n_windows */
    float *tensor[KV_TENSORS]; /* [n_windows][ctx][heads][head_dim] or NULL */
    size_t *at, n_at;          /* query positions */
    struct item *item;         /* [n_specs][n_windows] */
};

static size_t row_values(const struct layer *l, int tensor)
{
    const struct kv_shape *s = &l->shape;

    return s->head_dim * (tensor == KV_T_Q ? s->n_heads : s->n_kv_heads);
}

void kv_measured_merge(struct kv_measured *into, const struct kv_measured *m)
{
    for (int side = 0; side < KV_SIDES; side++) {
        kv_reconstruction_merge(&into->reconstruction[side],
                                &m->reconstruction[side]);
        kv_bits_add(&into->bits[side], &m->bits[side]);
        into->rd_error[side] += m->rd_error[side];
        into->rd_bound[side] += m->rd_bound[side];
    }
    kv_attn_error_merge(&into->attn, &m->attn);
}

/* Returns the window's tokens in the layer. */
static struct kv_tokens tokens_of(const struct layer *l, size_t window)
{
    const struct kv_tokens all = {.q = l->tensor[KV_T_Q],
                                  .k = l->tensor[KV_T_K],
                                  .k_pre = l->tensor[KV_T_K_PRE],
                                  .v = l->tensor[KV_T_V]};

    return kv_tokens_part(&all, &l->shape, window * l->info->ctx, l->info->ctx);
}

/* Returns the outputs of the scheme's own attention at the positions,
 * [n_at][n_heads][head_dim]. */
static float *own_attention(const struct layer *l, const struct kv_cache *cache,
                            const float *q)
{
    const size_t row = row_values(l, KV_T_Q);
    float *out = kv_alloc(l->n_at, row * sizeof(*out));

    for (size_t a = 0; a < l->n_at; a++) {
        const struct kv_attend_view view =
            kv_shape_view(&l->shape, l->info->ctx, l->at[a], 1);

        kv_cache_attend(cache, view, q + l->at[a] * row, out + a * row);
    }
    return out;
}

/* Adds the attention error.  stored: [KV_SIDES], the cache's output; keys that
 * are stored before RoPE are rotated in place. */
static void measure_attention(const struct layer *l, size_t window,
                              const struct kv_codec *key,
                              const struct kv_cache *cache, float **stored,
                              struct item *item)
{
    const struct kv_shape *shape = &l->shape;
    const struct kv_tokens t = tokens_of(l, window);
    struct kv_attn_window w = {.view = kv_shape_view(shape, t.n, 0, 0),
                               .q = t.q,
                               .k = t.k,
                               .v = t.v,
                               .k_stored = stored[KV_K],
                               .v_stored = stored[KV_V],
                               .at = l->at,
                               .n_at = l->n_at,
                               .value_dim = shape->latent};
    float *own = NULL;

    kv_codec_rotate(key, stored[KV_K], w.view.n);
    if (kv_codec_attends(key))
        own = own_attention(l, cache, w.q);
    w.own = own;
    kv_attn_error_add(&item->sums.attn, &w);
    free(own);
}

static struct kv_codec *const *codecs_of(const struct layer *l, size_t spec)
{
    if (l->span[spec])
        return kv_measure_span_codecs(l->span[spec]);
    return kv_codecs_at(l->codecs[spec], l->layer);
}

/* Measures a window under a policy: its bits and its attention only. */
static int measure_policy(const struct layer *l, size_t spec, size_t window,
                          struct item *item)
{
    const struct kv_policy_window w = {.spec = &l->plan->spec[spec],
                                       .codec = codecs_of(l, spec),
                                       .seed = l->plan->seed,
                                       .tokens = tokens_of(l, window),
                                       .at = l->at,
                                       .n_at = l->n_at};

    if (kv_policy_error_add(&item->sums.attn, item->sums.bits, &w,
                            &item->error))
        return kv_fail_in(&item->error, "%s: window %zu",
                          kv_dump_path(l->plan->dump), l->first + window);
    return 0;
}

/* Adds the reconstruction error and the bits of one side of the window. */
static void measure_side(const struct layer *l, const struct kv_seq *seq,
                         enum kv_side side, const float *x, const float *stored,
                         struct item *item)
{
    const struct kv_cache *cache = kv_seq_cache(seq, l->layer);
    const struct kv_codec *codec = kv_cache_reader(cache, side).codec;

    kv_reconstruction_add(&item->sums.reconstruction[side], x, stored,
                          l->info->ctx * l->shape.n_kv_heads,
                          l->shape.head_dim);
    kv_seq_bits(seq, l->layer, side, &item->sums.bits[side]);
    if (l->plan->codes) {
        const struct kv_reader r = kv_cache_reader(cache, side);
        const size_t n = kv_codes_of(&r, &item->codes[side]);

        item->side[side] =
            (struct kv_side_bytes){.bytes = item->codes[side],
                                   .n = n,
                                   .n_tokens = l->info->ctx,
                                   .clipped = kv_cache_clipped(cache, side)};
        item->held_bytes[side] = kv_cache_bytes(cache, side, NULL, NULL);
    }
    if (kv_codec_transforms(codec)) {
        item->power[side] = kv_alloc(kv_codec_row(codec), sizeof(double));
        item->sums.rd_error[side] =
            kv_coefficients_error(cache, side, x, stored, item->power[side]);
    }
}

/* Copies the decoded rows for plan->decoded, before RoPE turns the keys. */
static void keep_decoded(const struct layer *l, float *const *stored,
                         struct item *item)
{
    const size_t values = l->info->ctx * row_values(l, KV_T_K);

    for (int side = 0; side < kv_shape_sides(&l->shape); side++) {
        item->decoded[side] = kv_alloc(values, sizeof(float));
        memcpy(item->decoded[side], stored[side], values * sizeof(float));
    }
}

/* Puts the window's tokens, or their codes from a file, into the layer's
 * cache. */
static int enter(const struct layer *l, struct kv_seq *seq,
                 const struct kv_tokens *t, struct item *item)
{
    if (!l->plan->from)
        return kv_seq_append(seq, l->layer, t, &item->error);
    if (kv_seq_load_sides(seq, l->layer, item->side, &item->error))
        return kv_fail_in(&item->error, "%s: layer %zu",
                          kv_codes_path(l->plan->from), l->layer);
    return 0;
}

/* Writes the window's tokens to the layer of its sequence and reads them
 * back. */
static int measure_tokens(const struct layer *l, struct kv_seq *seq,
                          size_t window, const struct kv_codec *key,
                          float **stored, struct item *item)
{
    const struct kv_tokens t = tokens_of(l, window);
    const float *in[] = {kv_tokens_stored(&t, key), t.v};

    if (enter(l, seq, &t, item))
        return -1;
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;

        if (kv_cache_read(kv_seq_cache(seq, l->layer), side, stored[i],
                          &item->error))
            return -1;
        if (l->plan->from && kv_measure_decoded(l->plan, l->layer, side,
                                                stored[i], &item->error))
            return -1;
        if (i < kv_shape_sides(&l->shape))
            measure_side(l, seq, side, in[i], stored[i], item);
        else
            kv_seq_bits(seq, l->layer, side, &item->sums.bits[side]);
    }
    if (l->plan->decoded && key == codecs_of(l, l->plan->n_specs - 1)[KV_K])
        keep_decoded(l, stored, item);
    if (l->n_at)
        measure_attention(l, window, key, kv_seq_cache(seq, l->layer), stored,
                          item);
    return 0;
}

static int measure_stored(const struct layer *l, size_t spec, size_t window,
                          struct item *item)
{
    struct kv_codec *const *codec = codecs_of(l, spec);
    const size_t values = l->info->ctx * row_values(l, KV_T_K);
    const size_t at = spec * l->info->n_windows + l->first + window;
    float *stored[] = {kv_alloc(values, sizeof(float)),
                       kv_alloc(values, sizeof(float))};
    int rc = kv_seq_open(l->seq[at], codec, &item->error);

    if (!rc && measure_tokens(l, l->seq[at], window, codec[KV_K], stored, item))
        rc = kv_fail_in(&item->error, "%s: window %zu",
                        kv_dump_path(l->plan->dump), l->first + window);
    if (!rc)
        kv_seq_close(l->seq[at], l->layer);
    free(stored[KV_K]);
    free(stored[KV_V]);
    return rc;
}

/* Measures a window whose layers are coded together. */
static int measure_span(const struct layer *l, size_t spec, size_t window,
                        struct item *item)
{
    const struct kv_tokens t = tokens_of(l, window);
    const size_t values = l->info->ctx * row_values(l, KV_T_K);
    struct kv_codec key = *codecs_of(l, spec)[KV_K]; /* this layer's codec */
    const float *in[] = {kv_tokens_stored(&t, &key), t.v};
    float *stored[] = {kv_alloc(values, sizeof(float)),
                       kv_alloc(values, sizeof(float))};
    int rc = 0;

    key.shape = l->shape;
    for (int i = 0; i < KV_SIDES && !rc; i++)
        rc = kv_measure_span_side(l->span[spec], l->first + window, l->layer,
                                  (enum kv_side)i, in[i], stored[i],
                                  &item->sums, &item->error);
    if (!rc && l->n_at)
        measure_attention(l, window, &key, NULL, stored, item);
    free(stored[KV_K]);
    free(stored[KV_V]);
    return rc;
}

/* Parallel over items: everything it touches is the item's own. */
static int measure_item(const struct layer *l, size_t spec, size_t window,
                        struct item *item)
{
    const bool policy = l->plan->spec[spec].policy.policy;

    if (kv_interrupted(&item->error) ||
        (policy          ? measure_policy(l, spec, window, item)
         : l->span[spec] ? measure_span(l, spec, window, item)
                         : measure_stored(l, spec, window, item)))
        return -1;
    if (!kv_attn_error_finite(&item->sums.attn))
        return kv_fail(
            &item->error,
            "%s: layer %zu, window %zu: attention over %s is not finite",
            kv_dump_path(l->plan->dump), l->layer, l->first + window,
            l->plan->spec[spec].text);
    return 0;
}

static int write_codes(const struct layer *l, size_t spec, size_t window,
                       const struct item *item, struct kv_err *e)
{
    struct kv_codes_window w = {.spec = spec,
                                .layer = l->layer,
                                .window = l->first + window,
                                .text = l->plan->spec[spec].text,
                                .codec = codecs_of(l, spec)};

    memcpy(w.side, item->side, sizeof(w.side));
    memcpy(w.held_bytes, item->held_bytes, sizeof(w.held_bytes));
    return kv_codes_put(l->plan->codes, &w, e);
}

static int give_decoded(const struct layer *l, size_t spec, size_t window,
                        const struct item *item, struct kv_err *e)
{
    const struct kv_decoded_sink *to = l->plan->decoded;

    for (int side = 0; side < KV_SIDES; side++)
        if (item->decoded[side] &&
            to->put(to->arg, codecs_of(l, spec)[side], l->first + window,
                    item->decoded[side], e))
            return -1;
    return 0;
}

static void add_power(const struct layer *l, size_t spec,
                      const struct item *item)
{
    const size_t row = row_values(l, KV_T_K);

    for (size_t side = 0; side < KV_SIDES; side++) {
        double **sum = &l->power[spec * KV_SIDES + side];

        if (!item->power[side])
            continue;
        if (!*sum)
            *sum = kv_alloc(row, sizeof(**sum));
        for (size_t i = 0; i < row; i++)
            (*sum)[i] += item->power[side][i];
    }
}

/* Adds the windows up in order, so that the sums do not depend on threads;
 * reports the first failure in this order. */
static int collect(const struct layer *l, struct kv_measured *out,
                   struct kv_err *e)
{
    const size_t n_layers = l->info->last_layer - l->info->first_layer + 1;
    const size_t row = l->layer - l->info->first_layer;

    for (size_t i = 0; i < l->plan->n_specs * l->n_windows; i++) {
        const size_t spec = i / l->n_windows, window = i % l->n_windows;
        const struct item *item = &l->item[i];

        if (item->failed) {
            *e = item->error;
            return -1;
        }
        kv_measured_merge(&out[spec * n_layers + row], &item->sums);
        add_power(l, spec, item);
        if ((l->plan->codes && write_codes(l, spec, window, item, e)) ||
            give_decoded(l, spec, window, item, e))
            return -1;
    }
    return 0;
}

static int read_codes(const struct layer *l, struct kv_err *e)
{
    for (size_t i = 0; i < l->plan->n_specs * l->n_windows; i++)
        if (kv_codes_get(l->plan->from, l->plan->spec[i / l->n_windows].text,
                         l->layer, l->first + i % l->n_windows,
                         l->item[i].codes, l->item[i].side, e))
            return -1;
    return 0;
}

/* Measures every spec on the group of windows in memory. */
static int measure_group(struct layer *l, struct kv_measured *out,
                         struct kv_err *e)
{
    const size_t n_items = l->plan->n_specs * l->n_windows;
    int rc;

    l->item = kv_alloc(n_items, sizeof(*l->item));
    rc = l->plan->from ? read_codes(l, e) : 0;
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < (rc ? 0 : n_items); i++)
        l->item[i].failed =
            measure_item(l, i / l->n_windows, i % l->n_windows, &l->item[i]);
    if (!rc)
        rc = collect(l, out, e);
    for (size_t i = 0; i < n_items; i++)
        for (int side = 0; side < KV_SIDES; side++) {
            free(l->item[i].codes[side]);
            free(l->item[i].decoded[side]);
            free(l->item[i].power[side]);
        }
    free(l->item);
    return rc;
}

static int read_group(struct layer *l, struct kv_err *e)
{
    const size_t ctx = l->info->ctx;

    for (int t = 0; t < KV_TENSORS; t++)
        if (l->tensor[t] &&
            kv_dump_read(l->plan->dump, l->layer, (enum kv_tensor)t,
                         l->first * ctx, l->n_windows * ctx, l->tensor[t], e))
            return -1;
    return 0;
}

static int check_policy(const struct layer *l, size_t spec, struct kv_err *e)
{
    const struct kv_spec *s = &l->plan->spec[spec];
    const size_t n = l->info->ctx;
    struct kv_protocol p;

    if (!s->policy.policy)
        return 0;
    if (l->plan->codes)
        return kv_fail(e, "%s: --codes writes whole windows, without a policy",
                       s->text);
    if (l->plan->decoded)
        return kv_fail(
            e, "%s: --decoded writes whole windows, without a policy", s->text);
    p = kv_policy_protocol(s->policy.policy, n);
    return kv_policy_check(s, &p, codecs_of(l, spec), n, e);
}

static int open_layer(struct layer *l, struct kv_err *e)
{
    for (size_t i = 0; i < l->plan->n_specs; i++)
        if (!l->span[i] && (kv_measure_codecs(l->plan, &l->plan->spec[i],
                                              l->layer, &l->codecs[i], e) ||
                            check_policy(l, i, e)))
            return -1;
    return 0;
}

static void close_layer(struct layer *l)
{
    for (size_t i = 0; i < l->plan->n_specs; i++) {
        kv_codecs_free(l->below[i]);
        l->below[i] = l->codecs[i];
        l->codecs[i] = NULL;
    }
    for (size_t i = 0; i < l->plan->n_specs * KV_SIDES; i++) {
        free(l->power[i]);
        l->power[i] = NULL;
    }
}

/* Finds how many windows fit in the plan's memory, and allocates their tensors.
 * Each thread also needs a cache, both sides read back, and coefficients of
 * input and output. */
static void make_tensors(struct layer *l, size_t *max, const bool *want)
{
    const size_t side = row_values(l, KV_T_K) * sizeof(float);
    size_t row = 0;

    for (int t = 0; t < KV_TENSORS; t++)
        row += want[t] ? row_values(l, t) * sizeof(float) : 0;

    *max = kv_memory_fit_threads(l->plan->memory, row * l->info->ctx,
                                 l->plan->n_specs, 6 * side * l->info->ctx,
                                 (size_t)omp_get_max_threads(),
                                 l->info->n_windows, "a window");
    for (int t = 0; t < KV_TENSORS; t++)
        if (want[t])
            l->tensor[t] =
                kv_alloc(*max * l->info->ctx, row_values(l, t) * sizeof(float));
}

/* Computes the rate-distortion bounds from all windows' coefficients. */
static void bound_errors(const struct layer *l, struct kv_measured *out)
{
    const size_t n_layers = l->info->last_layer - l->info->first_layer + 1;
    const size_t n = row_values(l, KV_T_K);

    for (size_t i = 0; i < l->plan->n_specs * KV_SIDES; i++) {
        const struct kv_codec *c = codecs_of(l, i / KV_SIDES)[i % KV_SIDES];
        struct kv_measured *m =
            &out[i / KV_SIDES * n_layers + l->layer - l->info->first_layer];
        const double tokens = m->bits[c->side].quantized_values / (double)n;
        double *power = l->power[i];

        if (!power || tokens == 0)
            continue;
        for (size_t j = 0; j < n; j++)
            power[j] /= tokens;
        m->rd_bound[c->side] =
            tokens * kv_rd_bound(power, n,
                                 8 * (double)c->block_bytes / (double)c->block);
    }
}

static int want_tensors(const struct layer *l, bool want[KV_TENSORS],
                        struct kv_err *e)
{
    const struct kv_codec **key = kv_alloc(l->plan->n_specs, sizeof(*key));
    int rc;

    for (size_t i = 0; i < l->plan->n_specs; i++)
        key[i] = codecs_of(l, i)[KV_K];
    rc = kv_measure_tensors(l->plan, key, want, e);
    free(key);
    return rc;
}

static int measure_layer(struct layer *l, struct kv_progress *progress,
                         struct kv_measured *out, struct kv_err *e)
{
    bool want[KV_TENSORS];
    size_t max;
    int rc = -1;

    if (open_layer(l, e) || want_tensors(l, want, e))
        goto out;
    make_tensors(l, &max, want);
    for (l->first = 0; l->first < l->info->n_windows; l->first += max) {
        const size_t left = l->info->n_windows - l->first;

        l->n_windows = left < max ? left : max;
        if (read_group(l, e) || measure_group(l, out, e))
            goto out;
        kv_progress_step(progress, l->n_windows);
    }
    bound_errors(l, out);
    rc = 0;
out:
    for (int t = 0; t < KV_TENSORS; t++) {
        free(l->tensor[t]);
        l->tensor[t] = NULL;
    }
    close_layer(l);
    return rc;
}

int kv_measure(const struct kv_measure_plan *p, struct kv_measured *out,
               struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(p->dump);
    const size_t n_layers = info->last_layer - info->first_layer + 1;
    struct layer l = {
        .plan = p,
        .info = info,
        .codecs = kv_alloc(p->n_specs, sizeof(struct kv_codecs *)),
        .below = kv_alloc(p->n_specs, sizeof(struct kv_codecs *)),
        .span = kv_alloc(p->n_specs, sizeof(*l.span)),
        .power = kv_alloc(p->n_specs * KV_SIDES, sizeof(*l.power)),
        .seq = kv_alloc(p->n_specs * info->n_windows, sizeof(*l.seq)),
        .at = kv_alloc(info->ctx, sizeof(*l.at))};
    struct kv_progress progress;
    int rc = 0;

    for (size_t i = 0; i < p->n_specs && !rc; i++)
        if (kv_spec_spans(&p->spec[i]))
            rc = kv_measure_span_new(&l.span[i], p, &p->spec[i], e);
    for (size_t i = 0; i < p->n_specs * info->n_windows; i++)
        l.seq[i] = kv_seq_new(&(struct kv_seq_plan){
            .n_layers = info->shape.n_layers, .seed = p->seed});
    memset(out, 0, p->n_specs * n_layers * sizeof(*out));
    l.n_at = kv_attn_positions(info->ctx, p->n_queries, l.at);
    kv_progress_init(&progress, "measuring", n_layers * info->n_windows);
    for (size_t i = 0; i < n_layers && !rc; i++) {
        l.layer = info->first_layer + i;
        l.shape = kv_shape_layer(&info->shape, l.layer);
        rc = measure_layer(&l, &progress, out, e);
    }
    kv_progress_clear(&progress);
    for (size_t i = 0; i < p->n_specs * info->n_windows; i++)
        kv_seq_free(l.seq[i]);
    for (size_t i = 0; i < p->n_specs; i++)
        kv_codecs_free(l.below[i]);
    for (size_t i = 0; i < p->n_specs; i++)
        kv_measure_span_free(l.span[i]);
    free(l.span);
    free(l.seq);
    free(l.at);
    free(l.power);
    free(l.codecs);
    free(l.below);
    return rc;
}
