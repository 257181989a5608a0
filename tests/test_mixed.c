/* Mixed specs: layer files and their refusals, and one spec written for every
 * place, compared with the plain spec. */
#include "eval/loop.h"
#include "eval/measure.h"
#include "lib/mixed.h"
#include "lib/scheme.h"
#include "lib/seq/bits.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>

enum { HEAD_DIM = 32, CTX = 48, WINDOWS = 1 };

static char folder[4096];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "%s", test_folder());
    return 0;
}

/* folder/name with this text; the spec that names it. */
static const char *layer_file(const char *name, const char *text)
{
    static char spec[5000];
    char path[4500];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    snprintf(spec, sizeof(spec), "mixed,file=%s", path);
    return spec;
}

static struct kv_spec parsed(const char *text)
{
    struct kv_spec s;
    struct kv_err e = {""};

    if (kv_spec_parse(&s, text, &e))
        fail_msg("%s", e.msg);
    return s;
}

static void test_places(void **state)
{
    const struct kv_spec s =
        parsed(layer_file("places.txt", "# a comment\n"
                                        "0-2\tK  kivi:b4g32 # so it is\r\n"
                                        "\n"
                                        "3 KV vecinfer:d4b8\n"
                                        "0-2 V kivi:b2"));
    const char *const want[][KV_SIDES] = {
        {"kivi:b4g32r128s0,axis=paper", "kivi:b2g32r128s0,axis=paper"},
        {"kivi:b4g32r128s0,axis=paper", "kivi:b2g32r128s0,axis=paper"},
        {"kivi:b4g32r128s0,axis=paper", "kivi:b2g32r128s0,axis=paper"},
        {parsed("vecinfer:d4b8").text, parsed("vecinfer:d4b8").text}};

    (void)state;
    assert_int_equal(s.mixed->n_layers, 4);
    assert_int_equal(kv_spec_members(&s), 3);
    for (size_t i = 0; i < 4; i++)
        for (int side = 0; side < KV_SIDES; side++)
            assert_string_equal(kv_spec_at(&s, i, (enum kv_side)side)->text,
                                want[i][side]);
    assert_true(kv_spec_calibrated(&s));
    assert_false(kv_spec_calibrated(kv_spec_at(&s, 0, KV_K)));
}

/* The canonical text depends on the file's content. */
static void test_canonical(void **state)
{
    const struct kv_spec a =
        parsed(layer_file("a.txt", "0 KV kivi:b2\n1 KV kivi:b4\n"));
    const struct kv_spec same = parsed(layer_file(
        "a.txt", "1 V kivi:b4g32 # other words\n1 K kivi:b4\n0 KV kivi\n"));
    const struct kv_spec other =
        parsed(layer_file("a.txt", "0 KV kivi:b2\n1 K kivi:b4\n1 V kivi\n"));
    char text[5200];
    struct kv_spec s;
    struct kv_err e = {""};

    (void)state;
    assert_memory_equal(a.text, "mixed,file=a.txt@", 17);
    assert_int_equal(strlen(a.text), 17 + 16);
    assert_string_equal(same.text, a.text);
    assert_string_not_equal(other.text, a.text);
    snprintf(text, sizeof(text), "mixed,file=%s/%s", folder, other.text + 11);
    assert_string_equal(parsed(text).text, other.text);
    snprintf(text, sizeof(text), "mixed,file=%s/%s", folder, a.text + 11);
    assert_int_equal(kv_spec_parse(&s, text, &e), -1);
    assert_says(e, "a.txt says something else by now");
    assert_says(e, strchr(other.text, '@'));
    snprintf(text, sizeof(text), "mixed:s0r64,file=%s/a.txt", folder);
    s = parsed(text);
    assert_memory_equal(s.text, "mixed:r64s0,file=a.txt@", 23);
    snprintf(text, sizeof(text), "mixed:K-r0/V-s4,file=%s/a.txt", folder);
    s = parsed(text);
    assert_memory_equal(s.text, "mixed:K-r0/V-s4,file=a.txt@", 27);
}

static void refused(const char *text, const char *words)
{
    struct kv_spec s;
    struct kv_err e = {""};
    const char *spec = layer_file("bad.txt", text);

    if (!kv_spec_parse(&s, spec, &e))
        fail_msg("'%s' was taken", text);
    assert_says(e, "bad.txt");
    assert_says(e, words);
    assert_null(strchr(e.msg, '\n'));
}

