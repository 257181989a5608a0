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

/* Whether the device has kernels for this view; if not, the reason. */
static inline bool kv_gpu_views_takes(const struct kv_attend_view *v)
{
    return kv_attend_simple(v) && !v->mass && !v->sink_logit;
}

static inline int kv_gpu_views_fail(struct kv_err *e)
{
    return kv_fail(e, "no CUDA kernel of attention with a window, slope, cap, "
                      "shift, sink logit, dropped tokens or mass");
}

/* Launches.  The result's bits do not depend on the number of sequences.  Fails
 * if it does not take the view. */
int kv_gpu_attend_views(const struct kv_attend_job *job, struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
