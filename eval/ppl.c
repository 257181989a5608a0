#include "eval/ppl.h"
#include "eval/loop.h"
#include "kernels/cuda/loss.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kv_ppl {
    struct kv_ppl_plan plan;
    const struct kv_model_info *info;
    size_t first, last; /* scored positions */
    size_t group;       /* windows at a time */
    FILE *base;         /* hidden states of the base's scored positions,
                         * [n_windows][last - first][hidden] */
    double *base_nll;   /* [n_windows]: mean loss; NaN before the base ran */
    bool has_base;
};

/* One pass of one spec over one group of windows. */
struct group {
    size_t first_window, n_windows;
    const float *hidden;          /* [n_windows][n][hidden] */
    const float *base;            /* [n_windows][n_scored][hidden], or NULL */
    struct kv_token_score *score; /* [n_windows][n_scored] */
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
    /* a third of the memory is for what the loop decodes */
    p->group = kv_model_windows(plan->model, plan->n, plan->memory / 3 * 2);
    if (p->group > plan->n_windows)
        p->group = plan->n_windows;
    p->base_nll = kv_alloc(plan->n_windows, sizeof(*p->base_nll));
    for (size_t w = 0; w < plan->n_windows; w++)
        p->base_nll[w] = NAN;
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

/* sum of p (log p - log q) where log p > floor.  q: logits with log-sum-exp
 * q_lse. */
static double divergence(const float *log_p, const float *p, const float *q,
                         double q_lse, size_t n, float floor)
{
    enum { LANES = 8 };
    double lane[LANES] = {0}, sum = 0;

    for (size_t i = 0; i < n; i += LANES)
        for (size_t j = 0; j < LANES && i + j < n; j++) {
            const double diff =
                (double)log_p[i + j] - ((double)q[i + j] - q_lse);

            lane[j] += log_p[i + j] > floor ? (double)p[i + j] * diff : 0;
        }
    for (size_t j = 0; j < LANES; j++)
        sum += lane[j];
    return sum;
}

/* base_log_p NULL: no base; else base_p are its exponentials. */
static void score_token(const float *logits, const float *base_log_p,
                        const float *base_p, float floor, size_t n_vocab,
                        int32_t target, struct kv_token_score *s)
{
    const double lse = kv_log_sum_exp(logits, n_vocab);
    const double log_q = (double)logits[target] - lse;

    *s = (struct kv_token_score){.nll = (float)-log_q};
    if (!base_log_p)
        return;
    s->base_nll = -base_log_p[target];
    s->dp = (float)(exp(log_q) - exp((double)base_log_p[target]));
    s->same =
        kv_row_argmax(logits, n_vocab) == kv_row_argmax(base_log_p, n_vocab);
    s->kl = (float)divergence(base_log_p, base_p, logits, lse, n_vocab, floor);
}

/* The base's log-probabilities of one row, from its logits or the file, and
 * their exponentials. */
static int base_row(const struct kv_ppl *p, const struct group *g, size_t row,
                    float *log_p, float *base_p, struct kv_err *e)
{
    const size_t n = p->info->n_vocab;

    if (p->plan.kl_file)
        return kv_klbase_get(p->plan.kl_file,
                             g->first_window + row / n_scored(p),
                             row % n_scored(p), log_p, base_p, e);

    const float lse = (float)kv_log_sum_exp(log_p, n);

    for (size_t i = 0; i < n; i++)
        log_p[i] -= lse;
    memcpy(base_p, log_p, n * sizeof(*base_p));
    kv_row_exp(base_p, n, 0);
    return 0;
}

/* Rows [row, row + n_rows) of the group, all of one window: logits
 * [n_rows][n_vocab] are given, base [n_rows][n_vocab] (or NULL) too unless a
 * file has them.  The sentence is the first bad row's, whichever thread had
 * it. */
static int score_rows(const struct kv_ppl *p, const struct group *g, size_t row,
                      size_t n_rows, const float *logits, float *base,
                      struct kv_err *e)
{
    const size_t n_vocab = p->info->n_vocab;
    const int32_t *token = p->plan.tokens + token_at(p, g, row) + 1;
    const float floor = p->plan.kl_file ? KV_KLBASE_FLOOR : -INFINITY;
    size_t bad = n_rows;

#pragma omp parallel
    {
        float *room = base ? kv_alloc(n_vocab, sizeof(*room)) : NULL;

#pragma omp for schedule(static)
        for (size_t r = 0; r < n_rows; r++) {
            float *log_p = base ? base + r * n_vocab : NULL;
            struct kv_err why;

            if (log_p && base_row(p, g, row + r, log_p, room, &why)) {
#pragma omp critical
                if (r < bad) {
                    bad = r;
                    *e = why;
                }
                continue;
            }
            score_token(logits + r * n_vocab, log_p, room, floor, n_vocab,
                        token[r], &g->score[row + r]);
        }
        free(room);
    }
    return bad < n_rows ? -1 : 0;
}

/* The logarithms that the device leaves; has_base: b's are there too. */
static struct kv_token_score finish_loss(const struct kv_gpu_loss *l,
                                         bool has_base)
{
    const double lse = log(l->sum) + (double)l->max;
    const double log_q = (double)l->x - lse;
    struct kv_token_score s = {.nll = (float)-log_q};

    if (has_base) {
        const double base_lse = log(l->base_sum) + (double)l->base_max;
        const double log_p = (double)l->b - base_lse;

        s.kl = (float)(l->cross / l->base_sum - base_lse + lse);
        s.dp = (float)(exp(log_q) - exp(log_p));
        s.base_nll = (float)-log_p;
        s.same = l->same;
    }
    return s;
}

/* As score_rows(), on the device: no logits come back. */
static int score_there(const struct kv_ppl *p, const struct group *g,
                       size_t row, size_t n_rows, struct kv_err *e)
{
    const size_t hidden = p->info->hidden, token = token_at(p, g, row);
    const float *states =
        g->hidden + (token - g->first_window * p->plan.n) * hidden;
    struct kv_gpu_loss *loss = kv_alloc(n_rows, sizeof(*loss));
    const int rc = kv_model_losses(p->plan.model, states,
                                   g->base ? g->base + row * hidden : NULL,
                                   n_rows, p->plan.tokens + token + 1, loss, e);

    for (size_t r = 0; r < n_rows && !rc; r++)
        g->score[row + r] = finish_loss(&loss[r], g->base != NULL);
    free(loss);
    return rc;
}

/* Rows whose logits are held at once: whole tiles of the logits' GEMM, about
 * 16 MiB, so that a large vocabulary does not fill the memory. */
static size_t rows_at_once(const struct kv_ppl *p)
{
    enum { MOST_TILES = 8, BYTES = 1 << 24 };
    const size_t tile = KV_LOGIT_ROWS * p->info->n_vocab * sizeof(float);
    const size_t tiles = BYTES / tile;

    return KV_LOGIT_ROWS * (tiles < 1            ? 1
                            : tiles > MOST_TILES ? MOST_TILES
                                                 : tiles);
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
static int score_group_there(const struct kv_ppl *p, const struct group *g,
                             struct kv_err *e)
{
    const size_t n = n_scored(p);

    for (size_t w = 0; w < g->n_windows; w++)
        if (score_there(p, g, w * n, n, e))
            return -1;
    return 0;
}

/* Pieces never span two windows.  to_file: NULL, or takes all logits. */
static int score_group(const struct kv_ppl *p, const struct group *g, bool kl,
                       struct kv_klbase *to_file, struct kv_err *e)
{
    const size_t hidden = p->info->hidden, n_vocab = p->info->n_vocab;
    const size_t all = g->n_windows * n_scored(p);
    const size_t most = rows_at_once(p) < all ? rows_at_once(p) : all;
    float *logits = kv_alloc(most, n_vocab * sizeof(*logits));
    float *base = kl ? kv_alloc(most, n_vocab * sizeof(*base)) : NULL;
    int rc = -1;

    for (size_t row = 0, n; row < all; row += n) {
        const size_t left = n_scored(p) - row % n_scored(p);
        const size_t at = token_at(p, g, row) - g->first_window * p->plan.n;

        n = left < most ? left : most;
        if (kv_model_logits(p->plan.model, g->hidden + at * hidden, n, logits,
                            e) ||
            (g->base && kv_model_logits(p->plan.model, g->base + row * hidden,
                                        n, base, e)) ||
            (to_file && put_rows(to_file, logits, n, n_vocab, e)) ||
            score_rows(p, g, row, n, logits, base, e))
            goto out;
    }
    rc = 0;
out:
    free(base);
    free(logits);
    return rc;
}

static double mean_nll(const struct kv_token_score *s, size_t n, bool of_base)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)(of_base ? s[i].base_nll : s[i].nll);
    return sum / (double)n;
}

