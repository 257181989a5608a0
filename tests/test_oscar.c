/* OSCAR (arXiv 2605.17757): the rotation against its definition, and the clip
 * and codes of a head. */
#include "kernels/hadamard.h"
#include "lib/base/alloc.h"
#include "lib/calib.h"
#include "tests/codec_setup.h"
#include "tests/synthetic.h"

#include <math.h>
#include <stdlib.h>

enum { DIM = 16, BITS = 4, ROW = 2 * DIM };

static struct kv_calib *calib_of(const char *text, struct kv_shape *shape)
{
    *shape = synthetic_shape(DIM);

    const struct kv_spec s = spec_of(text, shape);

    return synthetic_calib(shape, &s, test_folder());
}

/* qq and vv [DIM][DIM] of a layer, from all tokens of the dump that
 * synthetic_calib() trains on, by the formulas. */
static void moments(const struct kv_shape *s, double *qq, double *vv)
{
    enum { CTX = 160, WINDOWS = 4, N = CTX * WINDOWS };
    const size_t group = s->n_heads / s->n_kv_heads;
    float *q = kv_alloc(N, s->n_heads * DIM * sizeof(*q));
    float *k = kv_alloc(N, ROW * sizeof(*k)),
          *v = kv_alloc(N, ROW * sizeof(*v));
    struct kv_dump *dump;
    struct kv_err e = {""};
    char *path;

    synthetic_dump(s, WINDOWS, CTX, test_folder(), &path);
    assert_int_equal(kv_dump_open(&dump, path, &e), 0);
    assert_int_equal(kv_dump_read(dump, 1, KV_T_Q, 0, N, q, &e), 0);
    assert_int_equal(kv_dump_read(dump, 1, KV_T_K, 0, N, k, &e), 0);
    assert_int_equal(kv_dump_read(dump, 1, KV_T_V, 0, N, v, &e), 0);
    for (size_t h = 0; h < s->n_kv_heads; h++) {
        double c[DIM][DIM] = {{0}}, sum[DIM][DIM] = {{0}}, weights = 0;

        for (size_t t = 0; t < N * group; t++) {
            const float *x =
                q + (t / group * s->n_heads + h * group + t % group) * DIM;

            for (size_t i = 0; i < DIM * DIM; i++)
                c[i / DIM][i % DIM] += (double)x[i / DIM] * (double)x[i % DIM] /
                                       (double)(N * group);
        }
        for (size_t t = 0; t < N; t++) {
            const float *x = k + t * ROW + h * DIM, *y = v + t * ROW + h * DIM;
            double w = 0;

            for (size_t i = 0; i < DIM * DIM; i++)
                w += (double)x[i / DIM] * c[i / DIM][i % DIM] *
                     (double)x[i % DIM];
            weights += w;
            for (size_t i = 0; i < DIM * DIM; i++)
                sum[i / DIM][i % DIM] +=
                    w * (double)y[i / DIM] * (double)y[i % DIM];
        }
        for (size_t i = 0; i < DIM * DIM; i++) {
            qq[i] += c[i / DIM][i % DIM] / (double)s->n_kv_heads;
            vv[i] += sum[i / DIM][i % DIM] / weights / (double)s->n_kv_heads;
        }
    }
    kv_dump_close(dump);
    free(path);
    free(q);
    free(k);
    free(v);
}

static size_t reversed(size_t i)
{
    size_t r = 0;

    for (int bit = 0; bit < BITS; bit++)
        r |= (i >> bit & 1) << (BITS - 1 - bit);
    return r;
}

/* Without P and H, a rotation's columns are the moment's eigenvectors, their
 * values falling. */
