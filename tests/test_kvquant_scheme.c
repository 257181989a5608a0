/* KVQuant on cases worked by hand: codes, outliers where they were put, no more
 * than the cap, specs, levels, bits.  Its training: test_kvquant_train.c. */
#include "kernels/topk.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/scheme.h"
#include "lib/schemes/kvquant.h"
#include "tests/codec_setup.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>

/* ---- a codec over tables made by hand ---------------------------------- */

enum { ROW = 8 };
static const float range[ROW][2] = {{-1, 1}, {0, 4},  {2, 2},   {-10, 10},
                                    {0, 8},  {-4, 0}, {1, 1.5}, {-2, 2}};

struct rig {
    struct kv_shape shape;
    struct kv_spec spec;
    struct kv_calib calib;
    struct kv_calib_set set;
};

/* Two KV heads of 4; the levels decode to themselves. */
static void rig_init(struct rig *r, const char *text)
{
    static const float level[2][4] = {{-1, -0.25f, 0.25f, 1},
                                      {-1, -0.25f, 0.25f, 1}};
    const size_t range_dims[] = {2, 4, 2}, level_dims[] = {2, 4};

    *r = (struct rig){.shape = synthetic_shape(4)};
    r->spec = spec_of(text, &r->shape);
    r->calib =
        (struct kv_calib){.shape = r->shape, .set = &r->set, .n_sets = 1};
    kv_spec_calib_key(&r->spec, r->set.key);
    memcpy(kv_calib_add(&r->set, "range", KV_K, KV_ALL, KV_ALL, 3, range_dims)
               ->data,
           range, sizeof(range));
    memcpy(
        kv_calib_add(&r->set, "levels", KV_ALL, KV_ALL, KV_ALL, 2, level_dims)
            ->data,
        level, sizeof(level));
}

static struct kv_codec *rig_codec(const struct rig *r, enum kv_side side)
{
    struct kv_codec *c;
    struct kv_err e = {""};

    if (kv_codec_new(&c, &r->spec, &r->shape, 1, side, &r->calib, &e))
        fail_msg("%s", e.msg);
    return c;
}

/* Channel 1 is above its threshold, 5 below its own; 2 is flat, 3 and 4 are
 * at a threshold, which is no outlier; 7 is midway between levels 1 and 2. */
static const float key[ROW] = {0.3f, 5, 2, -10, 8, -4.5f, 1.25f, 0};
static const float key_back[ROW] = {0.25f, 5, 2, -10, 8, -4.5f, 1.1875f, -0.5f};
static const uint8_t key_bytes[] = {
    2,    0,                      /* outliers */
    2,    0x03 | 1 << 4 | 1 << 6, /* codes 2 0 0 0, 3 0 1 1 */
    1,    0,
    5,    0, /* at */
    0x00, 0x45,
    0x80, 0xc4, /* 5, -4.5 */
};

