/* KVQuant's training: levels of lumps, weights, first tokens, thresholds,
 * Q-Norm, and the error that a calibration states. */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/scheme.h"
#include "lib/schemes/kvquant.h"
#include "tests/codec_setup.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>

enum { ROW = 8 };

/* Two kinds of tokens alternate, with values (and keys) A and 100 B: five
 * clusters, and four levels merge the nearest two, 0.2 and 0.4. */
static struct kv_calib *lumps(const char *text, bool fisher, struct kv_err *e)
{
    static const float a[ROW] = {-1, -1, -0.6f, -0.6f, 0.2f, 0.2f, 1, 1};
    static const float b[ROW] = {-100, -100, -60, -60, 40, 40, 100, 100};
    enum { N = 16 };
    struct kv_shape shape = synthetic_shape(4);
    struct kv_dump_info info = {.model = "lumps",
                                .arch = "none",
                                .weights = "f32",
                                .model_hash = "0",
                                .text = "none",
                                .text_hash = "0",
                                .n_windows = 1,
                                .ctx = N};
    char *path = kv_path_join(test_folder(), "lumps.h5");
    float x[N * ROW], f[N * ROW];
    int32_t tokens[N] = {0};
    struct kv_dump_writer *w;
    struct kv_dump *dump;
    struct kv_calib *c = kv_alloc(1, sizeof(*c));
    struct kv_spec spec;

    shape.n_layers = 1;
    info.shape = shape;
    spec = spec_of(text, &shape);
    for (enum kv_tensor t = 0; t < KV_TENSORS; t++)
        info.have[t] = t == KV_T_V || t == KV_T_K_PRE || (fisher && t >= 4);
    for (size_t i = 0; i < N * ROW; i++) {
        x[i] = i / ROW % 2 ? b[i % ROW] : a[i % ROW];
        f[i] = (i % 3 ? 1 : -1) * sqrtf(i / ROW % 2 ? 1e-9f : 3e-9f);
    }
    assert_int_equal(kv_dump_create(&w, path, &info, e), 0);
    assert_int_equal(kv_dump_put_tokens(w, 0, 1, tokens, e), 0);
    for (enum kv_tensor t = 0; t < KV_TENSORS; t++)
        if (info.have[t])
            assert_int_equal(kv_dump_put(w, 0, t, 0, 1, t >= 4 ? f : x, e), 0);
    assert_int_equal(kv_dump_commit(w, e), 0);
    assert_int_equal(kv_dump_open(&dump, path, e), 0);
    c->set = kv_alloc(1, sizeof(*c->set));
    c->n_sets = 1;
    if (kv_kvquant_training.calibrate(&spec, dump, 1, c->set, e)) {
        kv_calib_free(c);
        c = NULL;
    }
    kv_dump_close(dump);
    free(path);
    return c;
}

static void check_lumps(const char *text, double third)
{
    struct kv_err e = {""};
    struct kv_calib *c = lumps(text, true, &e);
    const float *level = kv_calib_table(c->set, "levels", KV_V, 0, 0)->data;
    const float *keys = kv_calib_table(c->set, "range", KV_K, 0, 0)->data;

    assert_within(keys[0], -100, 0); /* thresholds are of every token */
    assert_within(keys[1], -1, 0);

    assert_within(level[0], -1, 1e-4);
    assert_within(level[1], -0.6, 3e-4);
    assert_within(level[2], third, 3e-4);
    assert_within(level[3], 1, 1e-4);
    for (size_t i = 0; i < 4; i++)
        assert_within(level[4 + i], level[i], 0);
    /* the keys of a channel are two numbers: two levels, the second thrice */
    level = kv_calib_table(c->set, "levels", KV_K, 0, 0)->data;
    assert_within(level[0], -1, 1e-6);
    assert_within(level[1], 1, 1e-6);
    assert_within(level[3], 1, 1e-6);
    kv_calib_free(c);
}

