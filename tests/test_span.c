/* Codes of all layers of a token together, compared with one cache made by
 * hand: in a protocol's loop, with a pass at full precision and a pass that
 * reads the codes; and measured on a dump. */
#include "eval/loop.h"
#include "eval/measure.h"
#include "kernels/attend.h"
#include "lib/base/alloc.h"
#include "lib/dump.h"
#include "lib/mixed.h"
#include "lib/rope_table.h"
#include "lib/seq/cache.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>

enum { LAYERS = 3, WINDOWS = 2, LENGTH = 90, DIM = 16, SEED = 5 };

struct setup {
    struct kv_shape shape, merged;
    struct kv_spec spec;
    struct kv_calib *calib;
    size_t row, q_row;
    float *q, *k_pre, *k, *v; /* [LAYERS][WINDOWS][LENGTH][row] */
    float *rope;
    struct kv_backend *cpu; /* outlives the loops */
};

static struct kv_spec spec_of(const char *text, const struct kv_shape *shape)
{
    struct kv_spec s;
    struct kv_err e = {""};

    if (kv_spec_parse(&s, text, &e) || kv_spec_fit(&s, shape, &e))
        fail_msg("%s", e.msg);
    return s;
}

static void init(struct setup *s, const char *text)
{
    const size_t n = LAYERS * WINDOWS * LENGTH;

    *s = (struct setup){.shape = synthetic_shape(DIM)};
    s->shape.n_layers = LAYERS;
    s->merged = kv_shape_merged(&s->shape);
    s->spec = spec_of(text, &s->shape);
    s->calib = synthetic_calib(&s->shape, &s->spec, test_folder());
    s->row = s->shape.n_kv_heads * DIM;
    s->q_row = s->shape.n_heads * DIM;
    s->q = kv_alloc(n, s->q_row * sizeof(float));
    s->k = kv_alloc(n, s->row * sizeof(float));
    s->k_pre = kv_alloc(n, s->row * sizeof(float));
    s->v = kv_alloc(n, s->row * sizeof(float));
    synthetic_rows(&s->shape, s->shape.n_heads, 61, n, s->q);
    synthetic_rows(&s->shape, s->shape.n_kv_heads, 62, n, s->k_pre);
    synthetic_rows(&s->shape, s->shape.n_kv_heads, 63, n, s->v);
    memcpy(s->k, s->k_pre, n * s->row * sizeof(float));
    for (size_t i = 0; i < LAYERS * WINDOWS; i++)
        kv_rope(&s->shape, s->k + i * LENGTH * s->row, LENGTH,
                s->shape.n_kv_heads, 0);
    s->cpu = kv_backend_cpu(KV_TYPE_F32);
    s->rope = kv_alloc(LENGTH, 2 * s->shape.n_rot * sizeof(float));
    kv_rope_table(&s->shape, LENGTH, 0, s->rope);
}

static void clear(struct setup *s)
{
    kv_calib_free(s->calib);
    free(s->q);
    free(s->k);
    free(s->k_pre);
    free(s->v);
    free(s->rope);
    kv_backend_free(s->cpu);
}

/* One pass of all layers; out: [LAYERS][WINDOWS][LENGTH][q_row]. */
static void pass(const struct setup *s, struct kv_attention a, float *out)
{
    struct kv_err e = {""};

    for (size_t l = 0; l < LAYERS; l++) {
        const size_t at = l * WINDOWS * LENGTH;
        const struct kv_qkv x = {.shape = &s->shape,
                                 .backend = s->cpu,
                                 .rope = s->rope,
                                 .layer = l,
                                 .n_windows = WINDOWS,
                                 .n = LENGTH,
                                 .q = s->q + at * s->q_row,
                                 .k = s->k + at * s->row,
                                 .k_pre = s->k_pre + at * s->row,
                                 .v = s->v + at * s->row,
                                 .out = out + at * s->q_row};

        if (a.run(a.arg, &x, &e))
            fail_msg("%s", e.msg);
    }
}

/* Decodes a window of all layers with one cache that has the heads of all
 * layers. */
static void by_hand(const struct setup *s, const struct kv_spec *spec,
                    size_t window, float *const to[KV_SIDES],
                    struct kv_bits *bits)
{
    const size_t all = LAYERS * s->row;
    float *x[KV_SIDES];
    struct kv_codecs *cs;
    struct kv_cache *c;
    struct kv_err e = {""};

    if (kv_codecs_new(&cs, spec, &s->merged, 0, 1, s->calib, &e) ||
        kv_cache_new(&c, kv_codecs_at(cs, 0)[KV_K], kv_codecs_at(cs, 0)[KV_V],
                     SEED, &e))
        fail_msg("%s", e.msg);
    for (int i = 0; i < KV_SIDES; i++) {
        const float *from = i == KV_K ? s->k_pre : s->v;

        x[i] = kv_alloc(LENGTH, all * sizeof(float));
        for (size_t j = 0; j < LENGTH * LAYERS; j++)
            memcpy(x[i] + j * s->row,
                   from +
                       ((j % LAYERS * WINDOWS + window) * LENGTH + j / LAYERS) *
                           s->row,
                   s->row * sizeof(float));
    }
    assert_int_equal(
        kv_cache_append(
            c, &(struct kv_tokens){.n = LENGTH, .k_pre = x[KV_K], .v = x[KV_V]},
            &e),
        0);
    for (enum kv_side i = KV_K; i < KV_SIDES; i++) {
        const struct kv_bits held = kv_bits_of_cache(c, i);

        kv_bits_add(bits, &held);
        kv_cache_decode(c, i, to[i]);
        free(x[i]);
    }
    kv_cache_free(c);
    kv_codecs_free(cs);
}