static void test_keys(void **state)
{
    const struct kv_where w = {.first = 0};
    struct rig r;
    struct kv_codec *c;
    uint8_t bytes[2 + 2 + 4 * ROW];
    float back[ROW];
    struct kv_err e = {""};

    (void)state;
    rig_init(&r, "kvquant:b2o10");
    c = rig_codec(&r, KV_K);
    assert_true(c->variable && c->pre_rope && c->block == 1);
    assert_int_equal(c->block_bytes, sizeof(bytes));
    assert_int_equal(c->variable->encode_block(c, w, key, bytes),
                     sizeof(key_bytes));
    assert_memory_equal(bytes, key_bytes, sizeof(key_bytes));
    if (c->variable->decode_block(c, bytes, sizeof(key_bytes), back, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < ROW; i++)
        assert_within(back[i], key_back[i], 0);
    kv_codec_free(c);
    kv_calib_set_clear(&r.set);
}

/* At most one outlier of 8 values: channel 1 is one half-width beyond its
 * middle, channel 5 is 1.25 of its half-width 2.  With two outliers, both; if
 * both are equally far, the first. */
static void test_cap(void **state)
{
    static const struct {
        const char *text;
        float key[2]; /* channels 1 and 5 */
        size_t n;
        uint16_t at[2];
        float back[2];
    } cases[] = {{"kvquant:b2o10,cap=30", {5, -4.5f}, 2, {1, 5}, {5, -4.5f}},
                 {"kvquant:b2o10,cap=18", {5, -4.5f}, 1, {1, 0}, {5, -4}},
                 {"kvquant:b2o10,cap=10", {4.5f, -5}, 1, {5, 0}, {4, -5}},
                 {"kvquant:b2o10,cap=10", {5, -5}, 1, {1, 0}, {5, -4}},
                 {"kvquant:b2o10,cap=5", {5, -4.5f}, 0, {0, 0}, {4, -4}}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const size_t n = cases[i].n;
        struct rig r;
        struct kv_codec *c;
        float x[ROW], back[ROW];
        uint8_t bytes[2 + 2 + 4 * ROW];
        uint16_t stored[3] = {0};
        struct kv_err e = {""};

        rig_init(&r, cases[i].text);
        c = rig_codec(&r, KV_K);
        memcpy(x, key, sizeof(x));
        x[1] = cases[i].key[0];
        x[5] = cases[i].key[1];
        assert_int_equal(c->variable->encode_block(
                             c, (struct kv_where){.first = 0}, x, bytes),
                         4 + 4 * n);
        memcpy(&stored[0], bytes, 2);
        memcpy(&stored[1], bytes + 4, 2 * n);
        assert_int_equal(stored[0], n);
        for (size_t j = 0; j < n; j++)
            assert_int_equal(stored[1 + j], cases[i].at[j]);
        if (c->variable->decode_block(c, bytes, 4 + 4 * n, back, &e))
            fail_msg("%s", e.msg);
        for (size_t j = 0; j < ROW; j++)
            assert_within(back[j],
                          j == 1   ? cases[i].back[0]
                          : j == 5 ? cases[i].back[1]
                                   : key_back[j],
                          0);
        kv_codec_free(c);
        kv_calib_set_clear(&r.set);
    }
}

/* A flat channel's outlier is infinitely far; a block that decodes equals the
 * channel.  More than the cap cannot have been written. */
static void test_cap_of_flat(void **state)
{
    const float x[ROW] = {0.3f, 100, 2.25f, -10, 8, -4, 1.25f, 0};
    struct rig r;
    struct kv_codec *c;
    float back[ROW];
    uint8_t bytes[2 + 2 + 4 * ROW];
    struct kv_err e = {""};

    (void)state;
    rig_init(&r, "kvquant:b2o10,cap=10");
    c = rig_codec(&r, KV_K);
    assert_int_equal(c->block_bytes, 2 + 2 + 4);
    assert_int_equal(
        c->variable->encode_block(c, (struct kv_where){.first = 0}, x, bytes),
        8);
    assert_int_equal(c->variable->decode_block(c, bytes, 8, back, &e), 0);
    assert_within(back[2], 2.25, 0);
    assert_within(back[1], 4, 0);
    assert_int_equal(
        c->variable->decode_block(c, key_bytes, sizeof(key_bytes), back, &e),
        -1);
    assert_says(e, "2 outliers, expected 1 at most");
    kv_codec_free(c);
    kv_calib_set_clear(&r.set);
}

static void test_broken_keys(void **state)
{
    static const struct {
        size_t at;
        uint8_t is;
        const char *why;
    } cases[] = {
        {0, 1, "12 bytes, but 1 outliers make 8"},
        {4, 8, "outlier 0 is at 8, expected 0 to 7"},
        {4, 5, "outlier 1 is at 5, expected 6 to 7"},
        {6, 1, "outlier 1 is at 1, expected 2 to 7"},
        {9, 0x40, "channel 1 has no outlier 2"},
        {9, 0x7c, "channel 1 has no outlier inf"},
        {9, 0x7e, "channel 1 has no outlier nan"},
        {2, 0x06, "channel 1 has no outlier 5"}, /* it has a code */
    };
    struct rig r;
    struct kv_codec *c;

    (void)state;
    rig_init(&r, "kvquant:b2o10");
    c = rig_codec(&r, KV_K);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint8_t bytes[sizeof(key_bytes)];
        float back[ROW];
        struct kv_err e = {""};

        memcpy(bytes, key_bytes, sizeof(bytes));
        bytes[cases[i].at] = cases[i].is;
        assert_int_equal(
            c->variable->decode_block(c, bytes, sizeof(bytes), back, &e), -1);
        assert_says(e, cases[i].why);
    }
    kv_codec_free(c);
    kv_calib_set_clear(&r.set);
}

