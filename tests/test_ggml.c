/* llama.cpp's cache types against goldens that were made without kvtools. */
#include "kernels/hadamard.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/hash.h"
#include "lib/base/rng.h"
#include "lib/scheme.h"
#include "tests/codec_setup.h"
#include "tests/ggml_goldens.h"

#include <math.h>

enum { BLOCK = 32 };

/* One head of one block, so that a token is a block. */
static struct kv_codec *codec(const char *name)
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = BLOCK};

    return codec_of(name, &shape, 0, KV_K);
}

/* Uniform; of any size; flat; zeros; too large for fp16; fp16 of any bits;
 * ties of the rounding, of integers and of iq4_nl; one outlier. */
static void test_block(size_t b, float *x)
{
    const uint64_t first = kv_random(GOLDEN_SEED, b << 5);

    for (size_t j = 0; j < BLOCK; j++) {
        const uint64_t r = kv_random(GOLDEN_SEED, (b << 5) + j);
        const uint64_t of = b % 8 == 2 ? first : r;
        const float unit = (float)((int64_t)(of >> 40) - (1 << 23)) * 0x1p-23f;
        uint16_t half = (uint16_t)r;

        if ((half & 0x7c00) == 0x7c00)
            half &= 0xbfff;
        x[j] = unit;
        if (b % 8 == 1)
            x[j] = ldexpf(unit, (int)(first % 81) - 60);
        if (b % 8 == 3)
            x[j] = 0;
        if (b % 8 == 4)
            x[j] = unit * 0x1p30f;
        if (b % 8 == 5)
            x[j] = kv_f16_to_f32(half);
        if (b % 8 == 6)
            x[j] = (float)((int)(r % 33) - 16) * 0.5f;
        if (b % 16 == 14)
            x[j] = j ? (float)((int)(r % 509) - 254) * 0.5f : -127;
        if (b % 8 == 7 && j == 9)
            x[j] = unit * 16;
    }
}

static void hex_of(const uint8_t *bytes, size_t n, char *hex)
{
    for (size_t i = 0; i < n; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
}

static void check_type(const struct golden *g, const float *x)
{
    struct kv_codec *c = codec(g->type);
    const size_t n = c->block_bytes;
    uint8_t *bytes = kv_alloc(GOLDEN_BLOCKS, n);
    float *back = kv_alloc(GOLDEN_BLOCKS * BLOCK, sizeof(*back));
    char hex[128], hash[KV_HASH_CHARS];

    memset(bytes, 0xa5, GOLDEN_BLOCKS * n);
    c->scheme->encode(c, (struct kv_where){.first = 0}, x, GOLDEN_BLOCKS,
                      bytes);
    for (size_t b = 0; b < 8; b++) {
        assert_int_equal(strlen(g->first[b]), 2 * n);
        hex_of(bytes + b * n, n, hex);
        if (strcmp(hex, g->first[b]) != 0)
            fail_msg("%s, block %zu: %s, expected %s", g->type, b, hex,
                     g->first[b]);
    }
    kv_hash_bytes(bytes, GOLDEN_BLOCKS * n, hash);
    if (strcmp(hash, g->bytes) != 0)
        fail_msg("%s: other bytes than ggml's", g->type);
    c->scheme->decode(c, bytes, GOLDEN_BLOCKS, back);
    for (size_t i = 0; i < GOLDEN_BLOCKS * BLOCK; i++)
        back[i] = isfinite(back[i]) ? back[i] : 0;
    kv_hash_bytes(back, GOLDEN_BLOCKS * BLOCK * sizeof(*back), hash);
    if (strcmp(hash, g->values) != 0)
        fail_msg("%s: other values than ggml's", g->type);
    free(back);
    free(bytes);
    kv_codec_free(c);
}

static void test_goldens(void **state)
{
    float *x = kv_alloc(GOLDEN_BLOCKS * BLOCK, sizeof(*x));
    char hash[KV_HASH_CHARS];

    (void)state;
    for (size_t b = 0; b < GOLDEN_BLOCKS; b++)
        test_block(b, x + b * BLOCK);
    kv_hash_bytes(x, GOLDEN_BLOCKS * BLOCK * sizeof(*x), hash);
    assert_string_equal(hash, golden_input);
    for (size_t i = 0; i < sizeof(goldens) / sizeof(*goldens); i++)
        check_type(&goldens[i], x);
    free(x);
}

/* A token is its heads' blocks in order; bits as llama.cpp counts them. */
static void test_rows(void **state)
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 3, .n_kv_heads = 3, .head_dim = 2 * BLOCK};
    const double bits[] = {8.5, 6, 5.5, 5, 4.5, 4.5};
    float x[2 * 3 * 2 * BLOCK];

    (void)state;
    for (size_t b = 0; b < 2 * 3 * 2; b++)
        test_block(8 * b + 7, x + b * BLOCK);
    for (size_t i = 0; i < sizeof(goldens) / sizeof(*goldens); i++) {
        struct kv_codec *one = codec(goldens[i].type), *c = NULL;
        struct kv_spec s = one->spec;
        uint8_t rows[2 * 3 * 2 * 34], blocks[2 * 3 * 2 * 34];
        struct kv_err e;

        assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
        assert_int_equal(kv_codec_new(&c, &s, &shape, 0, KV_V, NULL, &e), 0);
        assert_int_equal(c->block, 1);
        assert_within(s.scheme->nominal(&s, KV_V, &shape), bits[i], 0);
        assert_within(8.0 * (double)c->block_bytes / (3 * 2 * BLOCK), bits[i],
                      0);
        c->scheme->encode(c, (struct kv_where){.first = 0}, x, 2, rows);
        one->scheme->encode(one, (struct kv_where){.first = 0}, x, 2 * 3 * 2,
                            blocks);
        assert_memory_equal(rows, blocks, 2 * c->block_bytes);
        kv_codec_free(c);
        kv_codec_free(one);
    }
}

