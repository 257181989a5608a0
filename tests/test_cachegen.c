/* CacheGen (arXiv 2310.07240): anchors and differences worked by hand, streams
 * that were cut or altered; test_cachegen_rate.c has bits. */
#include "kernels/range_coder.h"
#include "lib/base/alloc.h"
#include "lib/base/crc32.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/model/model.h"
#include "lib/scheme.h"
#include "lib/schemes/cachegen.h"
#include "lib/windows.h"
#include "tests/codec_setup.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>

/* ---- quantization ------------------------------------------------------ */

static void test_schedule(void **state)
{
    static const struct {
        const char *spec;
        enum kv_side side;
        size_t layer, n_layers;
        unsigned top;
    } want[] = {
        {"cachegen", KV_K, 0, 32, 23},
        {"cachegen", KV_K, 10, 32, 23},
        {"cachegen", KV_V, 11, 32, 11},
        {"cachegen", KV_V, 21, 32, 11},
        {"cachegen", KV_K, 22, 32, 7},
        {"cachegen:l2", KV_K, 0, 6, 11},
        {"cachegen:l2", KV_K, 5, 6, 3},
        {"cachegen:l3", KV_V, 5, 6, 2},
        {"cachegen,code", KV_K, 9, 32, 15},
        {"cachegen,code", KV_K, 10, 32, 7},
        {"cachegen,code", KV_V, 1, 32, 15},
        {"cachegen,code", KV_V, 2, 32, 7},
        {"cachegen,code", KV_K, 1, 6, 15},
        {"cachegen,code", KV_K, 2, 6, 7},
        {"cachegen,code", KV_V, 0, 6, 15},
        {"cachegen,code", KV_V, 1, 6, 7},
        {"cachegen:K-l1/V-l3,code", KV_K, 31, 32, 7},
        {"cachegen:K-l1/V-l3,code", KV_V, 31, 32, 2},
        {"cachegen:l3,code", KV_K, 0, 1, 5},
        {"cachegen,code1", KV_K, 19, 32, 7},
        {"cachegen,code1", KV_K, 20, 32, 5},
        {"cachegen,code1", KV_V, 1, 32, 7},
        {"cachegen,code1", KV_V, 2, 32, 5},
        {"cachegen,code3", KV_K, 31, 32, 15},
        {"cachegen,code3", KV_V, 31, 32, 15},
        {"cachegen,code70b", KV_K, 39, 80, 15},
        {"cachegen,code70b", KV_K, 40, 80, 7},
        {"cachegen,code70b", KV_V, 19, 80, 15},
        {"cachegen,code70b", KV_V, 20, 80, 7},
        {"cachegen:l2,K-variant=code3", KV_K, 0, 2, 7},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        struct kv_shape shape = synthetic_shape(32);
        struct kv_spec s;

        shape.n_layers = want[i].n_layers;
        s = spec_of(want[i].spec, &shape);

        const struct kv_cachegen g =
            kv_cachegen(&s, want[i].side, want[i].layer, &shape);

        if (g.top != want[i].top || g.row != 64)
            fail_msg("%s, layer %zu of %zu: top %u, expected %u", want[i].spec,
                     want[i].layer, want[i].n_layers, g.top, want[i].top);
    }
}

/* Twelve tokens of two channels, the last of three layers (top 7).  Token 0 is
 * an anchor: 127 and -63.47 are the codes 127 and -63.  Token 1 differs from
 * their decoded values, 127 and -63, by 7 and 3.31: codes 7 and 3 (from -63.47
 * itself it would be 3.78: 4).  Tokens 2 to 9 are the decoded anchor.  Token 10
 * begins the short group: codes -127 and 1 of max 254.  Token 11 differs from
 * it by 0 and -3.5. */
