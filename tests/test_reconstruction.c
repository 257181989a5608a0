/* Reconstruction and attention error against numbers worked out by hand and
 * against attention in double. */
#include "tests/test.h"

#include "eval/attn_error.h"
#include "eval/reconstruction.h"
#include "kernels/attend.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <math.h>

static void assert_near(double got, double expected, double tolerance)
{
    if (!(fabs(got - expected) <= tolerance * fmax(1e-30, fabs(expected))))
        fail_msg("%.17g, expected %.17g within %g relative", got, expected,
                 tolerance);
}

static void test_reconstruction_by_hand(void **state)
{
    /* (3, 4) -> (4, 3): 2 of 25, cosine 24/25.  (0, 0) -> (0, 0): cosine 1.
     * (0, 0) -> (0, 2): 4, cosine 0. */
    const float x[] = {3, 4, 0, 0, 0, 0}, y[] = {4, 3, 0, 0, 0, 2};
    struct kv_reconstruction whole = {0}, a = {0}, b = {0};

    (void)state;
    kv_reconstruction_add(&whole, x, y, 3, 2);
    assert_near(kv_reconstruction_mse(&whole), 1, 1e-15);
    assert_near(kv_reconstruction_rel_err(&whole), sqrt(6. / 25), 1e-15);
    assert_near(kv_reconstruction_sqnr_db(&whole), 10 * log10(25. / 6), 1e-15);
    assert_near(kv_reconstruction_cosine(&whole), (24. / 25 + 1 + 0) / 3,
                1e-15);
    assert_near(kv_reconstruction_max_err(&whole), 2, 0);

    kv_reconstruction_add(&a, x, y, 1, 2);
    kv_reconstruction_add(&b, x + 2, y + 2, 2, 2);
    kv_reconstruction_merge(&a, &b);
    assert_memory_equal(&a, &whole, sizeof(a));
}

static void test_reconstruction_nothing_and_exact(void **state)
{
    const float x[] = {1, -2, 3};
    struct kv_reconstruction r = {0};

    (void)state;
    kv_reconstruction_add(&r, x, x, 0, 3);
    assert_true(isnan(kv_reconstruction_mse(&r)) &&
                isnan(kv_reconstruction_cosine(&r)));
    assert_true(isnan(kv_reconstruction_rel_err(&r)) &&
                isnan(kv_reconstruction_sqnr_db(&r)));
    assert_true(isnan(kv_reconstruction_max_err(&r)));
    kv_reconstruction_add(&r, x, x, 1, 3);
    assert_near(kv_reconstruction_mse(&r), 0, 0);
    assert_true(isinf(kv_reconstruction_sqnr_db(&r)));
    assert_near(kv_reconstruction_cosine(&r), 1, 1e-15);
}

