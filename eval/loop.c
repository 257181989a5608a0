#include "eval/loop.h"
#include "eval/loop_impl.h"
#include "eval/loop_jitter.h"
#include "eval/policy_check.h"
#include "kernels/device_code.h"
#include "lib/base/alloc.h"
#include "lib/codec_place.h"
#include "lib/mixed.h"
#include "lib/rope_table.h"
#include "lib/scheme.h"
#include "lib/seq/bits.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Opens a layer's coders if the backend has kernels for both sides.  A scheme
 * with attention of its own also needs a kernel for attention on its codes;
 * such kernels take no window, ALiBi or soft cap. */
static int open_layer(struct kv_loop *l, size_t layer, struct kv_err *e)
{
    struct kv_codec *const *codec = kv_loop_codecs(l, layer);
    const struct kv_shape *shape = &codec[KV_K]->shape;
    const struct kv_attend_view view =
        kv_shape_view(shape, shape->window + 1, 0, 1);
    const bool own = kv_codec_attends(codec[KV_K]);
    struct kv_loop_layer *at = &l->layer[layer];
    struct kv_gpu_code code[KV_SIDES];

    if (!kv_codec_code(codec[KV_K], &code[KV_K]) ||
        !kv_codec_code(codec[KV_V], &code[KV_V]) ||
        (own && (!kv_attend_simple(&view) ||
                 kv_loop_sinks(codec[KV_K]) != kv_loop_sinks(codec[KV_V]) ||
                 !l->b->codes_attend(l->b, code, l->seed))))
        return 0;
    at->on_codes = own;
    l->last = layer;
    for (int side = 0; side < KV_SIDES; side++)
        if (l->b->coder_new(l->b, &at->coder[side], &code[side], e))
            return kv_fail_in(e, "%s", codec[side]->spec.text);
    return 0;
}

int kv_loop_new(struct kv_loop **out, const struct kv_spec *spec,
                const struct kv_shape *shape, const struct kv_calib *calib,
                const struct kv_protocol *protocol, uint64_t seed,
                const struct kv_backend *b, struct kv_err *e)
{
    const bool spans = kv_spec_spans(spec);
    const struct kv_shape merged = kv_shape_merged(shape);
    struct kv_loop *l = kv_alloc(1, sizeof(*l));

    l->shape = *shape;
    l->protocol = *protocol;
    l->spec = *spec;
    l->prefill = (struct kv_prefill){.policy = &l->spec.policy, .calib = calib};
    l->seed = seed;
    l->b = b && b->coder_new ? b : NULL;
    l->layer = kv_alloc(shape->n_layers, sizeof(*l->layer));
    kv_bits_of_spec(&l->bits, spec, shape, calib, KV_ALL, KV_ALL);
    if (kv_codecs_new(&l->codecs, spec, spans ? &merged : shape, 0,
                      spans ? 1 : shape->n_layers, calib, e))
        goto fail;
    for (size_t i = 0; i < shape->n_layers && l->b && !spans; i++)
        if (open_layer(l, i, e))
            goto fail;
    *out = l;
    return 0;
fail:
    kv_loop_free(l);
    return -1;
}

void kv_loop_free(struct kv_loop *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->shape.n_layers && l->b; i++)
        for (int side = 0; side < KV_SIDES; side++)
            l->b->coder_free(l->layer[i].coder[side]);
    for (int side = 0; side < KV_SIDES && l->memory; side++) {
        kv_workspace_clear(l->memory, &l->form[side][UNQUANTIZED]);
        kv_workspace_clear(l->memory, &l->form[side][QUANTIZED]);
        kv_workspace_clear(l->memory, &l->bytes[side]);
    }
    if (l->memory)
        kv_workspace_clear(l->memory, &l->met);
    for (size_t i = 0; i < l->n_seqs; i++)
        kv_seq_free(l->seq[i]);
    free(l->seq);
    kv_loop_span_free(l->span);
    kv_codecs_free(l->codecs);
    free(l->layer);
    free(l);
}

