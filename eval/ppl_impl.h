/* Shared by ppl.c, which computes hidden states, and ppl_score.c. */
#ifndef KV_PPL_IMPL_H
#define KV_PPL_IMPL_H

#include "eval/ppl.h"

#include <stdio.h>

/* A run whose hidden states have been computed. */
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
    FILE *states;       /* NULL, or a file for hidden states of all windows of a
                         * run that do not fit in memory:
                         * [n_windows][n][hidden]; not for layered codecs, since
                         * the caches of the waiting windows would need memory
                         * too */
    FILE *scored;       /* hidden states of scored positions, the base's, then
                         * the waiting runs': [1 + n_waiting][n_windows][last -
                         * first][hidden] */
    double *base_nll;   /* [n_windows]: mean loss; NaN before the base ran */
    bool has_base;
    struct kv_ppl_waits waits[KV_PPL_TOGETHER];
    size_t n_waits;
};

/* Whether this rank scores its runs; among ranks that share layers only the
 * last one does.
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

/* The index in p->scored of a run (0: the base), window and scored row. */
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

/* The index in p->scored of the i-th waiting run: after the base's states if
 * runs are compared with them, else 0. */
static inline size_t kv_ppl_run_at(const struct kv_ppl *p, size_t i)
{
    return kv_ppl_has_states(p) ? i + 1 : 0;
}

#endif
