/* kv_attend() on the device (kernels/attend.h), for the forward pass of a
 * model: many queries, memory linear in the tokens.  All pointers of a job are
 * device pointers. */
#ifndef KV_CUDA_VIEWS_H
#define KV_CUDA_VIEWS_H

#include "kernels/attend.h"
#include "lib/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether attention on codes and attention of a decode step have kernels for
 * this view; kv_gpu_plain_fail() gives the reason if they have none. */
static inline bool kv_gpu_plain_takes(const struct kv_attend_view *v)
{
    return kv_attend_simple(v) && !v->mass && !v->sink_logit;
}

static inline int kv_gpu_plain_fail(struct kv_err *e)
{
    return kv_fail(e, "no CUDA kernel of attention with a window, slope, cap, "
                      "shift, sink logit, dropped tokens or mass");
}

/* Launches.  The result's bits do not depend on the number of sequences.  Takes
 * windows, caps and slopes (device memory); fails for a shift, sink logits,
 * dropped tokens and mass. */
int kv_gpu_attend_views(const struct kv_attend_job *job, struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
