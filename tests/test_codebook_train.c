/* The calibration of codebooks: smoothing factors, codebooks and their scopes,
 * training error, too few points. */
#include "kernels/hadamard.h"
#include "kernels/nearest/nearest.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/base/progress.h"
#include "lib/scheme.h"
#include "lib/schemes/codebook.h"
#include "tests/codec_setup.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>
#include <omp.h>

enum { TOKENS = 640 }; /* of synthetic_calib()'s dump: all are sampled */

static void read_all(const struct kv_shape *s, const char *folder, size_t layer,
                     enum kv_tensor t, float *x)
{
    struct kv_dump *dump;
    struct kv_err e = {""};
    char *path;

    synthetic_dump(s, 4, TOKENS / 4, folder, &path);
    if (kv_dump_open(&dump, path, &e) ||
        kv_dump_read(dump, layer, t, 0, TOKENS, x, &e))
        fail_msg("%s", e.msg);
    kv_dump_close(dump);
    free(path);
}

/* The training error is the codec's error on its training tokens, all of them
 * here. */
static void check_error(const char *text, enum kv_side side, size_t layer)
{
    const struct kv_shape shape = synthetic_shape(32);
    const struct kv_spec spec = spec_of(text, &shape);
    const size_t row = shape.n_kv_heads * shape.head_dim;
    const size_t layers =
        kv_spec_is(&spec, side, "books", "model") ? shape.n_layers : 1;
    const char *folder = test_folder();
    struct kv_calib *calib = synthetic_calib(&shape, &spec, folder);
    const struct kv_table *table =
        kv_calib_table(calib->set, "codebook", side, layer, 1);
    const size_t h0 = table->head == KV_ALL ? 0 : 1;
    float *x = kv_alloc(2 * TOKENS, row * sizeof(*x)), *y = x + TOKENS * row;
    uint8_t *bytes;
    double sum = 0;

    for (size_t l = layers > 1 ? 0 : layer; l < layer + 1; l++) {
        struct kv_codec *c;
        struct kv_err e = {""};
        const struct kv_where w = {.first = 0};

        if (kv_codec_new(&c, &spec, &shape, l, side, calib, &e))
            fail_msg("%s", e.msg);
        read_all(&shape, folder, l, kv_dump_tensor(c), x);
        bytes = kv_alloc(TOKENS, c->block_bytes);
        c->scheme->encode(c, w, x, TOKENS, bytes);
        c->scheme->decode(c, bytes, TOKENS, y);
        for (size_t t = 0; t < TOKENS; t++)
            for (size_t i = h0 * shape.head_dim; i < row; i++)
                sum += pow((double)x[t * row + i] - (double)y[t * row + i], 2);
        free(bytes);
        kv_codec_free(c);
    }

    const double mse =
        sum / (double)(layers * TOKENS * (row - h0 * shape.head_dim));

    if (!(fabs(mse - table->error) < 1e-4 * mse))
        fail_msg("%s: error %g, but %g in the table", text, mse, table->error);
    assert_true(mse > 0 && mse < 5);
    free(x);
    kv_calib_free(calib);
}

static void test_training_error(void **state)
{
    (void)state;
    check_error("pq:d4b5", KV_K, 1);
    check_error("pq:d4b5,books=head,sub=shared", KV_V, 0);
    check_error("million:d2b6", KV_K, 1);
    check_error("vecinfer:d4b6", KV_K, 1);
    check_error("vecinfer:d4b6,HS,pre", KV_K, 1);
    check_error("vecinfer:d4b6,t=S,books=head", KV_K, 0);
    check_error("cq:c4b5", KV_K, 1);
    check_error("cq:c2b5", KV_V, 0);
}

