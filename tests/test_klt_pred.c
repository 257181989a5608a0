/* klt's prediction across layers: its regression, and codecs that use it. */
#include "kernels/eigen.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/mixed.h"
#include "lib/moments.h"
#include "lib/scheme.h"
#include "lib/schemes/klt_pred_fit.h"
#include "lib/seq/cache.h"
#include "tests/append_rows.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>
#include <omp.h>

/* ---- the regression ---------------------------------------------------- */

static float *normals(size_t n, uint64_t seed)
{
    float *x = kv_alloc(n, sizeof(*x));

    for (size_t i = 0; i < n; i++)
        x[i] = (float)kv_random_normal(seed, i);
    return x;
}

static void test_moments(void **state)
{
    enum { N = 1100, A = 70, B = 9, STRIDE = 11 };
    float *a = normals(N * A, 1), *b = normals(N * B, 2);
    double one[A][STRIDE] = {{0}}, two[A][STRIDE] = {{0}};

    (void)state;
    one[3][4] = two[3][4] = 5; /* added to */
    omp_set_num_threads(1);
    kv_moments_cross(a, A, b, B, N, one[0], STRIDE);
    omp_set_num_threads(3);
    kv_moments_cross(a, A, b, B, N, two[0], STRIDE);
    assert_memory_equal(one, two, sizeof(one));
    for (size_t i = 0; i < A; i++)
        for (size_t j = 0; j < STRIDE; j++) {
            double want = i == 3 && j == 4 ? 5 : 0;

            for (size_t t = 0; t < N && j < B; t++)
                want += (double)a[t * A + i] * (double)b[t * B + j];
            assert_within(one[i][j], want, 1e-3);
        }
    free(a);
    free(b);
}

static void test_solve(void **state)
{
    double a[3 * 3] = {4, 1, 0, 1, 3, 1, 0, 1, 2},
                 b[3 * 2] = {6, 5, 10, 5, 8, 3};
    double bad[] = {1, 2, 2, 1}, x[] = {1, 1};

    (void)state;
    assert_int_equal(kv_solve(a, 3, b, 2), 0);
    for (size_t i = 0; i < 3; i++) {
        assert_within(b[2 * i], (double)i + 1, 1e-12);
        assert_within(b[2 * i + 1], 1, 1e-12);
    }
    assert_int_equal(kv_solve(bad, 2, x, 1), -1);
}

enum { TOKENS = 3000, ROW = 12 };

struct fit {
    struct kv_klt_seen seen;
    struct kv_klt_parts parts;
    float *weight;
};

static void fit_init(struct fit *f, size_t n_below)
{
    kv_klt_seen_init(&f->seen, TOKENS, ROW, n_below);
    f->parts = (struct kv_klt_parts){
        .x = kv_alloc(TOKENS, ROW * sizeof(float)),
        .predicted = kv_alloc(TOKENS, ROW * sizeof(float)),
        .matrix = kv_alloc(KV_KLT_SOURCES * ROW, ROW * sizeof(float)),
        .mean = kv_alloc(ROW, sizeof(double)),
        .bias = kv_alloc(ROW, sizeof(double))};
    f->seen.weight = f->weight = kv_alloc(TOKENS, sizeof(float));
    for (size_t t = 0; t < TOKENS; t++)
        f->weight[t] = t % 100 > 0;
}

static void fit_clear(struct fit *f)
{
    kv_klt_seen_clear(&f->seen);
    free(f->parts.x);
    free(f->parts.predicted);
    free(f->parts.matrix);
    free(f->parts.mean);
    free(f->parts.bias);
    free(f->weight);
}

/* Values are seen unchanged, except that noise replaces a share of each value's
 * variance. */
static void put(struct fit *f, enum kv_side side, double share)
{
    float sigma[ROW], unit[ROW * ROW] = {0};
    double left[ROW];

    for (size_t i = 0; i < ROW; i++) {
        sigma[i] = 1;
        unit[i * ROW + i] = 1;
        left[i] = share;
    }
    kv_klt_seen_put(&f->seen, side,
                    &(struct kv_klt_coded){sigma, unit, unit, left, 1, ROW},
                    &f->parts);
}

