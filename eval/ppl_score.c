/* Scores of runs that wait, from the hidden states that they left. */
#include "eval/ppl_impl.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"

#include <stdlib.h>
#include <string.h>

/* Rows of a window scored at a time; a multiple of the rows that a tile of
 * logits has. */
enum { ROWS = 16 * KV_LOGIT_ROWS };

/* Rows [row, row + n) of a window, for all waiting runs. */
struct rows {
    const struct kv_ppl *p;
    size_t window, row, n;
    const float *hidden[KV_PPL_TOGETHER];  /* [n][hidden] */
    const float *base;                     /* [n][hidden], or NULL */
    struct kv_loss *loss[KV_PPL_TOGETHER]; /* [n] */
};

/* The target of the first row: the token after it. */
static const int32_t *target(const struct rows *s)
{
    const struct kv_ppl *p = s->p;

    return p->plan.tokens + s->window * p->plan.n + p->first + s->row + 1;
}

/* Scores rows [at, at + n) of run i by logits [n][n_vocab], against the base
 * file if there is one.  For any number of threads, the error names the first
 * bad row. */
static int score_rows(const struct rows *s, size_t i, size_t at, size_t n,
                      const float *logits, struct kv_err *e)
{
    const struct kv_ppl *p = s->p;
    const size_t n_vocab = p->info->n_vocab;
    const int32_t *token = target(s) + at;
    size_t bad = n;

#pragma omp parallel
    {
        float *log_p =
            p->plan.kl_file ? kv_alloc(n_vocab, 2 * sizeof(*log_p)) : NULL;

#pragma omp for schedule(static)
        for (size_t r = 0; r < n; r++) {
            struct kv_err why;

            if (log_p &&
                kv_klbase_get(p->plan.kl_file, s->window, s->row + at + r,
                              log_p, log_p + n_vocab, &why)) {
#pragma omp critical
                if (r < bad) {
                    bad = r;
                    *e = why;
                }
                continue;
            }
            kv_loss_row(logits + r * n_vocab, log_p,
                        log_p ? log_p + n_vocab : NULL, KV_KLBASE_FLOOR,
                        n_vocab, token[r], &s->loss[i][at + r]);
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

/* Computes run i's logits and scores them, for runs that read or write a klbase
 * file.  to_file: NULL, or receives all logits. */
static int score_logits(const struct rows *s, size_t i,
                        struct kv_klbase *to_file, struct kv_err *e)
{
    const struct kv_ppl *p = s->p;
    const size_t n_vocab = p->info->n_vocab;
    const size_t fit =
        kv_backend_logit_rows(kv_model_backend(p->plan.model), n_vocab);
    const size_t max = fit < s->n ? fit : s->n;
    float *logits = kv_alloc(max, n_vocab * sizeof(*logits));
    int rc = 0;

    for (size_t at = 0, n; at < s->n && !rc; at += n) {
        n = s->n - at < max ? s->n - at : max;
        rc = kv_model_logits(p->plan.model, s->hidden[i] + at * p->info->hidden,
                             n, logits, e) ||
             (to_file && put_rows(to_file, logits, n, n_vocab, e)) ||
             score_rows(s, i, at, n, logits, e);
    }
    free(logits);
    return rc ? -1 : 0;
}

static int score_states(const struct rows *s, struct kv_klbase *to_file,
                        struct kv_err *e)
{
    const struct kv_ppl *p = s->p;
    const struct kv_states states = {s->n, s->hidden, p->n_waits, s->base};

    if (!to_file && !p->plan.kl_file)
        return kv_model_losses(p->plan.model, &states, target(s), s->loss, e);
    for (size_t i = 0; i < p->n_waits; i++)
        if (score_logits(s, i, to_file, e))
            return -1;
    return 0;
}

static double mean_nll(const struct kv_loss *s, size_t n, bool of_base)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)(of_base ? s[i].base_nll : s[i].nll);
    return sum / (double)n;
}

/* The state of a scoring: memory for ROWS rows of each run and of the base, for
 * a window's losses, and for each run's sums. */
struct scoring {
    struct kv_ppl *p;
    struct kv_klbase *to_file;
    size_t rows;   /* at a time */
    float *hidden; /* [1 + n_waits][rows][hidden] */
    struct kv_loss
        *loss; /* [n_waits][scored], for each window if all are kept */
    struct kv_score *score[KV_PPL_TOGETHER];
    struct kv_ppl_row *row; /* [n_waits]: the runs of the curves */
};

static bool keeps_all(const struct kv_ppl *p)
{
    return p->plan.ranks || p->plan.losses;
}

static struct kv_loss *losses(const struct scoring *s, size_t window)
{
    const struct kv_ppl *p = s->p;

    return s->loss +
           (keeps_all(p) ? window * p->n_waits * kv_ppl_scored(p) : 0);
}

static int score_window(const struct scoring *s, size_t window,
                        struct kv_err *e)
{
    const struct kv_ppl *p = s->p;
    const size_t scored = kv_ppl_scored(p), width = p->info->hidden;

    for (size_t row = 0, n; row < scored; row += n) {
        struct rows these = {.p = p, .window = window, .row = row};
        size_t bytes;

        n = scored - row < s->rows ? scored - row : s->rows;
        bytes = n * width * sizeof(float);
        these.n = n;
        for (size_t i = 0; i < p->n_waits; i++) {
            float *to = s->hidden + (i + 1) * s->rows * width;

            these.hidden[i] = to;
            these.loss[i] = losses(s, window) + i * scored + row;
            if (kv_scratch_read(
                    p->scored,
                    kv_ppl_place(p, kv_ppl_run_at(p, i), window, row), to,
                    bytes, e))
                return -1;
        }
        if (kv_ppl_has_states(p)) {
            these.base = s->hidden;
            if (kv_scratch_read(p->scored, kv_ppl_place(p, 0, window, row),
                                s->hidden, bytes, e))
                return -1;
        }
        if (score_states(&these, s->to_file, e))
            return -1;
    }
    return 0;
}

/* Returns a copy of run i's losses, window by window. */
static struct kv_loss *losses_of(const struct scoring *s, size_t i)
{
    const size_t n = kv_ppl_scored(s->p), n_windows = s->p->plan.n_windows;
    struct kv_loss *loss = kv_alloc(n_windows * n, sizeof(*loss));

    for (size_t w = 0; w < n_windows; w++)
        memcpy(loss + w * n, losses(s, w) + i * n, n * sizeof(*loss));
    return loss;
}

/* Adds the scores of a whole window. */
static int add_window(const struct scoring *s, size_t window, struct kv_err *e)
{
    struct kv_ppl *p = s->p;
    const size_t n = kv_ppl_scored(p);
    const bool kl = p->plan.kl && (p->plan.kl_file || p->has_base);
    double *base_nll = &p->base_nll[window];

    for (size_t i = 0; i < p->n_waits; i++) {
        const struct kv_loss *loss = losses(s, window) + i * n;

        if (p->plan.kl_file)
            *base_nll = mean_nll(loss, n, true);
        if (kv_score_window(s->score[i], loss, n, *base_nll, kl, window,
                            p->first + 1, e))
            return -1;
        if (kl)
            kv_kl_curve_window(&s->row[i].curve, loss);
        if (!p->has_base)
            *base_nll = mean_nll(loss, n, false);
    }
    return 0;
}

static int score_windows(const struct scoring *s, struct kv_err *e)
{
    for (size_t w = 0; w < s->p->plan.n_windows; w++)
        if (kv_interrupted(e) || score_window(s, w, e) || add_window(s, w, e))
            return -1;
    return 0;
}

/* Adds the bits of the ranks' caches and the cost of their prompts. */
static int gather_counts(const struct scoring *s, struct kv_err *e)
{
    const struct kv_ppl *p = s->p;
    const size_t n = p->n_waits, n_ranks = p->plan.ranks->n;
    struct kv_ppl_waits *all = kv_alloc(n_ranks * n, sizeof(*all));
    size_t *at = kv_alloc(n_ranks + 1, sizeof(*at));
    int rc;

    for (size_t i = 0; i <= n_ranks; i++)
        at[i] = i * n * sizeof(*all);
    memcpy(all + p->plan.ranks->self * n, p->waits, n * sizeof(*all));
    rc = kv_ranks_gather(p->plan.ranks, all, at, e);
    for (size_t i = n; i < n_ranks * n && !rc && !p->plan.ranks->self; i++) {
        kv_bits_add(&s->row[i % n].bits, &all[i].bits);
        s->row[i % n].prefill.pairs += all[i].prefill.pairs;
        s->row[i % n].prefill.all_pairs += all[i].prefill.all_pairs;
        s->row[i % n].prefill.seconds += all[i].prefill.seconds;
    }
    free(at);
    free(all);
    return rc;
}

static int gather_losses(const struct scoring *s, struct kv_err *e)
{
    const struct kv_ppl *p = s->p;
    const size_t n = p->plan.n_windows;
    size_t *at = kv_alloc(p->plan.ranks->n + 1, sizeof(*at));
    int rc;

    for (size_t i = 0; i <= p->plan.ranks->n; i++)
        at[i] =
            (size_t)((char *)losses(s, kv_ranks_first(p->plan.ranks, i, n)) -
                     (char *)s->loss);
    rc = kv_ranks_gather(p->plan.ranks, s->loss, at, e);
    free(at);
    return rc;
}

/* Each rank scores its own windows, or the last rank all of them; the first
 * rank sums the losses in order. */
static int score_by_ranks(const struct scoring *s, struct kv_err *e)
{
    const struct kv_ppl *p = s->p;

    for (size_t w = p->from; w < p->to && kv_ppl_scores(p); w++)
        if (kv_interrupted(e) || kv_ranks_check(p->plan.ranks, e) ||
            score_window(s, w, e))
            return -1;
    if (gather_losses(s, e) || gather_counts(s, e))
        return -1;
    for (size_t w = 0; w < p->plan.n_windows && !p->plan.ranks->self; w++)
        if (add_window(s, w, e))
            return -1;
    return 0;
}

bool kv_ppl_full(const struct kv_ppl *p)
{
    const size_t bytes = kv_ppl_place(p, 1, 0, 0); /* bytes of one run */
    double seconds = 0;

    for (size_t i = 0; i < p->n_waits; i++)
        seconds += p->waits[i].seconds;
    /* ranks have different clocks, but must score the same batches */
    return (p->n_waits && !kv_ppl_has_states(p)) ||
           p->n_waits == KV_PPL_TOGETHER ||
           (seconds > KV_PPL_WAIT_SECONDS && !p->plan.ranks) ||
           (p->n_waits && (p->n_waits + 1) * bytes > p->plan.memory);
}

int kv_ppl_score(struct kv_ppl *p, struct kv_klbase *to_file,
                 struct kv_ppl_row *row, struct kv_err *e)
{
    const double start = kv_seconds();
    const size_t n = p->n_waits, scored = kv_ppl_scored(p);
    struct scoring s = {.p = p, .to_file = to_file, .row = row};
    int rc;

    if (!n)
        return 0;
    s.rows = scored < ROWS ? scored : ROWS;
    s.hidden = kv_alloc((1 + n) * s.rows, p->info->hidden * sizeof(*s.hidden));
    s.loss = kv_alloc((keeps_all(p) ? p->plan.n_windows : 1) * n * scored,
                      sizeof(*s.loss));
    for (size_t i = 0; i < n; i++) {
        s.score[i] = kv_score_new();
        row[i] = (struct kv_ppl_row){.curve = {.n = scored},
                                     .bits = p->waits[i].bits,
                                     .prefill = p->waits[i].prefill};
    }
    rc = p->plan.ranks ? score_by_ranks(&s, e) : score_windows(&s, e);
    for (size_t i = 0; i < n; i++) {
        if (!rc && !(p->plan.ranks && p->plan.ranks->self)) {
            row[i].score = kv_score_summary(s.score[i]);
            row[i].kl = kv_score_kl_windows(s.score[i]);
            row[i].loss = p->plan.losses ? losses_of(&s, i) : NULL;
        }
        row[i].seconds =
            p->waits[i].seconds + (kv_seconds() - start) / (double)n;
        kv_score_free(s.score[i]);
    }
    free(s.loss);
    free(s.hidden);
    p->has_base = p->has_base || !rc;
    p->n_waits = 0;
    return rc;
}