static void test_positions(void **state)
{
    size_t at[8];

    (void)state;
    assert_int_equal(kv_attn_positions(0, 4, at), 0);
    assert_int_equal(kv_attn_positions(5, 0, at), 0);
    assert_int_equal(kv_attn_positions(3, 8, at), 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(at[i], i);
    assert_int_equal(kv_attn_positions(10, 4, at), 4);
    assert_int_equal(at[0], 1);
    assert_int_equal(at[1], 4);
    assert_int_equal(at[2], 6);
    assert_int_equal(at[3], 9);
}

/* A window of random tensors; the stored tensors differ from it by about 10
 * %. */
struct example {
    struct kv_shape shape;
    size_t n, at[64], n_at;
    float *q, *k, *v, *k_stored, *v_stored;
};

static float *random_floats(size_t n, uint64_t key)
{
    float *x = kv_alloc(n, sizeof(*x));

    for (size_t i = 0; i < n; i++)
        x[i] = (float)kv_random_normal(key, i);
    return x;
}

static float *disturbed(const float *x, size_t n, uint64_t key)
{
    float *y = random_floats(n, key);

    for (size_t i = 0; i < n; i++)
        y[i] = x[i] + 0.1f * y[i];
    return y;
}

static struct example example_new(size_t n_heads, size_t n_kv_heads, size_t d,
                                  size_t n, size_t n_at)
{
    struct example x = {.shape = {.n_layers = 1,
                                  .n_heads = n_heads,
                                  .n_kv_heads = n_kv_heads,
                                  .head_dim = d,
                                  .attn_scale = 0.7f},
                        .n = n};
    const size_t kv = n * n_kv_heads * d;

    x.n_at = kv_attn_positions(n, n_at, x.at);
    x.q = random_floats(n * n_heads * d, 1);
    x.k = random_floats(kv, 2);
    x.v = random_floats(kv, 3);
    x.k_stored = disturbed(x.k, kv, 4);
    x.v_stored = disturbed(x.v, kv, 5);
    return x;
}

static void example_clear(struct example *x)
{
    free(x->q);
    free(x->k);
    free(x->v);
    free(x->k_stored);
    free(x->v_stored);
}

static struct kv_attn_window window_of(const struct example *x)
{
    return (struct kv_attn_window){.view = kv_shape_view(&x->shape, x->n, 0, 0),
                                   .q = x->q,
                                   .k = x->k,
                                   .v = x->v,
                                   .k_stored = x->k_stored,
                                   .v_stored = x->v_stored,
                                   .at = x->at,
                                   .n_at = x->n_at};
}

/* One head of x [n][n_heads][d] by itself. */
static float *head_of(const float *x, size_t n, size_t n_heads, size_t head,
                      size_t d)
{
    float *to = kv_alloc(n, d * sizeof(*to));

    for (size_t t = 0; t < n; t++)
        memcpy(to + t * d, x + (t * n_heads + head) * d, d * sizeof(*to));
    return to;
}

/* One query of a head over n tokens, with w's window: out [d]; weights [n], or
 * NULL. */
static void attend_one(const struct kv_attn_window *w, size_t head,
                       const float *q, const float *k, const float *v, size_t n,
                       float *out, double *weights)
{
    struct kv_attend_job job = {.view = w->view,
                                .q = q,
                                .out = out,
                                .q_rows = 1,
                                .k = {.unquantized = k},
                                .v = {.unquantized = v}};

    job.view.n = n;
    job.view.first = n - 1;
    job.view.nq = 1;
    job.view.n_heads = job.view.n_kv_heads = 1;
    job.view.sink_logit += job.view.sink_logit ? head : 0;
    job.view.mass = weights;
    if (weights)
        memset(weights, 0, n * sizeof(*weights));
    kv_attend_c(&job);
}

/* The same sums from kv_attend_c, one query head at a time. */
static struct kv_attn_error reference(const struct example *x,
                                      const struct kv_attn_window *w)
{
    const struct kv_shape *s = &x->shape;
    const size_t d = s->head_dim, kv_heads = s->n_kv_heads;
    double *p = kv_alloc(x->n, sizeof(*p)), *r = kv_alloc(x->n, sizeof(*r));
    double p_sink, r_sink;
    float o[4][64];
    struct kv_attn_error sum = {0};

    for (size_t a = 0; a < x->n_at; a++)
        for (size_t h = 0; h < s->n_heads; h++) {
            const float *q = x->q + (x->at[a] * s->n_heads + h) * d;
            const size_t kv = h / (s->n_heads / kv_heads);
            const size_t n = x->at[a] + 1;
            float *k = head_of(x->k, n, kv_heads, kv, d);
            float *v = head_of(x->v, n, kv_heads, kv, d);
            float *ks = head_of(x->k_stored, n, kv_heads, kv, d);
            float *vs = head_of(x->v_stored, n, kv_heads, kv, d);

            attend_one(w, h, q, k, v, n, o[0], p);
            attend_one(w, h, q, ks, v, n, o[1], r);
            attend_one(w, h, q, k, vs, n, o[2], NULL);
            attend_one(w, h, q, ks, vs, n, o[3], NULL);
            const size_t window = w->view.window;
            const size_t first = window && window < n ? n - window : 0;

            p_sink = r_sink = 1;
            for (size_t j = first; j < n; j++) {
                double e = 0;

                p_sink -= p[j];
                r_sink -= r[j];
                for (size_t i = 0; i < d; i++)
                    e += (double)q[i] *
                         ((double)ks[j * d + i] - (double)k[j * d + i]);
                e *= (double)s->attn_scale;
                sum.logit_e2 += e * e;
                sum.kl += p[j] * log(p[j] / r[j]);
            }
            if (s->sink_logit)
                sum.kl += p_sink * log(p_sink / r_sink);
            sum.n_logits += (double)(n - first);
            sum.n_rows++;
            for (size_t i = 0; i < d; i++) {
                sum.out_x2 += pow((double)o[0][i], 2);
                for (size_t c = 0; c < KV_ATTN_CASES; c++)
                    sum.out_e2[c] +=
                        pow((double)o[1 + c][i] - (double)o[0][i], 2);
            }
            free(k), free(v), free(ks), free(vs);
        }
    free(p);
    free(r);
    return sum;
}

/* With sink logits if n is odd. */
static void check_attention(size_t n_heads, size_t n_kv_heads, size_t d,
                            size_t n, size_t n_at, size_t window)
{
    static const float sink_logit[] = {2, -1, 0, 4};
    struct example x = example_new(n_heads, n_kv_heads, d, n, n_at);
    struct kv_attn_error sum = {0}, ref;
    struct kv_attn_window w;

    if (n_heads <= 4 && n % 2)
        x.shape.sink_logit = sink_logit;
    w = window_of(&x);
    w.view.window = window;
    ref = reference(&x, &w);
    kv_attn_error_add(&sum, &w);
    assert_near(sum.n_rows, ref.n_rows, 0);
    assert_near(sum.n_logits, ref.n_logits, 0);
    if (ref.n_rows > 0) {
        assert_near(kv_attn_error_logit(&sum), kv_attn_error_logit(&ref), 1e-4);
        /* f32 logits: each weight is off by a few 1e-7 */
        if (fabs(kv_attn_error_kl(&sum) - kv_attn_error_kl(&ref)) > 1e-6)
            fail_msg("kl %g, expected %g", kv_attn_error_kl(&sum),
                     kv_attn_error_kl(&ref));
    }
    for (size_t c = 0; c < KV_ATTN_CASES && ref.n_rows > 0; c++)
        if (n > 1 || c != KV_ATTN_K) /* one token: K does not matter */
            assert_near(kv_attn_error_out(&sum, (enum kv_attn_case)c),
                        kv_attn_error_out(&ref, (enum kv_attn_case)c), 1e-4);
    example_clear(&x);
}

/* A NaN or an infinity anywhere is seen: it never reads as an error of 0. */
static void test_not_finite(void **state)
{
    const float bad[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    for (size_t i = 0; i < 3 * 5; i++) {
        struct example x = example_new(4, 2, 16, 9, 9);
        float *const tensor[] = {x.q, x.k, x.v, x.k_stored, x.v_stored};
        const struct kv_attn_window w = window_of(&x);
        struct kv_attn_error sum = {0};

        kv_attn_error_add(&sum, &w);
        assert_true(kv_attn_error_finite(&sum));
        tensor[i / 3][3] = bad[i % 3];
        kv_attn_error_add(&sum, &w);
        assert_false(kv_attn_error_finite(&sum));
        if (tensor[i / 3] == x.k_stored)
            assert_false(isfinite(kv_attn_error_kl(&sum)));
        example_clear(&x);
    }
}

static void test_attention(void **state)
{
    (void)state;
    check_attention(4, 2, 16, 37, 64, 0);
    check_attention(4, 2, 16, 40, 17, 0);
    check_attention(4, 2, 16, 40, 17, 9);
    check_attention(3, 1, 6, 19, 5, 0);
    check_attention(1, 1, 2, 33, 33, 0);
    check_attention(8, 8, 8, 1, 4, 0);
    check_attention(2, 1, 4, 0, 4, 0);
}

static void test_attention_exact_is_zero(void **state)
{
    struct example x = example_new(4, 2, 16, 35, 35);
    struct kv_attn_window w = window_of(&x);
    struct kv_attn_error sum = {0};

    (void)state;
    w.k_stored = w.k;
    w.v_stored = w.v;
    kv_attn_error_add(&sum, &w);
    assert_near(kv_attn_error_logit(&sum), 0, 0);
    assert_near(kv_attn_error_kl(&sum), 0, 0);
    for (size_t c = 0; c < KV_ATTN_CASES; c++)
        assert_near(kv_attn_error_out(&sum, (enum kv_attn_case)c), 0, 0);
    example_clear(&x);
}

/* A scheme's own output counts only in the case "both". */
static void test_own_attention(void **state)
{
    struct example x = example_new(4, 2, 8, 21, 6);
    struct kv_attn_window w = window_of(&x);
    struct kv_attn_error plain = {0}, own = {0};
    float *zero = kv_alloc(x.n_at * 4 * 8, sizeof(*zero));

    (void)state;
    kv_attn_error_add(&plain, &w);
    w.own = zero;
    kv_attn_error_add(&own, &w);
    assert_near(kv_attn_error_out(&own, KV_ATTN_BOTH), 1, 1e-15);
    assert_near(own.out_e2[KV_ATTN_K], plain.out_e2[KV_ATTN_K], 0);
    assert_near(own.out_e2[KV_ATTN_V], plain.out_e2[KV_ATTN_V], 0);
    assert_near(own.kl, plain.kl, 0);
    free(zero);
    example_clear(&x);
}

static void test_attention_merge(void **state)
{
    struct example x = example_new(4, 2, 8, 30, 30);
    struct kv_attn_window w = window_of(&x);
    struct kv_attn_error whole = {0}, part = {0}, sum = {0};

    (void)state;
    assert_true(isnan(kv_attn_error_logit(&sum)));
    assert_true(isnan(kv_attn_error_kl(&sum)));
    assert_true(isnan(kv_attn_error_out(&sum, KV_ATTN_BOTH)));
    kv_attn_error_add(&whole, &w);
    w.n_at = 10;
    kv_attn_error_add(&sum, &w);
    w.at += 10;
    w.n_at = 20;
    kv_attn_error_add(&part, &w);
    kv_attn_error_merge(&sum, &part);
    assert_near(kv_attn_error_logit(&sum), kv_attn_error_logit(&whole), 1e-6);
    assert_near(kv_attn_error_kl(&sum), kv_attn_error_kl(&whole), 1e-6);
    assert_near(kv_attn_error_out(&sum, KV_ATTN_BOTH),
                kv_attn_error_out(&whole, KV_ATTN_BOTH), 1e-6);
    example_clear(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reconstruction_by_hand),
        cmocka_unit_test(test_reconstruction_nothing_and_exact),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_attention_exact_is_zero),
        cmocka_unit_test(test_own_attention),
        cmocka_unit_test(test_attention_merge),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
