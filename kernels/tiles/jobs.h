/* Attention to a cache in tiles (tiles.h): a job is a view and the stores of
 * both sides. */
#ifndef KV_TILES_JOBS_H
#define KV_TILES_JOBS_H

#include "kernels/attend.h"
#include "kernels/tiles/tiles.h"

enum { KV_MAX_RUNS = 3 };

/* Queries of one sequence (view.n_seqs is 1).  q, out: [nq][n_heads][head_dim].
 * Both sides' runs cover [0, first + nq) without gaps; empty runs are
 * allowed. */
struct kv_tiles_job {
    struct kv_attend_view view;
    uint64_t seed; /* for families with stochastic rounding */
    const float *q;
    float *out;
    const struct kv_store *k, *v; /* [KV_MAX_RUNS] */
    enum kv_path path;            /* used if a run's family has it, else
                                   * exact */
};

/* Whether attention over tiles takes this view.  It takes all fields except the
 * mass of tokens, since the softmax is online.  Steps of tokens that no query
 * of a group sees are not read. */
bool kv_tiles_takes(const struct kv_attend_view *v);

/* Runs all jobs, split by job, KV head and chunk among the threads. */
void kv_tiles_attend(const struct kv_tiles_job *jobs, size_t n_jobs,
                     size_t threads);

#endif