static void test_by_hand(void **state)
{
    const struct kv_shape shape = {
        .n_layers = 3, .n_heads = 1, .n_kv_heads = 1, .head_dim = 2};
    const struct kv_spec s = spec_of("cachegen:n12,memory", &shape);
    struct kv_codec *c = codec_from(&s, &shape, 2, KV_K, NULL);
    float x[24] = {127, -63.46875f, 134, -59.6875f}, back[24];
    const float want[24] = {127, -63, 134, -60};
    const uint8_t anchors[4] = {254, 127 - 63, 0, 128};
    const float max[4] = {127, 7, 254, 3.5f};
    const size_t token[4] = {0, 1, 10, 11};
    uint8_t bytes[24 + 4 + 10];
    uint16_t half;

    (void)state;
    for (size_t t = 2; t < 10; t++)
        memcpy(x + 2 * t, want, 2 * sizeof(*x));
    memcpy(x + 20, (const float[4]){-254, 2, -254, -1.5f}, 4 * sizeof(*x));
    assert_int_equal(c->block, 12);
    assert_int_equal(c->block_bytes, sizeof(bytes));
    c->scheme->encode(c, (struct kv_where){.first = 0}, x, 1, bytes);
    for (size_t i = 0; i < 4; i++) {
        memcpy(&half, bytes + 2 * token[i], sizeof(half));
        assert_within(kv_f16_to_f32(half), max[i], 0);
    }
    memcpy(&half, bytes + 2 * 5, sizeof(half));
    assert_int_equal(half, 0);
    assert_memory_equal(bytes + 24, anchors, sizeof(anchors));
    assert_int_equal(bytes[28], 14 | 10 << 4); /* 7 and 3, each plus 7 */
    assert_int_equal(bytes[29], 7 | 7 << 4);
    assert_int_equal(bytes[37], 7 | 0 << 4); /* 0 and -7 */
    c->scheme->decode(c, bytes, 1, back);
    for (size_t i = 0; i < 4; i++)
        assert_within(back[i], want[i], 1e-5);
    for (size_t i = 4; i < 24; i++)
        assert_within(back[i], x[i], 1e-5);
    kv_codec_free(c);
}

/* A difference larger than the largest half stops there. */
static void test_largest(void **state)
{
    const struct kv_cachegen g = {.row = 2, .anchors = true, .top = 11};
    const float x[6] = {65504, -65504, -65504, 65504, 0, 0};
    const float want[6] = {65504, -65504, 0, 0, 0, 0};
    uint16_t max[3], symbol[6];
    float back[6];

    (void)state;
    kv_cachegen_quantize(&g, x, 3, max, symbol);
    for (size_t t = 0; t < 3; t++)
        assert_int_equal(max[t], 0x7bff);
    assert_int_equal(symbol[2], 0);
    assert_int_equal(symbol[3], 2 * 11);
    kv_cachegen_restore(&g, max, symbol, 3, back);
    for (size_t i = 0; i < 6; i++)
        assert_within(back[i], want[i], 0.01);
}

/* As in the released code, a row is scaled by its own largest value, in 31
 * levels. */
static void test_code_by_hand(void **state)
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 4};
    const struct kv_spec s = spec_of("cachegen:n10,code,memory", &shape);
    struct kv_codec *c = codec_from(&s, &shape, 0, KV_V, NULL);
    float x[40] = {30, -9.25f, 1, 0.5f}, back[40];
    const float want[4] = {30, -10, 0, 0}; /* 4.6 is 5, half is even */
    uint8_t bytes[20 + 25];

    (void)state;
    for (size_t i = 4; i < 40; i++)
        x[i] = 0.25f * (float)(i / 4);
    assert_int_equal(c->block_bytes, sizeof(bytes));
    c->scheme->encode(c, (struct kv_where){.first = 0}, x, 1, bytes);
    assert_int_equal(bytes[20] & 31, 30);
    c->scheme->decode(c, bytes, 1, back);
    for (size_t i = 0; i < 40; i++)
        assert_within(back[i], i < 4 ? want[i] : x[i], 1e-5);
    kv_codec_free(c);
}

/* ---- the two stores ---------------------------------------------------- */

