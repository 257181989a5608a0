#include "eval/ppl.h"
#include "eval/loop.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/mixed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kv_ppl {
    struct kv_ppl_plan plan;
    const struct kv_model_info *info;
    size_t first, last; /* scored positions */
    size_t group;       /* windows at a time */
    FILE *states;       /* NULL, or hidden states of all windows of a run, which
                         * do not fit in memory: [n_windows][n][hidden]; not of
                         * layered codecs, whose windows wait in caches, too */
    FILE *base;         /* hidden states of the base's scored positions,
                         * [n_windows][last - first][hidden] */
    double *base_nll;   /* [n_windows]: mean loss; NaN before the base ran */
    bool has_base;
    struct kv_prefill prefill; /* of the last run */
    struct kv_kl_curve curve;
};

/* Tokens that go through the model together where a policy lets a window go
 * piece by piece: memory then holds a piece and the kept tokens. */
enum { PIECE = 2048 };

/* One pass of one spec over one group of windows, or a piece of one. */
struct group {
    size_t first_window, n_windows;
    FILE *states;          /* where hidden is read from; NULL: the model */
    size_t start, n;       /* tokens of each window */
    size_t first, last;    /* scored positions among them */
    const float *hidden;   /* [n_windows][n][hidden] */
    const float *base;     /* [n_windows][last - first][hidden], or NULL */
    struct kv_loss *score; /* [n_windows][last - first] */
};

static size_t n_scored(const struct kv_ppl *p)
{
    return p->last - p->first;
}

/* Scored rows of each window. */
static size_t n_rows(const struct group *g)
{
    return g->last - g->first;
}

/* The next token, the target, of scored row `row` of the group. */
static const int32_t *target(const struct kv_ppl *p, const struct group *g,
                             size_t row)
{
    return p->plan.tokens + (g->first_window + row / n_rows(g)) * p->plan.n +
           g->first + row % n_rows(g) + 1;
}

/* Its hidden state. */
static const float *state(const struct kv_ppl *p, const struct group *g,
                          size_t row)
{
    const size_t at =
        row / n_rows(g) * g->n + g->first - g->start + row % n_rows(g);

    return g->hidden + at * p->info->hidden;
}

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
    p->group = kv_model_windows(plan->model, plan->n, true, plan->memory);
    if (p->group > plan->n_windows)
        p->group = plan->n_windows;
    p->has_base = plan->no_base;
    p->base_nll = kv_alloc(plan->n_windows, sizeof(*p->base_nll));
    for (size_t w = 0; w < plan->n_windows; w++)
        p->base_nll[w] = NAN;
    if (p->group < plan->n_windows && kv_model_backend(plan->model)->on_host) {
        p->states = kv_scratch_open(e);
        if (!p->states)
            goto fail;
    }
    if (plan->kl && !plan->kl_file) {
        p->base = kv_scratch_open(e);
        if (!p->base)
            goto fail;
    }
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
    if (p->base)
        fclose(p->base);
    free(p->base_nll);
    free(p);
}

/* Rows of the base's hidden states of the group, to or from the file. */
static int base_states(const struct kv_ppl *p, const struct group *g,
                       float *read_into, struct kv_err *e)
{
    const size_t row = p->info->hidden * sizeof(float);
    const size_t bytes = n_rows(g) * row;

    for (size_t w = 0; w < g->n_windows; w++) {
        const size_t at = (g->first_window + w) * n_scored(p) * row +
                          (g->first - p->first) * row;
        const size_t first = w * n_rows(g);

        if (read_into
                ? kv_scratch_read(p->base, at,
                                  read_into + first * p->info->hidden, bytes, e)
                : kv_scratch_write(p->base, at, state(p, g, first), bytes, e))
            return -1;
    }
    return 0;
}

/* Rows [row, row + n) of the group, all of one window, of logits [n][n_vocab],
 * against the file's base if there is one.  The error is the first bad row's,
 * for any number of threads. */
static int score_rows(const struct kv_ppl *p, const struct group *g, size_t row,
                      size_t n, const float *logits, struct kv_err *e)
{
    const size_t n_vocab = p->info->n_vocab;
    const int32_t *token = target(p, g, row);
    size_t bad = n;

#pragma omp parallel
    {
        float *log_p =
            p->plan.kl_file ? kv_alloc(n_vocab, 2 * sizeof(*log_p)) : NULL;

#pragma omp for schedule(static)
        for (size_t r = 0; r < n; r++) {
            const size_t at = row + r;
            struct kv_err why;

            if (log_p &&
                kv_klbase_get(p->plan.kl_file,
                              g->first_window + at / n_scored(p),
                              at % n_scored(p), log_p, log_p + n_vocab, &why)) {
#pragma omp critical
                if (r < bad) {
                    bad = r;
                    *e = why;
                }
                continue;
            }
            kv_loss_row(logits + r * n_vocab, log_p,
                        log_p ? log_p + n_vocab : NULL, KV_KLBASE_FLOOR,
                        n_vocab, token[r], &g->score[at]);
        }
        free(log_p);
    }
    return bad < n ? -1 : 0;
}

