#include "eval/loop.h"
#include "eval/bits.h"
#include "eval/loop_gpu.h"
#include "kernels/attend.h"
#include "lib/base/alloc.h"
#include "lib/cache.h"
#include "lib/rope.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kv_loop {
    struct kv_shape shape;
    struct kv_protocol protocol;
    uint64_t seed;
    size_t first_window;
    struct kv_codecs *codecs; /* of all layers */
    struct kv_loop_gpu *gpu;  /* NULL: codecs run on the CPU */
    struct kv_bits bits;
    float *rope; /* of n_rope tokens from 0 on */
    size_t n_rope;
};

/* What the windows of one layer hold, in the forms their queries may see.
 * [n_windows][n][n_kv_heads][head_dim]; keys after RoPE. */
struct forms {
    float *quantized[KV_SIDES], *unquantized[KV_SIDES];
    uint32_t
        *until[KV_SIDES]; /* [n]: quantized tokens (sinks counted) at query i */
};

int kv_loop_new(struct kv_loop **out, const struct kv_spec *spec,
                const struct kv_shape *shape, const struct kv_calib *calib,
                const struct kv_protocol *protocol, uint64_t seed,
                struct kv_err *e)
{
    struct kv_loop *l = kv_alloc(1, sizeof(*l));

    l->shape = *shape;
    l->protocol = *protocol;
    l->seed = seed;
    kv_bits_of_spec(&l->bits, spec, shape, calib, KV_ALL, KV_ALL);
    if (kv_codecs_new(&l->codecs, spec, shape, 0, shape->n_layers, calib, e)) {
        kv_loop_free(l);
        return -1;
    }
    *out = l;
    return 0;
}

int kv_loop_to_device(struct kv_loop *l, const struct kv_device *d,
                      struct kv_err *e)
{
    return kv_loop_gpu_new(&l->gpu, l->codecs, l->shape.n_layers, l->seed, d,
                           e);
}

void kv_loop_free(struct kv_loop *l)
{
    if (!l)
        return;
    kv_loop_gpu_free(l->gpu);
    kv_codecs_free(l->codecs);
    free(l->rope);
    free(l);
}

struct kv_bits kv_loop_bits(const struct kv_loop *l)
{
    return l->bits;
}

static size_t row_values(const struct kv_loop *l)
{
    return l->shape.n_kv_heads * l->shape.head_dim;
}

/* What the cache is given: keys before RoPE for a codec that wants them. */
static const float *cache_input(const struct kv_loop *l, const struct kv_qkv *x,
                                enum kv_side side, size_t window)
{
    const float *all = side == KV_V ? x->v
                       : kv_codecs_at(l->codecs, x->layer)[KV_K]->pre_rope
                           ? x->k_pre
                           : x->k;

    return all + window * x->n * row_values(l);
}

static void add_bits(struct kv_bits *b, const struct kv_cache *c)
{
    for (int side = 0; side < KV_SIDES; side++) {
        const struct kv_bits one = kv_bits_of_cache(c, (enum kv_side)side);

        kv_bits_add(b, &one);
    }
}

/* One error out of a parallel loop: that of the first item. */
struct first_error {
    size_t item;
    struct kv_err err;
    bool any;
};

static void note_error(struct first_error *f, size_t item,
                       const struct kv_err *e)
{
#pragma omp critical(kv_loop_error)
    if (!f->any || item < f->item)
        *f = (struct first_error){item, *e, true};
}

static int report(const struct first_error *f, size_t first_window,
                  struct kv_err *e)
{
    kv_fail(e, "%s", f->err.msg);
    return kv_fail_in(e, "window %zu", first_window + f->item);
}

/* ---- through decode() -------------------------------------------------- */

/* Sequence length at the end of the step that query i belongs to. */
static size_t step_end(const struct kv_protocol *p, size_t i, size_t n)
{
    const size_t end =
        p->kind == KV_STREAM ? (i / p->step + 1) * p->step : i + 1;

    return end < n ? end : n;
}

/* Encodes one window and fills the forms its queries may see. */
static int fill_window(const struct kv_loop *l, const struct kv_qkv *x,
                       size_t window, struct forms *f, struct kv_bits *bits,
                       struct kv_err *e)
{
    struct kv_codec *const *codec = kv_codecs_at(l->codecs, x->layer);
    const size_t row = row_values(l), at = window * x->n * row;
    const size_t q_row = l->shape.n_heads * l->shape.head_dim;
    struct kv_cache *cache;
    int rc = -1;

