/* klt: the allocation of bits, the transform, its error, its invariance to
 * outlier channels, what it gains from alike heads. */
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "lib/dump.h"
#include "lib/scheme.h"
#include "lib/schemes/klt_train.h"
#include "lib/seq/cache.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- allocation -------------------------------------------------------- */

enum { ONE_BIT = 5, TWO_BITS = 8, THREE_BITS = 10 }; /* kinds, from 1 */

/* Only whole bits, as good as the Gaussian bound: 6.02 dB each. */
static void ideal(double mse[KV_KLT_KINDS])
{
    for (size_t i = 0; i < KV_KLT_KINDS; i++)
        mse[i] = kv_klt_kinds[i].values > 1
                     ? (double)INFINITY
                     : pow(4, -(double)kv_klt_kinds[i].bits);
}

static struct kv_klt_unit unit(struct kv_klt_coef *coef, const float *variance,
                               size_t n)
{
    for (size_t i = 0; i < n; i++)
        coef[i] =
            (struct kv_klt_coef){.variance = variance[i], .index = (uint16_t)i};
    return (struct kv_klt_unit){.coef = coef, .n = n};
}

/* Variances 64, 16, 4, 1 and ideal quantizers: at 8 bits 3, 2, 1 and 0 of them
 * leave a distortion of 1 each, and two bits are over, which one more bit for
 * two of them would take. */
static void test_water_level(void **state)
{
    const float variance[] = {64, 16, 4, 1, 0.5f, 0.25f, 0.1f, 0};
    struct kv_klt_coef coef[8];
    struct kv_klt_unit u = unit(coef, variance, 8);
    double mse[KV_KLT_KINDS];

    (void)state;
    ideal(mse);
    kv_klt_allocate(&u, 1, 1, mse);
    assert_int_equal(u.bytes, 1);
    assert_int_equal(u.n_coded, 3);
    assert_int_equal(coef[0].kind, THREE_BITS);
    assert_int_equal(coef[1].kind, TWO_BITS);
    assert_int_equal(coef[2].kind, ONE_BIT);
    assert_int_equal(coef[3].kind, 0);
}

/* Two units, one with all the variance: it gets all but the byte that the
 * other has anyway. */
static void test_units_share(void **state)
{
    const float large[] = {4096, 4096, 4096, 4096}, small[] = {1, 1, 1, 1};
    struct kv_klt_coef a[4], b[4];
    struct kv_klt_unit u[] = {unit(a, large, 4), unit(b, small, 4)};
    double mse[KV_KLT_KINDS];

    (void)state;
    ideal(mse);
    kv_klt_allocate(u, 2, 4, mse);
    assert_int_equal(u[0].bytes, 3); /* 4 x 6 bits */
    assert_int_equal(u[1].bytes, 1);
    kv_klt_allocate(u, 2, 0, mse); /* less than possible: gives the minimum */
    assert_int_equal(u[0].bytes + u[1].bytes, 2);
}

static double bits_of(size_t kind)
{
    return kind ? (double)kv_klt_kinds[kind - 1].bits : 0;
}

static double error_of(const double *mse, size_t kind)
{
    return kind ? mse[kind - 1] : 1;
}

/* At one price of a bit no coefficient would gain by another kind. */
static void test_one_price(void **state)
{
    struct kv_klt_coef coef[200];
    float variance[200];
    double mse[KV_KLT_KINDS];

    (void)state;
    ideal(mse);
    mse[TWO_BITS - 1] *= 1.5;
    for (size_t i = 0; i < 200; i++)
        variance[i] = expf(-(float)(i / 3 * 3 + i % 3 / 2) / 24);
    for (size_t budget = 10; budget < 150; budget += 7) {
        struct kv_klt_unit u = unit(coef, variance, 200);
        double min = 0, max = (double)INFINITY;

        kv_klt_allocate(&u, 1, budget, mse);
        for (size_t i = 0; i < 200; i++)
            for (size_t k = 0; k <= KV_KLT_KINDS; k++) {
                const double bits = bits_of(k) - bits_of(coef[i].kind);
                const double saved =
                    (double)variance[i] *
                    (error_of(mse, coef[i].kind) - error_of(mse, k));

                if (bits > 0)
                    min = fmax(min, saved / bits);
                else if (bits < 0)
                    max = fmin(max, saved / bits);
            }
        assert_true(min <= max * (1 + 1e-9));
    }
}

/* Steps of several values take whole groups; of one value, where there are
 * steps of two at its rate, is what is left over alone. */
