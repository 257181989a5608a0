#include "kernels/nearest/kmeans.h"
#include "kernels/nearest/kmeans_bounds.h"
#include "kernels/nearest/nearest.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "tests/levels.h"
#include "tests/plain_nearest.h"

#include <math.h>
#include <omp.h>
#include <stdbool.h>

/* ---- points that have bounds ------------------------------------------- */

/* Rounds in which some centers move a little, some far, some not at all and
 * some onto each other, from codes that are right, nearly right, and wrong. */
static void check_bounds(size_t n, size_t d, size_t k, bool coarse, float scale)
{
    enum { ROUNDS = 9 };
    const size_t n_tiles = (n + KV_TILE - 1) / KV_TILE;
    float *x = kv_alloc(n, d * sizeof(*x));
    float *centers = kv_alloc(k, d * sizeof(*centers));
    uint16_t *code = kv_alloc(n, sizeof(*code));
    uint16_t *want = kv_alloc(n, sizeof(*want));
    struct kv_points p = {
        .n = n, .d = d, .n_tiles = n_tiles, .x = x, .code = code};
    struct kv_bounds *bounds;

    fill_normal(x, n * d, 1, coarse);
    for (size_t i = 0; i < n * d; i++) /* some beyond all centers */
        x[i] *= scale * (i / d >= k && i / d % 97 == 3 ? 30 : 1);
    for (size_t i = 0; i < k; i++) /* some of the points */
        memcpy(centers + i * d, x + i % n * d, d * sizeof(*x));
    for (size_t i = 0; i < n; i++)
        code[i] = (uint16_t)plain_nearest(x + i * d, centers, k, d);
    bounds = kv_bounds_new(&p, centers, k);
    for (size_t round = 0; round < ROUNDS; round++) {
        struct kv_centroids book;

        kv_centroids_init(&book, centers, k, d);
        kv_nearest(&book, x, n, want);
        kv_centroids_clear(&book);
        for (size_t i = 0; i < n && round % 3 == 2; i++)
            code[i] = (uint16_t)(i % 3 == 0   ? want[i]
                                 : i % 3 == 1 ? (want[i] + 1u) % k
                                              : kv_random(5, i) % k);
        if (!kv_bounds_assign(bounds, &p, centers)) {
            assert_true(scale != 1); /* values with scale 1 fit 16 bits */
            memcpy(code, want, n * sizeof(*code));
        }
        for (size_t i = 0; i < n; i++)
            assert_int_equal(code[i], want[i]);
        for (size_t c = 0; c < k && round != 4; c++) {
            const float by =
                (c + round) % 7 == 0 ? 1 : 0.1f / (float)(1 + round * round);

            for (size_t j = 0; j < d; j++) {
                const float step =
                    (float)kv_random_normal(round + 9, c * d + j);

                if (c % 3)
                    centers[c * d + j] +=
                        scale * by * (coarse ? rintf(2 * step) / 2 : step);
            }
            if (c % 31 == 30)
                memcpy(centers + c * d, centers + (c - round) * d,
                       d * sizeof(*centers));
        }
    }
    kv_bounds_free(bounds);
    free(want);
    free(code);
    free(centers);
    free(x);
}

/* Four groups of centers about (-100, 0), (-99, 0), (97, 0) and (98, 0), and
 * points of the last, half of them at a and half at b.  Step by step the third
 * group comes, or the last goes: the first round in which others are nearer
 * must see it. */