    if (kv_cache_new(&cache, codec[KV_K], codec[KV_V], l->seed, e))
        return -1;
    if (kv_cache_append(cache, x->q + window * x->n * q_row,
                        cache_input(l, x, KV_K, window),
                        cache_input(l, x, KV_V, window), x->n, e))
        goto out;
    add_bits(bits, cache);
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;
        const bool rotate = side == KV_K && codec[KV_K]->pre_rope;

        kv_cache_decode(cache, side, f->quantized[i] + at);
        if (rotate)
            kv_rope_rotate(&l->shape, l->rope, f->quantized[i] + at, x->n,
                           l->shape.n_kv_heads);
        if (!f->unquantized[i])
            continue;
        kv_codec_input(codec[i], cache_input(l, x, side, window), x->n,
                       f->unquantized[i] + at);
        if (rotate)
            kv_rope_rotate(&l->shape, l->rope, f->unquantized[i] + at, x->n,
                           l->shape.n_kv_heads);
    }
    rc = 0;
out:
    kv_cache_free(cache);
    return rc;
}

/* As queries from `first` on see it. */
static struct kv_attend_side side_of(const struct kv_loop *l,
                                     const struct kv_qkv *x,
                                     const struct forms *f, enum kv_side side,
                                     size_t first)
{
    return (struct kv_attend_side){
        .unquantized = f->unquantized[side],
        .quantized = f->quantized[side],
        .sinks = kv_spec_size(&kv_codecs_at(l->codecs, x->layer)[side]->spec,
                              side, "s"),
        .until = f->until[side] ? f->until[side] + first : NULL,
    };
}

/* Queries before the prompt's end see exact keys and values. */
static size_t exact_queries(const struct kv_loop *l, size_t n)
{
    const size_t p = l->protocol.kind == KV_PREFILL ? l->protocol.prefill : 0;

    return p < n ? p : n;
}

/* Queries [first, end) of n_windows windows, over exact keys and values. */
static struct kv_attend_job job_of(const struct kv_loop *l,
                                   const struct kv_qkv *x, size_t window,
                                   size_t n_windows, size_t first, size_t end)
{
    const size_t q_row = l->shape.n_heads * l->shape.head_dim;
    const size_t kv = window * x->n * row_values(l);
    struct kv_attend_job job = {
        .view = kv_shape_view(&l->shape, x->n, first, end - first),
        .q = x->q + (window * x->n + first) * q_row,
        .out = x->out + (window * x->n + first) * q_row,
        .q_rows = x->n,
        .k = {.unquantized = x->k + kv},
        .v = {.unquantized = x->v + kv},
    };

    job.view.n_seqs = n_windows;
    return job;
}

static void attend_windows(const struct kv_loop *l, const struct kv_qkv *x,
                           const struct forms *f)
{
    const size_t border = exact_queries(l, x->n);
    const struct kv_attend_job prompt =
        job_of(l, x, 0, x->n_windows, 0, border);
    struct kv_attend_job rest = job_of(l, x, 0, x->n_windows, border, x->n);

    rest.k = side_of(l, x, f, KV_K, border);
    rest.v = side_of(l, x, f, KV_V, border);
    kv_attend(&prompt);
    kv_attend(&rest);
}

/* Quantized tokens, sinks counted, at each of n queries, for free(); NULL where
 * every query sees every token as it is at the end. */
static uint32_t *until_of(const struct kv_loop *l, const struct kv_codec *c,
                          size_t n)
{
    uint32_t *until;

    if (!kv_protocol_steps(&l->protocol) ||
        (c->block == 1 && !kv_spec_size(&c->spec, c->side, "r")))
        return NULL;
    until = kv_alloc(n, sizeof(*until));
    for (size_t t = 0; t < n; t++)
        until[t] = (uint32_t)(kv_spec_size(&c->spec, c->side, "s") +
                              kv_quantized(c, step_end(&l->protocol, t, n)));
    return until;
}

static void alloc_forms(const struct kv_loop *l, const struct kv_qkv *x,
                        struct forms *f)
{
    const size_t values = x->n_windows * x->n * row_values(l);