static double rest(const struct fit *f)
{
    double sum = 0;

    for (size_t i = 0; i < TOKENS * ROW; i++)
        sum += (double)f->parts.x[i] * (double)f->parts.x[i];
    return sum / (TOKENS * ROW);
}

/* Values are a mix of all layers' keys, own and below; the first
 * of a hundred tokens is wild, and left out. */
static void test_planted(void **state)
{
    float *low = normals(TOKENS * ROW, 5), *own = normals(TOKENS * ROW, 6);
    float *noise = normals(TOKENS * ROW, 7);
    struct kv_err e;
    struct fit f;

    (void)state;
    fit_init(&f, 2);
    for (size_t layer = 0; layer < 3; layer++) {
        const float *k = layer == 0 ? low : layer == 2 ? own : noise;

        if (layer)
            kv_klt_seen_up(&f.seen);
        for (size_t i = 0; i < TOKENS * ROW; i++)
            f.parts.x[i] = k[i] + 3;
        assert_int_equal(kv_klt_predict(&f.seen, layer, KV_K, &f.parts, &e), 0);
        assert_within(f.parts.mean[0], 3, 0.1);
        put(&f, KV_K, 0);
        for (size_t i = 0; i < TOKENS * ROW; i++)
            f.parts.x[i] = f.weight[i / ROW] > 0
                               ? 2 * low[i] - own[i] + 0.1f * noise[i] + 7
                               : 1e4f;
        assert_int_equal(kv_klt_predict(&f.seen, layer, KV_V, &f.parts, &e), 0);
        if (layer == 2)
            break;
        for (size_t i = 0; i < TOKENS * ROW; i++)
            f.parts.x[i] = noise[(i + 77) % (TOKENS * ROW)];
        memset(f.parts.predicted, 0, TOKENS * ROW * sizeof(float));
        put(&f, KV_V, 0);
    }
    assert_true(rest(&f) < 1e-4); /* ridge and halves */
    for (size_t i = 0; i < ROW; i++)
        for (size_t j = 0; j < ROW; j++) {
            const float *to = f.parts.matrix + i * ROW + j;

            assert_within(to[2 * ROW * ROW], i == j ? 2 : 0, 0.02);
            assert_within(to[4 * ROW * ROW], i == j ? -1 : 0, 0.02);
            assert_within(to[0], i == j ? 0.1 : 0, 0.02);
            assert_true(to[0] == kv_f16_to_f32(kv_f16_clamp(to[0])));
        }
    fit_clear(&f);
    free(low);
    free(own);
    free(noise);
}

/* What decoders would have: less than all, with noise, as a trellis leaves it;
 * the better the codes, the better what comes after is predicted. */
static void test_seen(void **state)
{
    float *x = normals(TOKENS * ROW, 8);
    double last = 0;
    struct kv_err e;
    struct fit f;

    (void)state;
    for (double share = 0.1; share < 1; share += 0.2) {
        double error = 0;

        fit_init(&f, 1);
        memcpy(f.parts.x, x, TOKENS * ROW * sizeof(*x));
        assert_int_equal(kv_klt_predict(&f.seen, 0, KV_K, &f.parts, &e), 0);
        put(&f, KV_K, share);
        for (size_t i = 0; i < TOKENS * ROW; i++)
            if (f.weight[i / ROW] > 0)
                error += pow((double)(f.seen.x[0][KV_K][i] - x[i]) +
                                 f.seen.mean[0][KV_K][i % ROW],
                             2);
        assert_within(error / (TOKENS * ROW), share, 0.02 + 0.02 * share);
        memcpy(f.parts.x, x, TOKENS * ROW * sizeof(*x));
        assert_int_equal(kv_klt_predict(&f.seen, 0, KV_V, &f.parts, &e), 0);
        assert_within(rest(&f), share, 0.03);
        assert_true(rest(&f) > last);
        last = rest(&f);
        fit_clear(&f);
    }
    free(x);
}

/* ---- codecs ------------------------------------------------------------ */

enum { LAYERS = 4, CTX = 400, WINDOWS = 4, DIM = 16, VALUES = 2 * DIM };

static struct kv_shape shape_of(void)
{
    struct kv_shape s = synthetic_shape(DIM);

