/* KVTC (arXiv 2511.01815): groups against every possible choice, quantizers by
 * hand, the tables that training makes, and invalid bytes. */
#include "lib/base/alloc.h"
#include "lib/base/crc32.h"
#include "lib/base/deflate.h"
#include "lib/base/rng.h"
#include "lib/scheme.h"
#include "lib/schemes/kvtc.h"
#include "tests/codec_setup.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>

/* ---- dynamic programming ----------------------------------------------- */

/* Tries all choices; returns the least error of components [first, row) with
 * these bits. */
static double try_all(const struct kv_kvtc_errors *e, size_t first, size_t bits)
{
    double best;

    if (first == e->row)
        return 0;
    best = try_all(e, first + e->step, bits);
    for (size_t i = first; i < first + e->step; i++)
        best += (double)e->none[i];
    for (size_t s = 0; s < KV_KVTC_SIZES; s++)
        for (unsigned k = 0; k < KV_KVTC_TYPES; k++) {
            const size_t size = kv_kvtc_sizes[s], cost = kv_kvtc_bits(size, k);

            if (size % e->step == 0 && first + size <= e->row && cost <= bits)
                best = fmin(best, (double)kv_kvtc_error(e, first, s, k) +
                                      try_all(e, first + size, bits - cost));
        }
    return best;
}

static size_t index_of(size_t size)
{
    size_t s = 0;

    while (kv_kvtc_sizes[s] != size)
        s++;
    return s;
}

/* Returns the plan's error; groups must be in order, within the budget. */
static double error_of(const struct kv_kvtc_errors *e,
                       const struct kv_kvtc_group *group, size_t n, size_t bits)
{
    double sum = 0;
    size_t at = 0;

    for (size_t i = 0; i <= n; i++) {
        const size_t end = i < n ? group[i].first : e->row;

        assert_true(at <= end);
        for (; at < end; at++)
            sum += (double)e->none[at];
        if (i == n)
            break;
        sum += (double)kv_kvtc_error(e, at, index_of(group[i].size),
                                     group[i].type);
        at += group[i].size;
        assert_true(kv_kvtc_bits(group[i].size, group[i].type) <= bits);
        bits -= kv_kvtc_bits(group[i].size, group[i].type);
    }
    return sum;
}

/* Errors that fall by component, and less with more bits; random else. */
static void make_errors(size_t row, uint64_t seed, float *none, float *coded)
{
    for (size_t i = 0; i < row; i++)
        none[i] = (float)(row - i) * (1 + kv_random_unit(seed, i));
    for (size_t k = 0; k < KV_KVTC_TYPES; k++)
        for (size_t s = 0; s < KV_KVTC_SIZES; s++)
            for (size_t i = 0; i < row; i++) {
                const size_t at = (k * KV_KVTC_SIZES + s) * row + i;

                coded[at] = 0;
                for (size_t j = i; j < i + kv_kvtc_sizes[s] && j < row; j++)
                    coded[at] += none[j] * kv_random_unit(~seed, at) /
                                 (float)(1 + 2 * k);
            }
}

static void test_plan(void **state)
{
    enum { ROW = 19 };
    float none[ROW], coded[KV_KVTC_TYPES * KV_KVTC_SIZES * ROW];
    struct kv_kvtc_group group[ROW];
    const size_t budgets[] = {0,  1,  33, 34,  35,  63,  64, 95,
                              96, 98, 99, 111, 130, 132, 161};

    (void)state;
    for (size_t row = 1; row <= ROW; row += row < 15 ? 7 : 1)
        for (uint64_t seed = 0; seed < 3; seed++) {
            const struct kv_kvtc_errors e = {row, 1, none, coded};

            make_errors(row, seed, none, coded);
            for (size_t i = 0; i < sizeof(budgets) / sizeof(*budgets); i++) {
                const size_t n = kv_kvtc_plan(&e, budgets[i], group);
                const double least = try_all(&e, 0, budgets[i]);

                assert_within(error_of(&e, group, n, budgets[i]), least,
                              1e-9 * least);
            }
        }
}