    *f = (struct forms){0};
    for (int i = 0; i < KV_SIDES; i++) {
        f->quantized[i] = kv_alloc(values, sizeof(*f->quantized[i]));
        f->until[i] = until_of(l, kv_codecs_at(l->codecs, x->layer)[i], x->n);
        if (f->until[i])
            f->unquantized[i] = kv_alloc(values, sizeof(*f->unquantized[i]));
    }
}

static void free_forms(struct forms *f)
{
    for (int i = 0; i < KV_SIDES; i++) {
        free(f->quantized[i]);
        free(f->unquantized[i]);
        free(f->until[i]);
    }
}

/* The angles of the first n positions, for keys stored before RoPE. */
static void want_rope(struct kv_loop *l, size_t n)
{
    if (n <= l->n_rope)
        return;
    free(l->rope);
    l->rope = kv_alloc(n, 2 * l->shape.n_rot * sizeof(*l->rope));
    l->n_rope = n;
    kv_rope_table(&l->shape, n, 0, l->rope);
}

/* The same where the layer is on a device, forms and all else on the host. */
static int attend_there(const struct kv_loop *l, const struct kv_qkv *x,
                        const struct forms *f, struct kv_err *e)
{
    struct kv_forms all = {.exact = exact_queries(l, x->n)};

    for (int i = 0; i < KV_SIDES; i++) {
        const struct kv_attend_side side = side_of(l, x, f, (enum kv_side)i, 0);

        all.unquantized[i] = side.unquantized;
        all.quantized[i] = side.quantized;
        all.until[i] = side.until;
        all.sinks[i] = side.sinks;
    }
    return kv_attend_forms(x, &all, e);
}

static int run_decoded(struct kv_loop *l, const struct kv_qkv *x,
                       struct kv_bits *bits, struct first_error *error,
                       struct kv_err *e)
{
    struct forms f;
    int rc = 0;

    alloc_forms(l, x, &f);
    if (kv_codecs_at(l->codecs, x->layer)[KV_K]->pre_rope)
        want_rope(l, x->n);
#pragma omp parallel for schedule(dynamic)
    for (size_t w = 0; w < x->n_windows; w++) {
        struct kv_err mine;

        if (fill_window(l, x, w, &f, &bits[w], &mine))
            note_error(error, w, &mine);
    }
    if (!error->any && x->gpu)
        rc = attend_there(l, x, &f, e);
    else if (!error->any)
        attend_windows(l, x, &f);
    free_forms(&f);
    return rc;
}

/* ---- on the device ------------------------------------------------------- */

/* f32, which has no sinks and no tail: attention to the model's own. */
static bool as_it_is(const struct kv_loop *l, size_t layer)
{
    struct kv_codec *const *codec = kv_codecs_at(l->codecs, layer);

    return !strcmp(codec[KV_K]->scheme->name, "f32") &&
           !strcmp(codec[KV_V]->scheme->name, "f32");
}

static bool there(void *arg, size_t layer)
{
    const struct kv_loop *l = arg;

    return l->gpu && (kv_loop_gpu_has(l->gpu, layer) || as_it_is(l, layer));
}

/* The same for attention on codes, of every query: there a prompt whose
 * attention is on codes too comes as one step. */
static uint32_t *until_of_codes(const struct kv_loop *l,
                                const struct kv_codec *c, size_t n)
{
    const struct kv_protocol *p = &l->protocol;
    const size_t prompt = p->kind == KV_PREFILL ? p->prefill : 0;
    uint32_t *until = kv_alloc(n, sizeof(*until));

    for (size_t t = 0; t < n; t++) {
        const size_t end = !kv_protocol_steps(p) ? n
                           : t < prompt          ? (prompt < n ? prompt : n)
                                                 : step_end(p, t, n);

        until[t] = (uint32_t)(kv_spec_size(&c->spec, c->side, "s") +
                              kv_quantized(c, end));
    }
    return until;
}

static int run_there(const struct kv_loop *l, const struct kv_qkv *x,
                     struct kv_bits *bits, struct kv_err *e)
{
    struct kv_forms f = {.exact = exact_queries(l, x->n)};
    const bool on_codes = l->gpu && kv_loop_gpu_on_codes(l->gpu, x->layer);
    uint32_t *until[KV_SIDES];
    int rc;

