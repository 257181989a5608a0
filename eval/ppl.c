#include "eval/ppl.h"
#include "eval/loop.h"
#include "eval/ppl_impl.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/mixed.h"

#include <math.h>
#include <stdlib.h>

/* The number of tokens that pass the model together if a policy allows a window
 * to run piece by piece: memory then holds a piece and the kept tokens. */
enum { PIECE = 2048 };

/* One pass of one spec over one group of windows, or a piece of one. */
struct group {
    size_t first_window, n_windows;
    size_t start, n;    /* tokens of each window */
    size_t first, last; /* scored positions among them */
};

int kv_ppl_new(struct kv_ppl **out, const struct kv_ppl_plan *plan,
               struct kv_err *e)
{
    struct kv_ppl *p = kv_alloc(1, sizeof(*p));

    p->plan = *plan;
    p->info = kv_model_info(plan->model);
    kv_protocol_scored(&plan->protocol, plan->n, &p->first, &p->last);
    if (p->last <= p->first) {
        kv_fail(e,
                "protocol %s leaves nothing to score in windows of %zu "
                "tokens",
                plan->protocol.text, plan->n);
        goto fail;
    }
    p->to = plan->n_windows;
    if (plan->ranks && !plan->ranks->by_layers) {
        const size_t self = plan->ranks->self;

        p->from = kv_ranks_first(plan->ranks, self, plan->n_windows);
        p->to = kv_ranks_first(plan->ranks, self + 1, plan->n_windows);
    }
    p->group = kv_model_windows(plan->model, plan->n, true, plan->memory);
    if (p->group > p->to - p->from)
        p->group = p->to - p->from;
    p->has_base = plan->no_base;
    p->base_nll = kv_alloc(plan->n_windows, sizeof(*p->base_nll));
    for (size_t w = 0; w < plan->n_windows; w++)
        p->base_nll[w] = NAN;
    if (p->group < p->to - p->from && kv_model_backend(plan->model)->on_host) {
        p->states = kv_scratch_open(e);
        if (!p->states)
            goto fail;
    }
    p->scored = kv_scratch_open(e);
    if (!p->scored)
        goto fail;
    *out = p;
    return 0;
fail:
    kv_ppl_free(p);
    return -1;
}

void kv_ppl_free(struct kv_ppl *p)
{
    if (!p)
        return;
    if (p->states)
        fclose(p->states);
    if (p->scored)
        fclose(p->scored);
    free(p->base_nll);
    free(p);
}

/* The attention of windows from first_window on, with steps of the progress
 * bar. */
struct watched {
    struct kv_loop *loop;
    size_t first_window, length;
    struct kv_progress *progress;
    struct kv_ranks *ranks;
};

static int watched_run(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const struct watched *w = arg;
    const struct kv_attention of = kv_loop_attention(
        w->loop, w->first_window + x->first_window, w->length);
    const int rc = of.run(of.arg, x, e);

    if (w->progress && !x->shared && x->first + x->n == w->length)
        kv_progress_step(w->progress, x->n_windows);
    return rc || (w->ranks && kv_ranks_check(w->ranks, e)) ? -1 : 0;
}

/* Runs all windows through the model when they do not fit in memory together;
 * their hidden states go to p->states. */
static int pass_all(const struct kv_ppl *p, struct kv_loop *loop,
                    struct kv_err *e)
{
    struct watched watched = {loop, p->from, p->plan.n, p->plan.progress,
                              p->plan.ranks};
    const struct kv_attention attention = {.run = watched_run, .arg = &watched};

    return kv_model_forward_file(
        p->plan.model, p->plan.tokens + p->from * p->plan.n, p->to - p->from,
        p->plan.n, p->group, &attention, p->states, e);
}

/* The state of a run. */
struct run {
    struct kv_ppl *p;
    struct kv_loop *loop;
    bool spans;          /* the spec codes all layers together */
    FILE *states;        /* source of hidden states; NULL: the model */
    size_t group, piece; /* windows, and their tokens, at one time */
    float *hidden;       /* [group][piece][hidden] */
};

/* Fills r->hidden for the group, from r->states or by the model. */
static int pass_group(const struct run *r, const struct group *g,
                      struct kv_err *e)
{
    const struct kv_ppl *p = r->p;
    struct watched watched = {r->loop, g->first_window, p->plan.n,
                              p->plan.progress, p->plan.ranks};
    const struct kv_attention attention = {.run = watched_run, .arg = &watched};
    const size_t window = p->plan.n * p->info->hidden * sizeof(*r->hidden);
    const int32_t *tokens =
        p->plan.tokens + g->first_window * p->plan.n + g->start;