static void check_drift(size_t d, const float *a, const float *b,
                        const float *come, const float *go)
{
    enum { N = 32, K = 4 * KV_BLOCK, ROUNDS = 12 };
    const float at[4] = {-100, -99, 97, 98};
    float x[N * KV_NEAREST_MAX_D] = {0}, centers[K * KV_NEAREST_MAX_D] = {0};
    uint16_t code[KV_TILE];
    struct kv_points p = {.n = N, .d = d, .n_tiles = 1, .x = x, .code = code};
    struct kv_bounds *bounds;
    size_t n_switched = 0;

    for (size_t i = 0; i < N; i++) {
        memcpy(x + i * d, i % 2 ? a : b, 2 * sizeof(*x));
        code[i] = K - 1;
    }
    for (size_t c = 0; c < K; c++) {
        centers[c * d] = at[c / KV_BLOCK];
        centers[c * d + 1] = 0.001F * (float)(c % KV_BLOCK);
    }
    bounds = kv_bounds_new(&p, centers, K);
    for (size_t round = 0; round < ROUNDS; round++) {
        assert_true(kv_bounds_assign(bounds, &p, centers));
        for (size_t i = 0; i < N; i++) {
            assert_int_equal(code[i], plain_nearest(x + i * d, centers, K, d));
            n_switched += code[i] < K - KV_BLOCK;
        }
        for (size_t c = 2 * KV_BLOCK; c < K; c++)
            for (size_t j = 0; j < 2; j++)
                centers[c * d + j] += (c < 3 * KV_BLOCK ? come : go)[j];
    }
    assert_true(n_switched > 0 && n_switched < N * ROUNDS);
    kv_bounds_free(bounds);
}

static void check_drifts(size_t d)
{
    const float right[] = {0.15F, 0}, half[] = {0.07F, 0}, no[] = {0, 0};
    const float left[] = {-0.07F, 0}, askew[] = {0.05F, 0.0866F};
    const float near[] = {99, 0}, own[] = {98, 0}, aside[] = {98, 0.02F};
    const float between[] = {97.55F, 0}, five[] = {0.05F, 0},
                four[] = {-0.04F, 0};
    const float beyond[] = {98 + 150, 260}; /* beyond the range of 16 bits */

    check_drift(d, near, own, right, no);
    check_drift(d, aside, own, no, right);
    check_drift(d, own, own, half, half);
    check_drift(d, own, near, right, left);
    check_drift(d, between, between, five, four);
    check_drift(d, near, beyond, askew, no);
}

static void test_bounds(void **state)
{
    (void)state;
    for (enum kv_level l = LOWEST; l <= kv_level_max(); l++) {
        assert_int_equal(kv_level_set(l, NULL), 0);
        for (size_t d = 2; d <= KV_NEAREST_MAX_D; d += 1 + d / 4) {
            check_bounds(1000, d, 70, d % 2, 1);
            check_bounds(1000, d, 70, false, 1e17f);
            check_bounds(1000, d, 70, false, 4e18f);
            check_bounds(1000, d, 70, false, 1e-16f);
            check_bounds(1000, d, 70, false, 1e-21f);
            check_bounds(1, d, 64, false, 1);
            check_bounds(700, d, 300, true, 1);
            check_bounds(700, d, 300, false, 1e17f);
            check_bounds(700, d, 300, false, 1e-16f);
            check_bounds(700, d, 300, false, 1e-21f);
        }
        for (size_t d = 2; d <= KV_NEAREST_MAX_D; d++)
            check_drifts(d);
        check_bounds(3000, 4, 2300, false, 1); /* groups of two blocks */
    }
    kv_level_set(kv_level_max(), NULL);
}

/* ---- k-means ----------------------------------------------------------- */

/* One round of Lloyd's by the book, in double; counts the empty clusters
 * that take a point. */