int kv_loop_takes(const struct kv_loop *l, size_t n, struct kv_err *e)
{
    const struct kv_policy *policy = l->spec.policy.policy;

    if (kv_spec_spans(&l->spec))
        return kv_loop_span_takes(l, n, e);
    for (size_t i = 0; i < l->shape.n_layers && policy; i++) {
        struct kv_codec *const *codec = kv_loop_codecs(l, i);

        if (policy->patterns
                ? kv_prefill_check(&l->prefill, &l->spec, &l->protocol, codec,
                                   e)
                : kv_policy_check(&l->spec, &l->protocol, codec, n, e))
            return -1;
    }
    return 0;
}

void kv_loop_jitter(struct kv_loop *l, size_t repeat)
{
    l->jitter = repeat;
}

struct kv_prefill kv_loop_prefill(const struct kv_loop *l)
{
    return l->prefill;
}

struct kv_bits kv_loop_bits(const struct kv_loop *l)
{
    return l->bits;
}

/* ---- views of queries ---------------------------------------------------- */

/* Sequence length at the end of the step that query i belongs to. */
static size_t step_end(const struct kv_protocol *p, size_t i, size_t n)
{
    const size_t end =
        p->kind == KV_STREAM ? (i / p->step + 1) * p->step : i + 1;

    return end < n ? end : n;
}

/* Queries before the prompt's end see exact keys and values. */
static size_t exact_queries(const struct kv_loop *l, size_t n)
{
    const size_t p = l->protocol.kind == KV_PREFILL ? l->protocol.prefill : 0;

    return p < n ? p : n;
}

/* Returns the number of quantized tokens, with sinks, at each of n queries; the
 * caller frees it.  NULL if every query sees the final state of every token.
 * Attention on codes needs one entry per query; a prompt with attention on
 * codes is one step. */
static uint32_t *until_of(const struct kv_loop *l, const struct kv_codec *c,
                          size_t n, bool on_codes)
{
    const struct kv_protocol *p = &l->protocol;
    const size_t prompt = exact_queries(l, n);
    uint32_t *until;

    if (!on_codes && (!kv_protocol_steps(p) ||
                      (c->block == 1 && !kv_spec_size(&c->spec, c->side, "r"))))
        return NULL;
    until = kv_alloc(n, sizeof(*until));
    for (size_t t = 0; t < n; t++) {
        const size_t end = !kv_protocol_steps(p)    ? n
                           : on_codes && t < prompt ? prompt
                                                    : step_end(p, t, n);

        until[t] = (uint32_t)(kv_loop_sinks(c) + kv_quantized(c, end));
    }
    return until;
}

/* ---- windows in the host's caches -----------------------------------------
 */

/* The arguments of the work on each window of a layer in host memory. */
struct windows {
    struct kv_loop *l;
    const struct kv_qkv *x;
    struct kv_bits *bits; /* [n_windows] */
};

typedef int window_work(const struct windows *work, size_t window,
                        struct kv_seq *seq, struct kv_err *e);

/* Makes a new sequence for each window before the window's first token. */
static void begin_windows(struct kv_loop *l, const struct kv_qkv *x)
{
    const struct kv_seq_plan plan = {
        .n_layers = l->shape.n_layers,
        .policy = &l->spec.policy,
        .share_of = kv_policy_share_of(&l->protocol, l->length),
        .seed = l->seed};

    assert(!x->first_window || !kv_spec_reads_below(&l->spec));
    if (x->n_windows > l->n_seqs) {
        l->seq = kv_realloc(l->seq, x->n_windows, sizeof(struct kv_seq *));
        memset(l->seq + l->n_seqs, 0,
               (x->n_windows - l->n_seqs) * sizeof(struct kv_seq *));
        l->n_seqs = x->n_windows;
    }
    for (size_t i = 0; i < l->n_seqs && x->layer == x->first_layer && !x->first;
         i++) {
        kv_seq_free(l->seq[i]);
        l->seq[i] = NULL;
    }
    for (size_t i = 0; i < x->n_windows; i++)
        if (!l->seq[i])
            l->seq[i] = kv_seq_new(&plan);
}

/* Opens the layer of a window's sequence before its first token, and closes the
 * layer, adding its bits, after the last token. */