static void test_groups_are_whole(void **state)
{
    struct kv_klt_coef coef[37];
    float variance[37];
    struct kv_klt_unit u;
    double mse[KV_KLT_KINDS];

    (void)state;
    for (size_t i = 0; i < 37; i++)
        variance[i] = expf(-0.2f * (float)i);
    for (size_t i = 0; i < KV_KLT_KINDS; i++)
        mse[i] = pow(4, -(double)kv_klt_kinds[i].bits / kv_klt_kinds[i].values);
    for (size_t budget = 1; budget < 20; budget++) {
        size_t bits = 0, i = 0, singles[KV_KLT_KINDS + 1] = {0};

        u = unit(coef, variance, 37);
        kv_klt_allocate(&u, 1, budget, mse);
        assert_true(u.bytes <= budget);
        while (i < u.n_coded) {
            const struct kv_klt_kind *k = &kv_klt_kinds[coef[i].kind - 1];

            for (size_t v = 0; v < k->values; v++)
                assert_int_equal(coef[i + v].kind, coef[i].kind);
            bits += k->bits;
            singles[coef[i].kind] += k->values == 1;
            i += k->values;
        }
        assert_true(singles[ONE_BIT] <= 1 && singles[TWO_BITS] <= 1);
        assert_int_equal(i, u.n_coded);
        assert_int_equal((bits + 7) / 8, bits ? u.bytes : 0);
    }
}

/* Bitstreams begin with scalar levels of a transition's own rate, if any. */
static void test_singles(void **state)
{
    (void)state;
    for (size_t i = 0; i < KV_KLT_KINDS; i++) {
        const struct kv_klt_kind *k = &kv_klt_kinds[i];
        const size_t single = kv_klt_single(i);

        if (k->bits % k->values) {
            assert_int_equal(single, KV_KLT_KINDS);
        } else {
            assert_int_equal(kv_klt_kinds[single].values, 1);
            assert_int_equal(kv_klt_kinds[single].bits, k->bits / k->values);
        }
    }
}

/* ---- the whole --------------------------------------------------------- */

enum { D = 16, WINDOWS = 4, CTX = 200, N = WINDOWS * CTX };

/* How a dump is made up: channel 3 of the keys is `boost` times larger, that of
 * the queries as much smaller; heads are alike but for a fifth. */
struct made_up {
    float boost;
    bool alike;
};
static const struct made_up plain_dump = {.boost = 1};

/* Correlated keys and values. */
static void make_rows(const struct kv_shape *s, size_t heads, bool alike,
                      uint64_t seed, float *x)
{
    const size_t d = s->head_dim;

    for (size_t i = 0; i < N * heads; i++) {
        const float common = (float)kv_random_normal(seed, i);

        for (size_t k = 0; k < d; k++)
            x[i * d + k] = common * (float)(k % 5) + 0.1f * (float)k +
                           0.5f * (float)kv_random_normal(seed + 1 + k, i);
        for (size_t k = 0; k < d && alike && i % heads; k++)
            x[i * d + k] =
                0.98f * x[(i - i % heads) * d + k] + 0.2f * x[i * d + k];
    }
}

static void scale_channel(const struct kv_shape *s, size_t heads, float a,
                          float *x)
{
    for (size_t i = 0; i < N * heads; i++) {
        x[i * s->head_dim + 3] *= a;
        x[i * s->head_dim + 3 + s->head_dim / 2] *= a;
    }
}

/* A dump of one layer, keys before RoPE the same as after it (n_rot 0 would
 * be; here the angles are exact, and only k_pre is read). */
