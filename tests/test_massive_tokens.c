/* Massive tokens: the rule, the tokens of a dump and of a calibration, and
 * caches that keep them in fp16. */
#include "calib/calibrate.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/massive_tokens.h"
#include "lib/rope_table.h"
#include "lib/seq/cache.h"
#include "tests/append_rows.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>

enum { N = 101, HEAD_DIM = 32, WINDOWS = 2, CTX = 160 };

/* Equal norms: only the factor counts.  Spread norms: the deviations do. */
static void test_rule(void **state)
{
    float norm[N];
    struct kv_norm_range r;

    (void)state;
    for (size_t i = 0; i < N; i++)
        norm[i] = 6;
    norm[3] = 0; /* a few change nothing */
    norm[4] = 1e6f;
    r = kv_norm_range_of(norm, N);
    assert_within(r.low, 2, 1e-5);
    assert_within(r.high, 18, 1e-4);
    for (size_t i = 0; i < N; i++) /* the median deviation is a factor of 2 */
        norm[i] = 6 * powf(2, (float)((int)(i % 5) - 2));
    r = kv_norm_range_of(norm, N);
    assert_within(r.low, 6 / 256.0, 1e-4);
    assert_within(r.high, 6 * 256.0, 1e-1);
    r = kv_norm_range_of(NULL, 0);
    assert_true(r.low <= 0 && isinf(r.high));
}

static struct kv_dump *open_dump(const struct kv_shape *s)
{
    struct kv_dump *d;
    struct kv_err e = {""};
    char *path;

    synthetic_dump(s, WINDOWS, CTX, test_folder(), &path);
    if (kv_dump_open(&d, path, &e))
        fail_msg("%s", e.msg);
    free(path);
    return d;
}

/* All random tokens except each window's first count; the norms of keys are the
 * same before RoPE and after it. */
static void test_dump(void **state)
{
    const struct kv_shape s = synthetic_shape(HEAD_DIM);
    const size_t row = s.n_kv_heads * HEAD_DIM;
    struct kv_dump *d = open_dump(&s);
    float *k = kv_alloc(CTX, row * sizeof(*k)), *v = kv_alloc(CTX, row * 4);
    bool counts[WINDOWS * CTX], massive[2][CTX];
    struct kv_norm_range range[KV_SIDES];
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(kv_massive_of_dump(d, 1, range, counts, &e), 0);
    for (size_t i = 0; i < WINDOWS * CTX; i++)
        assert_int_equal(counts[i], i % CTX != 0);
    assert_int_equal(kv_dump_read(d, 1, KV_T_V, CTX, CTX, v, &e), 0);
    for (size_t i = 0; i < row; i++) /* one value, and one key below */
        v[7 * row + i] *= 0.01f;
    for (int pre = 0; pre < 2; pre++) {
        assert_int_equal(
            kv_dump_read(d, 1, pre ? KV_T_K_PRE : KV_T_K, CTX, CTX, k, &e), 0);
        for (size_t i = 0; i < row; i++)
            k[9 * row + i] *= 1000;
        kv_massive_find(&(struct kv_shape){.n_kv_heads = s.n_kv_heads,
                                           .head_dim = HEAD_DIM,
                                           .n_rot = s.n_rot,
                                           .k_bias = s.k_bias + row},
                        true, range, 0, k, v, CTX, massive[pre]);
        if (!pre) { /* rotated as the shape says */
            struct kv_shape one = kv_shape_layer(&s, 1);

            kv_massive_find(&one, false, range, 0, k, v, CTX, massive[pre]);
        }
        for (size_t t = 0; t < CTX; t++)
            assert_int_equal(massive[pre][t], !t || t == 7 || t == 9);
    }
    free(v);
    free(k);
    kv_dump_close(d);
}

/* A bias of 30 on keys of size 1: norms are of what is left, at any position,
 * before RoPE and after it. */
