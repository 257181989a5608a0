/* kernels/cuda/points: k-means gives the same bits with a device in use as on
 * the CPU.  Here the device is the host twin of tests/gpu_twin.h. */
#include "kernels/device.h"
#include "kernels/nearest/kmeans.h"
#include "kernels/nearest/nearest.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "tests/test.h"

enum { ROUNDS = 4 };

/* k d and n: worth the device, no whole tile, more centers than one chunk. */
static const struct {
    size_t n, d, k;
    int grid; /* coordinates that are small integers: many ties */
} problems[] = {{3001, 1, 1500, 0}, {4100, 2, 600, 1},  {2777, 3, 513, 0},
                {2049, 4, 700, 1},  {1999, 5, 500, 0},  {1501, 6, 500, 1},
                {1501, 7, 500, 0},  {1300, 8, 1100, 1}, {1300, 9, 400, 0},
                {1300, 10, 400, 0}, {1300, 11, 400, 1}, {1300, 12, 400, 0},
                {1300, 13, 400, 0}, {1300, 14, 400, 0}, {1300, 15, 400, 0},
                {1300, 16, 600, 1}};

enum { PROBLEMS = sizeof(problems) / sizeof(*problems) };

static float *points(size_t i)
{
    const size_t n = problems[i].n * problems[i].d;
    float *x = kv_alloc(n, sizeof(*x));

    for (size_t j = 0; j < n; j++)
        x[j] = problems[i].grid ? (float)(kv_random(i, j) % 5)
                                : (float)kv_random_normal(i, j);
    return x;
}

static void solve(size_t i, float *centers, double *mse)
{
    float *x = points(i), *weight = kv_alloc(problems[i].n, sizeof(*weight));
    struct kv_err e = {""};

    for (size_t j = 0; j < problems[i].n; j++)
        weight[j] = j % 7 ? 1 : 0.25f;
    if (kv_kmeans(x, problems[i].n, problems[i].d, i % 2 ? weight : NULL,
                  problems[i].k, i % 3 ? KV_KMEANS_PP : KV_KMEANS_RANDOM,
                  ROUNDS, 9, centers, mse, &e))
        fail_msg("%zu: %s", i, e.msg);
    free(weight);
    free(x);
}

static void test_same_bits(void **state)
{
    float *on_cpu[PROBLEMS], *centers;
    double mse[PROBLEMS], again;
    struct kv_device device;
    struct kv_err e = {""};

    (void)state;
    assert_false(kv_device_offloads());
    for (size_t i = 0; i < PROBLEMS; i++) {
        on_cpu[i] = kv_alloc(problems[i].k, problems[i].d * sizeof(float));
        solve(i, on_cpu[i], &mse[i]);
    }
    if (kv_device_cuda(0, &device, &e)) {
        print_message("%s\n", e.msg);
        skip();
    }
    kv_device_offload(1);
    for (size_t i = 0; i < PROBLEMS; i++) {
        const size_t bytes = problems[i].k * problems[i].d * sizeof(float);

        centers = kv_alloc(1, bytes);
        solve(i, centers, &again);
        assert_memory_equal(centers, on_cpu[i], bytes);
        assert_memory_equal(&again, &mse[i], sizeof(again));
        free(centers);
        free(on_cpu[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
