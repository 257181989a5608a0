/* CommVQ (arXiv 2506.18879): code-words that commute with RoPE, the nearest of
 * them, the bits of values, and what training leaves. */
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "lib/calib.h"
#include "lib/schemes/commvq.h"
#include "tests/codec_setup.h"
#include "tests/synthetic.h"

#include <math.h>
#include <stdlib.h>

enum { WORDS = 8, CHANNELS = 6 };

static void fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)kv_random_normal(seed, i);
}

/* y [CHANNELS]: code-word z_a + i z_b by complex numbers. */
static void word_of(const float *z, size_t code, float *y)
{
    const size_t a = code / WORDS, b = code % WORDS;

    for (size_t c = 0; c < CHANNELS; c += 2) {
        y[c] = z[c * WORDS + a] - z[(c + 1) * WORDS + b];
        y[c + 1] = z[(c + 1) * WORDS + a] + z[c * WORDS + b];
    }
}

static double distance(const float *x, const float *y, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += pow((double)x[i] - (double)y[i], 2);
    return sum;
}

/* A search through all code-words finds the same code. */
static void test_nearest(void **state)
{
    float z[CHANNELS * WORDS], x[CHANNELS], y[CHANNELS], word[CHANNELS];
    struct kv_commvq_book b;

    (void)state;
    fill(z, CHANNELS * WORDS, 1);
    kv_commvq_book_init(&b, z, WORDS, CHANNELS);
    for (uint64_t t = 0; t < 200; t++) {
        double least = INFINITY;
        size_t code;

        fill(x, CHANNELS, 100 + t);
        for (size_t w = 0; w < WORDS * WORDS; w++) {
            word_of(z, w, y);
            least = fmin(least, distance(x, y, CHANNELS));
        }
        code = kv_commvq_nearest(&b, x);
        word_of(z, code, y);
        assert_within(distance(x, y, CHANNELS), least, 1e-5 * (1 + least));
        memset(word, 0, sizeof(word));
        kv_commvq_add(&b, code, 1, word);
        assert_within(distance(word, y, CHANNELS), 0, 1e-12);
    }
    kv_commvq_book_clear(&b);
}

/* Multiplies pair i by e^(i angle). */
static void turn(float *re, float *im, size_t pair)
{
    const double angle = 0.7 + (double)pair, c = cos(angle), s = sin(angle);
    const double x = (double)*re, y = (double)*im;

    *re = (float)(c * x - s * y);
    *im = (float)(s * x + c * y);
}

/* A turned token has, in the book of turned vectors, the code that it had; its
 * code-word is turned too. */
static void test_commutes(void **state)
{
    float z[CHANNELS * WORDS], turned[CHANNELS * WORDS], x[CHANNELS];
    struct kv_commvq_book b, after;

    (void)state;
    fill(z, CHANNELS * WORDS, 2);
    memcpy(turned, z, sizeof(z));
    for (size_t c = 0; c < CHANNELS; c += 2)
        for (size_t w = 0; w < WORDS; w++)
            turn(&turned[c * WORDS + w], &turned[(c + 1) * WORDS + w], c / 2);
    kv_commvq_book_init(&b, z, WORDS, CHANNELS);
    kv_commvq_book_init(&after, turned, WORDS, CHANNELS);
    for (uint64_t t = 0; t < 50; t++) {
        float word[CHANNELS] = {0}, other[CHANNELS] = {0};
        size_t code;

        fill(x, CHANNELS, 200 + t);
        code = kv_commvq_nearest(&b, x);
        kv_commvq_add(&b, code, 1, word);
        for (size_t c = 0; c < CHANNELS; c += 2) {
            turn(&x[c], &x[c + 1], c / 2);
            turn(&word[c], &word[c + 1], c / 2);
        }
        assert_int_equal(kv_commvq_nearest(&after, x), code);
        kv_commvq_add(&after, code, 1, other);
        assert_within(distance(word, other, CHANNELS), 0, 1e-10);
    }
    kv_commvq_book_clear(&b);
    kv_commvq_book_clear(&after);
}

/* No change of one bit lowers the error; a sum of vectors at right angles is
 * found. */
static void test_choose(void **state)
{
    enum { N = 12, D = 6 };
    float e[N * D], y[D], sum[D];
    struct kv_commvq_basis b;
    uint16_t code[N];

    (void)state;
    fill(e, N * D, 3);
    kv_commvq_basis_init(&b, e, N, D);
    for (uint64_t t = 0; t < 50; t++) {
        double error;

        fill(y, D, 300 + t);
        kv_commvq_choose(&b, y, code);
        kv_commvq_sum(&b, code, sum);
        error = distance(y, sum, D);
        for (size_t i = 0; i < N; i++) {
            code[i] = !code[i];
            kv_commvq_sum(&b, code, sum);
            assert_true(distance(y, sum, D) >= error - 1e-5);
            code[i] = !code[i];
        }
    }
    kv_commvq_basis_clear(&b);
    memset(e, 0, sizeof(e));
    for (size_t i = 0; i < D; i++)
        e[i * D + i] = 1;
    kv_commvq_basis_init(&b, e, D, D);
    for (size_t i = 0; i < D; i++)
        y[i] = i % 3 ? 1 : 0;
    kv_commvq_choose(&b, y, code);
    for (size_t i = 0; i < D; i++)
        assert_int_equal(code[i], i % 3 ? 1 : 0);
    kv_commvq_basis_clear(&b);
}

/* The vectors 1, 2 and 4 give the levels 0 to 7, and the search finds the
 * nearest level: 3 for 3.4, though the vector 4 alone lowers the error most. */