static void test_lumps(void **state)
{
    struct kv_err e = {""};

    (void)state;
    check_lumps("kvquant:b2o0,w=none,first=0", 0.3);
    check_lumps("kvquant:b2o0,w=fisher,first=0", (3 * 0.2 + 0.4) / 4);
    check_lumps("kvquant:b2o0,w=fisher-s2,first=0",
                (3 * 0.2 + 0.4e4) / (3 + 1e4));
    assert_null(lumps("kvquant:b2o0", false, &e));
    assert_says(e, "layer 0, K: ");
    assert_says(e, "has no k_gradient (kvdump --fisher writes it)");
    kv_calib_free(lumps("kvquant:b2o0,w=none", false, &e));
    kv_calib_free(lumps("kvquant:b2o0,int", false, &e));
}

/* Among 16 tokens, A and B alternating, the first ones stay fp16, which leaves
 * 7 and 8, or 7 of each, or one B. */
static void test_first_tokens(void **state)
{
    struct kv_err e = {""};

    (void)state;
    check_lumps("kvquant:b2o0,w=none", (7 * 0.2 + 8 * 0.4) / 15);
    check_lumps("kvquant:b2o0,w=none,first=2", 0.3);
    assert_null(lumps("kvquant:b2o0,w=none,V-first=16", true, &e));
    assert_says(e, "first=16 leaves nothing of a window of 16 tokens");
}

enum { TOKENS = 640, CTX = TOKENS / 4 }; /* of synthetic_calib()'s dump */