    s.n_layers = LAYERS;
    return s;
}

/* A layer's keys or values for n tokens: a mix of earlier layers' values, and a
 * tenth of new ones.  in: the previous layer's, or NULL. */
static void next_rows(size_t layer, enum kv_side side, uint64_t seed,
                      const float *k, const float *v, size_t n, float *x)
{
    const uint64_t key = kv_mix(seed, 2 * layer + side);

    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < VALUES; i++) {
            const float fresh = (float)kv_random_normal(key, t * VALUES + i);
            const size_t j = t * VALUES + (i + 3) % VALUES;

            x[t * VALUES + i] =
                (float)i / 4 +
                (layer ? 0.1f * fresh + 0.7f * (k[j] + v[t * VALUES + i])
                       : fresh);
        }
}

static struct kv_dump *make_dump(const struct kv_shape *s)
{
    struct kv_dump_info info = {.model = "planted",
                                .arch = "none",
                                .weights = "f32",
                                .model_hash = "0123456789abcdef",
                                .text = "none",
                                .text_hash = "0123456789abcdef",
                                .shape = *s,
                                .n_windows = WINDOWS,
                                .ctx = CTX,
                                .last_layer = LAYERS - 1,
                                .have = {[KV_T_V] = true,
                                         [KV_T_K_PRE] = true,
                                         [KV_T_K_GRADIENT] = true,
                                         [KV_T_V_GRADIENT] = true}};
    char *path = kv_path_join(test_folder(), "planted.h5");
    const size_t n = WINDOWS * CTX;
    int32_t *tokens = kv_alloc(n, sizeof(*tokens));
    float *k[2], *v[2], *g = normals(n * VALUES, 77);
    struct kv_dump_writer *w;
    struct kv_dump *dump;
    struct kv_err e;

    assert_int_equal(kv_dump_create(&w, path, &info, &e), 0);
    assert_int_equal(kv_dump_put_tokens(w, 0, WINDOWS, tokens, &e), 0);
    for (int i = 0; i < 2; i++) {
        k[i] = kv_alloc(n, VALUES * sizeof(float));
        v[i] = kv_alloc(n, VALUES * sizeof(float));
    }
    for (size_t l = 0; l < LAYERS; l++) {
        float *to[] = {k[l % 2], v[l % 2]};

        for (enum kv_side i = KV_K; i < KV_SIDES; i++)
            next_rows(l, i, 1, k[1 - l % 2], v[1 - l % 2], n, to[i]);
        if (kv_dump_put(w, l, KV_T_K_PRE, 0, WINDOWS, to[KV_K], &e) ||
            kv_dump_put(w, l, KV_T_V, 0, WINDOWS, to[KV_V], &e) ||
            kv_dump_put(w, l, KV_T_K_GRADIENT, 0, WINDOWS, g, &e) ||
            kv_dump_put(w, l, KV_T_V_GRADIENT, 0, WINDOWS, g, &e))
            fail_msg("%s", e.msg);
    }
    if (kv_dump_commit(w, &e) || kv_dump_open(&dump, path, &e))
        fail_msg("%s", e.msg);
    for (int i = 0; i < 2; i++) {
        free(k[i]);
        free(v[i]);
    }
    free(g);
    free(tokens);
    free(path);
    return dump;
}

/* Mean squared error of other tokens, stored by a spec, over all layers; bits:
 * of a value. */