static void test_bias(void **state)
{
    enum { FIRST = 900, SMALL = 11 };
    struct kv_shape s = synthetic_shape(HEAD_DIM);
    const size_t row = s.n_kv_heads * HEAD_DIM;
    const struct kv_norm_range range[] = {{1, 3 * sqrtf((float)row)},
                                          {0, INFINITY}};
    float *bias = kv_alloc(row, sizeof(*bias));
    float *k = kv_alloc(CTX, row * sizeof(*k));
    float *v = kv_alloc(CTX, row * sizeof(*v));
    bool massive[CTX];

    (void)state;
    for (size_t i = 0; i < row; i++)
        bias[i] = 30;
    s.k_bias = bias;
    for (size_t i = 0; i < CTX * row; i++)
        k[i] = bias[i % row] +
               (i / row == SMALL ? 0.01f : 1) * (i % 3 ? 1.0f : -1.0f);
    for (int pre = 1; pre >= 0; pre--) {
        if (!pre)
            kv_rope(&s, k, CTX, s.n_kv_heads, FIRST);
        kv_massive_find(&s, pre, range, FIRST, k, v, CTX, massive);
        for (size_t t = 0; t < CTX; t++)
            assert_int_equal(massive[t], t == SMALL);
    }
    free(v);
    free(k);
    free(bias);
}

static struct kv_calib *calibrate(const char *text, const struct kv_shape *s)
{
    struct kv_dump *d = open_dump(s);
    struct kv_calib *c = NULL;
    struct kv_spec spec;
    struct kv_err e = {""};

    if (kv_spec_parse(&spec, text, &e) || kv_spec_fit(&spec, s, &e) ||
        kv_calib_run(&c, d, &spec, 1, NULL, 1, &e))
        fail_msg("%s", e.msg);
    kv_dump_close(d);
    return c;
}

static int open_codec(struct kv_codec **codec, const char *text,
                      const struct kv_shape *s, enum kv_side side,
                      const struct kv_calib *c, struct kv_err *e)
{
    struct kv_spec spec;

    if (kv_spec_parse(&spec, text, e) || kv_spec_fit(&spec, s, e))
        fail_msg("%s", e->msg);
    return kv_codec_new(codec, &spec, s, 1, side, c, e);
}

/* A scheme without tables has only the norms, which are read back from the file
 * and are in its hash. */
static void test_file(void **state)
{
    const struct kv_shape s = synthetic_shape(HEAD_DIM);
    struct kv_calib *c = calibrate("nf4,massive", &s), *back;
    char *path = kv_path_join(test_folder(), "norms.h5"), hash[32];
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(c->n_sets, 0);
    assert_int_equal(kv_calib_save(c, path, &e), 0);
    assert_int_equal(kv_calib_load(&back, path, &e), 0);
    assert_true(back->has_k_bias);
    assert_memory_equal(back->norms, c->norms,
                        s.n_layers * KV_SIDES * sizeof(*c->norms));
    memcpy(hash, c->hash, sizeof(hash));
    c->norms[1].low /= 2;
    assert_int_equal(kv_calib_save(c, path, &e), 0);
    assert_string_not_equal(c->hash, hash);
    kv_calib_free(back);
    kv_calib_free(c);
    free(path);
}

/* The tokens that are massive come back as halves, and are counted; the others
 * as without the word. */
