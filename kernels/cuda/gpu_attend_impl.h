/* Internals of a cache on the device, for gpu_attend.c (attends),
 * gpu_attend_tiles.c (uploads tiles) and gpu_attend_plan.c (assigns work to
 * blocks). */
#ifndef KV_CUDA_GPU_ATTEND_IMPL_H
#define KV_CUDA_GPU_ATTEND_IMPL_H

#include "kernels/cuda/families.h"
#include "kernels/cuda/gpu_attend.h"

enum { KV_JOB_SINKS, KV_JOB_CODES, KV_JOB_TAIL }; /* the runs of a job's
                                                   * store */

/* One sequence's memory on the device. */
struct kv_gpu_held {
    uint8_t *tiles[2][KV_GPU_RUNS]; /* K, V */
    uint8_t *halves[2];             /* space for decoded codes, written at each
                                     * launch */
};

struct kv_gpu_attend {
    struct kv_device device;
    const struct kv_gpu_family *family;
    struct kv_gpu_side side[2]; /* K, V */
    struct kv_store store[2]; /* copies of the caller's, without tiles: launches
                                 need them after the caller's are gone */
    size_t n_jobs, n_heads, n_kv_heads, head_dim, nq;
    size_t owned[2];              /* maximum bytes of a tile of codes */
    struct kv_gpu_sequence *plan; /* [n_jobs] */
    struct kv_gpu_held *held;     /* [n_jobs] */
    struct kv_gpu_launch launch;
    size_t bytes;
    void *device_plan, *device_work;
    void *q, *out, *parts, *counters, *slots;
    struct kv_gpu_space space[2]; /* into (K) and out of (V) the codes' space */
    bool copied;                  /* does not own tables and space */
    void *coded; /* the plan over codes, if each launch begins with dequantizing
                    them; else NULL */
};

/* gpu_attend_tiles.c.  Uploads tables, the tiles of every run of the plan,
 * whose addresses it enters into the plan, and the transforms of the codes'
 * space. */
int kv_gpu_attend_send(struct kv_gpu_attend *a, const struct kv_tiles_job *jobs,
                       struct kv_err *e);

void kv_gpu_space_free(struct kv_gpu_space *s);

/* The number of KV heads with their own tiles in a run of this side. */
size_t kv_gpu_run_heads(const struct kv_gpu_attend *a, int r, int side);

/* gpu_attend_plan.c.  Fills in the runs of a job. */
void kv_gpu_attend_split(const struct kv_gpu_attend *a,
                         const struct kv_tiles_job *j,
                         struct kv_gpu_sequence *p);
/* Makes the plan read halves only; a->coded keeps the plan over codes.  Call
 * after the tiles are uploaded. */
int kv_gpu_attend_halves(struct kv_gpu_attend *a, struct kv_err *e);
/* Uploads the plan and the other arguments of a launch. */
int kv_gpu_attend_plan(struct kv_gpu_attend *a, struct kv_err *e);

static inline const struct kv_store *
kv_gpu_job_store(const struct kv_tiles_job *j, int side, int run)
{
    return (side ? j->v : j->k) + run;
}

/* Returns the bytes of a tile of halves in the order of float/cuda.cuh. */
static inline size_t kv_gpu_halves_bytes(const struct kv_gpu_attend *a)
{
    return KV_GPU_TILE * kv_padded(a->head_dim) * sizeof(uint16_t);
}

static inline size_t kv_gpu_run_tiles(const struct kv_gpu_run *r)
{
    return (r->n + KV_GPU_TILE - 1) / KV_GPU_TILE;
}

#endif