/* Codebooks are of fp16, factors are not. */
static void check_half(const char *text)
{
    const struct kv_shape shape = synthetic_shape(32);
    const struct kv_spec spec = spec_of(text, &shape);
    struct kv_calib *calib = synthetic_calib(&shape, &spec, test_folder());

    for (size_t i = 0; i < calib->set->n_tables; i++) {
        const struct kv_table *t = &calib->set->table[i];
        size_t n = 1;

        for (size_t j = 0; j < t->n_dims; j++)
            n *= t->dims[j];
        const bool half = t->type == KV_TABLE_F16;

        assert_true(half == !strcmp(t->name, "codebook"));
        for (size_t j = 0; half && j < n; j++)
            assert_true(t->data[j] == kv_f16_to_f32(kv_f32_to_f16(t->data[j])));
    }
    kv_calib_free(calib);
}

static void test_half(void **state)
{
    (void)state;
    check_half("vecinfer:d4b5");
    check_half("million:d4b5");
    check_half("pq:d2b5,HS");
    check_half("evasion:d4b5,books=head");
    check_half("cq:c4b4");
}

/* A dump with the same value everywhere, on which no loss depends. */
static char *flat_dump(const struct kv_shape *s, float value)
{
    struct kv_dump_info info = {.model = "flat",
                                .arch = "none",
                                .weights = "f32",
                                .model_hash = "0123456789abcdef",
                                .text = "none",
                                .text_hash = "0123456789abcdef",
                                .shape = *s,
                                .n_windows = 1,
                                .ctx = TOKENS,
                                .last_layer = s->n_layers - 1};
    const size_t n = TOKENS * s->n_kv_heads * s->head_dim;
    char *path = kv_path_join(test_folder(), "flat.h5");
    int32_t *tokens = kv_alloc(TOKENS, sizeof(*tokens));
    float *x = kv_alloc(n, sizeof(*x)), *none = kv_alloc(n, sizeof(*none));
    struct kv_dump_writer *w;
    struct kv_err e = {""};

    info.have[KV_T_K] = info.have[KV_T_K_PRE] = info.have[KV_T_V] = true;
    info.have[KV_T_K_GRADIENT] = info.have[KV_T_V_GRADIENT] = true;
    for (size_t i = 0; i < n; i++)
        x[i] = value;
    if (kv_dump_create(&w, path, &info, &e) ||
        kv_dump_put_tokens(w, 0, 1, tokens, &e))
        fail_msg("%s", e.msg);
    for (size_t l = 0; l < s->n_layers; l++)
        if (kv_dump_put(w, l, KV_T_K, 0, 1, x, &e) ||
            kv_dump_put(w, l, KV_T_K_PRE, 0, 1, x, &e) ||
            kv_dump_put(w, l, KV_T_V, 0, 1, x, &e) ||
            kv_dump_put(w, l, KV_T_K_GRADIENT, 0, 1, none, &e) ||
            kv_dump_put(w, l, KV_T_V_GRADIENT, 0, 1, none, &e))
            fail_msg("%s", e.msg);
    assert_int_equal(kv_dump_commit(w, &e), 0);
    free(none);
    free(x);
    free(tokens);
    return path;
}