static void test_cache(void **state)
{
    const struct kv_shape s = synthetic_shape(HEAD_DIM);
    const size_t row = s.n_kv_heads * HEAD_DIM;
    struct kv_calib *calib = calibrate("nf4,massive", &s);
    struct kv_codec *codec[2][KV_SIDES];
    struct kv_cache *c[2];
    float *k = kv_alloc(N, row * sizeof(*k)),
          *v = kv_alloc(N, row * sizeof(*v));
    float *x[2] = {kv_alloc(N, row * sizeof(*k)),
                   kv_alloc(N, row * sizeof(*k))};
    struct kv_err e = {""};

    (void)state;
    synthetic_rows(&s, s.n_kv_heads, 1030, N, k);
    synthetic_rows(&s, s.n_kv_heads, 1020, N, v);
    for (size_t t = 0; t < N; t += 50)
        for (size_t i = 0; i < row; i++)
            v[t * row + i] *= 0.01f;
    for (int i = 0; i < 2; i++) {
        for (int side = 0; side < KV_SIDES; side++)
            if (open_codec(&codec[i][side], i ? "nf4:s1,massive" : "nf4:s1", &s,
                           (enum kv_side)side, calib, &e))
                fail_msg("%s", e.msg);
        assert_int_equal(
            kv_cache_new(&c[i], codec[i][KV_K], codec[i][KV_V], 1, &e), 0);
        assert_int_equal(append_rows(c[i], NULL, k, v, N, &e), 0);
    }
    for (int side = 0; side < KV_SIDES; side++) {
        const float *in = side == KV_K ? k : v;

        assert_int_equal(
            kv_cache_bytes(c[1], (enum kv_side)side, NULL, NULL) -
                kv_cache_bytes(c[0], (enum kv_side)side, NULL, NULL),
            2 * (row * sizeof(uint16_t) + sizeof(uint32_t)));
        for (int i = 0; i < 2; i++)
            kv_cache_decode(c[i], (enum kv_side)side, x[i]);
        for (size_t t = 0; t < N; t++)
            for (size_t i = 0; i < row; i++)
                assert_within(
                    x[1][t * row + i],
                    t % 50 ? x[0][t * row + i]
                           : kv_f16_to_f32(kv_f16_clamp(in[t * row + i])),
                    0);
    }
    for (int i = 0; i < 2; i++) {
        kv_cache_free(c[i]);
        kv_codec_free(codec[i][KV_K]);
        kv_codec_free(codec[i][KV_V]);
    }
    free(x[1]);
    free(x[0]);
    free(v);
    free(k);
    kv_calib_free(calib);
}

/* The largest error of keys that are not massive, of a cache of k. */
static double worst(const char *text, const struct kv_calib *calib,
                    const struct kv_shape *s, const float *k)
{
    const size_t row = s->n_kv_heads * HEAD_DIM;
    struct kv_codec *codec[KV_SIDES];
    float *x = kv_alloc(N, row * sizeof(*x));
    struct kv_cache *c;
    struct kv_err e = {""};
    double far = 0;

    for (int side = 0; side < KV_SIDES; side++)
        if (open_codec(&codec[side], text, s, (enum kv_side)side, calib, &e))
            fail_msg("%s", e.msg);
    assert_int_equal(kv_cache_new(&c, codec[KV_K], codec[KV_V], 1, &e), 0);
    assert_int_equal(append_rows(c, NULL, k, k, N, &e), 0);
    kv_cache_decode(c, KV_K, x);
    for (size_t i = 0; i < N * row; i++)
        if (i / row != 20)
            far = fmax(far, fabs((double)(x[i] - k[i])));
        else if (codec[KV_K]->massive)
            assert_within(x[i], kv_f16_to_f32(kv_f16_clamp(k[i])), 0);
    kv_cache_free(c);
    kv_codec_free(codec[KV_K]);
    kv_codec_free(codec[KV_V]);
    free(x);
    return far;
}

/* Codes of a block have no share in its massive token: channels of 40 or so,
 * and in one token of none. */
static void test_blocks(void **state)
{
    const struct kv_shape s = synthetic_shape(HEAD_DIM);
    const size_t row = s.n_kv_heads * HEAD_DIM;
    struct kv_calib *calib = calibrate("nf4,massive", &s);
    float *k = kv_alloc(N, row * sizeof(*k));

    (void)state;
    for (int side = 0; side < KV_SIDES; side++)
        calib->norms[KV_SIDES + side] = (struct kv_norm_range){10, 1e6f};
    for (size_t i = 0; i < N * row; i++)
        k[i] = i / row == 20 ? 0.01f : 40 + (float)(i / row % 3);
    assert_within(worst("kivi:b2g16r0", calib, &s, k), 2, 0.1);
    assert_within(worst("kivi:b2g16r0,massive", calib, &s, k), 1. / 3, 0.1);
    assert_within(worst("kvarn:n16s0,massive", calib, &s, k), 1, 1);
    free(k);
    kv_calib_free(calib);
}