static void test_refused(void **state)
{
    struct kv_spec s;
    struct kv_err e = {""};

    (void)state;
    refused("0-1 KV kivi\n1 V kivi:b4\n",
            "bad.txt:2: layer 1, V is named again, after line 1");
    refused("0-1 KV kivi\n0-3 K kivi\n", "bad.txt:2: layer 0, K is named");
    refused("0 KV kivi\n2 KV kivi\n", "bad.txt: layer 1, K is not named");
    refused("0-4 KV kivi\n5 K kivi\n", "bad.txt: layer 5, V is not named");
    refused("\n\n0 KV kivvi\n", "bad.txt:3: unknown scheme 'kivvi'");
    refused("0 KV kivi:b9\n", "bad.txt:1: spec 'kivi:b9': b=9 is out of range");
    refused("0 KV kivi:b{2,4}\n",
            "bad.txt:1: a layer file takes no sweeps: expected one spec");
    refused("0 Q kivi\n", "bad.txt:1: 'Q' is no side: expected K, V or KV");
    refused("0 VK kivi\n", "'VK' is no side");
    refused("* KV kivi\n", "bad.txt:1: '*' is no layer: expected a number");
    refused("3-1 KV kivi\n", "'3-1' is no layer");
    refused("0- KV kivi\n", "'0-' is no layer");
    refused("-1 KV kivi\n", "'-1' is no layer");
    refused("0-1-2 KV kivi\n", "'0-1-2' is no layer");
    refused("0x1 KV kivi\n", "'0x1' is no layer");
    refused("99999999999999999999 KV kivi\n", "beyond 4095");
    refused("0 kivi\n",
            "bad.txt:1: 2 words: expected layers, sides and a spec");
    refused("0 KV kivi and more\n", "5 words");
    refused("0 KV mixed,file=x\n",
            "bad.txt:1: a layer file names no other: 'mixed,file=x'");
    refused("\n0 KV mixed:r0,file=x\n", "bad.txt:2: a layer file names");
    refused("0 KV mixed\n", "bad.txt:1: a layer file names no other");
    refused("0 KV K-q8_0/V-q4_0\n",
            "bad.txt:1: 'K-q8_0/V-q4_0': a layer file has a line for K and one "
            "for V");
    refused("", "names no layer");
    refused("# nothing\n", "names no layer");
    refused("0 K hack\n0 V hack:b4\n",
            "bad.txt:1: layer 0: hack takes the keys and values of a layer "
            "together: both want one spec");
    refused("0 K kivi\n0 V hack:b4\n", "bad.txt:2: layer 0: hack takes");
    refused("0 K zipcache\n0 V kivi\n", "bad.txt:1: layer 0: zipcache takes");
    assert_int_equal(kv_spec_parse(&s, "mixed", &e), -1);
    assert_says(e, "expected a layer file, as in mixed,file=layers.txt");
    assert_int_equal(kv_spec_parse(&s, "mixed,file=", &e), -1);
    assert_int_equal(kv_spec_parse(&s, "mixed:b2,file=x", &e), -1);
    assert_says(e, "mixed has no 'b'");
    assert_int_equal(kv_spec_parse(&s, "mixed,file=/no/such", &e), -1);
    assert_says(e, "/no/such");
    assert_true(kv_spec_looks_like("mixed,file=x"));
    assert_string_equal(kv_mixed_file("h2o:b0.2+mixed:r0,file=a+b"), "a+b");
    assert_null(kv_mixed_file("kivi,file=x"));
}

/* A file that names itself, and two that name each other. */
static void test_circles(void **state)
{
    const char *const names[][2] = {{"self.txt", "self.txt"},
                                    {"there.txt", "back.txt"}};

    (void)state;
    for (size_t i = 0; i < 2; i++)
        for (size_t j = 0; j < 2; j++) {
            char text[5200];
            struct kv_spec s;
            struct kv_err e = {""};
            const char *spec;

            snprintf(text, sizeof(text), "# in a circle\n0 KV mixed,file=%s/%s",
                     folder, names[i][!j]);
            spec = layer_file(names[i][j], text);
            assert_int_equal(kv_spec_parse(&s, spec, &e), -1);
            snprintf(text, sizeof(text), "%s:2: a layer file names no other",
                     names[i][j]);
            assert_says(e, text);
            assert_null(strchr(e.msg, '\n'));
        }
}

static void unfit(const char *text, const char *words)
{
    const struct kv_shape shape = synthetic_shape(HEAD_DIM); /* 2 layers */
    struct kv_spec s = parsed(layer_file("fit.txt", text));
    struct kv_err e = {""};

    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, words);
}