static void lloyd(const float *x, size_t n, size_t d, const float *weight,
                  size_t k, const float *from, double *to, size_t *n_moved)
{
    size_t *code = kv_alloc(n, sizeof(*code));
    size_t *count = kv_alloc(k, sizeof(*count));
    double *sum = kv_alloc(k, sizeof(*sum));

    for (size_t i = 0; i < n; i++) {
        code[i] = plain_nearest(x + i * d, from, k, d);
        count[code[i]] += weight[i] > 0;
    }
    for (size_t c = 0; c < k; c++) {
        float far = 0;
        size_t at = n;

        if (count[c])
            continue;
        for (size_t i = 0; i < n; i++) {
            const float s = plain_distance(x + i * d, from + code[i] * d, d);

            /* a moved point is the only one in its cluster */
            if (weight[i] > 0 && count[code[i]] > 1 && s > far) {
                far = s;
                at = i;
            }
        }
        if (at == n)
            continue;
        count[code[at]]--;
        code[at] = c;
        count[c] = 1;
        ++*n_moved;
    }
    for (size_t c = 0; c < k; c++) {
        for (size_t j = 0; j < d; j++)
            to[c * d + j] = count[c] ? 0 : (double)from[c * d + j];
        for (size_t i = 0; i < n; i++)
            if (code[i] == c && count[c]) {
                sum[c] += (double)weight[i];
                for (size_t j = 0; j < d; j++)
                    to[c * d + j] += (double)weight[i] * (double)x[i * d + j];
            }
        for (size_t j = 0; j < d && count[c]; j++)
            to[c * d + j] /= sum[c];
    }
    free(sum);
    free(count);
    free(code);
}

/* Round r + 1 of kv_kmeans is the book's round from round r. */
static void check_rounds(const float *x, const float *weight, size_t n,
                         size_t d, size_t k, enum kv_kmeans_start start,
                         uint64_t seed, size_t *n_moved)
{
    enum { ROUNDS = 6 };
    float *c = kv_alloc(2 * k, d * sizeof(*c));
    double *want = kv_alloc(k, d * sizeof(*want));

    for (size_t r = 0; r < ROUNDS; r++) {
        assert_int_equal(
            kv_kmeans(x, n, d, weight, k, start, r, seed, c, NULL, NULL), 0);
        assert_int_equal(kv_kmeans(x, n, d, weight, k, start, r + 1, seed,
                                   c + k * d, NULL, NULL),
                         0);
        lloyd(x, n, d, weight, k, c, want, n_moved);
        for (size_t i = 0; i < k * d; i++)
            if (fabs((double)c[k * d + i] - want[i]) >
                1e-7 * (1 + fabs(want[i])))
                fail_msg("n %zu d %zu k %zu seed %zu round %zu: %g, not %g", n,
                         d, k, (size_t)seed, r, (double)c[k * d + i], want[i]);
    }
    free(want);
    free(c);
}

static void check_plain(size_t n, size_t d, size_t k, uint64_t seed)
{
    float *x = kv_alloc(n, d * sizeof(*x));
    float *weight = kv_alloc(n, sizeof(*weight));
    size_t n_moved = 0;

    fill_normal(x, n * d, seed, seed % 2);
    for (size_t i = 0; i < n; i++)
        weight[i] = (float)(kv_random(seed, i) % 4 + (i < k));
    check_rounds(x, weight, n, d, k, seed % 2 ? KV_KMEANS_RANDOM : KV_KMEANS_PP,
                 seed, &n_moved);
    free(weight);
    free(x);
}

/* Few points, long tails and very different weights: cases in which a cluster
 * loses all its points. */
static void check_skewed(size_t n, size_t d, size_t k, uint64_t seed)
{
    float *x = kv_alloc(n, d * sizeof(*x));
    float *weight = kv_alloc(n, sizeof(*weight));
    size_t n_moved = 0;

    fill_normal(x, n * d, seed, false);
    for (size_t i = 0; i < n * d; i++)
        x[i] *= x[i] * x[i];
    for (size_t i = 0; i < n; i++)
        weight[i] = expf(3 * (float)kv_random_normal(seed + 77, i));
    check_rounds(x, weight, n, d, k, KV_KMEANS_PP, seed, &n_moved);
    assert_true(n_moved > 0); /* else it shows nothing: find another seed */
    free(weight);
    free(x);
}

static void test_rounds(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 500; seed++)
        check_plain(20, 2, 12, seed);
    check_plain(1000, 4, 16, 1);
    check_plain(129, 1, 7, 2);
    check_plain(65, 16, 3, 3);
    check_plain(4500, 8, 4100, 4); /* uses bounds */
    check_plain(2500, 16, 2050, 5);
    check_skewed(12, 4, 4, 2960);
    check_skewed(60, 8, 12, 10211);
}