static double stored_error(const struct kv_spec *spec,
                           const struct kv_shape *shape,
                           const struct kv_calib *calib, double *bits)
{
    enum { N = 200 };
    float *k[2], *v[2], *back = kv_alloc(N, VALUES * sizeof(*back));
    struct kv_cache *c, *below = NULL;
    struct kv_codecs *cs;
    struct kv_err e;
    double error = 0;
    size_t bytes = 0;

    if (kv_codecs_new(&cs, spec, shape, 0, LAYERS, calib, &e))
        fail_msg("%s", e.msg);
    for (int i = 0; i < 2; i++) {
        k[i] = kv_alloc(N, VALUES * sizeof(float));
        v[i] = kv_alloc(N, VALUES * sizeof(float));
    }
    for (size_t l = 0; l < LAYERS; l++) {
        struct kv_codec *const *codec = kv_codecs_at(cs, l);
        float *to[] = {k[l % 2], v[l % 2]};

        for (enum kv_side i = KV_K; i < KV_SIDES; i++)
            next_rows(l, i, 2, k[1 - l % 2], v[1 - l % 2], N, to[i]);
        assert_int_equal(kv_cache_new(&c, codec[KV_K], codec[KV_V], 1, &e), 0);
        if (kv_spec_reads_below(spec))
            kv_cache_put_on(c, below);
        assert_int_equal(append_rows(c, NULL, to[KV_K], to[KV_V], N, &e), 0);
        for (enum kv_side i = KV_K; i < KV_SIDES; i++) {
            bytes += kv_cache_bytes(c, i, NULL, NULL);
            kv_cache_decode(c, i, back);
            for (size_t j = 0; j < N * VALUES; j++)
                error += pow((double)back[j] - (double)to[i][j], 2);
        }
        if (!kv_spec_reads_below(spec))
            kv_cache_free(c);
        below = c;
    }
    if (kv_spec_reads_below(spec))
        kv_cache_free(c);
    kv_codecs_free(cs);
    for (int i = 0; i < 2; i++) {
        free(k[i]);
        free(v[i]);
    }
    free(back);
    *bits = 8 * (double)bytes / (LAYERS * 2 * N * VALUES);
    return error / (LAYERS * 2 * N * VALUES);
}

/* tables: their bytes without the trellis's. */
static double trained_error(const char *text, struct kv_dump *dump,
                            double *bits, size_t *tables)
{
    const struct kv_shape *shape = &kv_dump_info(dump)->shape;
    struct kv_calib_set set = {.n_tables = 0};
    struct kv_calib calib = {.shape = *shape, .set = &set, .n_sets = 1};
    struct kv_spec s;
    struct kv_err e = {""};
    double error;

    if (kv_spec_parse(&s, text, &e) || kv_spec_fit(&s, shape, &e) ||
        s.scheme->training->check_dump(&s, dump, &e) ||
        s.scheme->training->calibrate(&s, dump, 1, &set, &e))
        fail_msg("%s", e.msg);
    kv_spec_calib_key(&s, set.key);
    error = stored_error(&s, shape, &calib, bits);
    *tables = 0;
    for (size_t i = 0; i < set.n_tables; i++)
        if (set.table[i].side != KV_ALL)
            *tables += kv_table_bytes(&set.table[i]);
    kv_calib_set_clear(&set);
    return error;
}

static const char *const layer_specs[] = {
    "klt:b2,metric=fisher", "klt:b2,metric=fisher,pred=1",
    "klt:b2,metric=fisher,pred=2", "klt:b2,vk", "klt:b2,pair"};

/* Layers that predict each other well cost few bits. */
static void test_layers(void **state)
{
    const struct kv_shape shape = shape_of();
    struct kv_dump *dump = make_dump(&shape);
    double bits[5], error[5];
    size_t tables;

    (void)state;
    for (int i = 0; i < 5; i++) {
        error[i] = trained_error(layer_specs[i], dump, &bits[i], &tables);
        assert_true(bits[i] <= 2 && bits[i] > 1.7);
    }
    assert_true(error[1] < error[0] / 5);
    assert_true(error[2] < error[0] / 5);
    assert_true(error[3] < error[0] * 0.8);
    assert_true(error[4] < error[3] * 0.8);
    kv_dump_close(dump);
}

/* Short tables take less than half the bytes, steps of so short rows among
 * them, and cost little error. */
static void test_short(void **state)
{
    static const char *const specs[] = {"klt:b1", "klt:b2,heads=own",
                                        "klt:b2,vk", "klt:b1,pred=1"};
    const struct kv_shape shape = shape_of();
    struct kv_dump *dump = make_dump(&shape);

    (void)state;
    for (size_t i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
        char text[64];
        double bits[2], error[2];
        size_t tables[2];

        snprintf(text, sizeof(text), "%s,tables=short", specs[i]);
        error[0] = trained_error(specs[i], dump, &bits[0], &tables[0]);
        error[1] = trained_error(text, dump, &bits[1], &tables[1]);
        assert_true(5 * tables[1] < 3 * tables[0]);
        assert_within(error[1] / error[0], 1, 0.1);
        assert_true(bits[1] <= bits[0]);
    }
    kv_dump_close(dump);
}