static void check_rotation(const float *rotation, const double *moment)
{
    float r[DIM * DIM]; /* row: an eigenvector, by Hadamard */
    double last = INFINITY;

    for (size_t rank = 0; rank < DIM; rank++)
        for (size_t i = 0; i < DIM; i++)
            r[i * DIM + DIM - 1 - rank] = rotation[i * DIM + reversed(rank)];
    kv_hadamard(r, DIM, DIM);
    for (size_t j = DIM; j-- > 0;) {
        double value = 0, norm = 0;

        for (size_t i = 0; i < DIM; i++)
            norm += (double)r[i * DIM + j] * (double)r[i * DIM + j];
        assert_within(norm, 1, 1e-5);
        for (size_t i = 0; i < DIM; i++)
            for (size_t k = 0; k < DIM; k++)
                value += (double)r[i * DIM + j] * moment[i * DIM + k] *
                         (double)r[k * DIM + j];
        for (size_t i = 0; i < DIM; i++) { /* moment r = value r */
            double y = 0;

            for (size_t k = 0; k < DIM; k++)
                y += moment[i * DIM + k] * (double)r[k * DIM + j];
            assert_within(y, value * (double)r[i * DIM + j],
                          1e-4 * moment[0] + 1e-4 * value);
        }
        assert_true(value <= last * (1 + 1e-6));
        last = value;
    }
}

static void test_rotations(void **state)
{
    struct kv_shape shape;
    struct kv_calib *calib = calib_of("oscar", &shape);
    double qq[DIM * DIM] = {0}, vv[DIM * DIM] = {0};

    (void)state;
    moments(&shape, qq, vv);
    check_rotation(kv_calib_table(calib->set, "rotation", KV_K, 1, 0)->data,
                   qq);
    check_rotation(kv_calib_table(calib->set, "rotation", KV_V, 1, 0)->data,
                   vv);
    kv_calib_free(calib);
}

/* y = x R of one head. */
static void rotate(const float *x, const float *r, float *y)
{
    for (size_t j = 0; j < DIM; j++) {
        y[j] = 0;
        for (size_t i = 0; i < DIM; i++)
            y[j] += x[i] * r[i * DIM + j];
    }
}

static int by_size(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return x < y ? -1 : x > y;
}

/* With 8 bits the decoded head is the rotated head, clipped at its magnitude of
 * rank clip d. */
static void check_clip(const char *text, size_t rank)
{
    struct kv_shape shape;
    struct kv_calib *calib = calib_of(text, &shape);
    const struct kv_spec s = spec_of(text, &shape);
    struct kv_codec *c = codec_from(&s, &shape, 1, KV_K, calib);
    const float *r = kv_calib_table(calib->set, "rotation", KV_K, 1, 0)->data;
    float x[ROW], back[ROW], y[DIM], decoded[DIM], sorted[DIM];
    uint8_t bytes[ROW + 8];

    assert_int_equal(c->block_bytes, sizeof(bytes));
    synthetic_rows(&shape, 2, 9, 1, x);
    round_trip(c, (struct kv_where){0}, x, bytes, back);
    for (size_t h = 0; h < 2; h++) {
        rotate(x + h * DIM, r, y);
        rotate(back + h * DIM, r, decoded);
        for (size_t i = 0; i < DIM; i++)
            sorted[i] = fabsf(y[i]);
        qsort(sorted, DIM, sizeof(*sorted), by_size);
        for (size_t i = 0; i < DIM; i++) {
            const float most = sorted[rank];

            assert_within(decoded[i], fminf(fmaxf(y[i], -most), most),
                          0.02 * most);
        }
    }
    kv_codec_free(c);
    kv_calib_free(calib);
}

static void test_clip(void **state)
{
    (void)state;
    check_clip("oscar:b8,clip=1", DIM - 1);
    check_clip("oscar:b8", 15); /* keys: 0.96 of 16 */
    check_clip("oscar:b8,clip=0.5", 8);
}

/* A group is scale (code - zero), in bf16: the published bits. */
static void test_bits(void **state)
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 128};
    const struct kv_shape odd = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 80};
    struct kv_spec s = spec_of("oscar", &shape);
    struct kv_err e = {""};

    (void)state;
    assert_string_equal(s.text, "oscar:b2g128r256s64,K-clip=0.96,V-clip=0.92");
    assert_within(s.scheme->nominal(&s, KV_K, &shape), 2.25, 0);
    assert_int_equal(kv_spec_parse(&s, "oscar", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &odd, &e), -1);
    assert_says(e, "head_dim 80: expected a power of two");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rotations),
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
