/* Attention to a cache in tiles (tiles.h): a job is a view and the stores of
 * both sides. */
#ifndef KV_TILES_JOBS_H
#define KV_TILES_JOBS_H

#include "kernels/attend.h"
#include "kernels/tiles/tiles.h"

enum { KV_MAX_RUNS = 3 };

/* Queries of one sequence (view.n_seqs is 1).  q, out: [nq][n_heads][head_dim].
 * Both sides' runs cover [0, first + nq) without gap; runs of no tokens may
 * stand among them. */
struct kv_tiles_job {
    struct kv_attend_view view;
    uint64_t seed; /* of stochastic rounding, where a family rounds queries */
    const float *q;
    float *out;
    const struct kv_store *k, *v; /* [KV_MAX_RUNS] */
    enum kv_path path;            /* where a run's family has it, else exact */
};

/* All fields but the mass of tokens: the softmax runs along.  Steps of tokens
 * that no query of a group sees are not read. */
bool kv_tiles_takes(const struct kv_attend_view *v);

/* All jobs, split over (job, KV head, chunk) among the threads. */
void kv_tiles_attend(const struct kv_tiles_job *jobs, size_t n_jobs,
                     size_t threads);

#endif
