/* ZipCache (arXiv 2405.14256) on blocks worked by hand, and the cache's part in
 * it: probes, their queries, the block's saliency. */
#include "lib/scheme.h"
#include "lib/seq/cache.h"
#include "tests/append_rows.h"
#include "tests/codec_setup.h"

static struct kv_codec *codec(const char *text, enum kv_side side,
                              size_t n_heads)
{
    const struct kv_shape shape = {.n_layers = 1,
                                   .n_heads = n_heads,
                                   .n_kv_heads = 1,
                                   .head_dim = 2,
                                   .attn_scale = 1};

    return codec_of(text, &shape, 0, side);
}

/* Tokens 1 and 2 are salient: 2 and 3 score the same, the older one wins. */
static const float saliency[4] = {0.1f, 0.9f, 0.5f, 0.5f};
static const char four[] = "zipcache:b2l1n4,salient=50";

static void exactly_back(const struct kv_codec *c, const float *x,
                         uint8_t *bytes, float *back)
{
    const struct kv_where w = {.saliency = saliency};

    round_trip(c, w, x, bytes, back);
    for (size_t i = 0; i < 8; i++)
        assert_within(back[i], x[i], 0);
}

/* Per channel.  Salient: 1 4, step 1, codes 0 3; 5 5, flat.  The others: 0 8,
 * step 8, codes 0 1; 10 -10, step 20, codes 1 0. */
static void test_keys(void **state)
{
    struct kv_codec *c = codec(four, KV_K, 1);
    const float x[8] = {0, 10, 1, 5, 4, 5, 8, -10};
    uint8_t bytes[1 + (1 + 8) + (1 + 8)];
    float back[8];

    (void)state;
    assert_int_equal(c->block, 4);
    assert_int_equal(c->block_bytes, sizeof(bytes));
    exactly_back(c, x, bytes, back);
    assert_int_equal(bytes[0], 0x06);
    assert_int_equal(bytes[1], 0x0c);
    assert_within(half_at(bytes + 2), 1, 0);
    assert_within(half_at(bytes + 8), 5, 0);
    assert_int_equal(bytes[10], 0x06);
    assert_within(half_at(bytes + 11), 8, 0);
    assert_within(half_at(bytes + 17), -10, 0);
    kv_codec_free(c);
}

/* c = 2 4.  Divided: 0 4 | 1 1 | 2 -4 | -2 0.  Salient: 1 1, flat; 2 -4, step
 * 2, codes 3 0.  The others: step 4, codes 0 1; step 2, codes 0 1. */
static void test_values(void **state)
{
    struct kv_codec *c = codec(four, KV_V, 1);
    const float x[8] = {0, 16, 2, 4, 4, -16, -4, 0};
    uint8_t bytes[1 + 2 * 2 + (1 + 8) + (1 + 8)];
    float back[8];

    (void)state;
    assert_int_equal(c->block_bytes, sizeof(bytes));
    exactly_back(c, x, bytes, back);
    assert_int_equal(bytes[0], 0x06);
    assert_within(half_at(bytes + 1), 2, 0);
    assert_within(half_at(bytes + 3), 4, 0);
    assert_int_equal(bytes[5], 0x30);
    assert_within(half_at(bytes + 8), 1, 0);  /* token 1's minimum */
    assert_within(half_at(bytes + 10), 2, 0); /* token 2's step */
    assert_int_equal(bytes[14], 0x0a);
    kv_codec_free(c);
}

/* Two KV heads of one channel, each with its own salient tokens: 1 and 2 of
 * head 0, 0 and 3 of head 1; all heads together, 1 and 3. */
static const struct kv_shape two_heads = {
    .n_layers = 1, .n_heads = 2, .n_kv_heads = 2, .head_dim = 1};
static const float each_saliency[2 * 4] = {0.1f, 0.9f, 0.5f, 0.5f,
                                           0.6f, 0.1f, 0.2f, 0.7f};

static void test_masks_of_keys(void **state)
{
    struct kv_codec *c = codec_of(four, &two_heads, 0, KV_K);
    struct kv_codec *one =
        codec_of("zipcache:b2l1n4,salient=50,mask=layer", &two_heads, 0, KV_K);
    const struct kv_where w = {.saliency = each_saliency};
    /* head 0: 1 4 are salient, 0 8 not; head 1: 5 11, and 10 -10 */
    const float x[8] = {0, 5, 1, 10, 4, -10, 8, 11};
    uint8_t bytes[1 + (1 + 8) + (1 + 8)];
    float back[8];

    (void)state;
    assert_int_equal(c->block_bytes, sizeof(bytes));
    round_trip(c, w, x, bytes, back);
    for (size_t i = 0; i < 8; i++)
        assert_within(back[i], x[i], 0);
    assert_int_equal(bytes[0], 0x96);
    assert_int_equal(bytes[1], 0xcc);
    assert_within(half_at(bytes + 6), 2, 0); /* head 1's step */
    assert_int_equal(bytes[10], 0x06);
    assert_int_equal(one->block_bytes, sizeof(bytes));
    round_trip(one, w, x, bytes, back);
    assert_int_equal(bytes[0], 0x0a);
    kv_codec_free(one);
    kv_codec_free(c);
}