static void test_levels(void **state)
{
    const float e[] = {1, 2, 4};
    struct kv_commvq_basis b;
    uint16_t code[3];

    (void)state;
    kv_commvq_basis_init(&b, e, 3, 1);
    for (float y = -1.1f; y < 9; y += 0.3f) {
        const float want = fminf(fmaxf(roundf(y), 0), 7);
        float sum;

        kv_commvq_choose(&b, &y, code);
        kv_commvq_sum(&b, code, &sum);
        assert_within(sum, want, 0);
    }
    kv_commvq_basis_clear(&b);
}

static void check_order(struct kv_shape shape, const size_t *want)
{
    size_t order[8];

    kv_commvq_order(&shape, order);
    for (size_t i = 0; i < shape.head_dim; i++)
        assert_int_equal(order[i], want[i]);
}

/* RoPE's pairs are neighbours, and the other channels follow. */
static void test_order(void **state)
{
    const struct kv_shape s = {.n_heads = 1, .n_kv_heads = 1, .head_dim = 8};
    struct kv_shape halves = s, neighbours = s, latent = s;

    (void)state;
    halves.n_rot = 3;
    neighbours.n_rot = 4;
    neighbours.neighbours = true;
    latent.n_rot = 2;
    latent.latent = 4;
    check_order(halves, (const size_t[]){0, 3, 1, 4, 2, 5, 6, 7});
    check_order(neighbours, (const size_t[]){0, 1, 2, 3, 4, 5, 6, 7});
    check_order(latent, (const size_t[]){4, 6, 5, 7, 0, 1, 2, 3});
}

enum { DIM = 16, CTX = 160, N = 4 * CTX }; /* synthetic_calib()'s dump */

/* Mean squared error, a value, of the tokens that the spec was trained on, over
 * their mean square. */
static double error_of(const char *text, enum kv_side side, double *said)
{
    const struct kv_shape shape = synthetic_shape(DIM);
    const size_t row = shape.n_kv_heads * DIM;
    const struct kv_spec s = spec_of(text, &shape);
    struct kv_calib *calib = synthetic_calib(&shape, &s, test_folder());
    struct kv_codec *c = codec_from(&s, &shape, 1, side, calib);
    float *x = kv_alloc(2 * N, row * sizeof(*x)), *back = x + N * row;
    uint8_t *bytes = kv_alloc(N, c->block_bytes);
    double error = 0, squares = 0;

    synthetic_rows(&shape, shape.n_kv_heads, side == KV_K ? 2030 : 2020, N, x);
    assert_int_equal(c->block, 1);
    assert_true(c->pre_rope == (side == KV_K));
    c->scheme->encode(c, (struct kv_where){0}, x, N, bytes);
    c->scheme->decode(c, bytes, N, back);
    for (size_t i = 0; i < N * row; i++) {
        error += pow((double)(x[i] - back[i]), 2);
        squares += pow((double)x[i], 2);
    }
    if (said)
        *said = kv_calib_table(calib->set, "codebook", KV_K, 1, 0)->error;
    free(bytes);
    free(x);
    kv_codec_free(c);
    kv_calib_free(calib);
    return said ? error / (double)(N * row) : error / squares;
}

/* The codec leaves what training left; more books and more bits leave less, and
 * rounds lower the error of the first. */
static void test_training(void **state)
{
    double said, found, one, two;

    (void)state;
    found = error_of("commvq:b2c6,iters=6", KV_K, &said);
    assert_within(found, said, 0.002 * said);
    for (int side = 0; side < KV_SIDES; side++) {
        one = error_of("commvq:b1c6,iters=6", (enum kv_side)side, NULL);
        two = error_of("commvq:b2c6,iters=6", (enum kv_side)side, NULL);
        assert_true(one < 0.5);
        assert_true(two < 0.5 * one);
        assert_true(error_of("commvq:b2c6,iters=1", (enum kv_side)side, NULL) >
                    (side == KV_K ? 2.2 : 1.5) * two);
    }
}

/* The paper's 2 bits are 21 codes of 12 bits for 128 channels, its 1 bit 11,
 * and a bit of a value; a norm a token. */
static void test_bits(void **state)
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 8, .n_kv_heads = 8, .head_dim = 128};
    struct kv_spec s = spec_of("commvq", &shape);
    struct kv_err e = {""};

    (void)state;
    assert_string_equal(s.text, "commvq:b2c12g128r128s0,iters=100");
    assert_within(s.scheme->nominal(&s, KV_K, &shape),
                  (8 * 21 * 12 + 16) / 1024.0, 1e-12);
    assert_within(s.scheme->nominal(&s, KV_V, &shape), 2 + 16 / 1024.0, 1e-12);
    s = spec_of("commvq:b1", &shape);
    assert_within(s.scheme->nominal(&s, KV_K, &shape),
                  (8 * 11 * 12 + 16) / 1024.0, 1e-12);
    for (size_t i = 0; i < 3; i++) {
        static const char *const bad[] = {"commvq:c5", "commvq:g48",
                                          "commvq:K-c12/V-c10"};
        static const char *const why[] = {"c=5: expected an even number",
                                          "g=48: expected an even divisor",
                                          "c concerns keys alone"};

        assert_int_equal(
            kv_spec_parse(&s, bad[i], &e) || kv_spec_fit(&s, &shape, &e), 1);
        assert_says(e, why[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nearest), cmocka_unit_test(test_commutes),
        cmocka_unit_test(test_choose),  cmocka_unit_test(test_levels),
        cmocka_unit_test(test_order),   cmocka_unit_test(test_training),
        cmocka_unit_test(test_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