static int put_rows(struct kv_klbase *file, const float *logits, size_t n_rows,
                    size_t n_vocab, struct kv_err *e)
{
    for (size_t r = 0; r < n_rows; r++)
        if (kv_klbase_put(file, logits + r * n_vocab, e))
            return -1;
    return 0;
}

/* Windows one by one, when nothing here wants their logits. */
static int score_states(const struct kv_ppl *p, const struct group *g,
                        struct kv_err *e)
{
    const size_t hidden = p->info->hidden, n = n_rows(g);

    for (size_t row = 0; row < g->n_windows * n; row += n)
        if (kv_model_losses(p->plan.model, state(p, g, row),
                            g->base ? g->base + row * hidden : NULL, n,
                            target(p, g, row), g->score + row, e))
            return -1;
    return 0;
}

/* Through logits, for a file.  Pieces never span two windows.  to_file: NULL,
 * or takes all logits. */
static int score_logits(const struct kv_ppl *p, const struct group *g,
                        struct kv_klbase *to_file, struct kv_err *e)
{
    const size_t n_vocab = p->info->n_vocab, all = g->n_windows * n_rows(g);
    const size_t fit =
        kv_backend_logit_rows(kv_model_backend(p->plan.model), n_vocab);
    const size_t max = fit < all ? fit : all;
    float *logits = kv_alloc(max, n_vocab * sizeof(*logits));
    int rc = 0;

    for (size_t row = 0, n; row < all && !rc; row += n) {
        const size_t left = n_rows(g) - row % n_rows(g);

        n = left < max ? left : max;
        rc = kv_model_logits(p->plan.model, state(p, g, row), n, logits, e) ||
             (to_file && put_rows(to_file, logits, n, n_vocab, e)) ||
             score_rows(p, g, row, n, logits, e);
    }
    free(logits);
    return rc ? -1 : 0;
}

static double mean_nll(const struct kv_loss *s, size_t n, bool of_base)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)(of_base ? s[i].base_nll : s[i].nll);
    return sum / (double)n;
}

/* Attention of windows from first_window on, that steps the progress bar. */
struct watched {
    struct kv_loop *loop;
    size_t first_window, length;
    struct kv_progress *progress;
};

static int watched_run(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const struct watched *w = arg;
    const struct kv_attention of = kv_loop_attention(
        w->loop, w->first_window + x->first_window, w->length);
    const int rc = of.run(of.arg, x, e);

    if (w->progress && x->first + x->n == w->length)
        kv_progress_step(w->progress, x->n_windows);
    return rc;
}

/* All windows through the model, when they do not fit in memory together:
 * their hidden states go to p->states. */
static int pass_all(const struct kv_ppl *p, struct kv_loop *loop,
                    struct kv_err *e)
{
    struct watched watched = {loop, 0, p->plan.n, p->plan.progress};
    const struct kv_attention attention = {watched_run, &watched};

    return kv_model_forward_file(p->plan.model, p->plan.tokens,
                                 p->plan.n_windows, p->plan.n, p->group,
                                 &attention, p->states, e);
}

/* hidden: of the group, from that file or through the model. */
static int pass_group(const struct kv_ppl *p, struct kv_loop *loop,
                      const struct group *g, float *hidden, struct kv_err *e)
{
    struct watched watched = {loop, g->first_window, p->plan.n,
                              p->plan.progress};
    const struct kv_attention attention = {watched_run, &watched};
    const size_t window = p->plan.n * p->info->hidden * sizeof(*hidden);

    if (g->states)
        return kv_scratch_read(g->states, g->first_window * window, hidden,
                               g->n_windows * window, e);
    return kv_model_forward(
        p->plan.model, p->plan.tokens + g->first_window * p->plan.n + g->start,
        g->n_windows, g->n, g->start, &attention, hidden, e);
}

/* The state of a run. */
struct run {
    struct kv_ppl *p;
    struct kv_loop *loop;
    FILE *states;          /* where hidden is read from; NULL: the model */
    size_t group, piece;   /* windows, and of each tokens, at a time */
    float *hidden, *base;  /* [group][piece][hidden] */
    struct kv_loss *score; /* [group][n_scored] */
    struct kv_klbase *to_file;
};

static int run_group(const struct run *r, struct group *g, struct kv_err *e)
{
    const struct kv_ppl *p = r->p;

    if (kv_interrupted(e) || pass_group(p, r->loop, g, r->hidden, e))
        return -1;
    if (g->first >= g->last) /* a piece of a prompt */
        return 0;
    g->hidden = r->hidden;
    if (p->base && !p->has_base && base_states(p, g, NULL, e))
        return -1;
    if (p->base && p->has_base) {
        if (base_states(p, g, r->base, e))
            return -1;
        g->base = r->base;
    }
    return r->to_file || p->plan.kl_file ? score_logits(p, g, r->to_file, e)
                                         : score_states(p, g, e);
}