static void check_flat(const char *text, float value, float center,
                       double error)
{
    const struct kv_shape shape = synthetic_shape(32);
    const struct kv_spec spec = spec_of(text, &shape);
    struct kv_calib_set set = {.n_tables = 0};
    char *path = flat_dump(&shape, value);
    struct kv_dump *dump;
    struct kv_err e = {""};

    if (kv_dump_open(&dump, path, &e) ||
        kv_codebook_calibrate(&spec, dump, 1, &set, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < set.n_tables; i++) {
        assert_true(set.table[i].data[0] == center);
        assert_true(set.table[i].error == error);
    }
    kv_calib_set_clear(&set);
    kv_dump_close(dump);
    free(path);
}

/* A center beyond fp16 is its largest number; the error is the remainder. */
static void test_beyond_half(void **state)
{
    (void)state;
    check_flat("pq:d4b2", -70000, -65504, 4496. * 4496);
}

/* If the loss depends on no point, all points weigh alike. */
static void test_no_weights(void **state)
{
    (void)state;
    check_flat("cq:c4b2", 3, 3, 0);
}

static void check_smooth(const char *t, bool hadamard)
{
    const struct kv_shape shape = synthetic_shape(32);
    const size_t row = shape.n_kv_heads * shape.head_dim;
    const char *folder = test_folder();
    char text[64];

    snprintf(text, sizeof(text), "vecinfer:d4b2,iters=2,t=%s", t);

    const struct kv_spec spec = spec_of(text, &shape);
    struct kv_calib *calib = synthetic_calib(&shape, &spec, folder);
    const struct kv_table *table =
        kv_calib_table(calib->set, "smooth", KV_K, 1, 1);
    float *x = kv_alloc(TOKENS, row * sizeof(*x));

    assert_non_null(table);
    assert_null(kv_calib_table(calib->set, "smooth", KV_V, 1, 1));
    assert_int_equal(table->n_dims, 2);
    assert_int_equal(table->dims[0], 2);
    assert_int_equal(table->dims[1], 32);
    read_all(&shape, folder, 1, KV_T_K, x);
    if (hadamard)
        kv_hadamard(x, TOKENS * shape.n_kv_heads, shape.head_dim);
    for (size_t i = 0; i < row; i++) {
        float max = 0;

        for (size_t at = 0; at < TOKENS; at++)
            max = fmaxf(max, fabsf(x[at * row + i]));
        assert_true(table->data[i] == sqrtf(max));
    }
    free(x);
    kv_calib_free(calib);
}

static void test_smooth(void **state)
{
    (void)state;
    check_smooth("SH", false);
    check_smooth("S", false);
    check_smooth("HS", true);
}

static void test_scopes(void **state)
{
    static const struct {
        const char *text;
        size_t n_tables; /* two layers, two KV heads, both sides */
        size_t sub;
    } cases[] = {
        {"pq:d8b2,iters=1", 4, 4},
        {"pq:d8b2,iters=1,books=head", 8, 4},
        {"million:d8b2,iters=1", 2, 4},
        {"million:d8b2,iters=1,sub=shared", 2, 1},
        {"vecinfer:d8b2,iters=1,t=H", 4, 1},
        {"vecinfer:d8b2,iters=1", 6, 1},
    };
    const struct kv_shape shape = synthetic_shape(32);

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const struct kv_spec spec = spec_of(cases[i].text, &shape);
        struct kv_calib *calib = synthetic_calib(&shape, &spec, test_folder());

        assert_int_equal(calib->set->n_tables, cases[i].n_tables);
        for (size_t layer = 0; layer < 2; layer++)
            for (size_t head = 0; head < 2; head++)
                assert_int_equal(
                    kv_calib_table(calib->set, "codebook", KV_V, layer, head)
                        ->dims[0],
                    cases[i].sub);
        assert_string_equal(calib->set->warning, "");
        kv_calib_free(calib);
    }
}

/* 1280 points a sub-space: 64 centroids have few, 2048 too few. */
static void test_few_points(void **state)
{
    const struct kv_shape shape = synthetic_shape(32);
    const char *folder = test_folder();
    const struct kv_spec some = spec_of("pq:d4b6", &shape);
    const struct kv_spec many = spec_of("pq:d4b11", &shape);
    struct kv_calib *calib = synthetic_calib(&shape, &some, folder);
    struct kv_calib_set set = {.n_tables = 0};
    struct kv_dump *dump;
    struct kv_err e = {""};
    char *path;

    (void)state;
    assert_non_null(
        strstr(calib->set->warning, "20.0 points per centroid, fewer than 39"));
    kv_calib_free(calib);
    synthetic_dump(&shape, 4, TOKENS / 4, folder, &path);
    assert_int_equal(kv_dump_open(&dump, path, &e), 0);
    assert_int_equal(kv_codebook_calibrate(&many, dump, 1, &set, &e), -1);
    assert_says(e, "layer 0, K: the dump has 1280 points for the 2048");
    kv_calib_set_clear(&set);
    kv_dump_close(dump);
    free(path);
}

