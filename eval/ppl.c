#include "eval/ppl.h"
#include "eval/loop.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kv_ppl {
    struct kv_ppl_plan plan;
    const struct kv_model_info *info;
    size_t first, last; /* scored positions */
    size_t group;       /* windows at a time */
    FILE *states;       /* NULL, or hidden states of all windows of a run, which
                         * do not fit in memory: [n_windows][n][hidden] */
    FILE *base;         /* hidden states of the base's scored positions,
                         * [n_windows][last - first][hidden] */
    double *base_nll;   /* [n_windows]: mean loss; NaN before the base ran */
    bool has_base;
};

/* One pass of one spec over one group of windows. */
struct group {
    size_t first_window, n_windows;
    const float *hidden;   /* [n_windows][n][hidden] */
    const float *base;     /* [n_windows][n_scored][hidden], or NULL */
    struct kv_loss *score; /* [n_windows][n_scored] */
};

static size_t n_scored(const struct kv_ppl *p)
{
    return p->last - p->first;
}

/* Where scored row `row` of the group stands in the plan's tokens. */
static size_t token_at(const struct kv_ppl *p, const struct group *g,
                       size_t row)
{
    return (g->first_window + row / n_scored(p)) * p->plan.n + p->first +
           row % n_scored(p);
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
    const size_t hidden = p->info->hidden, row = n_scored(p) * hidden;
    const size_t bytes = row * sizeof(float);

    for (size_t w = 0; w < g->n_windows; w++) {
        const size_t at = (g->first_window + w) * bytes;
        const float *from = g->hidden + (w * p->plan.n + p->first) * hidden;

        if (read_into
                ? kv_scratch_read(p->base, at, read_into + w * row, bytes, e)
                : kv_scratch_write(p->base, at, from, bytes, e))
            return -1;
    }
    return 0;
}

/* Rows [row, row + n_rows) of the group, all of one window, of logits
 * [n_rows][n_vocab], against the file's base if there is one.  The error is the
 * first bad row's, for any number of threads. */
static int score_rows(const struct kv_ppl *p, const struct group *g, size_t row,
                      size_t n_rows, const float *logits, struct kv_err *e)
{
    const size_t n_vocab = p->info->n_vocab;
    const int32_t *token = p->plan.tokens + token_at(p, g, row) + 1;
    size_t bad = n_rows;

#pragma omp parallel
    {
        float *log_p =
            p->plan.kl_file ? kv_alloc(n_vocab, 2 * sizeof(*log_p)) : NULL;

#pragma omp for schedule(static)
        for (size_t r = 0; r < n_rows; r++) {
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
    return bad < n_rows ? -1 : 0;
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
    const size_t hidden = p->info->hidden, n = n_scored(p);

    for (size_t row = 0; row < g->n_windows * n; row += n) {
        const size_t token = token_at(p, g, row);
        const size_t at = token - g->first_window * p->plan.n;

        if (kv_model_losses(p->plan.model, g->hidden + at * hidden,
                            g->base ? g->base + row * hidden : NULL, n,
                            p->plan.tokens + token + 1, g->score + row, e))
            return -1;
    }
    return 0;
}

/* Through logits, for a file.  Pieces never span two windows.  to_file: NULL,
 * or takes all logits. */
static int score_logits(const struct kv_ppl *p, const struct group *g,
                        struct kv_klbase *to_file, struct kv_err *e)
{
    const size_t hidden = p->info->hidden, n_vocab = p->info->n_vocab;
    const size_t all = g->n_windows * n_scored(p);
    const size_t fit =
        kv_backend_logit_rows(kv_model_backend(p->plan.model), n_vocab);
    const size_t max = fit < all ? fit : all;
    float *logits = kv_alloc(max, n_vocab * sizeof(*logits));
    int rc = 0;

    for (size_t row = 0, n; row < all && !rc; row += n) {
        const size_t left = n_scored(p) - row % n_scored(p);
        const size_t at = token_at(p, g, row) - g->first_window * p->plan.n;

        n = left < max ? left : max;
        rc = kv_model_logits(p->plan.model, g->hidden + at * hidden, n, logits,
                             e) ||
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

    if (w->progress)
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

    if (p->states)
        return kv_scratch_read(p->states, g->first_window * window, hidden,
                               g->n_windows * window, e);
    return kv_model_forward(p->plan.model,
                            p->plan.tokens + g->first_window * p->plan.n,
                            g->n_windows, p->plan.n, 0, &attention, hidden, e);
}

static int run_group(struct kv_ppl *p, struct kv_loop *loop, struct group *g,
                     float *hidden, float *base, struct kv_klbase *to_file,
                     struct kv_score *score, struct kv_err *e)
{
    const bool first_run = !p->has_base;
    const bool kl = p->plan.kl && (p->plan.kl_file || !first_run);

    if (pass_group(p, loop, g, hidden, e))
        return -1;
    g->hidden = hidden;
    if (p->base && first_run && base_states(p, g, NULL, e))
        return -1;
    if (p->base && !first_run) {
        if (base_states(p, g, base, e))
            return -1;
        g->base = base;
    }
    if (to_file || p->plan.kl_file ? score_logits(p, g, to_file, e)
                                   : score_states(p, g, e))
        return -1;
    for (size_t w = 0; w < g->n_windows; w++) {
        const struct kv_loss *s = g->score + w * n_scored(p);
        double *base_nll = &p->base_nll[g->first_window + w];

        if (p->plan.kl_file)
            *base_nll = mean_nll(s, n_scored(p), true);
        if (kv_score_window(score, s, n_scored(p), *base_nll, kl,
                            g->first_window + w, p->first + 1, e))
            return -1;
        if (first_run)
            *base_nll = mean_nll(s, n_scored(p), false);
    }
    return 0;
}

int kv_ppl_run(struct kv_ppl *p, const struct kv_spec *spec,
               const struct kv_calib *calib, struct kv_klbase *to_file,
               struct kv_score_summary *summary, struct kv_bits *bits,
               struct kv_err *e)
{
    const size_t width = p->info->hidden, all = p->plan.n_windows;
    struct kv_loop *loop = NULL;
    struct kv_score *score = kv_score_new();
    float *hidden = NULL, *base = NULL;
    struct kv_loss *tokens = NULL;
    int rc = -1;

    if (kv_loop_new(&loop, spec, &p->info->shape, calib, &p->plan.protocol,
                    p->plan.seed, kv_model_backend(p->plan.model), e) ||
        (p->states && pass_all(p, loop, e)))
        goto out;
    hidden = kv_alloc(p->group * p->plan.n, width * sizeof(*hidden));
    if (p->base && p->has_base)
        base = kv_alloc(p->group * n_scored(p), width * sizeof(*base));
    tokens = kv_alloc(p->group * n_scored(p), sizeof(*tokens));
    for (size_t w = 0; w < all; w += p->group) {
        struct group g = {.first_window = w,
                          .n_windows = all - w < p->group ? all - w : p->group,
                          .score = tokens};

        if (kv_interrupted(e) ||
            run_group(p, loop, &g, hidden, base, to_file, score, e))
            goto out;
    }
    p->has_base = true;
    *summary = kv_score_summary(score);
    *bits = kv_loop_bits(loop);
    rc = 0;
out:
    if (p->plan.progress)
        kv_progress_clear(p->plan.progress);
    free(tokens);
    free(base);
    free(hidden);
    kv_score_free(score);
    kv_loop_free(loop);
    return rc;
}