/* Groups that begin at multiples of 16. */
static void test_plan_of_steps(void **state)
{
    enum { ROW = 96, STEP = 16 };
    float none[ROW], coded[KV_KVTC_TYPES * KV_KVTC_SIZES * ROW];
    const struct kv_kvtc_errors e = {ROW, STEP, none, coded};
    struct kv_kvtc_group group[ROW];

    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        make_errors(ROW, seed, none, coded);
        for (size_t bits = 0; bits < 500; bits += 31) {
            const size_t n = kv_kvtc_plan(&e, bits, group);
            const double least = try_all(&e, 0, bits);

            assert_within(error_of(&e, group, n, bits), least, 1e-9 * least);
            for (size_t i = 0; i < n; i++)
                assert_int_equal(group[i].first % STEP, 0);
        }
    }
}

/* With room for all bits, the type with the least error; without room,
 * nothing. */
static void test_plan_ends(void **state)
{
    enum { ROW = 70 };
    float none[ROW], coded[KV_KVTC_TYPES * KV_KVTC_SIZES * ROW] = {0};
    const struct kv_kvtc_errors e = {ROW, 1, none, coded};
    struct kv_kvtc_group group[ROW];
    size_t at = 0, n;

    (void)state;
    for (size_t i = 0; i < ROW; i++)
        none[i] = 1;
    assert_int_equal(kv_kvtc_plan(&e, 33, group), 0);
    n = kv_kvtc_plan(&e, 40 * ROW, group);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(group[i].first, at);
        at += group[i].size;
    }
    assert_int_equal(at, ROW);
    /* 160 bits hold 64 values of 2 bits; they begin where the largest is
     * first */
    none[3] = 5;
    none[69] = 4;
    n = kv_kvtc_plan(&e, 160, group);
    assert_int_equal(n, 1);
    assert_int_equal(group[0].size, 64);
    assert_int_equal(group[0].type, 0);
    assert_true(group[0].first <= 3);
}

/* ---- quantizers -------------------------------------------------------- */

static void test_floats(void **state)
{
    const struct kv_kvtc_type *type = &kv_kvtc_types[2];
    const float x[4] = {-3, 1, 5, 3}; /* about 1: -4, 0, 4 and 2 */
    float back[4];
    uint16_t code[4];
    uint8_t head[4];

    (void)state;
    assert_int_equal(type->bits, 8);
    type->quantizer->encode(x, 4, 8, head, code);
    assert_within(half_at(head), 4, 0);
    assert_within(half_at(head + 2), 1, 0);
    assert_int_equal(code[0], 0xfe); /* -448 */
    assert_int_equal(code[1], 0);
    assert_int_equal(code[2], 0x7e);
    assert_int_equal(code[3], 0x76); /* 224 */
    type->quantizer->decode(code, 4, 8, head, back);
    for (size_t i = 0; i < 4; i++)
        assert_within(back[i], x[i], 1e-6);
}

/* ---- DEFLATE ----------------------------------------------------------- */

static void test_deflate(void **state)
{
    const size_t sizes[] = {0, 1, 2, 100, 70000};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int random = 0; random < 2; random++) {
            const size_t n = sizes[i], max = kv_deflate_max_bytes(n);
            uint8_t *in = malloc(n + !n), *back = malloc(n + !n);
            uint8_t *out = malloc(max);
            size_t size;

            for (size_t j = 0; j < n; j++)
                in[j] = (uint8_t)(random ? kv_random(7, j) : j % 3);
            size = kv_deflate(in, n, out);
            assert_in_range(size, 1, max);
            if (n > 99 && !random)
                assert_true(size < n / 4);
            assert_int_equal(kv_inflate(out, size, back, n), 0);
            assert_memory_equal(in, back, n);
            assert_int_equal(kv_inflate(out, size - 1, back, n), -1);
            if (n)
                assert_int_equal(kv_inflate(out, size, back, n - 1), -1);
            free(out);
            free(back);
            free(in);
        }
    /* one byte more than the stream, and one less than it gives */
    const uint8_t empty[3] = {3, 0, 0};
    uint8_t one;

    assert_int_equal(kv_inflate(empty, 2, &one, 0), 0);
    assert_int_equal(kv_inflate(empty, 3, &one, 0), -1);
    assert_int_equal(kv_inflate(empty, 2, &one, 1), -1);
    assert_int_equal(kv_inflate(empty, 0, &one, 0), -1);
}

/* ---- a codec ----------------------------------------------------------- */

struct chunk {
    struct kv_shape shape;
    struct kv_calib *calib;
    struct kv_codec *codec, *plain; /* entropy=deflate, none */
    float *x;
    uint8_t *bytes, *raw; /* bytes of each codec */
    size_t n;
};