static struct kv_dump *make_dump(const struct kv_shape *s,
                                 const struct made_up *how)
{
    struct kv_dump_info info = {.model = "made up",
                                .text = "none",
                                .shape = *s,
                                .n_windows = WINDOWS,
                                .ctx = CTX,
                                .have = {true, true, true, true, true, true}};
    float *x = kv_alloc(N, s->n_heads * D * sizeof(*x));
    float *gram = kv_alloc(s->n_kv_heads, D * D * sizeof(*gram));
    int32_t *tokens = kv_alloc(N, sizeof(*tokens));
    struct kv_dump_writer *w;
    struct kv_dump *dump = NULL;
    struct kv_err e = {""};
    char path[4200];

    snprintf(path, sizeof(path), "%s/klt.h5", test_folder());
    for (size_t i = 0; i < s->n_kv_heads * D * D; i++)
        gram[i] = i / D % D == i % D ? 1 + (float)(i % D) : 0;
    if (kv_dump_create(&w, path, &info, &e) ||
        kv_dump_put_tokens(w, 0, WINDOWS, tokens, &e) ||
        kv_dump_put_gram(w, 0, gram, &e))
        fail_msg("%s", e.msg);
    make_rows(s, s->n_heads, how->alike, 100, x);
    scale_channel(s, s->n_heads, 1 / how->boost, x);
    assert_int_equal(kv_dump_put(w, 0, KV_T_Q, 0, WINDOWS, x, &e), 0);
    for (enum kv_tensor t = KV_T_K_GRADIENT; t <= KV_T_V_GRADIENT; t++) {
        make_rows(s, s->n_kv_heads, false, 400 + 100 * t, x);
        scale_channel(s, s->n_kv_heads, 1 / how->boost, x);
        assert_int_equal(kv_dump_put(w, 0, t, 0, WINDOWS, x, &e), 0);
    }
    make_rows(s, s->n_kv_heads, how->alike, 200, x);
    assert_int_equal(kv_dump_put(w, 0, KV_T_V, 0, WINDOWS, x, &e), 0);
    make_rows(s, s->n_kv_heads, how->alike, 300, x);
    scale_channel(s, s->n_kv_heads, how->boost, x);
    assert_int_equal(kv_dump_put(w, 0, KV_T_K, 0, WINDOWS, x, &e), 0);
    assert_int_equal(kv_dump_put(w, 0, KV_T_K_PRE, 0, WINDOWS, x, &e), 0);
    if (kv_dump_commit(w, &e) || kv_dump_open(&dump, path, &e))
        fail_msg("%s", e.msg);
    unlink(path);
    free(tokens);
    free(gram);
    free(x);
    return dump;
}

struct made {
    struct kv_shape shape;
    struct kv_calib calib;
    struct kv_calib_set set;
};

static void make(struct made *m, const char *spec, const struct made_up *how)
{
    struct kv_dump *dump;
    struct kv_spec s;
    struct kv_err e = {""};

    *m = (struct made){.shape = synthetic_shape(D)};
    m->shape.n_layers = 1;
    dump = make_dump(&m->shape, how);
    if (kv_spec_parse(&s, spec, &e) || kv_spec_fit(&s, &m->shape, &e))
        fail_msg("%s", e.msg);
    kv_spec_calib_key(&s, m->set.key);
    if (s.scheme->training->calibrate(&s, dump, 1, &m->set, &e))
        fail_msg("%s", e.msg);
    m->calib.shape = m->shape;
    m->calib.set = &m->set;
    m->calib.n_sets = 1;
    kv_dump_close(dump);
}

/* Squares of the gradients' lengths: in the metric at most their mean, in the
 * covariance at most four times that, half of a token's share; a part of the
 * tokens is above both. */
static void test_weights(void **state)
{
    struct kv_shape shape = synthetic_shape(D);
    float g[2 * D], metric[N], moments[N];
    double square[N] = {0}, mean = 0, capped = 0, sum = 0;
    size_t above = 0, far = 0;
    struct kv_spec spec;
    struct kv_err e = {""};

    (void)state;
    shape.n_layers = 1;

    struct kv_dump *dump = make_dump(&shape, &plain_dump);
    struct kv_klt_job job = {
        .spec = &spec, .dump = dump, .info = kv_dump_info(dump), .row = 2 * D};

    assert_int_equal(kv_spec_parse(&spec, "klt,metric=fisher", &e), 0);
    kv_klt_at(&job, 0, KV_V);
    assert_int_equal(kv_klt_weigh(&job, metric, moments, &e), 0);
    for (size_t t = 0; t < N; t++) {
        assert_int_equal(kv_dump_read(dump, 0, KV_T_V_GRADIENT, t, 1, g, &e),
                         0);
        for (size_t i = 0; i < 2 * D; i++)
            square[t] += (double)g[i] * (double)g[i];
        mean += square[t] / N;
    }
    for (size_t t = 0; t < N; t++)
        capped += fmin(square[t], 4 * mean) / N;
    for (size_t t = 0; t < N; t++) {
        assert_within(metric[t] * square[t] / fmin(square[t], mean), 1, 1e-5);
        assert_within(moments[t],
                      0.5 + 0.5 * fmin(square[t], 4 * mean) / capped, 1e-5);
        above += square[t] > mean;
        far += square[t] > 4 * mean;
        sum += moments[t];
    }
    assert_true(above > 10 && far > 0);
    assert_within(sum / N, 1, 1e-5);
    kv_dump_close(dump);
}

static const float *table(const struct made *m, const char *name,
                          enum kv_side side)
{
    return kv_calib_table(&m->set, name, side, 0, 0)->data;
}