/* Each layer sampled and each codebook trained is a step. */
static void test_progress(void **state)
{
    static const struct {
        const char *text;
        size_t steps; /* two layers, two KV heads, both sides */
    } cases[] = {{"pq:d8b2,iters=1", 2 * (2 + 2 * 4)},
                 {"pq:d8b2,iters=1,books=head", 2 * (2 + 2 * 2 * 4)},
                 {"million:d8b2,iters=1,sub=shared", 2 * (2 + 1)}};
    const struct kv_shape shape = synthetic_shape(32);
    struct kv_dump *dump;
    struct kv_err e = {""};
    char *path;

    (void)state;
    synthetic_dump(&shape, 4, TOKENS / 4, test_folder(), &path);
    assert_int_equal(kv_dump_open(&dump, path, &e), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const struct kv_spec spec = spec_of(cases[i].text, &shape);
        struct kv_progress bar;
        struct kv_calib_set set = {.progress = &bar};

        kv_progress_init(&bar, "test", 0);
        assert_int_equal(kv_codebook_calibrate(&spec, dump, 1, &set, &e), 0);
        kv_progress_clear(&bar);
        assert_int_equal(bar.total, cases[i].steps);
        assert_int_equal(bar.done, cases[i].steps);
        kv_calib_set_clear(&set);
    }
    kv_dump_close(dump);
    free(path);
}

/* Warnings to the user: heads that the Hadamard transform takes. */
static void test_hadamard(void **state)
{
    const struct kv_shape shape = synthetic_shape(24);
    static const char *const with[] = {"vecinfer", "vecinfer,H", "pq,HS"};
    static const char *const without[] = {"vecinfer,t=S", "pq"};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const struct kv_spec s = spec_of(with[i], &shape);

        assert_int_equal(s.scheme->hadamard(&s, &shape), 24);
    }
    for (size_t i = 0; i < 2; i++) {
        const struct kv_spec s = spec_of(without[i], &shape);

        assert_int_equal(s.scheme->hadamard(&s, &shape), 0);
    }
}

static void assert_same_tables(const struct kv_calib *a,
                               const struct kv_calib *b)
{
    for (size_t i = 0; i < a->set->n_tables; i++) {
        const struct kv_table *t = &a->set->table[i], *u = &b->set->table[i];
        size_t n = sizeof(*t->data);

        for (size_t j = 0; j < t->n_dims; j++)
            n *= t->dims[j];
        assert_string_equal(t->name, u->name);
        assert_memory_equal(t->data, u->data, n);
        assert_memory_equal(&t->error, &u->error, sizeof(t->error));
    }
}

/* init=random starts elsewhere; test_threads and test_kmeans.c have the rest.
 */
static void test_init(void **state)
{
    const struct kv_shape shape = synthetic_shape(32);
    const struct kv_spec even = spec_of("million:d4b4", &shape);
    const struct kv_spec pp = spec_of("million:d4b4,kmeans++", &shape);
    struct kv_calib *a = synthetic_calib(&shape, &even, test_folder());
    struct kv_calib *b = synthetic_calib(&shape, &pp, test_folder());

    (void)state;
    assert_true(strcmp(a->set->key, b->set->key));
    assert_memory_not_equal(a->set->table->data, b->set->table->data,
                            4 * 16 * sizeof(float));
    kv_calib_free(b);
    kv_calib_free(a);
}