/* Layer 1, two heads of 32 channels. */
static void chunk_make(struct chunk *c, const char *letters, enum kv_side side)
{
    char text[96];
    struct kv_spec s;

    c->shape = synthetic_shape(32);
    snprintf(text, sizeof(text), "kvtc:%s", letters);
    s = spec_of(text, &c->shape);
    c->calib = synthetic_calib(&c->shape, &s, test_folder());
    c->codec = codec_from(&s, &c->shape, 1, side, c->calib);
    snprintf(text, sizeof(text), "kvtc:%s,entropy=none", letters);
    s = spec_of(text, &c->shape);
    c->plain = codec_from(&s, &c->shape, 1, side, c->calib);
    c->x = kv_alloc(kv_codec_block_values(c->codec), sizeof(*c->x));
    c->bytes = kv_alloc(c->codec->block_bytes + 1, 1);
    c->raw = kv_alloc(c->plain->block_bytes, 1);
    synthetic_rows(&c->shape, 2, 5, c->codec->block, c->x);
    kv_codec_input(c->codec, c->x, c->codec->block, c->x);
    c->n = c->codec->variable->encode_block(
        c->codec, (struct kv_where){.first = 0}, c->x, c->bytes);
    c->plain->scheme->encode(c->plain, (struct kv_where){.first = 0}, c->x, 1,
                             c->raw);
}

static void chunk_free(struct chunk *c)
{
    free(c->raw);
    free(c->bytes);
    free(c->x);
    kv_codec_free(c->plain);
    kv_codec_free(c->codec);
    kv_calib_free(c->calib);
}

/* Both forms decode to the same values; the plain one keeps the budget, but
 * for what fills bytes. */
static void test_forms(void **state)
{
    static const char *const letters[] = {"b4n16",    "b2n37", "b1n1",
                                          "b0.25n16", "b8n3",  "b0.7n20"};

    (void)state;
    for (size_t i = 0; i < 2 * sizeof(letters) / sizeof(*letters); i++) {
        struct chunk c;
        struct kv_err e = {""};
        double b;

        chunk_make(&c, letters[i / 2], (enum kv_side)(i % 2));
        assert_int_equal(c.codec->pre_rope, c.codec->side == KV_K);

        const size_t n = kv_codec_block_values(c.codec);
        float *a = kv_alloc(2 * n, sizeof(*a)), *d = a + n;

        b = kv_spec_get(&c.codec->spec, c.codec->side, "b");
        assert_true(8 * (double)c.plain->block_bytes <= b * (double)n + 7 * 64);
        c.plain->scheme->decode(c.plain, c.raw, 1, a);
        if (c.codec->variable->decode_block(c.codec, c.bytes, c.n, d, &e))
            fail_msg("%s", e.msg);
        assert_memory_equal(a, d, n * sizeof(*a));
        free(a);
        chunk_free(&c);
    }
}

/* Mean squared error per value. */
static double error_at(const char *letters)
{
    struct chunk c;
    double sum = 0;

    chunk_make(&c, letters, KV_V);

    const size_t n = kv_codec_block_values(c.codec);
    float *back = kv_alloc(n, sizeof(*back));

    c.plain->scheme->decode(c.plain, c.raw, 1, back);
    for (size_t i = 0; i < n; i++)
        sum += pow((double)(back[i] - c.x[i]), 2);
    free(back);
    chunk_free(&c);
    return sum / (double)n;
}

static void test_more_bits(void **state)
{
    const double one = error_at("b1n64"), two = error_at("b2n64");
    const double four = error_at("b4n64"), eight = error_at("b8n64");

    (void)state;
    assert_true(two < one && four < two && eight < four);
}

/* The training's tables: V is orthonormal to fp16's precision, variances are
 * descending, and a group of one integer equals its shift. */
