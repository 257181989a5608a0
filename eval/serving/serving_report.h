/* Figures of a run: times, shares and use. */
#ifndef KV_SERVING_REPORT_H
#define KV_SERVING_REPORT_H

#include "eval/serving/cluster.h"

#include <stddef.h>

/* Seconds, means over the requests that count.  jct = queue + prefill + wait +
 * communication + join + step + read + products + vector. */
#define KV_SERVING_TIMES(X)                                                    \
    X(jct)                                                                     \
    X(jct_p50) X(jct_p90) X(jct_p99)                                           \
        X(queue)                 /* before and between stages of prefill */    \
        X(prefill) X(wait)       /* in CPU memory, for room */                 \
        X(communication) X(join) /* for the step that runs to end */           \
        X(step)                  /* weights, and the steps' own time */        \
        X(read)                  /* of KV */                                   \
        X(products)              /* of attention */                            \
        X(vector)                /* dequantizing or approximating */           \
        X(ttft)                  /* the first token, which prefill makes */    \
        X(ttft_p99) X(tpot)      /* a token after it */                        \
        X(tpot_p99) /* Means of a request's shares of its JCT, in per cent. */ \
        X(share_prefill) X(share_communication) X(share_decode) X(share_read)  \
            X(share_vector) /* Use of replicas, in per cent; requests a step.  \
                             */                                                \
        X(busy_prefill) X(busy_network) X(busy_decode) X(batch)                \
            X(peak_memory) /* per cent of a decode replica, weights too */     \
        X(waiting)         /* most requests in CPU memory at a time */

#define X(name) KV_SERVING_##name,
enum kv_serving_time { KV_SERVING_TIMES(X) KV_SERVING_FIGURES };
#undef X

struct kv_serving_figures {
    double at[KV_SERVING_FIGURES];
};

/* r: [n]; those from first up to end count, at least one.  memory: share of
 * weights and activations; bytes: of a decode replica. */
void kv_serving_report(const struct kv_request *r, size_t first, size_t end,
                       const struct kv_cluster_use *use, double memory,
                       double bytes, struct kv_serving_figures *f);

/* A request's own: jct, queue to vector, ttft and tpot. */
void kv_serving_request(const struct kv_request *r,
                        struct kv_serving_figures *f);

/* Mean and standard error (NaN of one) of x[n], of which is one every stride
 * doubles. */
double kv_serving_mean(const double *x, size_t stride, size_t n, double *se);

#endif