static void test_fit(void **state)
{
    const struct kv_shape shape = synthetic_shape(HEAD_DIM);
    struct kv_err e = {""};
    struct kv_spec s;
    char before[KV_SPEC_CHARS];

    (void)state;
    unfit("0 KV kivi\n", "fit.txt: layer 1, K is not named: the model has 2");
    unfit("0 KV kivi\n1-2 KV kivi\n",
          "fit.txt:2: layer 2 is named: expected layers 0 to 1");
    unfit("0 KV kivi\n1 KV kivi:b2g48\n",
          "fit.txt:2: spec 'kivi:b2g48r128s0,axis=paper'");

    s = parsed(layer_file("fit.txt", "0-1 K kivi:g64\n0-1 V kivi:g64r64\n"));
    strcpy(before, s.text);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    assert_string_equal(s.text, before); /* the text is the file's */
    assert_string_equal(kv_spec_at(&s, 1, KV_V)->text,
                        "kivi:K-b2g64r64s0/V-b2g32r64s0,axis=paper");
    for (int side = 0; side < KV_SIDES; side++)
        kv_spec_set(&s, (enum kv_side)side, "r", 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    assert_string_equal(kv_spec_at(&s, 1, KV_V)->text,
                        "kivi:K-b2g64r0s0/V-b2g32r0s0,axis=paper");
    assert_string_equal(kv_spec_at(&s, 0, KV_K)->text,
                        "kivi:K-b2g64r0s0/V-b2g32r0s0,axis=paper");
    assert_memory_equal(s.text, "mixed:r0,file=fit.txt@", 22);
}

/* Each place's codec has its own spec. */
static void test_codecs(void **state)
{
    const struct kv_shape shape = synthetic_shape(HEAD_DIM);
    struct kv_spec s = parsed(layer_file(
        "codecs.txt", "0 K kivi\n0 V absmax:b4\n1 K quarot\n1 V kivi:b4\n"));
    const char *const want[] = {"kivi:b2g32r128s0,axis=paper",
                                "absmax:b4g32r0s0", "quarot:b4g32r0s0",
                                "kivi:b4g32r128s0,axis=paper"};
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    for (size_t i = 0; i < 4; i++) {
        struct kv_codec *c;

        assert_int_equal(kv_codec_new(&c, &s, &shape, i / 2,
                                      (enum kv_side)(i % 2), NULL, &e),
                         0);
        assert_memory_equal(c->spec.text, want[i], strlen(want[i]));
        assert_ptr_equal(c->scheme, c->spec.scheme);
        assert_null(c->spec.mixed);
        kv_codec_free(c);
    }
}

/* Two schemes: r and s of both may be set together, and clamping writes a text
 * of one side each. */
static void test_fit_sides(void **state)
{
    const struct kv_shape shape = synthetic_shape(HEAD_DIM);
    struct kv_spec s = parsed("K-absmax:b4/V-kivi:g64r64s2");
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    assert_string_equal(s.text, "K-absmax:b4g32r0s0,axis=token,heads=one/"
                                "V-kivi:b2g32r64s2,axis=paper");
    assert_string_equal(parsed(s.text).text, s.text);
    for (size_t i = 0; i < shape.n_layers; i++)
        for (int side = 0; side < KV_SIDES; side++)
            assert_string_equal(
                kv_spec_at(&s, i, (enum kv_side)side)->scheme->name,
                side == KV_K ? "absmax" : "kivi");
    for (int side = 0; side < KV_SIDES; side++)
        kv_spec_set(&s, (enum kv_side)side, "r", 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    assert_string_equal(s.text, "K-absmax:b4g32r0s0,axis=token,heads=one/"
                                "V-kivi:b2g32r0s2,axis=paper");
    s = parsed("K-kivi:b2g48/V-q8_0");
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "spec 'kivi:b2g48r128s0,axis=paper'");
}

/* ---- one spec everywhere ----------------------------------------------- */

/* Both measure the same, to the last bit: error, bytes, tables. */
static void check_measured(const struct kv_spec specs[2], struct kv_dump *dump,
                           const struct kv_calib *calib)
{
    const struct kv_shape *shape = &kv_dump_info(dump)->shape;
    const struct kv_measure_plan plan = {.dump = dump,
                                         .spec = specs,
                                         .n_specs = 2,
                                         .calib = calib,
                                         .seed = 3,
                                         .memory = 1 << 30,
                                         .n_queries = 8};
    struct kv_measured out[2][2]; /* [spec][layer] */
    struct kv_err e = {""};

    if (kv_measure(&plan, out[0], &e))
        fail_msg("%s: %s", specs[1].text, e.msg);
    if (memcmp(out[0], out[1], sizeof(out[0])) != 0)
        fail_msg("%s: mixed measures something else", specs[1].text);
    for (int layer = KV_ALL; layer < (int)shape->n_layers; layer++)
        for (int side = KV_ALL; side < KV_SIDES; side++) {
            struct kv_bits a, b;

            kv_bits_of_spec(&a, &specs[0], shape, calib, layer, side);
            kv_bits_of_spec(&b, &specs[1], shape, calib, layer, side);
            assert_true(a.shared_bytes == b.shared_bytes);
            assert_true(calib || !b.shared_bytes);
            if (!isnan(a.nominal) || !isnan(b.nominal))
                assert_within(a.nominal, b.nominal, 1e-12);
        }
}

/* Every scheme on one side, q8_0 or f16 on the other. */
static void check_sides(struct kv_dump *dump, const char *scheme)
{
    const struct kv_shape *shape = &kv_dump_info(dump)->shape;
    const char *other = strcmp(scheme, "q8_0") ? "q8_0" : "f16";
    struct kv_err e = {""};

    for (int side = 0; side < KV_SIDES; side++) {
        const char *k = side == KV_K ? scheme : other;
        const char *v = side == KV_K ? other : scheme;
        struct kv_spec specs[2];
        struct kv_calib *calib;
        char text[128];

        snprintf(text, sizeof(text), "0-1 K %s\n0-1 V %s\n", k, v);
        specs[0] = parsed(layer_file("sides.txt", text));
        snprintf(text, sizeof(text), "K-%s/V-%s", k, v);
        specs[1] = parsed(text);
        for (int j = 0; j < 2; j++)
            if (kv_spec_fit(&specs[j], shape, &e))
                fail_msg("%s", e.msg);
        calib = synthetic_calib(shape, &specs[1], folder);
        check_measured(specs, dump, calib);
        kv_calib_free(calib);
    }
}

/* Every scheme, and words that store keys before RoPE. */
static void test_one_everywhere(void **state)
{
    const struct kv_shape shape = synthetic_shape(HEAD_DIM);
    struct kv_dump *dump;
    struct kv_err e = {""};
    char *path;

    (void)state;
    synthetic_dump(&shape, WINDOWS, CTX, folder, &path);
    if (kv_dump_open(&dump, path, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; kv_schemes[i]; i++) {
        char text[64];
        struct kv_spec specs[2];
        struct kv_calib *calib;
        struct kv_bits bits;

        specs[1] = parsed(kv_schemes[i]->name);
        if (kv_spec_layered(&specs[1], 0)) /* no layer file */
            continue;
        snprintf(text, sizeof(text), "0-1 KV %s\n", kv_schemes[i]->name);
        specs[0] = parsed(layer_file("one.txt", text));
        for (int j = 0; j < 2; j++)
            if (kv_spec_fit(&specs[j], &shape, &e))
                fail_msg("%s", e.msg);
        calib = synthetic_calib(&shape, &specs[0], folder);
        assert_int_equal(calib != NULL, kv_schemes[i]->training != NULL);
        check_measured(specs, dump, calib);
        kv_bits_of_spec(&bits, &specs[0], &shape, calib, KV_ALL, KV_ALL);
        assert_int_equal(calib != NULL, bits.shared_bytes > 0);
        kv_calib_free(calib);
        if (!kv_spec_together(&specs[1]))
            check_sides(dump, kv_schemes[i]->name);
    }
    kv_dump_close(dump);
    free(path);
}

/* Bytes of tables count where layers read them; a table that all layers share
 * counts once. */
static void test_shared_bytes(void **state)
{
    const struct kv_shape shape = synthetic_shape(HEAD_DIM);
    struct kv_spec s = parsed(
        layer_file("shared.txt", "0 K million:d4b4\n0 V pq:d4b4\n1 KV kivi\n"));
    struct kv_err e = {""};
    struct kv_calib *calib;
    struct kv_bits b;
    /* 32 / 4 codebooks of 16 centroids of 4 values: for the keys of million, of
     * all layers; for the values of pq, of layer 0 */
    const double book = 8 * 16 * 4 * sizeof(uint16_t);

    (void)state;
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    calib = synthetic_calib(&shape, &s, folder);
    assert_int_equal(calib->n_sets, 2);
    kv_bits_of_spec(&b, &s, &shape, calib, KV_ALL, KV_ALL);
    assert_true(b.shared_bytes == 2 * book);
    kv_bits_of_spec(&b, &s, &shape, calib, 0, KV_ALL);
    assert_true(b.shared_bytes == 2 * book);
    kv_bits_of_spec(&b, &s, &shape, calib, 0, KV_V);
    assert_true(b.shared_bytes == book);
    kv_bits_of_spec(&b, &s, &shape, calib, 1, KV_ALL);
    assert_true(b.shared_bytes == 0);
    kv_calib_free(calib);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_canonical),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_circles),
        cmocka_unit_test(test_fit),
        cmocka_unit_test(test_fit_sides),
        cmocka_unit_test(test_codecs),
        cmocka_unit_test(test_one_everywhere),

        cmocka_unit_test(test_shared_bytes),
    };

    return cmocka_run_group_tests(tests, make_folder, NULL);
}
