#include "eval/timing.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    LINE = 64 / sizeof(uint64_t),
    AHEAD = 4096 / sizeof(uint64_t),
    PASSES = 5
};

struct kv_bench {
    uint64_t *word; /* [n] */
    size_t n, threads;
    volatile uint64_t sum; /* keeps the reads from being optimised away */
};

/* Each thread writes the lines that it will read (read_all() has the same
 * schedule), so that on several memory nodes a line is on its thread's node. */
static void write_all(struct kv_bench *b)
{
    uint64_t *word = b->word;

#pragma omp parallel for num_threads((int)b->threads) schedule(static)
    for (size_t i = 0; i < b->n; i += LINE)
        for (size_t j = i; j < i + LINE; j++)
            word[j] = j;
}

/* The number of words whose reading evicts all earlier data from the caches. */
static size_t to_read(void)
{
    const size_t min = (size_t)256 << 20;
    const long last_level = sysconf(_SC_LEVEL3_CACHE_SIZE); /* 0: not known */
    const size_t bytes = last_level > (long)min ? (size_t)last_level : min;

    return bytes / sizeof(uint64_t) / LINE * LINE;
}

size_t kv_bench_bytes(void)
{
    return (to_read() + AHEAD) * sizeof(uint64_t);
}

struct kv_bench *kv_bench_new(size_t threads)
{
    struct kv_bench *b = kv_alloc(1, sizeof(*b));

    b->threads = threads;
    b->n = to_read();
    b->word = kv_lines_unset(b->n + AHEAD, sizeof(*b->word));
    write_all(b);
    return b;
}

void kv_bench_free(struct kv_bench *b)
{
    if (!b)
        return;
    free(b->word);
    free(b);
}

/* Reads one word of every line: bandwidth does not depend on the width of
 * loads. */
static void read_all(struct kv_bench *b)
{
    const uint64_t *word = b->word;
    uint64_t sum = 0;

#pragma omp parallel for num_threads((int)b->threads) reduction(+ : sum)       \
    schedule(static)
    for (size_t i = 0; i < b->n; i += LINE) {
        __builtin_prefetch(word + i + AHEAD);
        sum += word[i];
    }
    b->sum = sum;
}

double kv_bench_bandwidth(struct kv_bench *b)
{
    double best = HUGE_VAL;

    for (int pass = 0; pass < PASSES; pass++) {
        const double start = kv_seconds();

        read_all(b);
        best = fmin(best, kv_seconds() - start);
    }
    return (double)(b->n * sizeof(*b->word)) / best;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double kv_quantile(double *x, size_t n, double p)
{
    qsort(x, n, sizeof(*x), by_value);

    const double at = p * (double)(n - 1);
    const size_t i = (size_t)at;

    return i + 1 < n ? x[i] + (at - (double)i) * (x[i + 1] - x[i]) : x[n - 1];
}

struct kv_timing kv_timing_of(double *seconds, size_t n)
{
    return (struct kv_timing){.p10 = kv_quantile(seconds, n, 0.1),
                              .p50 = kv_quantile(seconds, n, 0.5),
                              .p90 = kv_quantile(seconds, n, 0.9)};
}

bool kv_timing_noisy(const struct kv_timing *t)
{
    return t->p90 > 2 * t->p10;
}

static double time_once(struct kv_bench *b, bool warm, void (*once)(void *),
                        void *arg)
{
    double start;

    if (warm)
        once(arg);
    else
        read_all(b);
    start = kv_seconds();
    once(arg);
    return kv_seconds() - start;
}

int kv_bench_time(struct kv_bench *b, bool warm, size_t warmup, size_t reps,
                  void (*once)(void *), void *arg, void *base,
                  struct kv_progress *progress, struct kv_timing *out,
                  double *ratio, struct kv_err *e)
{
    double *seconds = kv_alloc(reps, sizeof(*seconds));
    double *ratios = kv_alloc(reps, sizeof(*ratios));
    int rc = 0;

    for (size_t i = 0; i < warmup + reps && !rc; i++) {
        const double other = base ? time_once(b, warm, once, base) : 0;
        const double took = time_once(b, warm, once, arg);

        rc = kv_interrupted(e);
        if (progress)
            kv_progress_step(progress, 1);
        if (i < warmup)
            continue;
        seconds[i - warmup] = took;
        ratios[i - warmup] = other / took;
    }
    *out = kv_timing_of(seconds, reps);
    if (base)
        *ratio = kv_quantile(ratios, reps, 0.5);
    free(ratios);
    free(seconds);
    return rc;
}
