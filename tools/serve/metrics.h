/* Counters of a server, in Prometheus' format. */
#ifndef KV_SERVE_METRICS_H
#define KV_SERVE_METRICS_H

#include "lib/tokenizer/tokenizer_text.h"
#include "tools/serve/queue.h"

struct kv_metrics;

struct kv_metrics *kv_metrics_new(void);
void kv_metrics_free(struct kv_metrics *m);

/* Counts a request that is over.  path must outlive m; status 0: the client
 * left. */
void kv_metrics_request(struct kv_metrics *m, const char *path, int status,
                        double seconds);
void kv_metrics_tokens(struct kv_metrics *m, size_t prompt, size_t made);

void kv_metrics_print(struct kv_metrics *m, const struct kv_queue_counts *now,
                      struct kv_text *text);

#endif
