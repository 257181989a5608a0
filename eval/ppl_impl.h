/* Between ppl.c, which makes hidden states, and ppl_score.c. */
#ifndef KV_PPL_IMPL_H
#define KV_PPL_IMPL_H

#include "eval/ppl.h"

#include <stdio.h>

/* A run whose hidden states are made. */
struct kv_ppl_waits {
    double seconds;
    struct kv_bits bits;
    struct kv_prefill prefill;
};

struct kv_ppl {
    struct kv_ppl_plan plan;
    const struct kv_model_info *info;
    size_t first, last; /* scored positions */
    size_t from, to;    /* windows that this rank runs */
    size_t group;       /* windows at a time */
    FILE *states;       /* NULL, or hidden states of all windows of a run, which
                         * do not fit in memory: [n_windows][n][hidden]; not of
                         * layered codecs, whose windows wait in caches, too */
    FILE *scored;       /* hidden states of scored positions, the base's, then
                         * of the runs that wait:
                         * [1 + n_waiting][n_windows][last - first][hidden] */
    double *base_nll;   /* [n_windows]: mean loss; NaN before the base ran */
    bool has_base;
    struct kv_ppl_waits waits[KV_PPL_TOGETHER];
    size_t n_waits;
};

/* Whether this rank scores what it runs: of ranks that share layers the last.
 */
static inline bool kv_ppl_scores(const struct kv_ppl *p)
{
    const struct kv_ranks *r = p->plan.ranks;

    return !r || !r->by_layers || r->self == r->n - 1;
}

static inline size_t kv_ppl_scored(const struct kv_ppl *p)
{
    return p->last - p->first;
}

/* The place in p->scored of run `run`, 0 the base, window and scored row. */
static inline size_t kv_ppl_place(const struct kv_ppl *p, size_t run,
                                  size_t window, size_t row)
{
    return ((run * p->plan.n_windows + window) * kv_ppl_scored(p) + row) *
           p->info->hidden * sizeof(float);
}

/* Whether runs are compared with the base's hidden states. */
static inline bool kv_ppl_has_states(const struct kv_ppl *p)
{
    return p->plan.kl && !p->plan.kl_file && p->has_base;
}

/* The place in p->scored of the i-th run that waits: behind the base's states
 * where runs are compared with them, else the first place. */
static inline size_t kv_ppl_run_at(const struct kv_ppl *p, size_t i)
{
    return kv_ppl_has_states(p) ? i + 1 : 0;
}

#endif