enum { HEADS = 2, ROW = HEADS * D };

/* y [ROW] = (x - mean) F, F from halves and units, of all heads or of each. */
static void coefficients(const struct made *m, const float *x, double *y)
{
    const float *f = table(m, "forward", KV_K), *mean = table(m, "mean", KV_K);
    const float *unit = table(m, "unit", KV_K);
    const size_t n =
        kv_table_values(kv_calib_table(&m->set, "forward", KV_K, 0, 0)) / ROW;

    memset(y, 0, ROW * sizeof(*y));
    for (size_t i = 0; i < ROW; i++)
        for (size_t j = 0; j < n; j++)
            y[i / n * n + j] += ((double)x[i] - (double)mean[i]) *
                                (double)(f[i * n + j] * unit[i / n * n + j]);
}

/* F G = 1, as halves hold it; sigma falls; the coefficients of the training
 * text have mean 0, variance sigma^2, and are uncorrelated. */
static void test_transform(void **state)
{
    struct made m;
    float *x = kv_alloc(N, ROW * sizeof(*x));
    double first[ROW] = {0}, second[ROW][ROW] = {{0}};

    (void)state;
    make(&m, "klt,metric=attention", &plain_dump);
    make_rows(&m.shape, HEADS, false, 300, x);

    const float *f = table(&m, "forward", KV_K),
                *g = table(&m, "inverse", KV_K);
    const float *s = table(&m, "sigma", KV_K);

    for (size_t i = 0; i < ROW; i++)
        for (size_t j = 0; j < ROW; j++) {
            double sum = 0, size = 0;

            for (size_t k = 0; k < ROW; k++) {
                const double p =
                    (double)f[i * ROW + k] * (double)g[k * ROW + j];

                sum += p;
                size += fabs(p);
            }
            assert_within(sum, i == j, 0x1p-10 * size + 1e-6);
        }
    for (size_t t = 0; t < N; t++) {
        double y[ROW];

        coefficients(&m, x + t * ROW, y);
        for (size_t i = 0; i < ROW; i++) {
            first[i] += y[i] / N;
            for (size_t j = 0; j < ROW; j++)
                second[i][j] += y[i] * y[j] / N;
        }
    }
    for (size_t i = 0; i < ROW; i++) {
        assert_true(i == 0 || s[i] <= s[i - 1]);
        assert_within(first[i], 0, 1e-3 * (double)s[0]);
        for (size_t j = 0; j < ROW; j++)
            assert_within(second[i][j],
                          i == j ? (double)s[i] * (double)s[i] : 0,
                          2e-3 * (double)s[0] * (double)s[0]);
    }
    free(x);
    kv_calib_set_clear(&m.set);
}

/* Mean of the error of the keys in the metric, over the training text; bits of
 * the keys. */
static double metric_error(const struct made *m, const char *text,
                           const struct made_up *how, double *bits)
{
    struct kv_codec *c = NULL;
    struct kv_spec s;
    struct kv_err e = {""};
    float *k = kv_alloc(N, ROW * sizeof(*k));
    float *back = kv_alloc(N, ROW * sizeof(*back));
    uint8_t *bytes;
    double sum = 0;

    if (kv_spec_parse(&s, text, &e) || kv_spec_fit(&s, &m->shape, &e) ||
        kv_codec_new(&c, &s, &m->shape, 0, KV_K, &m->calib, &e))
        fail_msg("%s", e.msg);
    bytes = kv_alloc(N, c->block_bytes);
    make_rows(&m->shape, HEADS, how->alike, 300, k);
    scale_channel(&m->shape, HEADS, how->boost, k);
    c->scheme->encode(c, (struct kv_where){.first = 0}, k, N, bytes);
    c->scheme->decode(c, bytes, N, back);
    for (size_t t = 0; t < N; t++) {
        double x[ROW], y[ROW];

        coefficients(m, k + t * ROW, x);
        coefficients(m, back + t * ROW, y);
        for (size_t j = 0; j < ROW; j++)
            sum += pow(x[j] - y[j], 2) / N;
    }
    *bits = 8.0 * (double)c->block_bytes / ROW;
    kv_codec_free(c);
    free(bytes);
    free(back);
    free(k);
    return sum;
}

/* Fewer bits, more error; never more bits than asked for; the trellis is
 * better than levels; an outlier channel changes nothing. */
