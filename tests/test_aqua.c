/* AQUA-KV: HIGGS of a run against its definition, predictors against least
 * squares, and the published settings. */
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/calib.h"
#include "lib/mixed.h"
#include "lib/schemes/aqua.h"
#include "tests/codec_setup.h"
#include "tests/synthetic.h"

#include <math.h>
#include <stdlib.h>

static const float POINTS[4][2] = {{1, 1}, {1, -1}, {-1, 1}, {-1, -1}};

/* Signs of a rotated run of 12 and 16 values; decoding turns back. */
static void check_run(size_t run)
{
    enum { MOST = 48 };
    float x[MOST], y[MOST], again[MOST], sum = 0;
    uint8_t bytes[32], twice[32];
    struct kv_higgs h;

    kv_higgs_init(&h, run, run, 2, 2, POINTS[0]);
    assert_int_equal(h.bytes, (run + 7) / 8 + 2);
    for (size_t i = 0; i < run; i++) {
        x[i] = sinf((float)(i * i + 1));
        sum += x[i] * x[i];
    }
    kv_higgs_encode(&h, x, bytes);
    assert_within(half_at(bytes + h.code_bytes), sqrtf(sum / (float)run), 1e-3);
    kv_higgs_decode(&h, bytes, y);
    sum = 0;
    for (size_t i = 0; i < run; i++)
        sum += y[i] * y[i];
    /* the transform keeps the norm of the signs */
    assert_within(sqrtf(sum / (float)run), half_at(bytes + h.code_bytes), 1e-5);
    kv_higgs_encode(&h, y, twice);
    kv_higgs_decode(&h, twice, again);
    for (size_t i = 0; i < run; i++)
        assert_within(again[i], y[i], 1e-5);
    kv_higgs_clear(&h);
}

static void test_runs(void **state)
{
    (void)state;
    check_run(12);
    check_run(16);
    check_run(48);
    assert_int_equal(kv_higgs_run(1024, 1024), 1024);
    assert_int_equal(kv_higgs_run(2048, 1024), 1024);
    assert_int_equal(kv_higgs_run(192, 1024), 192); /* 12 * 16 */
    assert_int_equal(kv_higgs_run(192, 100), 96);   /* 12 * 8 */
    assert_int_equal(kv_higgs_run(320, 1024), 64);
}

static struct kv_calib *calib_of(const char *text, struct kv_shape *shape)
{
    *shape = synthetic_shape(16);
    shape->n_layers = 3;

    const struct kv_spec s = spec_of(text, shape);

    return synthetic_calib(shape, &s, test_folder());
}

/* The points of a normal distribution: 2 points in one dimension are 0.798 from
 * 0. */
static void test_points(void **state)
{
    struct kv_shape shape;
    struct kv_calib *calib = calib_of("aqua:d1n2", &shape);
    const struct kv_table *t = kv_calib_table(calib->set, "points", KV_K, 1, 0);

    (void)state;
    assert_within(fabsf(t->data[0]), 0.798, 0.02);
    assert_within(t->data[0], -t->data[1], 0.04);
    kv_calib_free(calib);
}

/* Encodes a token of layer 1 with its decoded form in the layer below. */
static void test_prediction(void **state)
{
    struct kv_shape shape;
    struct kv_calib *calib = calib_of("aqua:d1n256", &shape);
    const struct kv_spec s = spec_of("aqua:d1n256", &shape);
    struct kv_codec *c = codec_from(&s, &shape, 1, KV_V, calib);
    const struct kv_table *t =
        kv_calib_table(calib->set, "predictor", KV_V, 1, 0);
    float below[2][32], own[32], x[32], back[32];
    uint8_t bytes[64];
    struct kv_neighbours at = {.own_k = own, .below = {{below[0], below[1]}}};

    (void)state;
    assert_int_equal(t->dims[0], 65);
    for (size_t i = 0; i < 32; i++) {
        below[0][i] = 99; /* keys below say nothing of values */
        below[1][i] = cosf((float)i);
        own[i] = sinf((float)i);
        x[i] = t->data[64 * 32 + i];
    }
    for (size_t j = 0; j < 64 * 32; j++)
        x[j % 32] += t->data[j] * (j < 32 * 32 ? own : below[1])[j / 32 % 32];
    c->layered->encode(c, (struct kv_where){0}, &at, x, 1, bytes);
    assert_true(half_at(bytes + 32) < 1e-5f); /* nothing is left */
    for (size_t i = 0; i < 32; i++)
        x[i] += (float)i / 8 - 2;
    c->layered->encode(c, (struct kv_where){0}, &at, x, 1, bytes);
    c->layered->decode(c, &at, bytes, 1, back);
    for (size_t i = 0; i < 32; i++)
        assert_within(back[i], x[i], 0.3);
    kv_codec_free(c);
    kv_calib_free(calib);
}