    if (on_codes && kv_codecs_at(l->codecs, x->layer)[KV_K]->prefill_on_codes)
        f.exact = 0;
    for (int i = 0; i < KV_SIDES; i++) {
        const struct kv_codec *c = kv_codecs_at(l->codecs, x->layer)[i];
        const struct kv_bits held = kv_bits_of_tokens(c, x->n);

        for (size_t w = 0; w < x->n_windows; w++)
            kv_bits_add(&bits[w], &held);
        f.until[i] = until[i] =
            on_codes ? until_of_codes(l, c, x->n) : until_of(l, c, x->n);
    }
    rc = as_it_is(l, x->layer)
             ? kv_attend_exact(NULL, x, e)
             : kv_loop_gpu_fill(l->gpu, x, l->first_window, &f, e) ||
                   kv_attend_forms(x, &f, e);
    free(until[KV_K]);
    free(until[KV_V]);
    return rc ? -1 : 0;
}

/* ---- through the cache itself ------------------------------------------ */

static int run_step(const struct kv_loop *l, const struct kv_qkv *x,
                    struct kv_cache *cache, size_t window, size_t i0, size_t i1,
                    struct kv_err *e)
{
    const size_t row = row_values(l),
                 q_row = l->shape.n_heads * l->shape.head_dim;
    const size_t at = (window * x->n + i0) * q_row;

    if (kv_cache_append(cache, x->q + at,
                        cache_input(l, x, KV_K, window) + i0 * row,
                        cache_input(l, x, KV_V, window) + i0 * row, i1 - i0, e))
        return -1;
    kv_cache_attend(cache, kv_cache_view(cache, i1 - i0), x->q + at,
                    x->out + at);
    return 0;
}

static int run_window(const struct kv_loop *l, const struct kv_qkv *x,
                      size_t window, struct kv_bits *bits, struct kv_err *e)
{
    const struct kv_protocol *p = &l->protocol;
    struct kv_codec *const *codec = kv_codecs_at(l->codecs, x->layer);
    const size_t prompt = exact_queries(l, x->n);
    const size_t step = kv_protocol_steps(p) ? p->step : x->n;
    struct kv_cache *cache;
    int rc = -1;

    if (kv_cache_new(&cache, codec[KV_K], codec[KV_V], l->seed, e))
        return -1;
    if (prompt && run_step(l, x, cache, window, 0, prompt, e))
        goto out;
    if (prompt && !codec[KV_K]->prefill_on_codes) {
        const struct kv_attend_job exact = job_of(l, x, window, 1, 0, prompt);

        kv_attend(&exact);
    }
    for (size_t i = prompt; i < x->n; i += step) {
        const size_t end = i + step < x->n ? i + step : x->n;

        if (run_step(l, x, cache, window, i, end, e))
            goto out;
    }
    add_bits(bits, cache);
    rc = 0;
out:
    kv_cache_free(cache);
    return rc;
}

static void run_cached(struct kv_loop *l, const struct kv_qkv *x,
                       struct kv_bits *bits, struct first_error *error)
{
#pragma omp parallel for schedule(dynamic)
    for (size_t w = 0; w < x->n_windows; w++) {
        struct kv_err mine;

        if (run_window(l, x, w, &bits[w], &mine))
            note_error(error, w, &mine);
    }
}

static int run(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    struct kv_loop *l = arg;
    struct kv_codec *const *codec = kv_codecs_at(l->codecs, x->layer);
    struct kv_bits *bits = kv_alloc(x->n_windows, sizeof(*bits));
    struct first_error error = {0};
    int rc = 0;

    if (there(l, x->layer))
        rc = run_there(l, x, bits, e);
    else if (codec[KV_K]->scheme->attend || codec[KV_K]->history ||
             codec[KV_V]->history)
        run_cached(l, x, bits, &error);
    else
        rc = run_decoded(l, x, bits, &error, e);
    for (size_t w = 0; w < x->n_windows; w++)
        kv_bits_add(&l->bits, &bits[w]);
    free(bits);
    return error.any ? report(&error, l->first_window, e) : rc;
}

struct kv_attention kv_loop_attention(struct kv_loop *l, size_t first_window)
{
    l->first_window = first_window;
    return (struct kv_attention){.run = run, .arg = l, .there = there};
}