static int with_window(const struct windows *work, size_t window,
                       window_work *run, struct kv_err *e)
{
    const struct kv_loop *l = work->l;
    const struct kv_qkv *x = work->x;
    struct kv_seq *seq = l->seq[window];

    if ((!x->first && kv_seq_open(seq, kv_loop_codecs(l, x->layer), e)) ||
        run(work, window, seq, e))
        return kv_fail_in(e, "window %zu", l->first_window + window);
    if (x->first + x->n < l->length)
        return 0;
    for (int side = 0; side < KV_SIDES; side++)
        kv_seq_bits(seq, x->layer, (enum kv_side)side, &work->bits[window]);
    kv_seq_close(seq, x->layer);
    return 0;
}

/* ---- encoded at once, and decoded ------------------------------------------
 */

/* Reads one side of a window in the forms that its queries may see, keys after
 * RoPE.  Each form is [n][n_kv_heads][head_dim]; UNQUANTIZED is NULL if no
 * query sees it.  cache: NULL if all layers are coded together. */
static void read_forms(const struct kv_loop *l, const struct kv_qkv *x,
                       size_t window, const struct kv_cache *cache,
                       enum kv_side side, float *const *form)
{
    const struct kv_codec *c = kv_loop_codecs(l, x->layer)[side];

    if (cache)
        kv_cache_decode(cache, side, form[QUANTIZED]);
    if (!cache)
        kv_loop_span_read(l, x, window, side, form);
    else if (form[UNQUANTIZED])
        kv_codec_unquantized(c, 0, kv_loop_input(l, x, side, window), x->n,
                             form[UNQUANTIZED]);
    for (int f = 0; f < VIEWS; f++)
        if (c->pre_rope && form[f])
            kv_rope_rotate(x->shape, x->rope, form[f], x->n,
                           x->shape->n_kv_heads);
}

/* Fills in the forms that a window's queries may see. */
static void fill_forms(const struct kv_loop *l, const struct kv_qkv *x,
                       size_t window, const struct kv_cache *cache)
{
    const size_t at = window * x->n * kv_loop_row(x);

    for (int i = 0; i < kv_shape_sides(&l->shape); i++) {
        float *form[VIEWS];

        for (int f = 0; f < VIEWS; f++)
            form[f] = l->host[i][f] ? l->host[i][f] + at : NULL;
        read_forms(l, x, window, cache, (enum kv_side)i, form);
    }
}

/* Encodes a window and fills in its forms. */
static int fill_window(const struct windows *work, size_t window,
                       struct kv_seq *seq, struct kv_err *e)
{
    const struct kv_qkv *x = work->x;
    const struct kv_tokens all = kv_qkv_tokens(x, window, 0, x->n);

    if (kv_seq_append(seq, x->layer, &all, e))
        return -1;
    fill_forms(work->l, x, window, kv_seq_cache(seq, x->layer));
    return 0;
}

static int fill_one(const void *arg, size_t window, size_t thread,
                    struct kv_err *e)
{
    const struct windows *work = arg;

    (void)thread;
    if (!work->l->span)
        return with_window(work, window, fill_window, e);
    fill_forms(work->l, work->x, window, NULL);
    return 0;
}

/* ---- step by step ----------------------------------------------------------
 */

/* Appends a window's tokens, or its next tokens, and attends: the prompt at
 * once, all others a step at a time. */
static int step_window(const struct windows *work, size_t window,
                       struct kv_seq *seq, struct kv_err *e)
{
    const struct kv_loop *l = work->l;
    const struct kv_qkv *x = work->x;
    const struct kv_protocol *p = &l->protocol;
    const bool on_codes = kv_loop_codecs(l, x->layer)[KV_K]->prefill_on_codes;
    const size_t q_row = x->shape->n_heads * x->shape->head_dim;
    const size_t prompt = x->first ? 0 : exact_queries(l, x->n);
    const size_t step = kv_protocol_steps(p) ? p->step : x->n;

