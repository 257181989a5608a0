/* Times the kernels of codebooks: median and spread of the runs, on one
 * thread.
 *
 *   bench_kernels [level [runs]]     CSV on stdout
 *
 * 21 runs by default, at most 3 of an operation that takes seconds; the column
 * reps says how many.  gflops counts 3 d operations per pair of vector and
 * centroid (subtract, multiply, add), the start of k-means as one more
 * round. */
#include "eval/timing.h"
#include "kernels/bitpack.h"
#include "kernels/hadamard.h"
#include "kernels/level.h"
#include "kernels/nearest/kmeans.h"
#include "kernels/nearest/nearest.h"
#include "lib/base/alloc.h"
#include "lib/base/opt.h"
#include "lib/base/progress.h"
#include "lib/base/rng.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

/* Sub-spaces of product quantization, each with a codebook of its own. */
enum { SUBS = 32 };

struct work {
    size_t n, d, k, iters; /* k 0: no codebook */
    float *x, *centers;    /* centers: [SUBS][k][d] */
    struct kv_centroids book[SUBS];
    uint16_t *code;
    uint8_t *bytes;
};

static void run_kmeans(const struct work *w)
{
    struct kv_err e;

    if (kv_kmeans(w->x, w->n, w->d, NULL, w->k, KV_KMEANS_PP, w->iters, 1,
                  w->centers, NULL, &e))
        kv_die("%s", e.msg);
}

static void run_nearest(const struct work *w)
{
    kv_nearest(&w->book[0], w->x, w->n, w->code);
}

/* n vectors of SUBS sub-vectors, x [SUBS][n][d]. */
static void run_pq(const struct work *w)
{
    for (size_t j = 0; j < SUBS; j++)
        kv_nearest(&w->book[j], w->x + j * w->n / SUBS * w->d, w->n / SUBS,
                   w->code + j * w->n / SUBS);
}

static void run_hadamard(const struct work *w)
{
    kv_hadamard(w->x, w->n, w->d);
}

static void run_pack(const struct work *w)
{
    kv_pack(w->code, w->n, (unsigned)w->d, w->bytes);
}

static void run_unpack(const struct work *w)
{
    kv_unpack(w->bytes, w->n, (unsigned)w->d, w->code);
}

static struct kv_timing time_of(void (*run)(const struct work *),
                                const struct work *w, size_t runs)
{
    double *took = kv_alloc(runs, sizeof(*took));
    struct kv_timing t;

    run(w);
    for (size_t i = 0; i < runs; i++) {
        const double start = kv_seconds();

        run(w);
        took[i] = kv_seconds() - start;
    }
    t = (struct kv_timing){.p10 = kv_quantile(took, runs, 0.1),
                           .p50 = kv_quantile(took, runs, 0.5),
                           .p90 = kv_quantile(took, runs, 0.9)};
    free(took);
    return t;
}

static void bench(const char *op, void (*run)(const struct work *), size_t n,
                  size_t d, size_t k, size_t iters, size_t runs)
{
    struct work w = {.n = n, .d = d, .k = k, .iters = iters};

    w.x = kv_alloc(n, d * sizeof(*w.x));
    w.centers = kv_alloc(SUBS * k, d * sizeof(*w.centers));
    w.code = kv_alloc(n, sizeof(*w.code));
    w.bytes = kv_alloc(n, 2);
    for (size_t i = 0; i < n * d; i++)
        w.x[i] = (float)kv_random_normal(1, i);
    for (size_t i = 0; i < SUBS * k * d; i++)
        w.centers[i] = (float)kv_random_normal(2, i);
    for (size_t j = 0; k && j < SUBS; j++)
        kv_centroids_init(&w.book[j], w.centers + j * k * d, k, d);

    const struct kv_timing t = time_of(run, &w, runs);

    printf("%s,%s,n%zud%zuk%zui%zu,cpu,%s,%d,%zu,%.3g,%.3g,%.3g,", kv_version(),
           op, n, d, k, iters, kv_level_name(kv_level_get()),
           omp_get_max_threads(), runs, t.p50, t.p10, t.p90);
    if (k)
        printf("%.1f", 3e-9 * (double)(n * d * k * (iters + 1)) / t.p50);
    printf("\n");
    fflush(stdout);
    for (size_t j = 0; k && j < SUBS; j++)
        kv_centroids_clear(&w.book[j]);
    free(w.bytes);
    free(w.code);
    free(w.centers);
    free(w.x);
}

int main(int argc, char **argv)
{
    enum kv_level level = kv_level_max();
    const size_t runs = argc > 2 ? strtoul(argv[2], NULL, 10) : 21;
    struct kv_err e = {""};

    if (argc > 1 &&
        (kv_level_parse(argv[1], &level, &e) || kv_level_set(level, &e)))
        kv_die("%s", e.msg);
    if (argc > 3 || runs < 1)
        kv_die("usage: bench_kernels [level [runs]]");
    omp_set_num_threads(1);
    printf("version,op,shape,device,level,threads,reps,median_s,p10_s,p90_s,"
           "gflops\n");
    bench("kmeans", run_kmeans, 65536, 4, 256, 25, runs);
    bench("kmeans", run_kmeans, 65536, 8, 256, 25, runs);
    bench("kmeans", run_kmeans, 65536, 8, 1024, 25, runs);
    bench("kmeans", run_kmeans, 262144, 8, 4096, 25, runs < 3 ? runs : 3);
    /* 256 vectors of 128 in 32 sub-spaces, 8 bits each */
    bench("pq_encode", run_pq, 256 * SUBS, 4, 256, 0, runs);
    /* the sub-vectors of eight vectors of 128 */
    bench("nearest", run_nearest, 512, 2, 256, 0, runs);
    bench("nearest", run_nearest, 256, 4, 256, 0, runs);
    bench("nearest", run_nearest, 128, 8, 256, 0, runs);
    bench("nearest", run_nearest, 128, 8, 4096, 0, runs);
    bench("hadamard", run_hadamard, 1024, 128, 0, 0, runs);
    for (size_t bits = 1; bits <= 16; bits++) {
        bench("pack", run_pack, 65536, bits, 0, 0, runs);
        bench("unpack", run_unpack, 65536, bits, 0, 0, runs);
    }
    kv_close_stdout();
    return KV_EXIT_OK;
}