static void refused(const char *text, const char *why)
{
    const struct kv_shape shape = shape_of();
    struct kv_spec s;
    struct kv_err e;

    assert_int_equal(kv_spec_parse(&s, text, &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, why);
}

/* In place, sliding layers are like any other; a pair has one kind. */
static void test_sliding(void **state)
{
    struct kv_shape shape = shape_of();
    struct kv_spec s;
    struct kv_err e;

    (void)state;
    shape.slide_window = 50;
    shape.slides[0] = 1 << 0 | 1 << 1 | 1 << 2;
    assert_int_equal(kv_spec_parse(&s, "klt:b2,vk", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    assert_int_equal(kv_spec_parse(&s, "klt:b2,pair", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "layers 2 and 3 are of different kinds");
    shape.slides[0] = 1 << 0 | 1 << 1;
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    assert_int_equal(kv_spec_parse(&s, "klt:b2,pred=1", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "layer 0 slides");
}

static void test_few_tokens(void **state)
{
    const struct kv_shape shape = shape_of();
    struct kv_dump *dump;
    struct kv_spec s;
    struct kv_err e;
    char *path;

    (void)state;
    synthetic_dump(&shape, 1, VALUES - 1, test_folder(), &path);
    assert_int_equal(kv_dump_open(&dump, path, &e), 0);
    assert_int_equal(kv_spec_parse(&s, "klt:b2,vk", &e), 0);
    assert_int_equal(s.scheme->training->check_dump(&s, dump, &e), -1);
    assert_says(e, "has 31 tokens, and a row 32 values: a prediction wants");
    assert_int_equal(kv_spec_parse(&s, "klt:b2", &e), 0);
    assert_int_equal(s.scheme->training->check_dump(&s, dump, &e), 0);
    kv_dump_close(dump);
    free(path);
}

static void test_refusals(void **state)
{
    char key[KV_SPEC_CHARS], *path;
    const struct kv_mixed *m;
    struct kv_spec s;
    struct kv_err e;
    FILE *f;

    (void)state;
    refused("klt:b2,pred=2,metric=attention", "pred wants metric=fisher");
    refused("klt:b2,pred=2,metric=fisher,share=layer", "pred wants");
    refused("klt:b2,K-pred=2,metric=fisher", "pred is one for K and V");
    refused("klt:b2,V-pred=vk", "pred is one for K and V");
    refused("klt:b2,vk,metric=none", "pred wants metric=fisher");
    refused("klt:K-b2s1/V-b2s2,vk", "s is one for K and V");
    refused("h2o:b0.2+klt:b2,pair", "a policy drops tokens");
    refused("klt:K-b2s1/V-b2s2,pred=2,metric=fisher", "s is one for K and V");
    assert_int_equal(kv_spec_parse(&s, "klt:b1.5,metric=fisher,pred=1", &e), 0);
    kv_spec_calib_key(&s, key);
    assert_string_equal(key, "klt:b1.5,metric=fisher,rope=pre,pred=1");
    assert_int_equal(kv_spec_parse(&s, "klt:b1.5,vk", &e), 0);
    kv_spec_calib_key(&s, key);
    assert_string_equal(key, "klt:b1.5,metric=fisher,rope=pre,pred=vk");
    assert_int_equal(kv_spec_parse(&s, "klt:b1.5,metric=fisher", &e), 0);
    kv_spec_calib_key(&s, key);
    assert_string_equal(key, "klt,metric=fisher,rope=pre,pred=0");
    path = kv_path_join(test_folder(), "layers.txt");
    f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "0-3 KV klt:b2,metric=fisher,pred=1\n");
    fclose(f);
    assert_int_equal(kv_mixed_read(&m, path, &e), -1);
    assert_says(e, "is predicted from the layers below");
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moments),    cmocka_unit_test(test_solve),
        cmocka_unit_test(test_planted),    cmocka_unit_test(test_seen),
        cmocka_unit_test(test_layers),     cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_short),      cmocka_unit_test(test_sliding),
        cmocka_unit_test(test_few_tokens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