/* c = 2 2.  Divided, head 0: 0 1 2 -2; head 1: -2 1 0 2.  A group has the
 * i-th token of each head: salient 1 -2, step 1, codes 3 0; 2 2, flat.  The
 * others: 0 1, step 1; -2 0, step 2: codes 0 1 each. */
static void test_masks_of_values(void **state)
{
    struct kv_codec *c = codec_of(four, &two_heads, 0, KV_V);
    const struct kv_where w = {.saliency = each_saliency};
    const float x[8] = {0, -4, 2, 2, 4, 0, -4, 4};
    uint8_t bytes[1 + 2 * 2 + (1 + 8) + (1 + 8)];
    float back[8];

    (void)state;
    assert_int_equal(c->block_bytes, sizeof(bytes));
    round_trip(c, w, x, bytes, back);
    for (size_t i = 0; i < 8; i++)
        assert_within(back[i], x[i], 0);
    assert_int_equal(bytes[0], 0x96);
    assert_int_equal(bytes[5], 0x03);
    assert_within(half_at(bytes + 8), -2, 0); /* the first group's minimum */
    assert_int_equal(bytes[14], 0x0a);
    kv_codec_free(c);
}

/* The paper's 4.98-fold compression: 4 and 2 bits, 60 % salient, 4096 tokens of
 * 32 heads of 128.  The stored block includes the masks, a bit a head. */
static void test_bits(void **state)
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 32, .n_kv_heads = 32, .head_dim = 128};
    double bits = 0;

    (void)state;
    for (int side = 0; side < KV_SIDES; side++) {
        struct kv_codec *c =
            codec_of("zipcache:n4096", &shape, 0, (enum kv_side)side);
        const double nominal =
            c->scheme->nominal(&c->spec, (enum kv_side)side, &shape);

        assert_string_equal(c->spec.text,
                            "zipcache:b4l2n4096r0s0,salient=60,mask=head,"
                            "recent=5,random=5");
        assert_within(8 * (double)c->block_bytes / 4096 / 4096,
                      nominal + 1.0 / 128, 1e-5);
        bits += nominal / KV_SIDES;
        kv_codec_free(c);
    }
    assert_within(bits, 3.2139, 1e-4); /* 2458 of 4096 tokens */
    assert_within(16 / bits, 4.98, 5e-3);
}

/* 60 per cent of 512 tokens: the other 204.8 become 204. */
static void test_count(void **state)
{
    struct kv_codec *c = codec("zipcache:b8l4n512", KV_K, 1);

    (void)state;
    assert_int_equal(c->block_bytes, 64 + 308 * 2 + 204 + 4 * 4);
    kv_codec_free(c);
}

/* All tokens are salient, or none: one part is empty. */
static void test_one_part(void **state)
{
    struct kv_codec *all = codec("zipcache:b3l1n4,salient=100", KV_K, 1);
    struct kv_codec *none = codec("zipcache:b8l2n4,salient=0", KV_V, 1);
    const float x[8] = {0, 7, 1, 6, 2, 5, 7, 0}, y[8] = {0};
    uint8_t bytes[32];
    float back[8];

    (void)state;
    assert_int_equal(all->block_bytes, 1 + 3 + 2 * 4);
    assert_int_equal(none->block_bytes, 1 + 2 * 2 + 2 + 4 * 4);
    exactly_back(all, x, bytes, back);
    exactly_back(none, y, bytes, back);
    kv_codec_free(all);
    kv_codec_free(none);
}

/* 200 tokens: the newest 10 and 10 of the others, one in each run of 19; other
 * ones in another block, and with another seed. */
static void test_probes(void **state)
{
    struct kv_codec *c = codec("zipcache:n200", KV_K, 1);
    const struct kv_where w[] = {
        {.seed = 1}, {.seed = 2}, {.first = 200, .seed = 1}};
    bool same[3] = {true, true, true};

    (void)state;
    for (size_t i = 0; i < 190; i += 19)
        for (size_t j = 0; j < 3; j++) {
            size_t n = 0;

            for (size_t t = i; t < i + 19; t++) {
                const bool is = c->scheme->probe(c, w[j], t);

                n += is;
                same[j] = same[j] && is == c->scheme->probe(c, w[0], t);
            }
            assert_int_equal(n, 1);
        }
    assert_true(same[0] && !same[1] && !same[2]);
    for (size_t t = 190; t < 200; t++)
        assert_true(c->scheme->probe(c, w[0], t));
    kv_codec_free(c);
}

/* ---- in the cache ------------------------------------------------------ */

enum { SEED = 3, HEADS = 2, N = 20 };