/* The scores of whole windows. */
static int add_windows(const struct run *r, size_t first_window, size_t n,
                       struct kv_score *score, struct kv_err *e)
{
    struct kv_ppl *p = r->p;
    const bool kl = p->plan.kl && (p->plan.kl_file || p->has_base);

    for (size_t w = 0; w < n; w++) {
        const struct kv_loss *s = r->score + w * n_scored(p);
        double *base_nll = &p->base_nll[first_window + w];

        if (p->plan.kl_file)
            *base_nll = mean_nll(s, n_scored(p), true);
        if (kv_score_window(score, s, n_scored(p), *base_nll, kl,
                            first_window + w, p->first + 1, e))
            return -1;
        if (kl)
            kv_kl_curve_window(&p->curve, s);
        if (!p->has_base)
            *base_nll = mean_nll(s, n_scored(p), false);
    }
    return 0;
}

struct kv_prefill kv_ppl_prefill(const struct kv_ppl *p)
{
    return p->prefill;
}

struct kv_kl_curve kv_ppl_curve(const struct kv_ppl *p)
{
    return p->curve;
}

/* Windows [first_window, first_window + n), whole or piece by piece. */
static int run_windows(const struct run *r, size_t first_window, size_t n,
                       struct kv_score *score, struct kv_err *e)
{
    const struct kv_ppl *p = r->p;

    for (size_t at = 0; at < p->plan.n; at += r->piece) {
        const size_t end =
            p->plan.n - at < r->piece ? p->plan.n : at + r->piece;
        struct group g = {.first_window = first_window,
                          .n_windows = n,
                          .states = r->states,
                          .start = at,
                          .n = end - at,
                          .first = at > p->first ? at : p->first,
                          .last = end < p->last ? end : p->last};

        g.score = r->score + (g.first - p->first);
        if (run_group(r, &g, e))
            return -1;
    }
    return add_windows(r, first_window, n, score, e);
}

/* The first piece has a whole prompt, each ends with a step. */
static size_t piece_of(const struct kv_ppl *p, const struct kv_spec *spec)
{
    const struct kv_protocol *of = &p->plan.protocol;
    const size_t least = of->kind == KV_PREFILL ? of->prefill : of->step;
    size_t piece;

    if (!kv_policy_drops(&spec->policy))
        return p->plan.n;
    piece = least > PIECE ? least : PIECE / of->step * of->step;
    return piece < p->plan.n ? piece : p->plan.n;
}

static int run_all(const struct run *r, struct kv_score *score,
                   struct kv_err *e)
{
    const size_t all = r->p->plan.n_windows;

    for (size_t w = 0; w < all; w += r->group)
        if (run_windows(r, w, all - w < r->group ? all - w : r->group, score,
                        e))
            return -1;
    return 0;
}

int kv_ppl_run(struct kv_ppl *p, const struct kv_spec *spec,
               const struct kv_calib *calib, struct kv_klbase *to_file,
               struct kv_score_summary *summary, struct kv_bits *bits,
               struct kv_err *e)
{
    const size_t width = p->info->hidden, piece = piece_of(p, spec);
    const bool whole = piece == p->plan.n;
    struct run r = {.p = p,
                    .states =
                        whole && !kv_spec_layered(spec) ? p->states : NULL,
                    .group = whole ? p->group : 1,
                    .piece = piece,
                    .to_file = to_file};
    struct kv_score *score = kv_score_new();
    int rc = -1;

    p->curve = (struct kv_kl_curve){.n = n_scored(p)};
    if (kv_loop_new(&r.loop, spec, &p->info->shape, calib, &p->plan.protocol,
                    p->plan.seed, kv_model_backend(p->plan.model), e) ||
        (r.states && pass_all(p, r.loop, e)))
        goto out;
    r.hidden = kv_alloc(r.group * piece, width * sizeof(*r.hidden));
    if (p->base && p->has_base)
        r.base = kv_alloc(r.group * piece, width * sizeof(*r.base));
    r.score = kv_alloc(r.group * n_scored(p), sizeof(*r.score));
    if (run_all(&r, score, e))
        goto out;
    p->has_base = true;
    *summary = kv_score_summary(score);
    *bits = kv_loop_bits(r.loop);
    p->prefill = kv_loop_prefill(r.loop);
    rc = 0;
out:
    if (p->plan.progress)
        kv_progress_clear(p->plan.progress);
    free(r.score);
    free(r.base);
    free(r.hidden);
    kv_score_free(score);
    kv_loop_free(r.loop);
    return rc;
}