/* 2c8b without weights is product quantization of keys before RoPE. */
static void test_cq_is_pq(void **state)
{
    const struct kv_shape shape = synthetic_shape(32);
    const struct kv_spec cq = spec_of("cq:c2b8,w=none", &shape);
    const struct kv_spec pq =
        spec_of("pq:d2b8,books=head,sub=own,pre,iters=100", &shape);
    struct kv_calib *a = synthetic_calib(&shape, &cq, test_folder());
    struct kv_calib *b = synthetic_calib(&shape, &pq, test_folder());

    (void)state;
    assert_int_equal(a->set->n_tables, 8);
    assert_int_equal(b->set->n_tables, 8);
    assert_same_tables(a, b);
    kv_calib_free(b);
    kv_calib_free(a);
}

/* A centroid is the mean of its points, each with the sum of its channels'
 * Fisher information. */
static void check_weights(enum kv_side side)
{
    enum { HEAD = 1, SUB = 3, D = 4, K = 8 };
    const struct kv_shape shape = synthetic_shape(32);
    const struct kv_spec spec = spec_of("cq:c4b3", &shape);
    const size_t row = shape.n_kv_heads * shape.head_dim;
    const size_t at = HEAD * shape.head_dim + SUB * D;
    const char *folder = test_folder();
    struct kv_calib *calib = synthetic_calib(&shape, &spec, folder);
    const float *center =
        kv_calib_table(calib->set, "codebook", side, 1, HEAD)->data +
        (size_t)SUB * K * D;
    float *x = kv_alloc(2 * TOKENS, row * sizeof(*x)), *f = x + TOKENS * row;
    double sum[K][D + 1] = {{0}};
    struct kv_centroids book;

    kv_centroids_init(&book, center, K, D);
    read_all(&shape, folder, 1, side == KV_K ? KV_T_K_PRE : KV_T_V, x);
    read_all(&shape, folder, 1,
             side == KV_K ? KV_T_K_GRADIENT : KV_T_V_GRADIENT, f);
    for (size_t t = 0; t < TOKENS; t++) {
        const float *y = x + t * row + at, *g = f + t * row + at;
        double w = 0;
        uint16_t code;

        for (size_t i = 0; i < D; i++)
            w += (double)(g[i] * g[i]);
        kv_nearest(&book, y, 1, &code);
        for (size_t i = 0; i < D; i++)
            sum[code][i] += w * (double)y[i];
        sum[code][D] += w;
    }
    for (size_t c = 0; c < K; c++)
        for (size_t i = 0; i < D; i++)
            assert_within(center[c * D + i], sum[c][i] / sum[c][D],
                          1e-4 + fabs(sum[c][i] / sum[c][D]) * 0x1p-11);
    kv_centroids_clear(&book);
    free(x);
    kv_calib_free(calib);
}

static void test_weights(void **state)
{
    (void)state;
    check_weights(KV_K);
    check_weights(KV_V);
}

static void test_threads(void **state)
{
    static const char *const specs[] = {
        "pq:d4b4", "million:d4b4",   "vecinfer:d4b6",
        "cq:c4b4", "cq:c4b4,random", "commvq:b2c6,iters=3"};
    const struct kv_shape shape = synthetic_shape(32);
    const int threads = omp_get_max_threads();

    (void)state;
    for (size_t i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
        const struct kv_spec spec = spec_of(specs[i], &shape);
        struct kv_calib *calib[3];

        for (int t = 0; t < 3; t++) {
            omp_set_num_threads(t + 1);
            calib[t] = synthetic_calib(&shape, &spec, test_folder());
        }
        for (int t = 0; t < 3; t++) {
            assert_same_tables(calib[0], calib[t]);
            if (t)
                kv_calib_free(calib[t]);
        }
        kv_calib_free(calib[0]);
    }
    omp_set_num_threads(threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training_error),
        cmocka_unit_test(test_half),
        cmocka_unit_test(test_beyond_half),
        cmocka_unit_test(test_smooth),
        cmocka_unit_test(test_scopes),
        cmocka_unit_test(test_few_points),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_hadamard),
        cmocka_unit_test(test_init),
        cmocka_unit_test(test_cq_is_pq),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_no_weights),
        cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
