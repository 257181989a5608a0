/* Timing on the CPU: median and spread of runs, cold or warm, and the bandwidth
 * of the machine's memory, measured in the same process. */
#ifndef KV_TIMING_H
#define KV_TIMING_H

#include "lib/base/err.h"
#include "lib/base/progress.h"

#include <stdbool.h>
#include <stddef.h>

struct kv_timing {
    double p10, p50, p90; /* seconds */
};

/* Percentiles of n runs (>= 1); sorts seconds. */
struct kv_timing kv_timing_of(double *seconds, size_t n);

/* True if slow runs took more than twice as long as fast runs: the times then
 * include other load of the machine. */
bool kv_timing_noisy(const struct kv_timing *t);

struct kv_bench;

/* Bytes that a kv_bench allocates: 256 MiB, or the size of the last-level
 * caches if that is larger. */
size_t kv_bench_bytes(void);

/* threads: the number of threads that run `once` and read memory. */
struct kv_bench *kv_bench_new(size_t threads);
void kv_bench_free(struct kv_bench *b); /* NULL is fine */

/* Bytes a second that the threads read from memory: the best of 5 passes over
 * every line of kv_bench_bytes(). */
double kv_bench_bandwidth(struct kv_bench *b);

/* Runs once(arg) warmup times, then reps times (>= 1) with the clock on.
 * Before each run the threads read more than the caches hold, so that no run
 * finds its data cached; warm: once(arg) runs instead, so that data that fits
 * into the caches is cached.  base not NULL: before each run once(base) runs
 * the same way, and *ratio becomes the median of its time over the run's, pair
 * by pair, so that other load of the machine affects both.  progress: a step
 * for each run, or NULL.  Fails on Ctrl-C, between runs; *out and *ratio are
 * then undefined. */
int kv_bench_time(struct kv_bench *b, bool warm, size_t warmup, size_t reps,
                  void (*once)(void *), void *arg, void *base,
                  struct kv_progress *progress, struct kv_timing *out,
                  double *ratio, struct kv_err *e);

/* Sorts x and gives its p-quantile, 0 <= p <= 1, interpolated linearly between
 * order statistics; n >= 1. */
double kv_quantile(double *x, size_t n, double p);

#endif