    for (size_t i = 0, n; i < x->n; i += n) {
        const bool exact = i < prompt && !on_codes;
        struct kv_tokens t;

        n = i < prompt ? prompt : step;
        n = n < x->n - i ? n : x->n - i;
        t = kv_qkv_tokens(x, window, i, n);
        if (exact ? kv_seq_append(seq, x->layer, &t, e)
                  : kv_seq_step(seq, x->layer, &t,
                                x->out + (window * x->n + i) * q_row, e))
            return -1;
    }
    return 0;
}

static int step_one(const void *arg, size_t window, size_t thread,
                    struct kv_err *e)
{
    (void)thread;
    return with_window(arg, window, step_window, e);
}

/* Attends exactly for the prompts, then runs each window step by step. */
static int run_steps(struct kv_loop *l, const struct kv_qkv *x,
                     struct kv_bits *bits, struct kv_err *e)
{
    struct kv_codec *const *codec = kv_loop_codecs(l, x->layer);
    const size_t prompt =
        x->first || codec[KV_K]->prefill_on_codes ? 0 : exact_queries(l, x->n);
    struct kv_attend_job exact;
    struct kv_qkv host;
    const struct windows work = {l, &host, bits};

    begin_windows(l, x);
    if (kv_qkv_to_host(x, &host, e))
        return -1;
    exact = kv_qkv_job(&host, 0, prompt);
    return (prompt && host.backend->attend(host.backend, &exact, NULL, 0, e)) ||
                   host.backend->each(x->n_windows, step_one, &work, e) ||
                   kv_qkv_from_host(x, &host, e)
               ? -1
               : 0;
}

/* Makes the forms of a layer from caches on the host, or from all layers'
 * codes. */
static int fill_by_cache(struct kv_loop *l, const struct kv_qkv *x,
                         struct kv_attend_side *const *side,
                         struct kv_bits *bits, struct kv_err *e)
{
    const size_t values = x->n_windows * x->n * kv_loop_row(x);
    const size_t bytes = values * sizeof(float);
    struct kv_qkv host;
    const struct windows work = {l, &host, bits};
    const int n_sides = kv_shape_sides(&l->shape);

    if (!l->span)
        begin_windows(l, x);
    for (int i = 0; i < n_sides; i++) {
        l->host[i][QUANTIZED] = kv_alloc(values, sizeof(float));
        if (side[i]->until)
            l->host[i][UNQUANTIZED] = kv_alloc(values, sizeof(float));
    }
    if (kv_qkv_to_host(x, &host, e) ||
        host.backend->each(x->n_windows, fill_one, &work, e))
        return -1;
    for (int i = 0; i < n_sides; i++) {
        const float *const *from = (const float *const *)l->host[i];
        struct kv_workspace *to = l->form[i];

        if (kv_backend_take(x->backend, &to[QUANTIZED], from[QUANTIZED], bytes,
                            (const void **)&side[i]->quantized, e) ||
            (from[UNQUANTIZED] &&
             kv_backend_take(x->backend, &to[UNQUANTIZED], from[UNQUANTIZED],
                             bytes, (const void **)&side[i]->unquantized, e)))
            return -1;
    }
    if (n_sides == 1) /* K and V have one codec, so they share `until` */
        *side[KV_V] = *side[KV_K];
    return 0;
}

/* ---- a layer ------------------------------------------------------------- */

/* f32 on a device has no sinks and no tail: attention reads the model's own
 * keys and values. */
static bool unchanged(const struct kv_loop *l, size_t layer)
{
    struct kv_codec *const *codec = kv_loop_codecs(l, layer);

    return l->b && !strcmp(codec[KV_K]->scheme->name, "f32") &&
           !strcmp(codec[KV_V]->scheme->name, "f32");
}

static int run_unchanged(struct kv_loop *l, const struct kv_qkv *x,
                         struct kv_bits *bits, struct kv_err *e)
{
    for (size_t i = 0; i < x->n_windows * KV_SIDES; i++) {
        const struct kv_bits held =
            kv_bits_of_tokens(kv_loop_codecs(l, x->layer)[i % KV_SIDES], x->n);

        kv_bits_add(&bits[i / KV_SIDES], &held);
    }
    return kv_attend_exact(NULL, x, e);
}

