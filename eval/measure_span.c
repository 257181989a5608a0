#include "eval/measure_span.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/dump.h"
#include "lib/seq/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kv_measure_span {
    const struct kv_measure_plan *plan;
    const struct kv_dump_info *info;
    struct kv_codecs *codecs;
    size_t values;        /* values of a window in a layer */
    FILE *rows;           /* [windows][KV_SIDES][layers][ctx][row] */
    struct kv_bits *bits; /* [windows][KV_SIDES], of all layers */
};

static size_t place_of(const struct kv_measure_span *m, size_t window,
                       enum kv_side side, size_t layer)
{
    return ((window * KV_SIDES + side) * m->info->shape.n_layers + layer) *
           m->values * sizeof(float);
}

/* Copies the rows [ctx][row] of one layer to its place in the rows
 * [ctx][layers][row] of all layers. */
static void put_layer(const struct kv_measure_span *m, size_t layer,
                      const float *one, float *all)
{
    const size_t n = m->info->ctx, row = m->values / n;

    for (size_t t = 0; t < n; t++)
        memcpy(all + (t * m->info->shape.n_layers + layer) * row, one + t * row,
               row * sizeof(*all));
}

/* Copies a layer's rows out of all layers' rows. */
static void take_layer(const struct kv_measure_span *m, size_t layer,
                       const float *all, float *one)
{
    const size_t n = m->info->ctx, row = m->values / n;

    for (size_t t = 0; t < n; t++)
        memcpy(one + t * row, all + (t * m->info->shape.n_layers + layer) * row,
               row * sizeof(*one));
}

/* Reads all layers' rows of a window from the dump into x [KV_SIDES].  one:
 * workspace for one layer's rows. */
static int read_window(const struct kv_measure_span *m, size_t window,
                       float *const *x, float *one, struct kv_err *e)
{
    for (size_t i = 0; i < m->info->shape.n_layers * KV_SIDES; i++) {
        const size_t layer = i / KV_SIDES, side = i % KV_SIDES;
        const struct kv_codec *c = kv_codecs_at(m->codecs, 0)[side];

        if (kv_interrupted(e) ||
            kv_dump_read(m->plan->dump, layer, kv_dump_tensor(c),
                         window * m->info->ctx, m->info->ctx, one, e))
            return -1;
        put_layer(m, layer, one, x[side]);
    }
    return 0;
}

static int store_window(struct kv_measure_span *m, size_t window,
                        float *const *x, float *one, struct kv_err *e)
{
    struct kv_codec *const *codec = kv_codecs_at(m->codecs, 0);
    struct kv_tokens t = {.n = m->info->ctx, .v = x[KV_V]};
    struct kv_cache *c;
    int rc;

    *(codec[KV_K]->pre_rope ? &t.k_pre : &t.k) = x[KV_K];
    if (kv_cache_new(&c, codec[KV_K], codec[KV_V], m->plan->seed, e))
        return -1;
    rc = kv_cache_append(c, &t, e);
    for (enum kv_side side = KV_K; side < KV_SIDES && !rc; side++) {
        m->bits[window * KV_SIDES + side] = kv_bits_of_cache(c, side);
        kv_cache_decode(c, side, x[side]);
        for (size_t l = 0; l < m->info->shape.n_layers && !rc; l++) {
            take_layer(m, l, x[side], one);
            rc = kv_scratch_write(m->rows, place_of(m, window, side, l), one,
                                  m->values * sizeof(*one), e);
        }
    }
    kv_cache_free(c);
    return rc;
}

static int store_windows(struct kv_measure_span *m, struct kv_err *e)
{
    const size_t all = m->values * m->info->shape.n_layers;
    float *x[] = {kv_alloc(all, sizeof(float)), kv_alloc(all, sizeof(float))};
    float *one = kv_alloc(m->values, sizeof(*one));
    int rc = 0;

    for (size_t w = 0; w < m->info->n_windows && !rc; w++)
        if (read_window(m, w, x, one, e) || store_window(m, w, x, one, e))
            rc =
                kv_fail_in(e, "%s: window %zu", kv_dump_path(m->plan->dump), w);
    free(one);
    free(x[KV_K]);
    free(x[KV_V]);
    return rc;
}