/* store=wire decodes, each time, to the same values as store=memory. */
static void check_stores(const char *letters, const char *variant)
{
    const struct kv_shape shape = synthetic_shape(32);
    struct kv_calib *calib = NULL;
    char text[96];

    for (int i = 0; i < 2 * KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)(i % 2);
        struct kv_codec *wire, *memory;
        struct kv_spec s;
        struct kv_err e = {""};

        snprintf(text, sizeof(text), "cachegen:%s,%s,memory", letters, variant);
        s = spec_of(text, &shape);
        memory = codec_from(&s, &shape, (size_t)i / 2, side, NULL);
        snprintf(text, sizeof(text), "cachegen:%s,%s,wire", letters, variant);
        s = spec_of(text, &shape);
        if (!calib)
            calib = synthetic_calib(&shape, &s, test_folder());
        wire = codec_from(&s, &shape, (size_t)i / 2, side, calib);

        const size_t n = kv_codec_block_values(wire);
        float *x = kv_alloc(3 * n, sizeof(*x));
        float *a = x + n, *b = x + 2 * n;
        uint8_t *bytes = kv_alloc(wire->block_bytes, 1);
        uint8_t *packed = kv_alloc(memory->block_bytes, 1);
        const struct kv_where w = {.first = 0};
        size_t size;

        synthetic_rows(&shape, shape.n_kv_heads, 77 + (uint64_t)i, wire->block,
                       x);
        kv_codec_input(wire, x, wire->block, x);
        memory->scheme->encode(memory, w, x, 1, packed);
        memory->scheme->decode(memory, packed, 1, a);
        size = wire->variable->encode_block(wire, w, x, bytes);
        for (int twice = 0; twice < 2; twice++) {
            memset(b, 0xa5, n * sizeof(*b));
            if (wire->variable->decode_block(wire, bytes, size, b, &e))
                fail_msg("%s", e.msg);
            assert_memory_equal(a, b, n * sizeof(*a));
        }
        free(packed);
        free(bytes);
        free(x);
        kv_codec_free(wire);
        kv_codec_free(memory);
    }
    kv_calib_free(calib);
}

static void test_stores(void **state)
{
    const char *const letters[] = {"l1n10",  "l1n11", "l2n25",
                                   "l3n256", "l3n30", "K-l1n19/V-l3n40"};

    (void)state;
    for (size_t i = 0; i < sizeof(letters) / sizeof(*letters); i++) {
        check_stores(letters[i], "paper");
        check_stores(letters[i], "code");
    }
}

/* ---- bytes that nobody wrote ------------------------------------------- */

struct chunk {
    struct kv_calib *calib;
    struct kv_codec *codec;
    float *x;
    uint8_t *bytes;
    size_t n;
};

/* A small one: two heads of 4 channels, n tokens. */
static void chunk_make(struct chunk *c, const char *text)
{
    const struct kv_shape shape = synthetic_shape(4);
    const struct kv_spec s = spec_of(text, &shape);

    c->calib = synthetic_calib(&shape, &s, test_folder());
    c->codec = codec_from(&s, &shape, 1, KV_K, c->calib);
    c->x = kv_alloc(kv_codec_block_values(c->codec), sizeof(*c->x));
    c->bytes = kv_alloc(c->codec->block_bytes + 1, 1);
    synthetic_rows(&shape, 2, 5, c->codec->block, c->x);
    kv_codec_input(c->codec, c->x, c->codec->block, c->x);
    c->n = c->codec->variable->encode_block(
        c->codec, (struct kv_where){.first = 0}, c->x, c->bytes);
}

static void chunk_free(struct chunk *c)
{
    free(c->bytes);
    free(c->x);
    kv_codec_free(c->codec);
    kv_calib_free(c->calib);
}

static void refused(const struct chunk *c, size_t n, const char *words)
{
    struct kv_err e = {""};
    uint8_t *exact = malloc(n + !n); /* ASan sees a read past the end */

    memcpy(exact, c->bytes, n);
    assert_int_equal(
        c->codec->variable->decode_block(c->codec, exact, n, c->x, &e), -1);
    assert_says(e, "cachegen chunk: ");
    assert_says(e, words);
    free(exact);
}