/* Attends for the prompt's queries, or for the others, on codes if codes is not
 * NULL. */
static int attend_views(struct kv_loop *l, const struct kv_qkv *x,
                        const struct kv_attend_job *job,
                        const struct kv_attend_codes *codes, bool prompt,
                        struct kv_err *e)
{
    const struct kv_backend *b = x->backend;

    return prompt && b->on_host && !codes
               ? kv_prefill_attend(&l->prefill, x, job, e)
               : b->attend(b, job, codes, l->seed, e);
}

/* The prompt's queries see exact keys and values; all other queries see the
 * forms. */
static int run_views(struct kv_loop *l, const struct kv_qkv *x,
                     struct kv_bits *bits, struct kv_err *e)
{
    struct kv_codec *const *codec = kv_loop_codecs(l, x->layer);
    const struct kv_backend *b = x->backend;
    const struct kv_loop_layer *at = &l->layer[x->layer];
    const size_t border = at->on_codes && codec[KV_K]->prefill_on_codes
                              ? 0
                              : exact_queries(l, x->n);
    const struct kv_attend_job prompt = kv_qkv_job(x, 0, border);
    struct kv_attend_job rest = kv_qkv_job(x, border, x->n);
    struct kv_attend_side *const side[KV_SIDES] = {&rest.k, &rest.v};
    struct kv_attend_codes codes[KV_SIDES] = {{0}};
    uint32_t *until[KV_SIDES];
    int rc;

    l->memory = b;
    for (int i = 0; i < KV_SIDES; i++) {
        until[i] = until_of(l, codec[i], x->n, at->on_codes);
        *side[i] = (struct kv_attend_side){.sinks = kv_loop_sinks(codec[i]),
                                           .until = until[i] ? until[i] + border
                                                             : NULL};
    }
    rc =
        (at->coder[KV_K] ? kv_loop_fill_by_coder(l, x, side, codes, bits, e)
                         : fill_by_cache(l, x, side, bits, e)) ||
        (border && attend_views(l, x, &prompt, NULL, true, e)) ||
        (border < x->n && attend_views(l, x, &rest, at->on_codes ? codes : NULL,
                                       !kv_protocol_steps(&l->protocol), e));
    for (int i = 0; i < KV_SIDES; i++) {
        free(l->host[i][QUANTIZED]);
        free(l->host[i][UNQUANTIZED]);
        l->host[i][QUANTIZED] = l->host[i][UNQUANTIZED] = NULL;
        free(until[i]);
    }
    return rc ? -1 : 0;
}

static int run_layer(struct kv_loop *l, const struct kv_qkv *x,
                     struct kv_err *e)
{
    struct kv_codec *const *codec = kv_loop_codecs(l, x->layer);
    struct kv_bits *bits = kv_alloc(x->n_windows, sizeof(*bits));
    const bool drops = kv_policy_drops(&l->spec.policy);
    const int rc = !drops && unchanged(l, x->layer)
                       ? run_unchanged(l, x, bits, e)
                   : drops || (kv_codec_attends(codec[KV_K]) &&
                               !l->layer[x->layer].coder[KV_K])
                       ? run_steps(l, x, bits, e)
                       : run_views(l, x, bits, e);

    for (size_t w = 0; w < x->n_windows && !x->shared; w++)
        kv_bits_add(&l->bits, &bits[w]);
    free(bits);
    return rc ? -1 : 0;
}

static int run(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    struct kv_loop *l = arg;
    struct kv_jittered moved;
    int rc;

    if (!l->jitter)
        return run_layer(l, x, e);
    assert(x->backend->on_host);
    kv_jittered_new(&moved, x, l->first_window, l->seed, l->jitter);
    rc = run_layer(l, &moved.x, e);
    kv_jittered_clear(&moved);
    return rc;
}

struct kv_attention kv_loop_attention(struct kv_loop *l, size_t first_window,
                                      size_t length)
{
    l->first_window = first_window;
    l->length = length;
    return (struct kv_attention){.run = run, .arg = l};
}
