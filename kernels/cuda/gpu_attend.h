/* Attention on a CUDA device over the codes of the CPU's tiles
 * (kernels/tiles/tiles.h), stored in the order that the device's kernels
 * read. */
#ifndef KV_CUDA_GPU_ATTEND_H
#define KV_CUDA_GPU_ATTEND_H

#include "kernels/cuda/decode.h"
#include "kernels/cuda/runtime.h"
#include "kernels/tiles/jobs.h"
#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct kv_gpu_attend;
struct kv_gpu_code;
struct kv_gpu_slot;

/* Copies the caches of these jobs (all of one shape and of one spec, their q
 * and out unused) to the device.  Tokens that fill a tile of 128 on both sides
 * are copied as codes; sinks, tail and the tokens between are decoded and
 * copied as halves.  Jobs may share stores; each job gets its own copy.  Stores
 * may be freed after this returns; the data that their params point to (the
 * codec's) must stay.  More than 8 queries are prefill attention, which fewer
 * families have.  path: int8 runs if the family has it on the device, else
 * exact; if no family has both sides, the generic kernel runs.  Fails if memory
 * runs out and, naming what lacks a kernel, if the device has no kernel for the
 * codes, the head dimension, the pair of sides or the view (cuda/views.h).
 * n_jobs 0: jobs[0] only says shape, view and spec; kv_gpu_attend_update()
 * brings the caches. */
int kv_gpu_attend_new(struct kv_gpu_attend **a, const struct kv_device *device,
                      const struct kv_tiles_job *jobs, size_t n_jobs,
                      enum kv_path path, struct kv_err *e);
/* Brings an attention of kv_gpu_attend_new() with n_jobs 0 up to these jobs,
 * whose caches have grown since the last update: uploads new tokens.  id
 * [n_jobs]: the sequences' numbers, each once.  A sequence that is new gets all
 * its tokens; a sequence that is no longer there is freed.  Fails as
 * kv_gpu_attend_new() does; a may then only be freed. */
int kv_gpu_attend_update(struct kv_gpu_attend *a,
                         const struct kv_tiles_job *jobs, const uint64_t *id,
                         size_t n_jobs, struct kv_err *e);
/* Frees the copy of a sequence, if there is one; an update must come before the
 * next launch. */
void kv_gpu_attend_drop(struct kv_gpu_attend *a, uint64_t id);
/* kv_gpu_attend_new() with the generic kernel, even if the family has a
 * kernel. */
int kv_gpu_attend_new_generic(struct kv_gpu_attend **a,
                              const struct kv_device *device,
                              const struct kv_tiles_job *jobs, size_t n_jobs,
                              struct kv_err *e);
/* kv_gpu_attend_new(), but each launch first dequantizes all codes to halves,
 * then attends to the halves: the cost of a cache that is dequantized before
 * use. */
int kv_gpu_attend_new_dequant(struct kv_gpu_attend **a,
                              const struct kv_device *device,
                              const struct kv_tiles_job *jobs, size_t n_jobs,
                              struct kv_err *e);
/* Copies the same caches to separate memory and repeats the codes of each
 * sequence `times` times, each time with bytes of its own.  This makes caches
 * longer than the host has time to encode; attention over them gives the
 * original's result.  a must outlive the copy, and must not come from
 * kv_gpu_attend_new_dequant() or be made for updates; keys must be stored after
 * RoPE.  With times above 1 it fails if a sequence has tokens that are not
 * codes, a number of codes' tokens that is no multiple of a tile's 128, or more
 * than one query, and if the codes have data behind their tiles. */
int kv_gpu_attend_copy(struct kv_gpu_attend **copy,
                       const struct kv_gpu_attend *a, size_t times,
                       struct kv_err *e);
void kv_gpu_attend_free(struct kv_gpu_attend *a); /* NULL is fine */

enum kv_path kv_gpu_attend_path(const struct kv_gpu_attend *a); /* in use */
/* The path's name in output: "int8", "exact", or "generic" or "dequant", which
 * are exact too. */
const char *kv_gpu_attend_name(const struct kv_gpu_attend *a);
size_t kv_gpu_attend_bytes(const struct kv_gpu_attend *a); /* of all tiles */

/* Copies queries of each sequence's newest nq tokens to the device, and results
 * from it: [n_jobs][nq][n_heads][head_dim]. */
int kv_gpu_attend_ask(struct kv_gpu_attend *a, const float *q,
                      struct kv_err *e);
int kv_gpu_attend_answer(struct kv_gpu_attend *a, float *out, struct kv_err *e);

/* Makes launches read and write these device arrays, queries and outputs, both
 * [n_jobs][nq][n_heads][head_dim]. */
void kv_gpu_attend_use(struct kv_gpu_attend *a, const float *q, float *out);
/* The position of each job's newest token, [n_jobs] (step.h). */
const struct kv_gpu_slot *kv_gpu_attend_slots(const struct kv_gpu_attend *a);

/* Rewrites the newest tile of codes of every sequence from blocks that the
 * device encoded (device_code.h), with the same bytes for the same tokens.
 * can_append: whether the codes [2] of K and V have a kernel; if not, append
 * must not be called.  newest: the first token of a job's newest tile, SIZE_MAX
 * if it has none.  append launches; bytes: device memory, [n_jobs][128 /
 * block][block_bytes], of side 0 (K) or 1 (V). */
bool kv_gpu_attend_can_append(const struct kv_gpu_attend *a,
                              const struct kv_gpu_code *code);
size_t kv_gpu_attend_newest(const struct kv_gpu_attend *a, size_t job);
int kv_gpu_attend_append(const struct kv_gpu_attend *a, int side,
                         const struct kv_gpu_code *code, const uint8_t *bytes,
                         struct kv_err *e);

/* Launches attention; does not wait for it. */
int kv_gpu_attend_launch(struct kv_gpu_attend *a, struct kv_err *e);

#endif