static void read_all(const struct kv_shape *s, enum kv_tensor t, float *x)
{
    struct kv_dump *dump;
    struct kv_err e = {""};
    char *path;

    synthetic_dump(s, 4, TOKENS / 4, test_folder(), &path);
    if (kv_dump_open(&dump, path, &e) ||
        kv_dump_read(dump, 1, t, 0, TOKENS, x, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < TOKENS * s->n_kv_heads * s->head_dim; i++)
        x[i] = kv_f16_to_f32(kv_f16_clamp(x[i]));
    kv_dump_close(dump);
    free(path);
}

static int ascending(const void *a, const void *b)
{
    const float *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* 2 % of 640 tokens: at most 7 lie beyond each threshold, which is a token's
 * value. */
static void test_thresholds(void **state)
{
    const struct kv_shape shape = synthetic_shape(16);
    const struct kv_spec spec = spec_of("kvquant:o2,w=none", &shape);
    const size_t row = 32;
    struct kv_calib *c = synthetic_calib(&shape, &spec, test_folder());
    const float *t = kv_calib_table(c->set, "range", KV_K, 1, 0)->data;
    float *x = kv_alloc(TOKENS, row * sizeof(*x)), one[TOKENS];

    (void)state;
    assert_null(kv_calib_table(c->set, "range", KV_V, 1, 0));
    read_all(&shape, KV_T_K_PRE, x);
    for (size_t i = 0; i < row; i++) {
        for (size_t j = 0; j < TOKENS; j++)
            one[j] = x[j * row + i];
        qsort(one, TOKENS, sizeof(*one), ascending);
        assert_within(t[2 * i], one[7], 0);
        assert_within(t[2 * i + 1], one[TOKENS - 1 - 7], 0);
    }
    free(x);
    kv_calib_free(c);
}

struct moments {
    double n, sum, squares;
};

static void moments_add(struct moments *m, double z)
{
    m->n++;
    m->sum += z;
    m->squares += z * z;
}

static double mean(const struct moments *m)
{
    return m->sum / m->n;
}

static double deviation(const struct moments *m)
{
    return sqrt(m->squares / m->n - mean(m) * mean(m));
}

/* Encodes and decodes the tokens a calibration was trained on: moments of
 * normalised values, before and after; the mean squared error of all. */
static double train_and_code(const char *text, enum kv_side side,
                             struct moments *before, struct moments *after,
                             double *error)
{
    const struct kv_shape shape = synthetic_shape(32);
    const struct kv_spec spec = spec_of(text, &shape);
    const size_t row = 64, n_side = kv_kvquant_each_side(&spec, KV_V, row);
    struct kv_calib *calib = synthetic_calib(&shape, &spec, test_folder());
    const float *range_of =
        kv_calib_table(calib->set, "range", KV_K, 1, 0)->data;
    struct kv_codec *c;
    struct kv_err e = {""};
    float *x = kv_alloc(TOKENS, row * sizeof(*x)), y[64];
    double sum = 0, n_tokens = 0;

    *before = *after = (struct moments){0};
    *error = kv_calib_table(calib->set, "levels", side, 1, 0)->error;
    if (kv_codec_new(&c, &spec, &shape, 1, side, calib, &e))
        fail_msg("%s", e.msg);
    read_all(&shape, side == KV_K ? KV_T_K_PRE : KV_T_V, x);
    for (size_t t = 0; t < TOKENS; t++) {
        if (t % CTX < kv_spec_size(&spec, side, "first"))
            continue;

        const float *at = x + t * row;
        uint8_t bytes[2 + 64 + 4 * 64];
        uint8_t head[4];
        bool outlier[64];
        struct kv_kvquant_range r =
            kv_kvquant_row_range(at, row, n_side, outlier, head);

        n_tokens++;
        if (c->variable) {
            const size_t n = c->variable->encode_block(
                c, (struct kv_where){.first = 0}, at, bytes);

            assert_int_equal(c->variable->decode_block(c, bytes, n, y, &e), 0);
        } else {
            c->scheme->encode(c, (struct kv_where){.first = 0}, at, 1, bytes);
            c->scheme->decode(c, bytes, 1, y);
        }
        for (size_t i = 0; i < row; i++) {
            const float low = range_of[2 * i], high = range_of[2 * i + 1];

            sum += pow((double)at[i] - (double)y[i], 2);
            if (side == KV_K) {
                outlier[i] = at[i] < low || at[i] > high;
                r = kv_kvquant_between(low, high);
            }
            if (outlier[i]) {
                assert_within(y[i], at[i], 0);
                continue;
            }
            moments_add(before, (double)((at[i] - r.offset) / r.half));
            moments_add(after, (double)((y[i] - r.offset) / r.half));
        }
    }
    kv_codec_free(c);
    kv_calib_free(calib);
    free(x);
    return sum / n_tokens / (double)row;
}

static void test_qnorm(void **state)
{
    (void)state;
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;
        struct moments before, after;
        double error;

        train_and_code("kvquant:b2,int,qnorm", side, &before, &after, &error);
        assert_within(mean(&after), mean(&before), 2e-3);
        assert_within(deviation(&after) / deviation(&before), 1, 2e-3);
        train_and_code("kvquant:b2,qnorm", side, &before, &after, &error);
        assert_within(mean(&after), mean(&before), 2e-3);
        assert_within(deviation(&after) / deviation(&before), 1, 2e-3);
        /* without, k-means is too narrow */
        train_and_code("kvquant:b2,w=none", side, &before, &after, &error);
        assert_true(deviation(&after) < 0.98 * deviation(&before));
    }
}

/* The training error is the codec's error on the training text; nuq beats nf
 * and int, more bits and outliers beat fewer. */
static void test_errors(void **state)
{
    static const char *const better_first[] = {
        "kvquant:b4,w=none,first=40", "kvquant:b3,w=none", "kvquant:b3,nf",
        "kvquant:b2,w=none",          "kvquant:b2,int",    "kvquant:b2o0,int"};

    (void)state;
    for (int i = 0; i < KV_SIDES; i++) {
        double last = 0;

        for (size_t j = 0; j < 6; j++) {
            struct moments before, after;
            double error, mse;

            mse = train_and_code(better_first[j], (enum kv_side)i, &before,
                                 &after, &error);
            if (!(fabs(mse - error) < 5e-3 * mse))
                fail_msg("%s: error %g, but %g in the table", better_first[j],
                         mse, error);
            assert_true(mse > last);
            last = mse;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lumps),      cmocka_unit_test(test_first_tokens),
        cmocka_unit_test(test_thresholds), cmocka_unit_test(test_qnorm),
        cmocka_unit_test(test_errors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
