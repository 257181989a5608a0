#include "kernels/nearest/nearest.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "tests/levels.h"
#include "tests/plain_nearest.h"

#include <math.h>
#include <stdbool.h>

/* Nothing is written beyond the codes. */
static void check_codes(const float *x, size_t n, const float *centers,
                        size_t k, size_t d)
{
    enum { CANARY = 4 };
    uint16_t *code = kv_alloc(n + CANARY, sizeof(*code));
    struct kv_centroids book;

    memset(code, 0xa5, (n + CANARY) * sizeof(*code));
    kv_centroids_init(&book, centers, k, d);
    kv_nearest(&book, x, n, code);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(code[i], plain_nearest(x + i * d, centers, k, d));
    for (size_t i = n; i < n + CANARY; i++)
        assert_int_equal(code[i], 0xa5a5);
    kv_centroids_clear(&book);
    free(code);
}

/* With a large shift, the relevant differences are rounding errors of a score
 * that multiplies; large values overflow such a score, but not s. */
static void check_nearest(size_t n, size_t d, size_t k, bool coarse,
                          float shift, float scale)
{
    float *x = kv_alloc(n, d * sizeof(*x));
    float *centers = kv_alloc(k, d * sizeof(*centers));

    fill_normal(x, n * d, 1, coarse);
    fill_normal(centers, k * d, 2, coarse);
    for (size_t i = 0; i < n * d; i++) /* some beyond all centers */
        x[i] = (x[i] + shift) * scale * (i / d % 7 == 3 ? 30 : 1);
    for (size_t i = 0; i < k * d; i++)
        centers[i] = (centers[i] + shift) * scale;
    check_codes(x, n, centers, k, d);
    free(centers);
    free(x);
}

/* Vectors between two centers, all three rounded to integers the worst way for
 * the nearer: the search in 16-bit integers must not trust them.  A center at
 * 16380 makes its scale 1. */
static void check_margins(size_t d, size_t apart)
{
    enum { PAIRS = 96, K = 2 * PAIRS + 1, SIDE = 10, STEP = 1500 };
    float centers[K * KV_NEAREST_MAX_D] = {0}, x[PAIRS * KV_NEAREST_MAX_D];

    centers[(K - 1) * d] = 16380;
    for (size_t i = 0; i < PAIRS; i++) {
        const size_t first = i / apart * 2 * apart + i % apart;
        const float near = 1 + (float)(kv_random(8, i) % 60);

        for (size_t j = 0; j < d; j++) {
            const uint64_t r = kv_random(9, i * d + j);
            const float s = r % 2 ? 1 : -1, more = (float)(r / 2 % 3);
            const size_t row = j == 0 ? i % SIDE : i / SIDE;
            const float at = j < 2 ? STEP * ((float)row - (SIDE - 1) / 2.F) : 0;

            x[i * d + j] = at - s * 0.49F;
            centers[first * d + j] = at + s * (near + 0.49F);
            centers[(first + apart) * d + j] = at - s * (near + more - 0.49F);
        }
    }
    check_codes(x, PAIRS, centers, K, d);
}

/* Vectors as far from all centers as 16-bit integers go, and farther. */
static void check_opposite(size_t d)
{
    enum { N = 130, K = 100 };
    float centers[K * KV_NEAREST_MAX_D] = {0}, x[N * KV_NEAREST_MAX_D] = {0};

    for (size_t i = 0; i < K; i++)
        centers[i * d] = 16380 - (float)(i * 37 % K * 3);
    for (size_t i = 0; i < N; i++) {
        x[i * d] = -29000 - 30 * (float)i;
        x[i * d + 1] = (float)(kv_random(10, i) % 500);
    }
    check_codes(x, N, centers, K, d);
}

static void check_closer(size_t d)
{
    float x[KV_TILE * KV_NEAREST_MAX_D], tile[KV_TILE * KV_NEAREST_MAX_D];
    float dist[KV_TILE], center[KV_NEAREST_MAX_D];

    fill_normal(x, KV_TILE * d, 3, false);
    fill_normal(center, d, 4, false);
    kv_tile_fill(x, KV_TILE, d, tile);
    for (size_t i = 0; i < KV_TILE; i++)
        dist[i] = i % 2 ? INFINITY : (float)d;
    kv_tile_closer(tile, d, center, dist);
    for (size_t i = 0; i < KV_TILE; i++)
        assert_true(dist[i] == fminf(i % 2 ? INFINITY : (float)d,
                                     plain_distance(x + i * d, center, d)));
}

static void check_overflow(void)
{
    enum { K = 100, D = 2, N = 5 };
    float centers[K * D], x[N * D];
    struct kv_centroids book;
    uint16_t code[N];

    for (size_t k = 2; k <= K; k += K - 2) { /* every s is infinite */
        for (size_t i = 0; i < k * D; i++)
            centers[i] = i % 2 ? 3e38f : -3e38f;
        for (size_t i = 0; i < N * D; i++)
            x[i] = i % 2 ? -3e38f : 3e38f;
        memset(code, 7, sizeof(code));
        kv_centroids_init(&book, centers, k, D);
        kv_nearest(&book, x, N, code);
        for (size_t i = 0; i < N; i++)
            assert_int_equal(code[i], 0);
        kv_centroids_clear(&book);
    }
    centers[60] = NAN; /* and the others are as they were */
    centers[62] = INFINITY;
    centers[65] = 1;
    centers[64] = x[0] = x[1] = 0;
    kv_centroids_init(&book, centers, K, D);
    kv_nearest(&book, x, N, code);
    assert_int_equal(code[0], 32);
    kv_centroids_clear(&book);
}