/* The start draws each next center in proportion to weight * D^2, given those
 * before it: counts of all ordered quadruples against their probabilities. */
static void test_start(void **state)
{
    enum { N = 6, K = 4, RUNS = 30000, CELLS = N * N * N * N };
    static const float x[N] = {0, 1, 2.5f, 4, 6, 9};
    static const float weight[N] = {1, 2, 1, 1, 2, 0.5f};
    static double want[CELLS];
    static size_t got[CELLS];
    double chi2 = 0, cells = 0;

    (void)state;
    for (size_t cell = 0; cell < CELLS; cell++) {
        const size_t at[K] = {cell / 216, cell / 36 % 6, cell / 6 % 6,
                              cell % 6};

        want[cell] = RUNS;
        for (size_t c = 0; c < K; c++) {
            double mass[N], total = 0;

            for (size_t i = 0; i < N; i++) {
                double near = c ? INFINITY : 1;

                for (size_t b = 0; b < c; b++)
                    near = fmin(near, pow((double)(x[i] - x[at[b]]), 2));
                mass[i] = (double)weight[i] * near;
                total += mass[i];
            }
            want[cell] *= mass[at[c]] / total;
        }
    }
    for (uint64_t run = 0; run < RUNS; run++) {
        float c[K];
        size_t cell = 0;

        assert_int_equal(
            kv_kmeans(x, N, 1, weight, K, KV_KMEANS_PP, 0, run, c, NULL, NULL),
            0);
        for (size_t j = 0; j < K; j++)
            for (size_t i = 0; i < N; i++)
                if (c[j] == x[i])
                    cell = cell * N + i;
        got[cell]++;
    }
    for (size_t cell = 0; cell < CELLS; cell++) {
        if (want[cell] < 5) { /* too rare for the statistic */
            assert_true((double)got[cell] < 25);
            continue;
        }
        cells++;
        chi2 += pow((double)got[cell] - want[cell], 2) / want[cell];
    }
    /* mean cells, standard deviation sqrt(2 cells) */
    assert_true(cells > 100);
    if (fabs(chi2 - cells) > 5 * sqrt(2 * cells))
        fail_msg("chi-square %g for %g cells", chi2, cells);
}

/* The other start: all ordered choices of different points with positive
 * weights are equally likely. */
static void test_even_start(void **state)
{
    enum { N = 6, K = 3, RUNS = 30000, CELLS = N * N * N, LIKELY = 5 * 4 * 3 };
    static const float x[N] = {0, 1, 2.5f, 4, 600, 9};
    static const float weight[N] = {1, 2, 0, 1, 200, 0.5f};
    static size_t got[CELLS];
    double chi2 = 0, want = (double)RUNS / LIKELY;
    size_t cells = 0;

    (void)state;
    for (uint64_t run = 0; run < RUNS; run++) {
        float c[K];
        size_t cell = 0;

        assert_int_equal(kv_kmeans(x, N, 1, weight, K, KV_KMEANS_RANDOM, 0, run,
                                   c, NULL, NULL),
                         0);
        for (size_t j = 0; j < K; j++)
            for (size_t i = 0; i < N; i++)
                if (c[j] == x[i])
                    cell = cell * N + i;
        got[cell]++;
    }
    for (size_t cell = 0; cell < CELLS; cell++)
        if (got[cell]) {
            cells++;
            chi2 += pow((double)got[cell] - want, 2) / want;
        }
    assert_int_equal(cells, LIKELY);
    if (fabs(chi2 - LIKELY) > 5 * sqrt(2 * LIKELY))
        fail_msg("chi-square %g for %d cells", chi2, LIKELY);
}