/* With rotation the bytes are those of x H, and decoded values are rotated
 * back: keys in blocks of the largest power of two in the head, values in
 * blocks of
 * 64. */
static void check_rotated(const char *type, size_t head_dim, enum kv_side side)
{
    enum { TOKENS = 3, HEADS = 2, MAX = TOKENS * HEADS * 320 };
    const struct kv_shape shape = {.n_layers = 1,
                                   .n_heads = HEADS,
                                   .n_kv_heads = HEADS,
                                   .head_dim = head_dim};
    const size_t n = TOKENS * HEADS * head_dim;
    const size_t m = side == KV_K && head_dim == 128 ? 128 : 64;
    struct kv_codec *plain = codec_of(type, &shape, 0, side), *rotated;
    float x[MAX], y[MAX], back[MAX], want[MAX];
    uint8_t bytes[2][2 * MAX];
    char text[32];

    snprintf(text, sizeof(text), "%s:rot", type);
    rotated = codec_of(text, &shape, 0, side);
    assert_int_equal(rotated->block_bytes, plain->block_bytes);
    for (size_t i = 0; i < n; i++)
        x[i] = y[i] = (float)kv_random_normal(17, i);
    kv_hadamard(y, n / m, m);
    rotated->scheme->encode(rotated, (struct kv_where){0}, x, TOKENS, bytes[0]);
    plain->scheme->encode(plain, (struct kv_where){0}, y, TOKENS, bytes[1]);
    assert_memory_equal(bytes[0], bytes[1], TOKENS * plain->block_bytes);
    rotated->scheme->decode(rotated, bytes[0], TOKENS, back);
    plain->scheme->decode(plain, bytes[0], TOKENS, want);
    kv_hadamard(want, n / m, m);
    assert_memory_equal(back, want, n * sizeof(*back));
    for (size_t i = 0; i < n; i++)
        assert_within(back[i], x[i], 1);
    kv_codec_free(rotated);
    kv_codec_free(plain);
}

static void test_rotated(void **state)
{
    static const size_t dims[] = {64, 128, 192, 320};

    (void)state;
    for (size_t i = 0; i < sizeof(goldens) / sizeof(*goldens); i++)
        for (size_t j = 0; j < sizeof(dims) / sizeof(*dims); j++)
            for (int side = 0; side < KV_SIDES; side++)
                check_rotated(goldens[i].type, dims[j], (enum kv_side)side);
}

/* Where llama.cpp's converter permutes a model's keys, order=ggml stores keys as
 * order=model stores the permuted keys.  It changes neither values nor other
 * models' keys. */
static void check_order(const char *type, bool permuted, enum kv_side side)
{
    enum { TOKENS = 3, HEADS = 2, MAX = TOKENS * HEADS * 64 };
    const struct kv_shape shape = {.n_layers = 1,
                                   .n_heads = HEADS,
                                   .n_kv_heads = HEADS,
                                   .head_dim = 64,
                                   .ggml_neighbours = permuted};
    const size_t d = shape.head_dim, n = TOKENS * HEADS * d;
    const bool moves = permuted && side == KV_K;
    char text[32];
    struct kv_codec *plain = codec_of(type, &shape, 0, side), *own;
    float x[MAX], y[MAX], back[MAX], want[MAX];
    uint8_t bytes[2][2 * MAX];

    snprintf(text, sizeof(text), "%s,ggml", type);
    own = codec_of(text, &shape, 0, side);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)kv_random_normal(18, i);
    for (size_t i = 0; i < n; i++) { /* i is as in the file */
        const size_t at = i % d;

        y[i] = moves ? x[i - at + at % 2 * (d / 2) + at / 2] : x[i];
    }
    own->scheme->encode(own, (struct kv_where){0}, x, TOKENS, bytes[0]);
    plain->scheme->encode(plain, (struct kv_where){0}, y, TOKENS, bytes[1]);
    assert_memory_equal(bytes[0], bytes[1], TOKENS * plain->block_bytes);
    own->scheme->decode(own, bytes[0], TOKENS, back);
    plain->scheme->decode(plain, bytes[0], TOKENS, want);
    for (size_t i = 0; i < n; i++) {
        const size_t at = i % d;

        assert_true(want[i] ==
                    back[moves ? i - at + at % 2 * (d / 2) + at / 2 : i]);
    }
    kv_codec_free(own);
    kv_codec_free(plain);
}

static void test_order(void **state)
{
    static const char *const types[] = {"q8_0",     "q4_0",     "iq4_nl",
                                        "q5_1:rot", "q4_0:rot", "iq4_nl:rot"};

    (void)state;
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        for (int side = 0; side < KV_SIDES; side++) {
            check_order(types[i], false, (enum kv_side)side);
            check_order(types[i], true, (enum kv_side)side);
        }
}

static void test_refused(void **state)
{
    struct kv_shape shape = {
        .n_layers = 1, .n_heads = 4, .n_kv_heads = 4, .head_dim = 80};
    struct kv_spec s;
    struct kv_err e;

    (void)state;
    assert_int_equal(kv_spec_parse(&s, "q4_0", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "head_dim 80 must be a multiple");
    shape.head_dim = 96;
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    assert_int_equal(kv_spec_parse(&s, "q4_0,V-rot=yes", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "a multiple of 64, not 96");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens), cmocka_unit_test(test_rows),
        cmocka_unit_test(test_rotated), cmocka_unit_test(test_order),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