    if (r->states)
        return kv_scratch_read(r->states, (g->first_window - p->from) * window,
                               r->hidden, g->n_windows * window, e);
    if (r->spans) {
        const struct kv_attention first =
            kv_loop_gather(r->loop, g->first_window, p->plan.n);

        if (kv_model_forward(p->plan.model, tokens, g->n_windows, g->n, 0,
                             &first, r->hidden, e))
            return -1;
    }
    return kv_model_forward(p->plan.model, tokens, g->n_windows, g->n, g->start,
                            &attention, r->hidden, e);
}

/* Writes the group's scored rows to their place in the file. */
static int keep_scored(const struct run *r, const struct group *g,
                       struct kv_err *e)
{
    const struct kv_ppl *p = r->p;
    const size_t width = p->info->hidden;
    const size_t bytes = (g->last - g->first) * width * sizeof(float);

    for (size_t w = 0; w < g->n_windows; w++)
        if (kv_scratch_write(
                p->scored,
                kv_ppl_place(p, kv_ppl_run_at(p, p->n_waits),
                             g->first_window + w, g->first - p->first),
                r->hidden + (w * g->n + g->first - g->start) * width, bytes, e))
            return -1;
    return 0;
}

/* Runs windows [first_window, first_window + n), whole or piece by piece. */
static int run_windows(const struct run *r, size_t first_window, size_t n,
                       struct kv_err *e)
{
    const struct kv_ppl *p = r->p;

    for (size_t at = 0; at < p->plan.n; at += r->piece) {
        const size_t end =
            p->plan.n - at < r->piece ? p->plan.n : at + r->piece;
        const struct group g = {.first_window = first_window,
                                .n_windows = n,
                                .start = at,
                                .n = end - at,
                                .first = at > p->first ? at : p->first,
                                .last = end < p->last ? end : p->last};

        if (kv_interrupted(e) || pass_group(r, &g, e) ||
            (g.first < g.last && kv_ppl_scores(p) && keep_scored(r, &g, e)))
            return -1;
    }
    return 0;
}

/* Tokens per piece: the first piece holds the whole prompt, and each piece ends
 * at the end of a step. */
static size_t piece_of(const struct kv_ppl *p, const struct kv_spec *spec)
{
    const struct kv_protocol *of = &p->plan.protocol;
    const size_t least = of->kind == KV_PREFILL ? of->prefill : of->step;
    size_t piece;

    if (!kv_policy_drops(&spec->policy) || p->info->shape.n_states)
        return p->plan.n; /* whole, as a mixer's state does not outlast a
                           * pass */
    piece = least > PIECE ? least : PIECE / of->step * of->step;
    return piece < p->plan.n ? piece : p->plan.n;
}

static int run_all(const struct run *r, struct kv_err *e)
{
    const size_t end = r->p->to;

    for (size_t w = r->p->from; w < end; w += r->group)
        if (run_windows(r, w, end - w < r->group ? end - w : r->group, e))
            return -1;
    return 0;
}

int kv_ppl_pass_again(struct kv_ppl *p, const struct kv_spec *spec,
                      const struct kv_calib *calib, size_t repeat,
                      struct kv_err *e)
{
    const double start = kv_seconds();
    const size_t piece = piece_of(p, spec);
    const bool whole = piece == p->plan.n;
    const bool layers_apart =
        !kv_spec_reads_below(spec) && !kv_spec_spans(spec);
    struct run r = {.p = p,
                    .spans = kv_spec_spans(spec),
                    .states = whole && layers_apart ? p->states : NULL,
                    .group = whole ? p->group : 1,
                    .piece = piece};
    int rc = -1;

    if (kv_loop_new(&r.loop, spec, &p->info->shape, calib, &p->plan.protocol,
                    p->plan.seed, kv_model_backend(p->plan.model), e))
        goto out;
    kv_loop_jitter(r.loop, repeat);
    if (r.states && pass_all(p, r.loop, e))
        goto out;
    r.hidden = kv_alloc(r.group * piece, p->info->hidden * sizeof(*r.hidden));
    if (run_all(&r, e))
        goto out;
    p->waits[p->n_waits++] =
        (struct kv_ppl_waits){.seconds = kv_seconds() - start,
                              .bits = kv_loop_bits(r.loop),
                              .prefill = kv_loop_prefill(r.loop)};
    rc = 0;
out:
    if (p->plan.progress)
        kv_progress_clear(p->plan.progress);
    free(r.hidden);
    kv_loop_free(r.loop);
    return rc;
}

int kv_ppl_pass(struct kv_ppl *p, const struct kv_spec *spec,
                const struct kv_calib *calib, struct kv_err *e)
{
    return kv_ppl_pass_again(p, spec, calib, 0, e);
}

int kv_ppl_run(struct kv_ppl *p, const struct kv_spec *spec,
               const struct kv_calib *calib, struct kv_klbase *to_file,
               struct kv_ppl_row *row, struct kv_err *e)
{
    return kv_ppl_pass(p, spec, calib, e) || kv_ppl_score(p, to_file, row, e)
               ? -1
               : 0;
}
