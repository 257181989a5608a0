/* CacheGen's bits on real keys and values: every chunk is decoded exactly, at
 * the price that its tables say. */
#include "kernels/range_coder.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/model/model.h"
#include "lib/scheme.h"
#include "lib/schemes/cachegen.h"
#include "lib/windows.h"
#include "tests/codec_setup.h"
#include "tests/test.h"

#include <math.h>

enum { CTX = 512 };

static char *in_data(const char *name)
{
    const char *top = getenv("KV_SOURCE_ROOT");
    char *data = kv_path_join(top ? top : ".", "data");
    char *path = kv_path_join(data, name);

    free(data);
    return path;
}

static int put_layer(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    if (kv_dump_put(arg, x->layer, KV_T_K, 0, x->n_windows, x->k, e) ||
        kv_dump_put(arg, x->layer, KV_T_V, 0, x->n_windows, x->v, e))
        return -1;
    return kv_attend_exact(NULL, x, e);
}

/* Keys and values of the embedded model on the first windows of a text. */
static struct kv_dump *real_dump(const char *text, size_t n_windows)
{
    struct kv_dump_info info = {.model = "embedded",
                                .arch = "LlamaForCausalLM",
                                .weights = "bf16",
                                .model_hash = "0",
                                .text = "text",
                                .text_hash = "0",
                                .n_windows = n_windows,
                                .ctx = CTX,
                                .have = {[KV_T_K] = true, [KV_T_V] = true}};
    char *dir = in_data("model"), *from = in_data(text);
    char *path = kv_path_join(test_folder(), "dump.h5");
    struct kv_tokenizer *t = NULL;
    struct kv_model *m = NULL;
    struct kv_dump_writer *w = NULL;
    struct kv_dump *dump = NULL;
    struct kv_windows tokens = {.n = 0};
    struct kv_err e = {""};

    if (kv_model_open(&m, dir, &e) || kv_tokenizer_open(&t, dir, &e) ||
        kv_windows_read(&tokens, t, from,
                        &(struct kv_windows_wanted){.ctx = CTX, .n = n_windows},
                        kv_model_info(m)->n_vocab, &e))
        fail_msg("%s", e.msg);
    info.shape = kv_model_info(m)->shape;
    info.last_layer = info.shape.n_layers - 1;

    float *hidden =
        kv_alloc(n_windows * CTX, kv_model_info(m)->hidden * sizeof(*hidden));

    if (kv_dump_create(&w, path, &info, &e) ||
        kv_dump_put_tokens(w, 0, n_windows, tokens.tokens, &e) ||
        kv_model_forward(m, tokens.tokens, n_windows, CTX, 0,
                         &(struct kv_attention){.run = put_layer, .arg = w},
                         hidden, &e) ||
        kv_dump_commit(w, &e) || kv_dump_open(&dump, path, &e))
        fail_msg("%s", e.msg);
    unlink(path); /* stays readable while it is open */
    free(hidden);
    kv_windows_clear(&tokens);
    kv_tokenizer_free(t);
    kv_model_free(m);
    free(path);
    free(from);
    free(dir);
    return dump;
}

static double bits_of(double places)
{
    return -log2(places / KV_RANGE_TOTAL);
}

/* Bits of symbol [n][row] by a calibration's tables. */
static double by_calibration(const struct kv_codec *c,
                             const struct kv_cachegen *g,
                             const struct kv_calib *calib,
                             const uint16_t *symbol)
{
    const struct kv_table *anchor =
        kv_calib_table(calib->set, "anchor", c->side, c->layer, 0);
    const struct kv_table *delta =
        kv_calib_table(calib->set, "delta", c->side, c->layer, 0);
    double bits = 0;

    for (size_t t = 0; t < c->block; t++) {
        const struct kv_table *by = t % 10 ? delta : anchor;

        for (size_t i = 0; i < g->row; i++)
            bits += bits_of((double)by->data[i * by->dims[1] + *symbol++]);
    }
    return bits;
}

/* And by the tables that a chunk ships. */
static double by_chunk(const struct kv_codec *c, const struct kv_cachegen *g,
                       const uint8_t *bytes, const uint16_t *symbol)
{
    uint16_t *place = kv_alloc(g->row * 33, sizeof(*place));
    double bits = 0;

    memcpy(place, bytes + 4 + 2 * c->block, g->row * 33 * sizeof(*place));
    for (size_t t = 0; t < c->block; t++)
        for (size_t i = 0; i < g->row; i++, symbol++) {
            const uint16_t *at = place + i * 33 + *symbol;

            bits += bits_of((uint16_t)(at[1] - at[0]));
        }
    free(place);
    return bits;
}