/* A layer's rows from a window's rows of all layers. */
static float *layer_of(const struct setup *s, const float *all, size_t layer)
{
    float *x = kv_alloc(LENGTH, s->row * sizeof(*x));

    for (size_t t = 0; t < LENGTH; t++)
        memcpy(x + t * s->row, all + (t * LAYERS + layer) * s->row,
               s->row * sizeof(*x));
    return x;
}

static void assert_near(const float *a, const float *b, size_t n)
{
    double diff = 0, size = 0;

    for (size_t i = 0; i < n; i++) {
        diff += pow((double)a[i] - (double)b[i], 2);
        size += pow((double)b[i], 2);
    }
    assert_true(sqrt(diff / size) < 2e-6);
}

/* All queries see the tokens that one cache of all layers decodes. */
static void check_all(const char *text, bool keep_window)
{
    struct setup s;
    struct kv_protocol p;
    struct kv_spec spec;
    struct kv_loop *l;
    struct kv_bits want = {0}, got;
    struct kv_err e = {""};

    init(&s, text);
    spec = s.spec;

    const size_t n = LAYERS * WINDOWS * LENGTH * s.q_row;
    float *out = kv_alloc(n, sizeof(*out)), *exact = kv_alloc(n, sizeof(*out));
    float *one = kv_alloc(LENGTH, s.q_row * sizeof(*one));
    float *const back[KV_SIDES] = {
        kv_alloc(LENGTH, LAYERS * s.row * sizeof(float)),
        kv_alloc(LENGTH, LAYERS * s.row * sizeof(float))};

    assert_int_equal(kv_protocol_parse(&p, "all", keep_window, &e), 0);
    kv_protocol_spec(&p, &spec);
    if (kv_loop_new(&l, &spec, &s.shape, s.calib, &p, SEED, NULL, &e) ||
        kv_loop_takes(l, LENGTH, &e))
        fail_msg("%s", e.msg);
    pass(&s, kv_loop_gather(l, 0, LENGTH), exact);
    pass(&s, kv_loop_attention(l, 0, LENGTH), out);
    got = kv_loop_bits(l);
    for (size_t w = 0; w < WINDOWS; w++) {
        by_hand(&s, &spec, w, back, &want);
        for (size_t layer = 0; layer < LAYERS; layer++) {
            const size_t at = (layer * WINDOWS + w) * LENGTH * s.q_row;
            float *k = layer_of(&s, back[KV_K], layer);
            float *v = layer_of(&s, back[KV_V], layer);

            kv_rope(&s.shape, k, LENGTH, s.shape.n_kv_heads, 0);
            kv_attend_c(&(struct kv_attend_job){
                .view = kv_shape_view(&s.shape, LENGTH, 0, LENGTH),
                .q = s.q + at,
                .out = one,
                .q_rows = LENGTH,
                .k = {.unquantized = k},
                .v = {.unquantized = v}});
            assert_near(out + at, one, LENGTH * s.q_row);
            free(k);
            free(v);
        }
    }
    assert_true(got.bytes == want.bytes && got.values == want.values);
    assert_true(got.coded[KV_V] == want.coded[KV_V]);
    kv_loop_free(l);
    free(back[KV_K]);
    free(back[KV_V]);
    free(one);
    free(exact);
    free(out);
    clear(&s);
}

static void test_all(void **state)
{
    (void)state;
    check_all("kvtc:b2n16,span=all", false);
    check_all("kvtc:b2n16s3r20,span=all,entropy=none", true);
}