static void test_every_bit_and_cut(void **state)
{
    const char *const specs[] = {"cachegen:n13", "cachegen:n10,code"};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct chunk c;
        struct kv_err e = {""};
        size_t head;

        chunk_make(&c, specs[i]);
        head = 4 + 2 * c.codec->block + (i ? 8 * 33 * 2 : 0);
        assert_true(c.n > head);
        for (size_t bit = 0; bit < 8 * c.n; bit++) {
            c.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            refused(&c, c.n, "cut or altered: the checksum says");
            c.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        for (size_t n = 0; n < c.n; n++)
            refused(&c, n,
                    n <= head ? "the head alone has"
                              : "cut or altered: the checksum says");
        refused(&c, c.n + 1, "cut or altered: the checksum says");
        assert_int_equal(
            c.codec->variable->decode_block(c.codec, c.bytes, c.n, c.x, &e), 0);
        chunk_free(&c);
    }
}

static void put_half(struct chunk *c, size_t at, uint16_t half)
{
    memcpy(c->bytes + at, &half, sizeof(half));
}

/* Bytes made to fit the checksum. */
static void sign(struct chunk *c, size_t n)
{
    const uint32_t crc = kv_crc32(c->bytes + 4, n - 4);

    memcpy(c->bytes, &crc, sizeof(crc));
}

static void test_forged(void **state)
{
    enum { TOKENS = 10, PLACES = 4 + 2 * TOKENS, CHANNEL = 33 * 2 };
    struct chunk c;
    struct kv_err e = {""};

    (void)state;
    for (int code = 0; code < 2; code++) {
        chunk_make(&c, code ? "cachegen:n10,code" : "cachegen:n10");
        put_half(&c, 4 + 2 * 3, 0x7c00);
        sign(&c, c.n);
        refused(&c, c.n, "token 3: its largest size is inf");
        put_half(&c, 4 + 2 * 3, 0xbc00);
        sign(&c, c.n);
        refused(&c, c.n, "token 3: its largest size is -1");
        put_half(&c, 4 + 2 * 3, 0x3c00);
        sign(&c, c.n);
        if (c.codec->variable->decode_block(c.codec, c.bytes, c.n, c.x, &e))
            fail_msg("%s", e.msg);
        c.bytes[c.n] = 0;
        sign(&c, c.n + 1);
        refused(&c, c.n + 1, "does not end with its");
        sign(&c, c.n - 1);
        refused(&c, c.n - 1, "does not end with its");
        chunk_free(&c);
    }
    chunk_make(&c, "cachegen:n10,code");
    put_half(&c, PLACES + CHANNEL + 2 * 32, 65535);
    sign(&c, c.n);
    refused(&c, c.n, "places of channel 1 do not grow from 0 to 65536");
    put_half(&c, PLACES + CHANNEL + 2 * 32, 0);
    put_half(&c, PLACES, 1);
    sign(&c, c.n);
    refused(&c, c.n, "places of channel 0 do not grow from 0 to 65536");
    put_half(&c, PLACES, 0);
    put_half(&c, PLACES + 2 * 7, 3);
    sign(&c, c.n);
    refused(&c, c.n, "places of channel 0 do not grow");
    for (uint16_t s = 0; s < 32; s++) /* all but certain: symbol 31 of 31 */
        put_half(&c, PLACES + 2 * s, s);
    sign(&c, c.n);
    refused(&c, c.n, "token 0, channel 0: symbol 31 of ");
    chunk_free(&c);
}