struct rate {
    double stream, bits, wire, memory, values;
};

/* One layer and side: encodes and decodes each chunk, and counts its bits. */
static void check_layer(const struct kv_spec *s, struct kv_dump *dump,
                        size_t layer, enum kv_side side,
                        const struct kv_calib *calib, struct rate *r)
{
    const struct kv_shape *shape = &kv_dump_info(dump)->shape;
    const struct kv_cachegen g = kv_cachegen(s, side, layer, shape);
    struct kv_codec *c = codec_from(s, shape, layer, side, calib), *m;
    const size_t n = kv_codec_block_values(c);
    struct kv_spec memory = *s;
    float *x = kv_alloc(3 * n, sizeof(*x)), *a = x + n, *b = x + 2 * n;
    uint16_t *max = kv_alloc(c->block + n, sizeof(*max));
    uint16_t *symbol = max + c->block;
    uint8_t *bytes = kv_alloc(c->block_bytes, 1), *packed;
    struct kv_err e = {""};

    kv_spec_set(&memory, side, "store", 1);
    m = codec_from(&memory, shape, layer, side, NULL);
    packed = kv_alloc(m->block_bytes, 1);
    for (size_t at = 0; at + c->block <= CTX; at += c->block) {
        const struct kv_where w = {.first = at};
        size_t size;

        if (kv_dump_read(dump, layer, side == KV_K ? KV_T_K : KV_T_V, at,
                         c->block, x, &e))
            fail_msg("%s", e.msg);
        kv_codec_input(c, x, c->block, x);
        kv_cachegen_quantize(&g, x, c->block, max, symbol);
        kv_cachegen_restore(&g, max, symbol, c->block, a);
        size = c->variable->encode_block(c, w, x, bytes);
        if (c->variable->decode_block(c, bytes, size, b, &e))
            fail_msg("%s", e.msg);
        assert_memory_equal(a, b, n * sizeof(*a));
        m->scheme->encode(m, w, x, 1, packed);
        m->scheme->decode(m, packed, 1, b);
        assert_memory_equal(a, b, n * sizeof(*a));
        r->bits += g.anchors ? by_calibration(c, &g, calib, symbol)
                             : by_chunk(c, &g, bytes, symbol);
        r->stream += 8 * (double)(size - 4 - 2 * c->block -
                                  (g.anchors ? 0 : g.row * 33 * 2));
        r->wire += (double)size;
        r->memory += (double)m->block_bytes;
        r->values += (double)n;
    }
    free(packed);
    free(bytes);
    free(max);
    free(x);
    kv_codec_free(m);
    kv_codec_free(c);
}

/* 2.5 MB of fp16 keys and values: exact, and at the price of its own tables. */
static void test_rate(void **state)
{
    const char *const specs[] = {"cachegen:l1", "cachegen:l3",
                                 "cachegen:l1,code"};
    struct kv_dump *dump = real_dump("sample.txt", 1);
    struct kv_dump *text = real_dump("calib.txt", 2);
    const struct kv_shape *shape = &kv_dump_info(dump)->shape;

    (void)state;
    for (size_t i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
        const struct kv_spec s = spec_of(specs[i], shape);
        struct kv_calib_set set = {.n_tables = 0};
        struct kv_calib calib = {.set = &set, .n_sets = 1};
        struct rate r = {0};
        struct kv_err e = {""};

        kv_spec_calib_key(&s, set.key);
        if (s.scheme->training->calibrate(&s, text, 1, &set, &e))
            fail_msg("%s", e.msg);
        for (size_t l = 0; l < shape->n_layers; l++)
            for (int side = 0; side < KV_SIDES; side++)
                check_layer(&s, dump, l, (enum kv_side)side, &calib, &r);
        assert_true(r.values * sizeof(uint16_t) >= 1 << 20);
        print_message("%s: stream %.4f bits a value, its tables say %.4f; "
                      "wire %.4f, memory %.4f\n",
                      specs[i], r.stream / r.values, r.bits / r.values,
                      8 * r.wire / r.values, 8 * r.memory / r.values);
        assert_within(r.stream / r.bits, 1, 0.001); /* 2 % is asked for */
        assert_true(i == 2 || r.wire < r.memory);
        kv_calib_set_clear(&set);
    }
    kv_dump_close(text);
    kv_dump_close(dump);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rate)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