/* The whole error and all bytes of a window are the sums over its layers. */
static void test_measured(void **state)
{
    struct kv_measured got[LAYERS];
    struct kv_bits want = {0};
    struct setup s;
    struct kv_dump *dump;
    struct kv_err e = {""};
    double error[KV_SIDES] = {0}, sum[KV_SIDES] = {0}, bytes = 0;
    char *path;

    (void)state;
    init(&s, "kvtc:b2n16s3r20,span=all");
    synthetic_dump(&s.shape, WINDOWS, LENGTH, test_folder(), &path);
    if (kv_dump_open(&dump, path, &e) ||
        kv_measure(&(struct kv_measure_plan){.dump = dump,
                                             .spec = &s.spec,
                                             .n_specs = 1,
                                             .calib = s.calib,
                                             .seed = SEED,
                                             .memory = 1 << 30,
                                             .n_queries = 4},
                   got, &e))
        fail_msg("%s", e.msg);
    for (size_t l = 0; l < LAYERS; l++)
        if (kv_dump_read(dump, l, KV_T_K_PRE, 0, WINDOWS * LENGTH,
                         s.k_pre + l * WINDOWS * LENGTH * s.row, &e) ||
            kv_dump_read(dump, l, KV_T_V, 0, WINDOWS * LENGTH,
                         s.v + l * WINDOWS * LENGTH * s.row, &e))
            fail_msg("%s", e.msg);

    float *const back[KV_SIDES] = {
        kv_alloc(LENGTH, LAYERS * s.row * sizeof(float)),
        kv_alloc(LENGTH, LAYERS * s.row * sizeof(float))};

    for (size_t w = 0; w < WINDOWS; w++) {
        by_hand(&s, &s.spec, w, back, &want);
        for (size_t i = 0; i < KV_SIDES * LENGTH * LAYERS * s.row; i++) {
            const size_t at = i / KV_SIDES, row = at / s.row;
            const float *x = i % KV_SIDES == KV_K ? s.k_pre : s.v;
            const float was =
                x[((row % LAYERS * WINDOWS + w) * LENGTH + row / LAYERS) *
                      s.row +
                  at % s.row];

            error[i % KV_SIDES] +=
                pow((double)back[i % KV_SIDES][at] - (double)was, 2);
        }
    }
    for (size_t l = 0; l < LAYERS; l++)
        for (int i = 0; i < KV_SIDES; i++) {
            sum[i] += got[l].reconstruction[i].e2;
            bytes += got[l].bits[i].bytes;
        }
    for (int i = 0; i < KV_SIDES; i++)
        assert_within(sum[i] / error[i], 1, 1e-6);
    assert_within(bytes / want.bytes, 1, 1e-12);
    assert_true(got[1].attn.n_rows > 0);
    free(back[KV_K]);
    free(back[KV_V]);
    kv_dump_close(dump);
    free(path);
    clear(&s);
}

static void refused(const struct setup *s, const char *protocol,
                    const char *why)
{
    struct kv_protocol p;
    struct kv_loop *l;
    struct kv_err e = {""};

    assert_int_equal(
        kv_protocol_parse(&p, protocol, !strcmp(protocol, "all"), &e), 0);
    if (kv_loop_new(&l, &s->spec, &s->shape, s->calib, &p, SEED, NULL, &e))
        fail_msg("%s", e.msg);
    if (why) {
        assert_int_equal(kv_loop_takes(l, LENGTH, &e), -1);
        assert_says(e, why);
    } else if (kv_loop_takes(l, LENGTH, &e)) {
        fail_msg("%s", e.msg);
    }
    kv_loop_free(l);
}

/* Only the prompt's tokens are coded; no layer can be decoded alone. */
static void test_refusals(void **state)
{
    struct setup s;
    struct kv_codec *c;
    struct kv_shape slides;
    struct kv_spec spec;
    struct kv_err e;

    (void)state;
    init(&s, "kvtc:b2n16s4r20,span=all");
    refused(&s, "stream", "codes a prompt that all layers have seen");
    refused(&s, "prefill:67", "68 of 90 tokens are coded in the end");
    refused(&s, "prefill:68", NULL);
    refused(&s, "all", NULL);
    assert_int_equal(kv_codec_new(&c, &s.spec, &s.shape, 0, KV_K, s.calib, &e),
                     -1);
    assert_says(e, "span=all decodes all layers of a token together");
    assert_int_equal(kv_spec_alone(&s.spec, 1, "kvattn", &e), -1);
    assert_says(e, "decodes layers all together");
    assert_int_equal(kv_spec_in_place(&s.spec, 1, "kvgen", &e), -1);
    assert_says(e, "it decodes all layers together");
    slides = s.shape;
    slides.slides[0] = 2;
    assert_int_equal(kv_spec_parse(&spec, "kvtc:b2,span=all", &e), 0);
    assert_int_equal(kv_spec_fit(&spec, &slides, &e), -1);
    assert_says(e, "layer 1 slides");
    assert_int_equal(kv_spec_parse(&spec, "h2o:b0.2+kvtc:b2,span=all", &e), 0);
    assert_int_equal(kv_spec_fit(&spec, &s.shape, &e), -1);
    assert_says(e, "go without policies");
    assert_int_equal(kv_spec_parse(&spec, "kvtc:b2,K-span=all", &e), 0);
    assert_int_equal(kv_spec_fit(&spec, &s.shape, &e), -1);
    assert_says(e, "span is one for K and V");
    assert_int_equal(kv_spec_parse(&spec, "kvtc:n1,span=all,massive", &e), 0);
    assert_int_equal(kv_spec_fit(&spec, &s.shape, &e), -1);
    assert_says(e, "massive=yes keeps tokens of a layer");
    assert_int_equal(kv_spec_parse(&spec, "K-kvtc:b2,span=all/V-q8_0", &e), -1);
    assert_says(e, "spans all layers: K and V both want it");
    clear(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all),
        cmocka_unit_test(test_measured),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