/* Without outliers keys are clamped to their thresholds. */
static void test_keys_without(void **state)
{
    const float want[ROW] = {0.25f, 4, 2, -10, 8, -4, 1.1875f, -0.5f};
    struct rig r;
    struct kv_codec *c;
    uint8_t bytes[2];
    float back[ROW];

    (void)state;
    rig_init(&r, "kvquant:b2o0");
    c = rig_codec(&r, KV_K);
    assert_false(c->variable);
    assert_int_equal(c->block_bytes, sizeof(bytes));
    c->scheme->encode(c, (struct kv_where){.first = 0}, key, 1, bytes);
    c->scheme->decode(c, bytes, 1, back);
    for (size_t i = 0; i < ROW; i++)
        assert_within(back[i], want[i], 0);
    kv_codec_free(c);
    kv_calib_set_clear(&r.set);
}

/* A quarter of 8 values: one on each side, at 1 and 3.  The others go from 0
 * to 4. */
static void test_values(void **state)
{
    const float x[2 * ROW] = {1, -9, 3, 9, 2, 0, 4, 2, 7, 7, 7, 7, 7, 7, 7, 7};
    const float want[ROW] = {1.5f, -9, 2.5f, 9, 1.5f, 0, 4, 1.5f};
    const uint8_t bytes_of[2][14] = {
        {1 | 2 << 4, 1 | 0 << 2 | 3 << 4 | 1 << 6, 0, 0x40, 0, 0x40, 1, 0, 3, 0,
         0x80, 0xc8, 0x80, 0x48},
        /* flat: of equal values the first is largest, the last smallest */
        {0, 0, 0, 0x47, 0, 0, 0, 0, 7, 0, 0, 0x47, 0, 0x47}};
    struct rig r;
    struct kv_codec *c;
    uint8_t bytes[2][14];
    float back[2 * ROW];

    (void)state;
    rig_init(&r, "kvquant:b2o25");
    c = rig_codec(&r, KV_V);
    assert_false(c->variable || c->pre_rope);
    assert_int_equal(c->block_bytes, sizeof(*bytes));
    c->scheme->encode(c, (struct kv_where){.first = 0}, x, 2, bytes[0]);
    assert_memory_equal(bytes, bytes_of, sizeof(bytes));
    c->scheme->decode(c, bytes[0], 2, back);
    for (size_t i = 0; i < ROW; i++) {
        assert_within(back[i], want[i], 0);
        assert_within(back[ROW + i], 7, 0);
    }
    bytes[0][7] = 0xff; /* an outlier beyond the row is left out */
    c->scheme->decode(c, bytes[0], 1, back);
    assert_within(back[1], 0, 0);
    kv_codec_free(c);
    kv_calib_set_clear(&r.set);
}

static void test_refused_tables(void **state)
{
    struct rig r;
    struct kv_codec *c;
    struct kv_err e = {""};

    (void)state;
    rig_init(&r, "kvquant:b2");
    r.set.table[1].data[2] = -0.5f;
    assert_int_equal(kv_codec_new(&c, &r.spec, &r.shape, 1, KV_V, &r.calib, &e),
                     -1);
    assert_says(e, "levels of layer 1, V do not ascend");
    r.set.table[0].data[0] = 1.5f;
    assert_int_equal(kv_codec_new(&c, &r.spec, &r.shape, 1, KV_K, &r.calib, &e),
                     -1);
    assert_says(e, "thresholds of layer 1, channel 0 are the wrong way round");
    kv_calib_set_clear(&r.set);
}