static void test_few_points(void **state)
{
    enum { N = 40 };
    float x[N * 2], c[N * 2];
    double mse;

    (void)state;
    fill_normal(x, N * 2, 1, false);
    /* n == k: every point is a center */
    assert_int_equal(
        kv_kmeans(x, N, 2, NULL, N, KV_KMEANS_PP, 10, 1, c, &mse, NULL), 0);
    assert_true(mse == 0);
    /* k == 1: its center is the mean */
    assert_int_equal(
        kv_kmeans(x, N, 2, NULL, 1, KV_KMEANS_PP, 10, 1, c, &mse, NULL), 0);
    for (size_t j = 0; j < 2; j++) {
        double mean = 0;

        for (size_t i = 0; i < N; i++)
            mean += (double)x[i * 2 + j] / N;
        assert_true(fabs((double)c[j] - mean) < 1e-6);
    }
    /* three different points, five centers: each point has one */
    for (size_t i = 0; i < N * 2; i++)
        x[i] = (float)(i / 2 % 3);
    assert_int_equal(
        kv_kmeans(x, N, 2, NULL, 5, KV_KMEANS_PP, 10, 1, c, &mse, NULL), 0);
    assert_true(mse == 0);
    for (size_t i = 0; i < 5 * 2; i++)
        assert_true(c[i] == 0 || c[i] == 1 || c[i] == 2);
    /* all points the same */
    memset(x, 0, sizeof(x));
    assert_int_equal(
        kv_kmeans(x, N, 2, NULL, 3, KV_KMEANS_PP, 10, 1, c, &mse, NULL), 0);
    assert_true(mse == 0 && c[0] == 0 && c[5] == 0);
}

/* A point far away, then many draws that only find it again. */
static void test_outlier(void **state)
{
    enum { N = 500 };
    float x[N], c[8];
    double mse;

    (void)state;
    fill_normal(x, N, 1, false);
    x[77] = 1e17f;
    assert_int_equal(
        kv_kmeans(x, N, 1, NULL, 8, KV_KMEANS_PP, 50, 1, c, &mse, NULL), 0);
    assert_true(mse < 0.2); /* seven centers for a normal distribution */
}

static void test_weights(void **state)
{
    enum { N = 200 };
    float x[N], weight[N], c[4];

    (void)state;
    fill_normal(x, N, 1, false);
    for (size_t i = 0; i < N; i++) {
        weight[i] = i % 2 ? 1e-30f : 0;
        x[i] += i % 2 ? 0 : 1000;
    }
    assert_int_equal(
        kv_kmeans(x, N, 1, weight, 4, KV_KMEANS_PP, 20, 1, c, NULL, NULL), 0);
    for (size_t i = 0; i < 4; i++)
        assert_true(fabsf(c[i]) < 10);
}

/* No weights are the same as weights of one. */
static void test_no_weights(void **state)
{
    enum { N = 1000, K = 20 };
    float x[N * 9], weight[N], c[2][K * 9];
    double mse[2];

    (void)state;
    for (size_t i = 0; i < N; i++)
        weight[i] = 1;
    for (size_t d = 1; d <= 9; d++) {
        fill_normal(x, N * d, d, false);
        for (size_t way = 0; way < 2; way++)
            assert_int_equal(kv_kmeans(x, N, d, way ? weight : NULL, K,
                                       KV_KMEANS_PP, 5, 1, c[way], &mse[way],
                                       NULL),
                             0);
        assert_memory_equal(c[1], c[0], K * d * sizeof(float));
        assert_true(mse[1] == mse[0]);
    }
}

static void refused(const char *why, const float *x, const float *weight,
                    size_t k)
{
    float c[4] = {7, 7, 7, 7};
    struct kv_err e = {""};

    assert_int_equal(
        kv_kmeans(x, 4, 1, weight, k, KV_KMEANS_PP, 5, 1, c, NULL, &e), -1);
    assert_says(e, why);
    for (size_t i = 0; i < 4; i++)
        assert_true(c[i] == 7);
}