static int check_dump(const struct kv_measure_plan *p,
                      const struct kv_spec *spec, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(p->dump);

    if (info->first_layer || info->last_layer + 1 != info->shape.n_layers)
        return kv_fail(e, "%s has layers %zu to %zu: %s codes all %zu together",
                       kv_dump_path(p->dump), info->first_layer,
                       info->last_layer, spec->text, info->shape.n_layers);
    if (p->codes || p->from || p->decoded)
        return kv_fail(e, "%s goes by layers: %s has codes of all together",
                       p->codes  ? "--codes"
                       : p->from ? "--codes-in"
                                 : "--decoded",
                       spec->text);
    if (p->backend)
        return kv_fail(e, "%s codes all layers together, on the CPU alone",
                       spec->text);
    return 0;
}

int kv_measure_span_new(struct kv_measure_span **out,
                        const struct kv_measure_plan *p,
                        const struct kv_spec *spec, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(p->dump);
    const struct kv_shape merged = kv_shape_merged(&info->shape);
    struct kv_measure_span *m = kv_alloc(1, sizeof(*m));

    *m = (struct kv_measure_span){
        .plan = p,
        .info = info,
        .values = info->ctx * info->shape.n_kv_heads * info->shape.head_dim,
        .bits = kv_alloc(info->n_windows * KV_SIDES, sizeof(*m->bits))};
    if (check_dump(p, spec, e) ||
        kv_codecs_new(&m->codecs, spec, &merged, 0, 1, p->calib, e) ||
        kv_dump_want(p->dump, kv_dump_tensor(kv_codecs_at(m->codecs, 0)[KV_K]),
                     e) ||
        kv_dump_want(p->dump, KV_T_V, e) || !(m->rows = kv_scratch_open(e)) ||
        store_windows(m, e)) {
        kv_measure_span_free(m);
        return -1;
    }
    *out = m;
    return 0;
}

void kv_measure_span_free(struct kv_measure_span *m)
{
    if (!m)
        return;
    if (m->rows)
        fclose(m->rows);
    kv_codecs_free(m->codecs);
    free(m->bits);
    free(m);
}

struct kv_codec *const *kv_measure_span_codecs(const struct kv_measure_span *m)
{
    return kv_codecs_at(m->codecs, 0);
}

static void add_bits(const struct kv_measure_span *m, size_t window,
                     enum kv_side side, struct kv_bits *into)
{
    const double part = 1 / (double)m->info->shape.n_layers;
    struct kv_bits b = m->bits[window * KV_SIDES + side];

    b.bytes *= part;
    b.values *= part;
    b.kept_values *= part;
    b.quantized_bytes *= part;
    b.quantized_values *= part;
    for (int i = 0; i < KV_SIDES; i++)
        b.coded[i] *= part;
    b.clipped *= part;
    kv_bits_add(into, &b);
}

int kv_measure_span_side(const struct kv_measure_span *m, size_t window,
                         size_t layer, enum kv_side side, const float *x,
                         float *stored, struct kv_measured *sums,
                         struct kv_err *e)
{
    const struct kv_shape *s = &m->info->shape;
    int rc;

#pragma omp critical(kv_measure_span)
    rc = kv_scratch_read(m->rows, place_of(m, window, side, layer), stored,
                         m->values * sizeof(*stored), e);
    if (rc)
        return -1;
    kv_reconstruction_add(&sums->reconstruction[side], x, stored,
                          m->info->ctx * s->n_kv_heads, s->head_dim);
    add_bits(m, window, side, &sums->bits[side]);
    return 0;
}