/* A table's places and its error, from the dump that it was trained on. */
static void check_trained(const struct kv_cachegen *g, const char *folder,
                          const struct kv_table *t)
{
    enum { WINDOWS = 4, WINDOW = 160 };
    char *path = kv_path_join(folder, "dump.h5");
    const size_t values = WINDOW * g->row, n = t->dims[1];
    float *x = kv_alloc(2 * values, sizeof(*x)), *back = x + values;
    uint16_t max[WINDOW], *symbol = kv_alloc(values, sizeof(*symbol));
    uint32_t *count = kv_alloc(g->row * n, sizeof(*count));
    uint32_t *cum = kv_alloc(n + 1, sizeof(*cum));
    struct kv_dump *dump;
    struct kv_err e = {""};
    double error = 0;

    assert_int_equal(kv_dump_open(&dump, path, &e), 0);
    for (size_t i = 0; i < g->row * n; i++)
        count[i] = 1;
    for (size_t w = 0; w < WINDOWS; w++) {
        if (kv_dump_read(dump, (size_t)t->layer, KV_T_V, w * WINDOW, WINDOW, x,
                         &e))
            fail_msg("%s", e.msg);
        for (size_t i = 0; i < values; i++)
            x[i] = kv_f16_to_f32(kv_f16_clamp(x[i]));
        kv_cachegen_quantize(g, x, WINDOW, max, symbol);
        kv_cachegen_restore(g, max, symbol, WINDOW, back);
        for (size_t i = 0; i < values; i++) {
            error += pow((double)x[i] - (double)back[i], 2);
            if (i / g->row % 10)
                count[i % g->row * n + symbol[i]] += 2;
        }
    }
    assert_within(error / (double)(WINDOWS * values) / t->error, 1, 1e-6);
    for (size_t i = 0; i < g->row; i++) {
        kv_range_table(count + i * n, n, cum);
        for (size_t s = 0; s < n; s++)
            assert_within(t->data[i * n + s], cum[s + 1] - cum[s], 0);
    }
    kv_dump_close(dump);
    free(cum);
    free(count);
    free(symbol);
    free(x);
    free(path);
}

static void wants(const struct kv_spec *s, const struct kv_shape *shape,
                  const struct kv_calib *calib, const char *words)
{
    struct kv_codec *c;
    struct kv_err e = {""};

    assert_int_equal(kv_codec_new(&c, s, shape, 1, KV_V, calib, &e), -1);
    assert_says(e, words);
}

/* Conditions on the tables of a calibration, and specs that need none. */
static void test_tables(void **state)
{
    const struct kv_shape shape = synthetic_shape(8);
    const struct kv_spec s = spec_of("cachegen:l2", &shape);
    const struct kv_spec other = spec_of("cachegen:l3", &shape);
    const struct kv_spec code = spec_of("cachegen:l2,code", &shape);
    const struct kv_spec memory = spec_of("cachegen:l2,memory", &shape);
    const struct kv_cachegen g = kv_cachegen(&s, KV_V, 1, &shape);
    struct kv_calib *none = synthetic_calib(&shape, &code, test_folder());
    const char *folder = test_folder();
    struct kv_calib *calib = synthetic_calib(&shape, &s, folder);
    struct kv_table *t = NULL;

    (void)state;
    assert_int_equal(calib->set->n_tables, 2 * KV_SIDES * shape.n_layers);
    assert_int_equal(none->set->n_tables, 0);
    assert_non_null(strstr(none->set->warning, "nothing to calibrate"));
    kv_codec_free(codec_from(&code, &shape, 1, KV_V, NULL));
    kv_codec_free(codec_from(&memory, &shape, 1, KV_V, NULL));
    for (size_t i = 0; i < calib->set->n_tables; i++)
        if (!strcmp(calib->set->table[i].name, "delta") &&
            calib->set->table[i].layer == 1 &&
            calib->set->table[i].side == KV_V)
            t = &calib->set->table[i];
    assert_non_null(t);
    check_trained(&g, folder, t);
    kv_codec_free(codec_from(&s, &shape, 1, KV_V, calib));
    wants(&s, &shape, NULL, "needs a calibration");
    wants(&other, &shape, calib,
          "no tables for cachegen:l3,variant=paper,store=wire");
    t->data[20] += 1;
    wants(&s, &shape, calib, "places, expected 65536");
    t->data[20] -= 1.5f;
    wants(&s, &shape, calib, "'delta' for layer 1 has");
    t->data[20] = 0;
    wants(&s, &shape, calib, "has 0 where a symbol's places of 65536 are");
    t->dims[1]--;
    wants(&s, &shape, calib, "'delta' for layer 1, V, head 0 is ");
    kv_calib_free(none);
    kv_calib_free(calib);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_largest),
        cmocka_unit_test(test_code_by_hand),
        cmocka_unit_test(test_stores),
        cmocka_unit_test(test_every_bit_and_cut),
        cmocka_unit_test(test_forged),
        cmocka_unit_test(test_tables),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
