/* Timed decode attention on a GPU: the measurement of kvattn --device cuda. */
#ifndef KV_ATTN_GPU_H
#define KV_ATTN_GPU_H

#include "eval/attn_bench.h"
#include "eval/timing.h"
#include "kernels/device.h"
#include "lib/seq/tile_cache.h"

struct kv_attn_gpu;
struct kv_gpu_attend;

/* Puts `copies` copies of n_batch caches on the device; each repeats its tokens
 * `repeats` times (kv_gpu_attend_copy()).  q: [n_batch][nq][n_heads][head_dim].
 * path int8: exact runs if the device has no int8 kernel for these codes; auto:
 * exact; both: generic runs if no family has the codes.  Fails without a kernel
 * for the codes and without memory, naming what is missing; unfused also fails
 * if a side is not f16, or nq is not 1.  Unfused and dequant repeat nothing.
 * The tiles are not needed afterwards. */
int kv_attn_gpu_new(struct kv_attn_gpu **g, const struct kv_device *device,
                    struct kv_tile_cache *const *tiled, size_t n_batch,
                    size_t copies, size_t repeats, const float *q, size_t nq,
                    enum kv_attn_path path, struct kv_err *e);
void kv_attn_gpu_free(struct kv_attn_gpu *g); /* NULL is fine */

const char *kv_attn_gpu_name(const struct kv_attn_gpu *g); /* the path in use */
/* Bytes of the caches on the device, which a step reads. */
size_t kv_attn_gpu_bytes(const struct kv_attn_gpu *g);

/* Launches attention once; does not wait for it. */
int kv_attn_gpu_launch(struct kv_attn_gpu *g, struct kv_err *e);

/* Times attention, reps times with cold caches.  base not NULL: base runs
 * before each, and *ratio becomes base's median time over this one's.  out: the
 * first copies' outputs.  Fails when copies of a sequence disagree. */
int kv_attn_gpu_time(struct kv_attn_gpu *g, struct kv_attn_gpu *base,
                     size_t warmup, size_t reps, struct kv_timing *timing,
                     double *ratio, float *out, struct kv_err *e);

/* Attends again; fails if the first copies' outputs differ from `out`. */
int kv_attn_gpu_again(struct kv_attn_gpu *g, const float *out,
                      struct kv_err *e);

/* The cache of gpu_attend.h; NULL: unfused. */
struct kv_gpu_attend *kv_attn_gpu_attend(const struct kv_attn_gpu *g);

#endif
