/* QuaRot and RotateKV on cases worked by hand: clipped integers of turned
 * heads, the two kinds of zero point, and the order of RotateKV's channels. */
#include "kernels/hadamard.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/scheme.h"
#include "tests/codec_setup.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>

/* Encodes and decodes one token. */
static void store(const struct kv_codec *c, const float *x, uint8_t *bytes,
                  float *back)
{
    c->scheme->encode(c, (struct kv_where){.first = 0}, x, 1, bytes);
    c->scheme->decode(c, bytes, 1, back);
}

/* x = y H / 2 with y = -3 3 1 -1; y is stored, and the decoded y is rotated
 * back. */
static void check_head(const char *text, const float want[4])
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 4};
    const struct kv_spec s = spec_of(text, &shape);
    const float x[4] = {0, -2, 0, -4};

    for (int side = 0; side < KV_SIDES; side++) {
        struct kv_codec *c =
            codec_from(&s, &shape, 0, (enum kv_side)side, NULL);
        uint8_t bytes[1 + 2 * 4];
        float back[4];

        assert_false(c->pre_rope);
        assert_in_range(c->block_bytes, 1 + 2, sizeof(bytes));
        store(c, x, bytes, back);
        kv_hadamard(back, 1, 4);
        for (size_t i = 0; i < 4; i++)
            assert_within(back[i], want[i], 1e-3); /* fp16's 1/3 */
        kv_codec_free(c);
    }
}

static void test_quarot(void **state)
{
    (void)state;
    /* step 2, zero point 2: levels -4 -2 0 2 */
    check_head("quarot:b2g4,clip=1", (const float[4]){-4, 2, 0, 0});
    /* levels -3 -1 1 3 */
    check_head("quarot:b2g4,clip=1,zero=min", (const float[4]){-3, 3, 1, -1});
    /* range [-1.5, 1.5], step 1: levels -2 -1 0 1; -1.5 -0.5 0.5 1.5 */
    check_head("quarot:b2g4,clip=0.5", (const float[4]){-2, 1, 1, -1});
    check_head("quarot:b2g4,clip=0.5,zero=min",
               (const float[4]){-1.5f, 1.5f, 0.5f, -1.5f});
    /* two groups: -3 3 as the first; 1 -1 has step 2/3, levels -4/3 .. 2/3 */
    check_head("quarot:b2g2,clip=1,zero=min", (const float[4]){-3, 3, 1, -1});
    /* symmetric, step 3: levels -3 0 3; of 3 bits, step 1: levels -3 .. 3 */
    check_head("quarot:b2g4,clip=1,none", (const float[4]){-3, 3, 0, 0});
    check_head("quarot:b3g4,clip=1,none", (const float[4]){-3, 3, 1, -1});
    /* [-1.5, 1.5], step 0.5 */
    check_head("quarot:b3g4,clip=0.5,none",
               (const float[4]){-1.5f, 1.5f, 1, -1});
    /* two groups, steps 3 and 1 */
    check_head("quarot:b2g2,clip=1,none", (const float[4]){-3, 3, 1, -1});
}

/* Both ends are cut by the larger one: the stored row is y = 4 -1 0 0. */
static void test_symmetric_clip(void **state)
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 4};
    const struct kv_spec s = spec_of("quarot:b4g4,clip=0.875,none", &shape);
    struct kv_codec *c = codec_from(&s, &shape, 0, KV_V, NULL);
    float x[4] = {4, -1, 0, 0}, back[4];
    const float want[4] = {3.5f, -1, 0, 0}; /* step 0.5 */
    uint8_t bytes[2 + 2];

    (void)state;
    assert_int_equal(c->block_bytes, sizeof(bytes));
    kv_hadamard(x, 1, 4);
    store(c, x, bytes, back);
    kv_hadamard(back, 1, 4);
    for (size_t i = 0; i < 4; i++)
        assert_within(back[i], want[i], 1e-6);
    kv_codec_free(c);
}

/* One step and zero point for both heads; groups may end inside a head. */
static void test_all_heads(void **state)
{
    static const struct {
        const char *text, *fitted;
        size_t bytes;
    } cases[] = {{"quarot:b2g0,heads=all",
                  "quarot:b2g8r0s0,clip=0.95,zero=int,heads=all", 2 + 4},
                 {"quarot:b2g0", "quarot:b2g4r0s0,clip=0.95,zero=int,heads=one",
                  2 * (1 + 4)},
                 {"quarot:b2g8,none,heads=all",
                  "quarot:b2g8r0s0,clip=0.95,zero=none,heads=all", 2 + 2},
                 {"quarot:b8g2,heads=all",
                  "quarot:b8g2r0s0,clip=0.95,zero=int,heads=all", 8 + 4 * 4}};
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 2, .n_kv_heads = 2, .head_dim = 4};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const struct kv_spec s = spec_of(cases[i].text, &shape);
        struct kv_codec *c = codec_from(&s, &shape, 0, KV_K, NULL);

        assert_string_equal(s.text, cases[i].fitted);
        assert_int_equal(c->block_bytes, cases[i].bytes);
        kv_codec_free(c);
    }

    /* rotated: 6 -6 0 0 | 0.75 -0.75 0 0, where a step of 2 turns the second
     * into zeros */
    const struct kv_spec s =
        spec_of("quarot:b3g8,clip=1,none,heads=all", &shape);
    struct kv_codec *c = codec_from(&s, &shape, 0, KV_K, NULL);
    float x[8] = {6, -6, 0, 0, 0.75f, -0.75f, 0, 0}, back[8];
    uint8_t bytes[3 + 2];

    kv_hadamard(x, 2, 4);
    store(c, x, bytes, back);
    kv_hadamard(back, 2, 4);
    for (size_t i = 0; i < 8; i++)
        assert_within(back[i], i == 0 ? 6 : i == 1 ? -6 : 0, 1e-6);
    kv_codec_free(c);
}