static void test_nearest(void **state)
{
    const size_t ns[] = {0, 1, 15, 16, 17, 32, 33, 63, 64, 65, 130};
    const size_t ks[] = {1, 2, 3, 16, 37, 64, 100, 256};

    (void)state;
    for (enum kv_level l = LOWEST; l <= kv_level_max(); l++) {
        assert_int_equal(kv_level_set(l, NULL), 0);
        for (size_t d = 1; d <= KV_NEAREST_MAX_D; d++) {
            for (size_t n = 0; n < sizeof(ns) / sizeof(*ns); n++)
                for (size_t k = 0; k < sizeof(ks) / sizeof(*ks); k++)
                    check_nearest(ns[n], d, ks[k], (n + k) % 2, 0, 1);
            check_closer(d);
        }
        check_nearest(20, 3, KV_NEAREST_MAX_K, true, 0, 1);
        for (size_t d = 1; d <= KV_NEAREST_MAX_D; d++) {
            check_nearest(130, d, 300, false, 1e3f, 1);
            check_nearest(130, d, 300, false, 1e5f, 0x1p-10f);
            check_nearest(130, d, 300, true, 0, 0x1p62f);
            check_nearest(130, d, 300, false, 1, 0x1p-70f);
            check_nearest(130, d, 300, false, 0, 0x1p-140f);
        }
        for (size_t d = 2; d <= KV_NEAREST_MAX_D; d++) {
            check_margins(d, 1);
            check_margins(d, 16);
            check_opposite(d);
        }
        check_overflow();
    }
    kv_level_set(kv_level_max(), NULL);
}

/* ---- groups of centers ------------------------------------------------- */

/* Every vector and group, and some again, so that fours are not whole. */
static void check_groups(size_t d, size_t k, size_t size, bool coarse)
{
    enum { MAX = 500 };
    const size_t groups = (k + size * KV_BLOCK - 1) / (size * KV_BLOCK);
    float x[KV_TILE * KV_NEAREST_MAX_D], tile[KV_TILE * KV_NEAREST_MAX_D];
    float *centers = kv_alloc(k, d * sizeof(*centers)), min[MAX + 1];
    struct kv_pair pair[MAX];
    struct kv_centroids book;

    fill_normal(x, KV_TILE * d, 3, coarse);
    fill_normal(centers, k * d, 4, coarse);
    kv_tile_fill(x, KV_TILE, d, tile);
    kv_centroids_init(&book, centers, k, d);
    for (size_t n = 1; n <= MAX; n += n / 2 + 1) {
        for (size_t i = 0; i < n; i++)
            pair[i] = (struct kv_pair){(uint16_t)(i % KV_TILE),
                                       (uint16_t)(i / 3 % groups)};
        min[n] = -7;
        kv_tile_min(&book, tile, size, pair, n, min);
        assert_true(min[n] == -7);
        for (size_t i = 0; i < n; i++) {
            const float *of = x + pair[i].vector * d;
            const size_t from = pair[i].group * size * KV_BLOCK;
            const size_t m =
                k - from < size * KV_BLOCK ? k - from : size * KV_BLOCK;
            const size_t at =
                from + plain_nearest(of, centers + from * d, m, d);

            assert_true(min[i] == plain_distance(of, centers + at * d, d));
            assert_int_equal(kv_tile_first(&book, tile, size, pair[i], min[i]),
                             at);
        }
    }
    kv_centroids_clear(&book);
    free(centers);
}

static void test_groups(void **state)
{
    (void)state;
    for (enum kv_level l = LOWEST; l <= kv_level_max(); l++) {
        assert_int_equal(kv_level_set(l, NULL), 0);
        for (size_t d = 2; d <= KV_NEAREST_MAX_D; d++)
            for (size_t size = 1; size <= 4; size *= 2) {
                check_groups(d, 64, size, true);
                check_groups(d, 150, size, d % 2);
            }
    }
    kv_level_set(kv_level_max(), NULL);
}

/* How far center c is from x. */
static double away(const float *x, const float *centers, size_t c, size_t d)
{
    double square = 0;

    for (size_t j = 0; j < d; j++) {
        const double by = (double)x[j] - (double)centers[c * d + j];

        square += by * by;
    }
    return sqrt(square);
}

/* kv_tile_among()'s results for 16 vectors x are right, and decide enough:
 * fewer than `room` vectors, all undecidable in 16 bits, remain open. */