struct setup {
    struct kv_codec *codec[KV_SIDES];
    struct kv_cache *cache;
};

static void set_up(struct setup *s, const char *text)
{
    struct kv_err e = {""};

    for (int i = 0; i < KV_SIDES; i++)
        s->codec[i] = codec(text, (enum kv_side)i, HEADS);
    if (kv_cache_new(&s->cache, s->codec[KV_K], s->codec[KV_V], SEED, &e))
        fail_msg("%s", e.msg);
}

static void tear_down(struct setup *s)
{
    kv_cache_free(s->cache);
    kv_codec_free(s->codec[KV_K]);
    kv_codec_free(s->codec[KV_V]);
}

/* Token t's key is t along channel 1; the queries look at all alike, but for
 * head 1 of token `looks`, which looks at the newest that it sees. */
static void fill(struct kv_cache *c, size_t looks, size_t n)
{
    float q[N][HEADS][2] = {{{0}}}, k[N][2] = {{0}}, v[N][2] = {{0}};
    struct kv_err e = {""};

    for (size_t t = 0; t < N; t++)
        k[t][1] = (float)t;
    q[looks][1][1] = 999;
    if (append_rows(c, q[0][0], k[0], v[0], n, &e))
        fail_msg("%s", e.msg);
}

/* Blocks of 8 after one sink; the probes are tokens 6 and 7 of each.  Where
 * both look at all alike, token 7 has 1/8, the others (1/7 + 1/8) / 2: the
 * first four win.  Where a head of 7 looks at itself, 7 wins and three of the
 * others. Where one of 6 does, 6 wins, and 7, still 1/8, is before the others:
 * these have (1/14 + 1/8) / 2. */
static void test_saliency_of_a_block(void **state)
{
    const char text[] = "zipcache:b4l2n8s1r0,salient=50,recent=25,random=0";
    const size_t looks[] = {1, 1 + 7, 1 + 6};
    const int mask[] = {0x0f, 0x87, 0xc3};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct setup s;

        set_up(&s, text);
        fill(s.cache, looks[i], 9);
        for (int side = 0; side < KV_SIDES; side++) {
            const struct kv_reader r =
                kv_cache_reader(s.cache, (enum kv_side)side);

            assert_int_equal(r.n_blocks, 1);
            assert_int_equal(r.blocks[0], mask[i]);
        }
        tear_down(&s);
    }
}

/* 16 tokens in two blocks, one more and the first of the next block's probes;
 * a query is HEADS x 2 halves, a key 2. */
static void test_queries_are_held(void **state)
{
    const char text[] = "zipcache:b4l2n8,recent=25,random=0";
    const size_t n[] = {0, 6, 7, 8, 16, 17}, held[] = {0, 0, 1, 0, 0, 0};

    (void)state;
    for (size_t i = 0; i < sizeof(n) / sizeof(*n); i++) {
        struct setup s;
        size_t codes[KV_SIDES], all[KV_SIDES];

        set_up(&s, text);
        fill(s.cache, 0, n[i]);
        for (int side = 0; side < KV_SIDES; side++)
            all[side] =
                kv_cache_bytes(s.cache, (enum kv_side)side, &codes[side], NULL);
        assert_int_equal(all[KV_K] - codes[KV_K],
                         n[i] % 8 * 4 + held[i] * HEADS * 4);
        assert_int_equal(all[KV_V] - codes[KV_V], n[i] % 8 * 4);
        assert_int_equal(kv_cache_reader(s.cache, KV_K).n_queries, held[i]);
        assert_int_equal(kv_cache_reader(s.cache, KV_V).n_queries, 0);
        tear_down(&s);
    }
}

static void test_sides_go_together(void **state)
{
    const char *const bad[] = {
        "zipcache:K-n64/V-n32",     "zipcache:K-s1/V-s0",
        "zipcache:K-r1/V-r0",       "zipcache:b4l2,K-recent=1",
        "zipcache:b4l2,V-random=1",
    };
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 2};
    struct kv_spec spec;
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_int_equal(kv_spec_parse(&spec, bad[i], &e), 0);
        assert_int_equal(kv_spec_fit(&spec, &shape, &e), -1);
        assert_says(e, "must be the same for K and V");
    }
    assert_int_equal(kv_spec_parse(&spec, "zipcache,recent=60,random=41", &e),
                     0);
    assert_int_equal(kv_spec_fit(&spec, &shape, &e), -1);
    assert_says(e, "more than 100 %");
    assert_int_equal(kv_spec_parse(&spec, "zipcache:K-b8/V-b3", &e), 0);
    assert_int_equal(kv_spec_fit(&spec, &shape, &e), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_masks_of_keys),
        cmocka_unit_test(test_masks_of_values),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_count),
        cmocka_unit_test(test_one_part),
        cmocka_unit_test(test_probes),
        cmocka_unit_test(test_saliency_of_a_block),
        cmocka_unit_test(test_queries_are_held),
        cmocka_unit_test(test_sides_go_together),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