/* ---- parameters, levels, bits ------------------------------------------ */

static void test_specs(void **state)
{
    struct kv_shape shape = synthetic_shape(128);
    struct kv_spec s;
    struct kv_err e = {""};

    (void)state;
    s = spec_of("kvquant", &shape);
    assert_string_equal(s.text, "kvquant:b3o1r0s1,cap=100,first=1,type=nuq,"
                                "w=fisher,qnorm=no");
    assert_within(s.scheme->nominal(&s, KV_K, &shape), 3.32, 1e-12);
    s = spec_of("kvquant:K-b4/V-b2o0.5,V-int,K-w=fisher-s2", &shape);
    assert_string_equal(s.text, "kvquant:K-b4o1r0s1/V-b2o0.5r0s1,cap=100,"
                                "K-first=1,V-first=0,K-type=nuq,V-type=int,"
                                "K-w=fisher-s2,V-w=none,qnorm=no");
    assert_within(s.scheme->nominal(&s, KV_K, &shape), 4.32, 1e-12);
    assert_within(s.scheme->nominal(&s, KV_V, &shape), 2.16, 1e-12);
    s = spec_of("kvquant:b2o2,cap=1", &shape);
    assert_within(s.scheme->nominal(&s, KV_K, &shape), 2.32, 1e-12);
    assert_within(s.scheme->nominal(&s, KV_V, &shape), 2.64, 1e-12);
    assert_int_equal(kv_kvquant_cap(&s, 4096), 41);
    assert_int_equal(kv_kvquant_cap(&s, 256), 3);
    s = spec_of("kvquant:o0,cap=1,int,first=3", &shape); /* neither counts */
    assert_string_equal(s.text, "kvquant:b3o0r0s1,cap=100,first=0,type=int,"
                                "w=none,qnorm=no");
    shape.n_kv_heads = 512;
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "n_kv_heads x head_dim is 65536, more than 65535");
    s = spec_of("kvquant:o1", &(struct kv_shape){.n_kv_heads = 1});
    assert_int_equal(kv_kvquant_each_side(&s, KV_V, 4096), 21);
    assert_int_equal(kv_kvquant_each_side(&s, KV_V, 200), 1);
    assert_int_equal(kv_kvquant_each_side(&s, KV_V, 2), 0);
    assert_int_equal(kv_kvquant_each_side(&s, KV_V, 0), 0);
}

static void test_fixed_levels(void **state)
{
    /* NF4 as QLoRA prints it (arXiv 2305.14314, appendix E) */
    static const float nf4[] = {
        -1.0f,
        -0.6961928009986877f,
        -0.5250730514526367f,
        -0.39491748809814453f,
        -0.28444138169288635f,
        -0.18477343022823334f,
        -0.09105003625154495f,
        0.0f,
        0.07958029955625534f,
        0.16093020141124725f,
        0.24611230194568634f,
        0.33791524171829224f,
        0.44070982933044434f,
        0.5626170039176941f,
        0.7229568362236023f,
        1.0f,
    };
    float level[1 << KV_KVQUANT_MAX_BITS];

    (void)state;
    kv_kvquant_nf_levels(4, level);
    for (size_t i = 0; i < 16; i++)
        assert_within(level[i], nf4[i], 1e-6);
    for (unsigned bits = 2; bits <= KV_KVQUANT_MAX_BITS; bits++) {
        const size_t n = (size_t)1 << bits;

        kv_kvquant_nf_levels(bits, level);
        assert_true(level[0] == -1 && level[n - 1] == 1);
        for (size_t i = 1; i < n; i++)
            assert_true(level[i - 1] < level[i]);
    }
    kv_kvquant_int_levels(2, level);
    assert_within(level[0], -1, 0);
    assert_within(level[1], -1.0 / 3, 1e-7);
    assert_within(level[2], 1.0 / 3, 1e-7);
    assert_within(level[3], 1, 0);
}