/* Attention that steps a progress bar of windows times layers. */
struct watched {
    struct kv_attention of;
    struct kv_progress *progress;
};

static int watched_run(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const struct watched *w = arg;
    const int rc = w->of.run(w->of.arg, x, e);

    kv_progress_step(w->progress, x->n_windows);
    return rc;
}

static bool watched_there(void *arg, size_t layer)
{
    const struct watched *w = arg;

    return w->of.there && w->of.there(w->of.arg, layer);
}

static int run_group(struct kv_ppl *p, struct kv_loop *loop, struct group *g,
                     float *hidden, float *base, struct kv_klbase *to_file,
                     struct kv_score *score, struct kv_progress *progress,
                     struct kv_err *e)
{
    struct watched watched = {kv_loop_attention(loop, g->first_window),
                              progress};
    const struct kv_attention attention = {watched_run, &watched,
                                           watched_there};
    const bool first_run = !p->has_base;
    const bool kl = p->plan.kl && (p->plan.kl_file || !first_run);

    if (kv_model_forward(p->plan.model,
                         p->plan.tokens + g->first_window * p->plan.n,
                         g->n_windows, p->plan.n, 0, &attention, hidden, e))
        return -1;
    g->hidden = hidden;
    if (p->base && first_run && base_states(p, g, NULL, e))
        return -1;
    if (p->base && !first_run) {
        if (base_states(p, g, base, e))
            return -1;
        g->base = base;
    }
    if (kv_model_device(p->plan.model) && !to_file && !p->plan.kl_file
            ? score_group_there(p, g, e)
            : score_group(p, g, kl, to_file, e))
        return -1;
    for (size_t w = 0; w < g->n_windows; w++) {
        const struct kv_token_score *s = g->score + w * n_scored(p);
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
    const size_t hidden = p->info->hidden, all = p->plan.n_windows;
    const struct kv_device *device;
    struct kv_loop *loop = NULL;
    struct kv_score *score = kv_score_new();
    struct kv_progress progress;
    float *states = NULL, *base = NULL;
    struct kv_token_score *tokens = NULL;
    int rc = -1;

    kv_progress_init(&progress, spec->text, all * p->info->shape.n_layers);
    if (kv_loop_new(&loop, spec, &p->info->shape, calib, &p->plan.protocol,
                    p->plan.seed, e))
        goto out;
    device = kv_model_device(p->plan.model);
    if (device && kv_loop_to_device(loop, device, e))
        goto out;
    states = kv_alloc(p->group * p->plan.n, hidden * sizeof(*states));
    if (p->base && p->has_base)
        base = kv_alloc(p->group * n_scored(p), hidden * sizeof(*base));
    tokens = kv_alloc(p->group * n_scored(p), sizeof(*tokens));
    for (size_t w = 0; w < all; w += p->group) {
        struct group g = {.first_window = w,
                          .n_windows = all - w < p->group ? all - w : p->group,
                          .score = tokens};

        if (kv_interrupted(e) ||
            run_group(p, loop, &g, states, base, to_file, score, &progress, e))
            goto out;
    }
    p->has_base = true;
    *summary = kv_score_summary(score);
    *bits = kv_loop_bits(loop);
    rc = 0;
out:
    kv_progress_clear(&progress);
    free(tokens);
    free(base);
    free(states);
    kv_score_free(score);
    kv_loop_free(loop);
    return rc;
}
