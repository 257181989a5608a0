/* A prefill replica: stages one after another (pipeline parallelism), each of
 * which serves one request at a time, first come first served. */
#ifndef KV_SERVING_STAGES_H
#define KV_SERVING_STAGES_H

#include <stddef.h>
#include <stdint.h>

enum { KV_STAGES_MAX = 64 };

struct kv_stages {
    size_t n;                   /* 1 to KV_STAGES_MAX */
    double free[KV_STAGES_MAX]; /* s: the time when a stage is free */
    double busy;                /* s: work of the first stage so far */
    uint64_t tokens;            /* tokens queued and in work; the caller
                                 * counts */
};

/* Adds a request that arrives now and needs service seconds in all, an n-th of
 * them in each stage.  Returns the time when it leaves; start: when its work
 * begins; NULL is fine. */
double kv_stages_serve(struct kv_stages *s, double now, double service,
                       double *start);

#endif