/* How many keys a cache of these keys and values has in fp16 in its blocks. */
static size_t n_kept(const char *text, const struct kv_shape *s, const float *k)
{
    const size_t row = s->n_kv_heads * HEAD_DIM;
    struct kv_codec *codec[KV_SIDES];
    struct kv_cache *c;
    struct kv_err e = {""};
    size_t n, blocks;

    for (int side = 0; side < KV_SIDES; side++)
        if (open_codec(&codec[side], text, s, (enum kv_side)side, NULL, &e))
            fail_msg("%s", e.msg);
    assert_int_equal(kv_cache_new(&c, codec[KV_K], codec[KV_V], 1, &e), 0);
    assert_int_equal(append_rows(c, NULL, k, k, N, &e), 0);
    blocks = kv_quantized(codec[KV_K], N) / codec[KV_K]->block;
    n = kv_cache_bytes(c, KV_K, NULL, NULL) - blocks * codec[KV_K]->block_bytes;
    n -= (N - blocks * codec[KV_K]->block) * row * sizeof(uint16_t);
    assert_int_equal(n % (row * sizeof(uint16_t) + sizeof(uint32_t)), 0);
    assert_int_equal(kv_quantized(codec[KV_V], N), blocks * codec[KV_K]->block);
    kv_cache_free(c);
    kv_codec_free(codec[KV_K]);
    kv_codec_free(codec[KV_V]);
    return n / (row * sizeof(uint16_t) + sizeof(uint32_t));
}

/* OTT's pool of one token: the first block's smallest, then what is smaller.
 * After 32 tokens that left it, it stays. */
static void test_traced(void **state)
{
    const struct kv_shape s = synthetic_shape(HEAD_DIM);
    const size_t row = s.n_kv_heads * HEAD_DIM;
    float *k = kv_alloc(N, row * sizeof(*k));

    (void)state;
    for (size_t i = 0; i < N * row; i++)
        k[i] = i / row == 20   ? 0.02f
               : i / row == 37 ? 0.03f
               : i / row == 60 ? 0.01f
                               : 40 + (float)(i / row % 3);
    assert_int_equal(n_kept("kivi:b2g16r0,ott=1", &s, k), 3);
    assert_int_equal(n_kept("kivi:b2g16r0,ott=2", &s, k), 5);
    for (size_t i = 0; i < N * row; i++)
        k[i] = 40 - (float)(i / row) / 4;
    assert_int_equal(n_kept("kivi:b2g2r0,ott=1", &s, k), 33);
    free(k);
}

static void refuse(const char *text, const struct kv_calib *c, const char *why)
{
    const struct kv_shape s = synthetic_shape(HEAD_DIM);
    struct kv_codec *codec;
    struct kv_err e = {""};

    assert_int_equal(open_codec(&codec, text, &s, KV_K, c, &e), -1);
    assert_says(e, why);
}

static void test_refused(void **state)
{
    const struct kv_shape s = synthetic_shape(HEAD_DIM);
    struct kv_calib *c = calibrate("nf4,massive", &s);
    struct kv_norm_range *norms = c->norms;

    (void)state;
    refuse("hack:b4p16,massive", c, "hack attends on its codes alone");
    refuse("f32,massive", c, "f32 keeps every token in one form");
    refuse("nf4,massive", NULL, "massive=yes needs a calibration");
    c->norms = NULL;
    refuse("nf4,massive", c, "without the norms of tokens");
    c->norms = norms;
    norms[KV_SIDES + KV_V] = kv_norm_range_of(NULL, 0);
    refuse("nf4,massive", c, "has no norms of layer 1, V");
    c->has_k_bias = false;
    refuse("nf4,massive", c, "has norms of keys with the model's bias");
    kv_calib_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rule),   cmocka_unit_test(test_dump),
        cmocka_unit_test(test_bias),   cmocka_unit_test(test_file),
        cmocka_unit_test(test_cache),  cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_traced), cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