static void test_tables(void **state)
{
    enum { ROW = 64 };
    struct chunk c;

    (void)state;
    chunk_make(&c, "b2n16", KV_K);

    const struct kv_calib_set *set = kv_calib_find(c.calib, &c.codec->spec);
    const struct kv_table *v = kv_calib_table(set, "basis", KV_K, 1, 0);
    const struct kv_table *none = kv_calib_table(set, "none", KV_K, 1, 0);
    const struct kv_table *coded = kv_calib_table(set, "coded", KV_K, 1, 0);

    assert_true(v->type == KV_TABLE_F16);
    for (size_t i = 0; i < ROW; i++)
        for (size_t j = 0; j <= i; j++) {
            double sum = 0;

            for (size_t k = 0; k < ROW; k++)
                sum +=
                    (double)v->data[k * ROW + i] * (double)v->data[k * ROW + j];
            assert_within(sum, i == j, 2e-3);
        }
    assert_true(none->data[0] > none->data[ROW - 1]);
    for (size_t i = 0; i < ROW; i++)
        assert_true(coded->data[i] <= 1e-6f * none->data[i]);
    for (size_t s = 1; s < 3; s++) /* 4 bits are better than 2 */
        assert_true(coded->data[(KV_KVTC_SIZES + s) * ROW] <
                    coded->data[s * ROW]);
    chunk_free(&c);
}

/* ---- bytes that nobody wrote ------------------------------------------- */

static void refused(const struct chunk *c, size_t n, const char *words)
{
    struct kv_err e = {""};
    uint8_t *exact = malloc(n + !n); /* ASan sees a read past the end */

    memcpy(exact, c->bytes, n);
    assert_int_equal(
        c->codec->variable->decode_block(c->codec, exact, n, c->x, &e), -1);
    assert_says(e, "kvtc chunk: ");
    assert_says(e, words);
    free(exact);
}

static void test_every_bit_and_cut(void **state)
{
    struct chunk c;

    (void)state;
    chunk_make(&c, "b2n9", KV_K);
    for (size_t bit = 0; bit < 8 * c.n; bit++) {
        c.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        refused(&c, c.n, "cut or altered: the checksum says");
        c.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (size_t n = 0; n < c.n; n++)
        refused(&c, n,
                n <= 4 ? "cut to " : "cut or altered: the checksum says");
    refused(&c, c.n + 1, "cut or altered: the checksum says");
    chunk_free(&c);
}

/* Bytes made to fit the checksum. */
static void sign(struct chunk *c, size_t n)
{
    const uint32_t crc = kv_crc32(c->bytes + 4, n - 4);

    memcpy(c->bytes, &crc, sizeof(crc));
}

static void forge(struct chunk *c, size_t at, uint16_t half, const char *words)
{
    uint16_t was;

    memcpy(&was, c->raw + at, sizeof(was));
    memcpy(c->raw + at, &half, sizeof(half));
    c->n = 4 + kv_deflate(c->raw, c->plain->block_bytes, c->bytes + 4);
    sign(c, c->n);
    refused(c, c->n, words);
    memcpy(c->raw + at, &was, sizeof(was));
}

static void test_forged(void **state)
{
    enum { TOKENS = 10 };
    struct chunk c;

    (void)state;
    chunk_make(&c, "b2n10", KV_V);
    sign(&c, c.n - 1);
    refused(&c, c.n - 1, "bytes are no DEFLATE stream of ");
    c.bytes[c.n] = 0;
    sign(&c, c.n + 1);
    refused(&c, c.n + 1, "bytes are no DEFLATE stream of ");
    forge(&c, 2 * 3, 0x7c00, "token 3, group 0: scale inf, shift ");
    forge(&c, 2 * 3, 0xbc00, "token 3, group 0: scale -1, shift ");
    forge(&c, 2 * (TOKENS + 7), 0x7e00, "token 7, group 0: scale ");
    forge(&c, 2 * (TOKENS + 7), 0xfc00, ", shift -inf");
    c.n = 4 + kv_deflate(c.raw, c.plain->block_bytes - 1, c.bytes + 4);
    sign(&c, c.n);
    refused(&c, c.n, "bytes are no DEFLATE stream of ");
    chunk_free(&c);
}

static void test_wants_tables(void **state)
{
    const struct kv_shape shape = synthetic_shape(32);
    const struct kv_spec s = spec_of("kvtc:b2", &shape);
    struct kv_codec *c;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(kv_codec_new(&c, &s, &shape, 1, KV_V, NULL, &e), -1);
    assert_says(e, "kvtc");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_plan_of_steps),
        cmocka_unit_test(test_plan_ends),
        cmocka_unit_test(test_floats),
        cmocka_unit_test(test_deflate),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_more_bits),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_every_bit_and_cut),
        cmocka_unit_test(test_forged),
        cmocka_unit_test(test_wants_tables),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
