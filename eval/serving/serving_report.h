/* Figures of a run: times, shares and use. */
#ifndef KV_SERVING_REPORT_H
#define KV_SERVING_REPORT_H

#include "eval/serving/cluster.h"

#include <stddef.h>

/* Means over the counted requests, seconds:
 *
 *   jct = queue (before and between stages of prefill) + prefill + quantize
 *         + wait (in CPU memory, for room) + communication + unpack
 *         + join (for the step that runs to end)
 *         + step (weights, and the steps' own time) + read (of KV)
 *         + products (of attention) + vector (dequantizing, approximating)
 *   ttft  the first token, which prefill makes; tpot: each later token
 *
 * share_*: each request's share of its JCT, in per cent, the mean over
 * requests.  busy_*: use of replicas, in per cent.  batch: requests per step.
 * peak_memory: memory in use on the fullest decode replica, with weights, in
 * per cent.  waiting: most requests in CPU memory at a time. */
#define KV_SERVING_TIMES(X)                                                    \
    X(jct)                                                                     \
    X(jct_p50)                                                                 \
    X(jct_p90) X(jct_p99) X(queue) X(prefill) X(wait) X(communication) X(join) \
        X(step) X(read) X(products) X(vector) X(ttft) X(ttft_p99) X(tpot)      \
            X(tpot_p99) X(share_prefill) X(share_communication)                \
                X(share_decode) X(share_read) X(share_vector) X(busy_prefill)  \
                    X(busy_network) X(busy_decode) X(batch) X(peak_memory)     \
                        X(waiting) X(quantize) X(unpack) X(share_quantize)

#define X(name) KV_SERVING_##name,
enum kv_serving_time { KV_SERVING_TIMES(X) KV_SERVING_FIGURES };
#undef X

struct kv_serving_figures {
    double at[KV_SERVING_FIGURES];
};

/* r: [n]; requests first to end - 1 count, at least one.  memory: the share
 * that weights and activations take; bytes: a decode replica's memory. */
void kv_serving_report(const struct kv_request *r, size_t first, size_t end,
                       const struct kv_cluster_use *use, double memory,
                       double bytes, struct kv_serving_figures *f);

/* The times of one request: jct, queue to vector, ttft and tpot. */
void kv_serving_request(const struct kv_request *r,
                        struct kv_serving_figures *f);

/* Returns the mean of n values, x[0], x[stride], ..; *se: its standard error,
 * NaN if n is 1. */
double kv_serving_mean(const double *x, size_t stride, size_t n, double *se);

#endif