static void test_error(void **state)
{
    const struct made_up boosted = {.boost = 16};
    struct made plain, outlier;
    double last = INFINITY, bits, scalar;

    (void)state;
    make(&plain, "klt,metric=attention", &plain_dump);
    make(&outlier, "klt,metric=attention", &boosted);
    for (double b = 1; b <= 4; b += 1) {
        char text[64];
        double error, other;

        snprintf(text, sizeof(text), "klt:b%g,metric=attention", b);
        error = metric_error(&plain, text, &plain_dump, &bits);
        assert_true(bits <= b && bits > b - 0.3);
        assert_true(error < last / 2);
        last = error;
        other = metric_error(&outlier, text, &boosted, &bits);
        assert_within(other / error, 1, 0.2);
        snprintf(text, sizeof(text), "klt:b%g,metric=attention,code=scalar", b);
        scalar = metric_error(&plain, text, &plain_dump, &bits);
        assert_true(error < scalar);
    }
    kv_calib_set_clear(&plain.set);
    kv_calib_set_clear(&outlier.set);
}

/* Only parts of the inverse; sigma is descending within each. */
static void check_table(const struct made *m, bool own)
{
    const struct kv_table *t = kv_calib_table(&m->set, "inverse", KV_V, 0, 0);
    const float *sigma = table(m, "sigma", KV_V);

    assert_int_equal(kv_table_bytes(t), 2 * ROW * (own ? D : ROW));
    for (size_t i = 0; i < ROW; i++)
        assert_true(i % (own ? D : ROW) == 0 || sigma[i] <= sigma[i - 1]);
}

/* Two heads that are nearly one leave at least half the bits to each other;
 * each by itself they gain nothing, and lose nothing where they are not alike.
 */
static void test_heads(void **state)
{
    static const char *const spec[] = {"klt,metric=none",
                                       "klt,metric=none,heads=own"};
    static const char *const two_bits[] = {"klt:b2,metric=none",
                                           "klt:b2,metric=none,heads=own"};
    double bits, error[2][2]; /* [own][alike] */

    (void)state;
    for (int own = 0; own < 2; own++)
        for (int alike = 0; alike < 2; alike++) {
            const struct made_up how = {.boost = 1, .alike = alike};
            struct made m;

            make(&m, spec[own], &how);
            error[own][alike] = metric_error(&m, two_bits[own], &how, &bits);
            assert_true(bits <= 2 && bits > 1.7);
            check_table(&m, own);
            kv_calib_set_clear(&m.set);
        }
    assert_true(error[0][1] < error[0][0] / 4);
    assert_true(error[0][1] < error[1][1] / 4);
    assert_within(error[1][0] / error[0][0], 1, 0.05);
}

/* Half the tables of a trellis, as calibrations once had. */
static void test_refuses_other_states(void **state)
{
    struct kv_codec *c = NULL;
    struct made m;
    struct kv_spec s;
    struct kv_err e = {""};

    (void)state;
    make(&m, "klt", &plain_dump);
    for (size_t i = 0; i < m.set.n_tables; i++)
        if (!strcmp(m.set.table[i].name, "trellis_1b4"))
            m.set.table[i].dims[1] = 256;
    assert_int_equal(kv_spec_parse(&s, "klt", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &m.shape, &e), 0);
    assert_int_equal(kv_codec_new(&c, &s, &m.shape, 0, KV_K, &m.calib, &e), -1);
    assert_says(e, "'trellis_1b4' for layer 0, K, head 0 is 4 x 256, expected "
                   "4 x 64");
    kv_codec_free(c);
    kv_calib_set_clear(&m.set);
}

static void test_refusals(void **state)
{
    const struct kv_shape shape = synthetic_shape(D);
    struct kv_spec s;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(kv_spec_parse(&s, "klt:b2,share=all,metric=attention", &e),
                     0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "share=all weighs layers against each other");
    assert_int_equal(kv_spec_parse(&s, "klt:b2,K-metric=none", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "metric is one for K and V");
    assert_int_equal(kv_spec_parse(&s, "klt:b2,V-heads=own", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "heads is one for K and V");
    assert_int_equal(kv_spec_parse(&s, "klt:b2", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    assert_string_equal(
        s.text,
        "klt:b2r0s0,share=all,metric=fisher,rope=pre,pred=0,code=trellis");
    assert_int_equal(kv_spec_parse(&s, "klt:b2,heads=own", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    assert_string_equal(s.text, "klt:b2r0s0,share=all,metric=fisher,rope=pre,"
                                "pred=0,heads=own,code=trellis");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_water_level),
        cmocka_unit_test(test_units_share),
        cmocka_unit_test(test_one_price),
        cmocka_unit_test(test_groups_are_whole),
        cmocka_unit_test(test_singles),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_transform),
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_refuses_other_states),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