/* Compared with a sort: many ties, every number of outliers. */
static void test_outliers(void **state)
{
    enum { N = 37 };

    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        const size_t n_side = seed % (N / 2 + 1);
        float x[N], high[N], low[N];
        bool outlier[N];
        uint8_t head[4];
        uint64_t k[N];
        struct kv_topk top = {.key = k, .capacity = n_side};
        size_t n_high = 0, n_low = 0, n = 0;
        struct kv_kvquant_range r;

        for (size_t i = 0; i < N; i++) {
            x[i] = (float)(kv_random(seed, i) % (2 + seed % 50)) - 9;
            kv_topk_push(&top, kv_topk_key(x[i], (uint32_t)i));
        }
        r = kv_kvquant_row_range(x, N, n_side, outlier, head);
        for (size_t i = 0; i < n_side; i++) {
            assert_true(outlier[kv_topk_index(k[i])]);
            assert_within(kv_topk_value(k[i]), x[kv_topk_index(k[i])], 0);
        }
        for (size_t i = 0; i < N; i++) {
            n += outlier[i];
            if (!outlier[i])
                continue;
            /* each outlier is at an end: not both fewer and more beyond it */
            n_high = n_low = 0;
            for (size_t j = 0; j < N; j++) {
                n_high += x[j] > x[i];
                n_low += x[j] < x[i];
            }
            assert_true(n_high < n_side || n_low < n_side);
        }
        assert_int_equal(n, 2 * n_side);
        high[0] = -INFINITY;
        low[0] = INFINITY;
        for (size_t i = 0; i < N; i++) {
            high[0] = outlier[i] ? high[0] : fmaxf(high[0], x[i]);
            low[0] = outlier[i] ? low[0] : fminf(low[0], x[i]);
        }
        assert_within(r.offset + r.half, high[0], 0);
        assert_within(r.offset - r.half, low[0], 0);
    }
}

/* Llama-2-7B, 32 heads of 128, for which the paper has 0.32 bits beside the
 * codes: values, and the maximum for keys with a cap. */
static void test_bits(void **state)
{
    const double values[] = {2.3359375, 3.3359375, 4.3359375};
    const double keys[] = {2.32421875, 3.32421875, 4.32421875};
    struct rig r;
    struct kv_codec *c;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        char text[32];

        rig_init(&r, "kvquant:b2");
        r.shape.n_heads = r.shape.n_kv_heads = 32;
        r.shape.head_dim = 128;
        snprintf(text, sizeof(text), "kvquant:b%zu,cap=1", 2 + i);
        r.spec = spec_of(text, &r.shape);
        kv_spec_calib_key(&r.spec, r.set.key);
        r.set.table[1].dims[1] = (size_t)4 << i;
        r.set.table[1].data =
            kv_realloc(r.set.table[1].data, (size_t)8 << i, sizeof(float));
        for (size_t j = 0; j < (size_t)8 << i; j++)
            r.set.table[1].data[j] = (float)j;
        c = rig_codec(&r, KV_V);
        assert_within(8 * (double)c->block_bytes / 4096, values[i], 0);
        kv_codec_free(c);
        r.set.table[0].dims[0] = 32;
        r.set.table[0].dims[1] = 128;
        free(r.set.table[0].data);
        r.set.table[0].data = kv_alloc(4096 * 2, sizeof(float));
        c = rig_codec(&r, KV_K);
        assert_within(8 * (double)c->block_bytes / 4096, keys[i], 0);
        kv_codec_free(c);
        kv_calib_set_clear(&r.set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_cap),
        cmocka_unit_test(test_cap_of_flat),
        cmocka_unit_test(test_broken_keys),
        cmocka_unit_test(test_keys_without),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refused_tables),
        cmocka_unit_test(test_specs),
        cmocka_unit_test(test_fixed_levels),
        cmocka_unit_test(test_outliers),
        cmocka_unit_test(test_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