static void test_refusals(void **state)
{
    (void)state;
    refused("3 points are too few for 4", (float[]){1, 2, 3, 4},
            (float[]){1, 1, 0, 1}, 4);
    refused("point 2 holds", (float[]){1, 2, NAN, 4}, NULL, 2);
    refused("point 3 holds", (float[]){1, 2, 3, -INFINITY}, NULL, 2);
    refused("point 0 holds", (float[]){1.1e18f, 2, 3, 4}, NULL, 2);
    refused("point 1 has weight", (float[]){1, 2, 3, 4}, (float[]){1, -1, 1, 1},
            2);
    refused("point 3 has weight", (float[]){1, 2, 3, 4},
            (float[]){1, 1, 1, NAN}, 2);
    refused("not 1 and 0", (float[]){1, 2, 3, 4}, NULL, 0);
}

static void check_same_bits(size_t n, size_t d, size_t k,
                            enum kv_kmeans_start start)
{
    enum { WAYS = 5 };
    const int threads = omp_get_max_threads();
    const size_t size = k * d * sizeof(float);
    float *x = kv_alloc(n, d * sizeof(*x));
    char *c = kv_alloc(WAYS, size);
    double mse[WAYS];

    fill_normal(x, n * d, 1, false);
    for (int way = 0; way < WAYS; way++) {
        const enum kv_level level = way == 3 && kv_level_max() > KV_LEVEL_C
                                        ? kv_level_max() - 1
                                        : kv_level_max();

        omp_set_num_threads(way < 3 ? way + 1 : 2);
        assert_int_equal(kv_level_set(level, NULL), 0);
        assert_int_equal(kv_kmeans(x, n, d, NULL, k, start, way < 4 ? 4 : 3, 5,
                                   (float *)(void *)(c + (size_t)way * size),
                                   &mse[way], NULL),
                         0);
    }
    for (size_t way = 1; way < 4; way++) {
        assert_memory_equal(c + way * size, c, size);
        assert_true(mse[way] == mse[0]);
    }
    assert_true(mse[4] > mse[0]); /* three rounds are not four */
    omp_set_num_threads(threads);
    kv_level_set(kv_level_max(), NULL);
    free(c);
    free(x);
}

/* Large enough that every loop runs on threads; without and with bounds. */
static void test_same_bits(void **state)
{
    (void)state;
    check_same_bits(70001, 8, 80, KV_KMEANS_PP);
    check_same_bits(70001, 8, 80, KV_KMEANS_RANDOM);
    check_same_bits(20001, 16, 2048, KV_KMEANS_PP);
}

/* Points so large, or so small, that 16-bit integers cannot represent centers.
 * The points are scaled by powers of two, so their centers are scaled by the
 * same powers. */
static void test_scales(void **state)
{
    enum { N = 1500, D = 4, K = 1024, ROUNDS = 4 };
    static const float by[] = {0x1p45f, 0x1p-45f};
    float *x = kv_alloc(N, D * sizeof(*x));
    float *want = kv_alloc(K, D * sizeof(*want));
    float *got = kv_alloc(K, D * sizeof(*got));

    (void)state;
    fill_normal(x, N * D, 1, false);
    assert_int_equal(
        kv_kmeans(x, N, D, NULL, K, KV_KMEANS_PP, ROUNDS, 1, want, NULL, NULL),
        0);
    for (size_t i = 0; i < 2; i++) {
        fill_normal(x, N * D, 1, false);
        for (size_t j = 0; j < N * D; j++)
            x[j] *= by[i];
        assert_int_equal(kv_kmeans(x, N, D, NULL, K, KV_KMEANS_PP, ROUNDS, 1,
                                   got, NULL, NULL),
                         0);
        for (size_t j = 0; j < K * D; j++)
            assert_true(got[j] == by[i] * want[j]);
    }
    free(got);
    free(want);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds),     cmocka_unit_test(test_rounds),
        cmocka_unit_test(test_start),      cmocka_unit_test(test_even_start),
        cmocka_unit_test(test_few_points), cmocka_unit_test(test_outlier),
        cmocka_unit_test(test_weights),    cmocka_unit_test(test_no_weights),
        cmocka_unit_test(test_refusals),   cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_scales),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