static void check_said(const struct kv_centroids *book, const float *x,
                       size_t size, const uint16_t *group, size_t n,
                       double workspace, uint64_t sure, const uint16_t *code,
                       const float *reach, const float *gap)
{
    const size_t d = book->d;
    bool known = true;

    for (size_t i = 0; i < KV_SIDE; i++) {
        const size_t at = plain_nearest(x + i * d, book->centers, book->k, d);

        if (sure >> i & 1)
            assert_int_equal(code[i], at);
        known &= !isnan(reach[i]);
        if (isnan(reach[i]))
            continue;
        assert_true((double)reach[i] >= away(x + i * d, book->centers, at, d));
        assert_true((double)reach[i] <=
                    away(x + i * d, book->centers, at, d) * 1.001 + workspace);
    }
    for (size_t g = 0; g < n && known; g++) {
        double min = INFINITY, max = 0;

        for (size_t i = 0; i < KV_SIDE; i++) {
            double far = INFINITY;

            for (size_t c = group[g] * size * KV_BLOCK;
                 c < (group[g] + 1U) * size * KV_BLOCK && c < book->k; c++)
                far = fmin(far, away(x + i * d, book->centers, c, d));
            min = fmin(min, far - (double)reach[i]);
            max = fmax(max, far);
        }
        assert_true((double)gap[g] <= min + 1e-6 * max);
        assert_true((double)gap[g] >= min - 0.001 * max - workspace);
    }
}

/* Some groups, including those of the nearest centers. */
static size_t choose(const struct kv_centroids *book, const float *x,
                     size_t size, size_t every, uint16_t *group)
{
    const size_t groups = (book->k + size * KV_BLOCK - 1) / (size * KV_BLOCK);
    bool asked[KV_MAX_GROUPS] = {false};
    size_t n = 0;

    for (size_t i = 0; i < KV_SIDE; i++)
        asked[plain_nearest(x + i * book->d, book->centers, book->k, book->d) /
              (size * KV_BLOCK)] = true;
    for (size_t g = 0; g < groups; g++)
        if (asked[g] || g % every == 0)
            group[n++] = (uint16_t)g;
    return n;
}

/* Returns for how many vectors the code was sure. */
static size_t check_among(size_t d, size_t k, size_t size, bool coarse,
                          float shift, float scale, bool outliers)
{
    float x[KV_TILE * KV_NEAREST_MAX_D], tile[KV_TILE * KV_NEAREST_MAX_D];
    float *centers = kv_alloc(k, d * sizeof(*centers));
    float reach[KV_TILE], gap[KV_MAX_GROUPS + 4];
    uint16_t code[KV_TILE], group[KV_MAX_GROUPS];
    struct kv_centroids book;
    size_t n_sure = 0;

    fill_normal(x, KV_TILE * d, 3, coarse);
    fill_normal(centers, k * d, 4, coarse);
    for (size_t i = 0; i < KV_TILE * d; i++)
        x[i] = (x[i] + shift) * scale * (outliers && i / d % 7 == 3 ? 30 : 1);
    for (size_t i = 0; i < k * d; i++)
        centers[i] = (centers[i] + shift) * scale;
    kv_tile_fill(x, KV_TILE, d, tile);
    kv_centroids_init(&book, centers, k, d);
    assert_non_null(book.whole);
    for (size_t first = 0; first < KV_TILE; first += KV_SIDE)
        for (size_t every = 1; every <= 3; every++) {
            const float *of = x + first * d;
            const size_t n = choose(&book, of, size, every, group);
            const double workspace =
                (4 * sqrt((double)d) + 8) / (double)book.scale;
            uint64_t sure;

            for (size_t g = 0; g < KV_MAX_GROUPS + 4; g++)
                gap[g] = -7;
            sure = kv_tile_among(&book, tile, first, size, group, n, code,
                                 reach, gap);
            for (size_t g = (n + 3) / 4 * 4; g < KV_MAX_GROUPS + 4; g++)
                assert_true(gap[g] == -7);
            sure = sure >> first & 0xffff;
            check_said(&book, of, size, group, n, workspace, sure, code + first,
                       reach + first, gap);
            n_sure += (size_t)__builtin_popcountll(sure);
        }
    kv_centroids_clear(&book);
    free(centers);
    return n_sure;
}

static void test_among(void **state)
{
    enum { ALL = 3 * KV_TILE };

    (void)state;
    for (enum kv_level l = LOWEST; l <= kv_level_max(); l++) {
        assert_int_equal(kv_level_set(l, NULL), 0);
        for (size_t d = 2; d <= KV_NEAREST_MAX_D; d++)
            for (size_t size = 1; size <= 4; size *= 2) {
                assert_true(check_among(d, 64, size, false, 0, 1, false) >
                            ALL * 9 / 10);
                assert_true(check_among(d, 150, size, false, 0, 1e-9f, false) >
                            ALL * 9 / 10);
                check_among(d, 150, size, false, 0, 1e9f, true);
                check_among(d, 150, size, true, 0, 1, true);
                check_among(d, 150, size, false, 1e4f, 1, false);
            }
        check_among(4, KV_MAX_GROUPS * KV_BLOCK, 1, false, 0, 1, false);
    }
    kv_level_set(kv_level_max(), NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_among),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