/* A head of 128: 4 bits and 32 for the group, 4.25 in all. */
static void test_bits(void **state)
{
    const struct kv_shape shape = synthetic_shape(128);
    const struct kv_spec s = spec_of("quarot", &shape);
    struct kv_codec *c = codec_from(&s, &shape, 0, KV_K, NULL);

    (void)state;
    assert_string_equal(s.text,
                        "quarot:b4g128r0s0,clip=0.95,zero=int,heads=one");
    assert_int_equal(c->block, 1);
    assert_int_equal(c->block_bytes * 8, 2 * 128 * 4.25);
    kv_codec_free(c);
}

/* Same offset in all channels of a head: after the transform one channel has it
 * all, and integers with a zero point reach it from any distance. */
static void test_far_from_zero(void **state)
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 4};
    const struct kv_spec s = spec_of("quarot:b8g1,clip=1", &shape);
    struct kv_codec *c = codec_from(&s, &shape, 0, KV_V, NULL);
    const float far[3] = {0.25f, -1000, 32752};
    uint8_t bytes[4 + 4 * 4];
    float back[4];

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        store(c, (const float[4]){far[i], far[i], far[i], far[i]}, bytes, back);
        for (size_t j = 0; j < 4; j++)
            assert_within(back[j], far[i], 0);
    }
    kv_codec_free(c);
}

static void test_refusals(void **state)
{
    const struct kv_shape shape = synthetic_shape(32);
    static const struct {
        const char *text, *why;
    } cases[] = {{"quarot:g12", "g=12 must divide the row of 32"},
                 {"rotatekv:K-g8/V-g24", "g=24 must divide the row of 32"},
                 {"rotatekv:K-h1/V-h2", "h concerns keys alone"},
                 {"quarot:g12,heads=all", "g=12 must divide the row of 64"},
                 {"quarot:K-b4/V-b1,none", "b must be at least 2"},
                 {"quarot,clip=1.5", "clip=1.5 is out of range"}};
    const struct kv_spec s = spec_of("rotatekv", &shape);
    struct kv_codec *c = NULL;
    struct kv_err e;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_spec bad;

        assert_int_equal(kv_spec_parse(&bad, cases[i].text, &e) ||
                             kv_spec_fit(&bad, &shape, &e),
                         1);
        assert_says(e, cases[i].why);
    }
    assert_int_equal(kv_codec_new(&c, &s, &shape, 0, KV_K, NULL, &e), -1);
    assert_says(e, "needs a calibration");
}

/* ---- RotateKV ---------------------------------------------------------- */

enum { DIM = 8, ROW = 2 * DIM, TOKENS = 640 };

/* The order that the definition gives for layer 0 of synthetic_calib()'s
 * dump. */
static void expected_order(const struct kv_shape *shape, const char *folder,
                           size_t rotated, bool after, size_t *order)
{
    struct kv_dump *dump;
    struct kv_err e = {""};
    float *x = kv_alloc(TOKENS, ROW * sizeof(*x));
    double key[ROW] = {0};
    size_t rank[ROW];
    char *path;

    synthetic_dump(shape, 4, TOKENS / 4, folder, &path);
    if (kv_dump_open(&dump, path, &e) ||
        kv_dump_read(dump, 0, KV_T_K_PRE, 0, TOKENS, x, &e))
        fail_msg("%s", e.msg);
    if (after)
        kv_hadamard(x, TOKENS * ROW / rotated, rotated);
    for (size_t i = 0; i < TOKENS * ROW; i++)
        key[i % ROW] += after ? (double)x[i] : -fabs((double)x[i]);
    for (size_t i = 0; i < ROW; i++) {
        rank[i] = 0;
        for (size_t j = 0; j < ROW; j++)
            rank[i] += key[j] < key[i];
    }
    for (size_t i = 0; i < ROW; i++) {
        const size_t hands = after ? 1 : ROW / rotated;

        order[rank[i] % hands * (ROW / hands) + rank[i] / hands] = i;
    }
    kv_dump_close(dump);
    free(path);
    free(x);
}

/* A token of keys against the definition, computed step by step: 8 bits without
 * clipping are near enough to tell any other order of things. */
