/* The server's pages: completions, models, health and metrics. */
#ifndef KV_SERVE_COMPLETIONS_H
#define KV_SERVE_COMPLETIONS_H

#include "tools/serve/http.h"
#include "tools/serve/metrics.h"
#include "tools/serve/names.h"
#include "tools/serve/queue.h"
#include "tools/serve/request.h"

#include <stdatomic.h>

struct kv_service {
    struct kv_names names;
    struct kv_request_rules rules;
    struct kv_queue *queue;
    struct kv_metrics *metrics;
    size_t memory;      /* bytes of caches */
    double limit;       /* the most seconds that a request may take */
    uint64_t seed;      /* for requests without a seed */
    bool allow_leakage; /* answers prompts that the calibration has seen */
    atomic_ulong n_requests;
};

/* The routes for kv_http_plan; their arg is the service. */
extern const struct kv_http_route kv_service_routes[];

#endif
