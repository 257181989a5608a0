/* Internals of a cache on the device, for gpu_attend.c (attends),
 * gpu_attend_tiles.c (uploads tiles), gpu_attend_grow.c (uploads new tokens)
 * and gpu_attend_plan.c (assigns work to blocks). */
#ifndef KV_CUDA_GPU_ATTEND_IMPL_H
#define KV_CUDA_GPU_ATTEND_IMPL_H

#include "kernels/cuda/families.h"
#include "kernels/cuda/gpu_attend.h"

/* The runs of a job's store. */
enum { KV_JOB_SINKS, KV_JOB_CODES, KV_JOB_TAIL };

/* Device memory that larger memory replaces when more is wanted. */
struct kv_gpu_room {
    void *p;
    size_t bytes;
};

/* Makes r at least this large; its content is then lost. */
int kv_gpu_room_want(struct kv_gpu_room *r, size_t bytes, struct kv_err *e);

/* One sequence's memory on the device, and what its last update left. */
struct kv_gpu_held {
    uint8_t *tiles[2][KV_GPU_RUNS]; /* K, V */
    uint8_t *halves[2];             /* space for decoded codes, written at each
                                     * launch */
    uint64_t id;
    size_t room[2][KV_GPU_RUNS]; /* bytes of a KV head in tiles */
    size_t coded[2];             /* tokens that were codes */
    float *rows[2];              /* host memory: the run of the rest, decoded,
                                  * [n_kv_heads][row_room][head_dim] */
    size_t row_room[2];
};

void kv_gpu_held_free(struct kv_gpu_held *h);

struct kv_gpu_attend {
    struct kv_device device;
    const struct kv_gpu_family *family;
    struct kv_gpu_side side[2]; /* K, V */
    struct kv_store store[2]; /* copies of the caller's, without tiles: launches
                                 need them after the caller's are gone */
    enum kv_path asked;       /* the path of kv_gpu_attend_new() */
    bool grows;               /* for kv_gpu_attend_update() */
    size_t n_jobs, n_heads, n_kv_heads, head_dim, nq;
    size_t owned[2];              /* maximum bytes of a tile of codes */
    struct kv_gpu_sequence *plan; /* [n_jobs] */
    struct kv_gpu_held *held;     /* [n_jobs] */
    struct kv_gpu_launch launch;
    size_t bytes;
    struct kv_gpu_room device_plan, device_work;
    struct kv_gpu_room q, out, parts, counters, slots;
    struct kv_gpu_space space[2]; /* into (K) and out of (V) the codes' space */
    float *matrix[2]; /* the same as matrices, in host memory; or NULL */
    bool copied;      /* does not own tables and space */
    void *coded; /* the plan over codes, if each launch begins with dequantizing
                    them; else NULL */
};

/* gpu_attend.c.  kv_gpu_attend_takes() fails if there is no attention for a
 * job's view or runs.  kv_gpu_attend_reopen() finds a family for tiles that own
 * more bytes than those before, and uploads its tables; the tiles on the device
 * are no longer valid. */
int kv_gpu_attend_takes(const struct kv_tiles_job *j, struct kv_err *e);
int kv_gpu_attend_reopen(struct kv_gpu_attend *a,
                         const struct kv_tiles_job *jobs, size_t n_jobs,
                         struct kv_err *e);

/* gpu_attend_tiles.c.  kv_gpu_attend_send_tables(): uploads tables and the
 * transforms of the codes' space, which the codes of `job` have.
 * kv_gpu_attend_send(): uploads the tiles of every run of the plan, and enters
 * their addresses into the plan. */
int kv_gpu_attend_send_tables(struct kv_gpu_attend *a,
                              const struct kv_tiles_job *job, struct kv_err *e);
int kv_gpu_attend_send(struct kv_gpu_attend *a, const struct kv_tiles_job *jobs,
                       struct kv_err *e);
void kv_gpu_attend_free_tables(struct kv_gpu_attend *a);

/* A side with the codes of this job. */
struct kv_gpu_side kv_gpu_side_of(const struct kv_gpu_attend *a,
                                  const struct kv_tiles_job *j, int side);
/* The number of KV heads with their own tiles in a run of this side. */
size_t kv_gpu_run_heads(const struct kv_gpu_attend *a, int r, int side);
/* The bytes of a KV head's tiles of codes and of the data after them. */
size_t kv_gpu_coded_bytes(const struct kv_gpu_attend *a,
                          const struct kv_tiles_job *j,
                          const struct kv_gpu_run *run, int side);
/* Reads tokens [first, first + n) of one side and head of a job, in the model's
 * space, to x [n][head_dim]. */
void kv_gpu_read_rows(const struct kv_gpu_attend *a,
                      const struct kv_tiles_job *j, int side, size_t head,
                      size_t first, size_t n, float *x);

/* gpu_attend_plan.c.  Fills in the runs of a job. */
void kv_gpu_attend_split(const struct kv_gpu_attend *a,
                         const struct kv_tiles_job *j,
                         struct kv_gpu_sequence *p);
/* Makes the plan read halves only; a->coded keeps the plan over codes.  Call
 * after the tiles are uploaded. */
int kv_gpu_attend_halves(struct kv_gpu_attend *a, struct kv_err *e);
/* Uploads the plan and the other arguments of a launch, and points the launch
 * to them. */
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