static void check_rotatekv(const char *text, size_t rotated, bool after)
{
    const struct kv_shape shape = synthetic_shape(DIM);
    const struct kv_spec s = spec_of(text, &shape);
    const char *folder = test_folder();
    struct kv_calib *calib = synthetic_calib(&shape, &s, folder);
    struct kv_codec *c = codec_from(&s, &shape, 0, KV_K, calib);
    const struct kv_table *t = kv_calib_table(calib->set, "order", KV_K, 0, 0);
    size_t order[ROW];
    float x[ROW], back[ROW], placed[ROW];
    uint8_t bytes[ROW + 4];

    expected_order(&shape, folder, rotated, after, order);
    assert_int_equal(t->dims[0], ROW);
    for (size_t i = 0; i < ROW; i++)
        assert_true(t->data[i] == (float)order[i]);
    assert_true(c->pre_rope);
    assert_int_equal(c->block_bytes, sizeof(bytes));
    synthetic_rows(&shape, 2, 9, 1, x);
    store(c, x, bytes, back);
    for (size_t i = 0; i < ROW; i++)
        assert_within(back[i], x[i], 0.3);

    if (after)
        kv_hadamard(x, ROW / rotated, rotated);
    for (size_t i = 0; i < ROW; i++)
        placed[i] = x[order[i]];
    if (!after)
        kv_hadamard(placed, ROW / rotated, rotated);

    uint16_t head[2];

    memcpy(head, bytes + ROW, sizeof(head));
    for (size_t i = 0; i < ROW; i++)
        assert_within(kv_f16_to_f32(head[1]) +
                          kv_f16_to_f32(head[0]) * bytes[i],
                      placed[i], 0.51 * (double)kv_f16_to_f32(head[0]) + 0.01);
    kv_codec_free(c);
    kv_calib_free(calib);
}

static void test_rotatekv(void **state)
{
    (void)state;
    check_rotatekv("rotatekv:b8g16h2,clip=1,zero=min", 16, true);
    check_rotatekv("rotatekv:b8g16h1,clip=1,zero=min", 8, true);
    check_rotatekv("rotatekv:b8g16h2,clip=1,zero=min,before", 16, false);
    check_rotatekv("rotatekv:b8g16h1,clip=1,zero=min,before", 8, false);
}

/* An integer zero point, and a clip that follows from the side's bits unless it
 * is given. */
static void test_defaults(void **state)
{
    static const struct {
        const char *text, *whole;
    } cases[] = {
        {"rotatekv:g8", "rotatekv:b2g8h2r0s1,clip=0.8,zero=int,order=after"},
        {"rotatekv:b3g8", "rotatekv:b3g8h2r0s1,clip=1,zero=int,order=after"},
        {"rotatekv:b4g8", "rotatekv:b4g8h2r0s1,clip=1,zero=int,order=after"},
        {"rotatekv:b4g8,clip=0.8",
         "rotatekv:b4g8h2r0s1,clip=0.8,zero=int,order=after"},
        {"rotatekv:b2g8,clip=1",
         "rotatekv:b2g8h2r0s1,clip=1,zero=int,order=after"},
        {"rotatekv:K-b4g8/V-b2g8",
         "rotatekv:K-b4g8h2r0s1/V-b2g8h2r0s1,K-clip=1,"
         "V-clip=0.8,zero=int,order=after"},
        {"rotatekv:b3g8,V-clip=0.9,min",
         "rotatekv:b3g8h2r0s1,K-clip=1,V-clip=0.9,zero=min,order=after"},
    };
    const struct kv_shape shape = synthetic_shape(DIM);
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_spec s, again;

        if (kv_spec_parse(&s, cases[i].text, &e))
            fail_msg("%s", e.msg);
        if (kv_spec_parse(&again, s.text, &e)) /* before it is fitted, too */
            fail_msg("%s", e.msg);
        assert_string_equal(again.text, s.text);
        if (kv_spec_fit(&s, &shape, &e))
            fail_msg("%s", e.msg);
        assert_string_equal(s.text, cases[i].whole);
    }
}

/* A table that is no order is refused. */
static void test_no_order(void **state)
{
    const struct kv_shape shape = synthetic_shape(DIM);
    const struct kv_spec s = spec_of("rotatekv", &shape);
    struct kv_calib *calib = synthetic_calib(&shape, &s, test_folder());
    const float bad[] = {-1, ROW, NAN, INFINITY};
    float *data = calib->set->table[0].data;
    struct kv_codec *c = NULL;
    struct kv_err e;

    (void)state;
    for (size_t i = 0; i < 5; i++) {
        const float good = data[3];

        data[3] = i < 4 ? bad[i] : data[2];
        assert_int_equal(kv_codec_new(&c, &s, &shape, 0, KV_K, calib, &e), -1);
        assert_says(e, "does not name each of 16 channels once");
        data[3] = good;
    }
    kv_calib_free(calib);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quarot),         cmocka_unit_test(test_bits),
        cmocka_unit_test(test_symmetric_clip), cmocka_unit_test(test_all_heads),
        cmocka_unit_test(test_far_from_zero),  cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_rotatekv),       cmocka_unit_test(test_no_order),
        cmocka_unit_test(test_defaults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