enum { N = 640, ROW = 32, SIDES = KV_SIDES * ROW };

/* Layers of the dump as decoders have them: seen[side] [N][ROW] of the last. */
static void decode_layers(const struct kv_spec *s, const struct kv_shape *shape,
                          const struct kv_calib *calib, struct kv_dump *dump,
                          size_t last, float *x, float *const *seen)
{
    uint8_t *bytes = kv_alloc(N, 64);
    float *next = kv_alloc(N, ROW * sizeof(*next));
    struct kv_err e;

    for (size_t i = 0; i <= last * KV_SIDES + 1; i++) {
        const enum kv_side side = (enum kv_side)(i % KV_SIDES);
        struct kv_codec *c = codec_from(s, shape, i / KV_SIDES, side, calib);
        const struct kv_neighbours at = {.own_k =
                                             side == KV_V ? seen[KV_K] : NULL,
                                         .below = {{seen[KV_K], seen[KV_V]}}};

        assert_true(c->block_bytes <= 64);
        assert_int_equal(kv_dump_read(dump, i / KV_SIDES,
                                      side == KV_K ? KV_T_K_PRE : KV_T_V, 0, N,
                                      x, &e),
                         0);
        c->layered->encode(c, (struct kv_where){0}, &at, x, N, bytes);
        c->layered->decode(c, &at, bytes, N, next);
        if (i < last * KV_SIDES + 1)
            memcpy(seen[side], next, N * ROW * sizeof(*next));
        kv_codec_free(c);
    }
    free(next);
    free(bytes);
}

/* The normal equations of ridge regression hold on what decoders have: what is
 * left of values of layer 2, times each feature, is the ridge's share. */
static void test_equations(void **state)
{
    struct kv_shape shape;
    struct kv_calib *calib = calib_of("aqua", &shape);
    const struct kv_spec s = spec_of("aqua", &shape);
    const struct kv_table *t =
        kv_calib_table(calib->set, "predictor", KV_V, 2, 0);
    float *x = kv_alloc(N, ROW * sizeof(*x)), *seen[KV_SIDES];
    double ridge = 1, off = 0, all = 0;
    struct kv_dump *dump;
    struct kv_err e;
    char *path;

    (void)state;
    for (int i = 0; i < KV_SIDES; i++)
        seen[i] = kv_alloc(N, ROW * sizeof(float));
    synthetic_dump(&shape, 4, N / 4, test_folder(), &path);
    assert_int_equal(kv_dump_open(&dump, path, &e), 0);
    decode_layers(&s, &shape, calib, dump, 2, x, seen);
    for (size_t j = 0; j < N * ROW * KV_SIDES; j++)
        ridge += pow((double)seen[j % 2][j / 2], 2) / N;
    ridge *= 1e-3 * N / (SIDES + 1);
    for (size_t c = 0; c < ROW; c++)
        for (size_t f = 0; f < SIDES; f++) {
            double left = 0, whole = 0;

            for (size_t n = 0; n < N; n++) {
                const double feature = (double)seen[f / ROW][n * ROW + f % ROW];
                double rest =
                    (double)x[n * ROW + c] - (double)t->data[SIDES * ROW + c];

                for (size_t k = 0; k < SIDES; k++)
                    rest -= (double)t->data[k * ROW + c] *
                            (double)seen[k / ROW][n * ROW + k % ROW];
                left += rest * feature;
                whole += (double)x[n * ROW + c] * feature;
            }
            off += pow(left - ridge * (double)t->data[f * ROW + c], 2);
            all += whole * whole;
        }
    if (off >= 1e-5 * all)
        fail_msg("off by %g of %g", off, all);
    for (int i = 0; i < KV_SIDES; i++)
        free(seen[i]);
    free(x);
    kv_dump_close(dump);
    free(path);
    kv_calib_free(calib);
}

static void test_settings(void **state)
{
    const struct kv_shape shape = {
        .n_layers = 28, .n_heads = 24, .n_kv_heads = 8, .head_dim = 128};
    struct kv_spec s = spec_of("aqua", &shape);
    struct kv_err e = {""};

    (void)state;
    assert_string_equal(s.text, "aqua:d2n16g1024r128s4");
    assert_within(s.scheme->nominal(&s, KV_K, &shape),
                  2 + 2 / 28.0 + 16 / 1024.0, 1e-12);
    assert_non_null(kv_spec_layered(&s, 0));
    assert_int_equal(kv_spec_parse(&s, "aqua:n12", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "n=12: expected a power of two");
    assert_int_equal(kv_spec_parse(&s, "aqua:d3", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "d=3");
    assert_int_equal(kv_spec_parse(&s, "aqua:K-n16/V-n64", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "n is one for K and V");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs), cmocka_unit_test(test_points),
        cmocka_unit_test(test_prediction), cmocka_unit_test(test_equations),
        cmocka_unit_test(test_settings)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
