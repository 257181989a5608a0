/* lib/model/safetensors, lib/model/weights: files that are right, and every
 * way in which a header or an index can be wrong. */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/model/weights.h"
#include "tests/test.h"
#include "tests/tiny_model.h"

#include <math.h>

#define ENTRY(name, dtype, shape, begin, end)                    \
    "\"" name "\": {\"dtype\": \"" dtype "\", \"shape\": " shape \
    ", \"data_offsets\": [" #begin ", " #end "]}"

static void test_reads(void **state)
{
    const char *header = "{\"__metadata__\": {\"format\": \"pt\"}, " ENTRY(
        "half", "F16", "[3]", 8,
        14) ", " ENTRY("none", "F32", "[0, 7]", 8,
                       8) ", " ENTRY("full", "F32", "[2, 1]", 0,
                                     8) ", " ENTRY("brain", "BF16", "[1]", 14,
                                                   16) ", " ENTRY("other", "I8",
                                                                  "[]", 16,
                                                                  17) "}";
    const uint8_t data[] = {
        0,    0,    0x80, 0x3f, 0, 0,    0, 0xc0, /* 1, -2 */
        1,    0,    0,    0x3c, 0, 0xfc,          /* 2^-24, 1, -infinity */
        0x40, 0xc0,                               /* -3 */
        7,
    };
    char *path = kv_path_join(test_folder(), "a.safetensors");
    struct kv_safetensors f;
    struct kv_err e = {""};
    float x[3];

    (void)state;
    tiny_write_safetensors(path, strlen(header), header, data, sizeof(data));
    if (kv_safetensors_open(&f, path, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(f.n_weights, 5);
    for (size_t i = 0; i < f.n_weights; i++) {
        const struct kv_weight *w = &f.weight[i];

        assert_string_equal(w->path, path);
        if (w->type != KV_STORED_OTHER)
            kv_weight_dequantize(w, 0, w->n, x);
        kv_weight_will_need(w);
        kv_weight_release(w);
        if (!strcmp(w->name, "full")) {
            assert_int_equal(w->n_dims, 2);
            assert_true(x[0] == 1 && x[1] == -2);
            kv_weight_dequantize(w, 1, 1, x);
            assert_true(x[0] == -2);
        } else if (!strcmp(w->name, "half")) {
            assert_int_equal(w->type, KV_STORED_F16);
            assert_true(x[0] == 0x1p-24f && x[1] == 1 && x[2] == -INFINITY);
        } else if (!strcmp(w->name, "brain")) {
            assert_true(x[0] == -3);
        } else if (!strcmp(w->name, "none")) {
            assert_int_equal(w->n, 0);
        } else {
            assert_string_equal(w->dtype, "I8");
            assert_int_equal(w->n, 1);
        }
    }
    kv_safetensors_clear(&f);
    free(path);
}

/* An odd header length: no element is aligned. */
static void test_reads_unaligned(void **state)
{
    char *path = kv_path_join(test_folder(), "a.safetensors");
    const char *header = "{" ENTRY("x", "F32", "[40]", 0, 160) " }";
    struct kv_safetensors f;
    struct kv_err e = {""};
    float x[40], y[40];

    (void)state;
    assert_int_equal(strlen(header) % 2, 1);
    for (size_t i = 0; i < 40; i++)
        x[i] = (float)i;
    tiny_write_safetensors(path, strlen(header), header, x, sizeof(x));
    if (kv_safetensors_open(&f, path, &e))
        fail_msg("%s", e.msg);
    kv_weight_dequantize(&f.weight[0], 0, 40, y);
    assert_memory_equal(x, y, sizeof(x));
    kv_safetensors_clear(&f);
    free(path);
}

/* Files that are refused: a header and 16 bytes of data. */
static const struct {
    const char *header, *says;
} lies[] = {
    {"", "not a JSON object"},
    {"{", "not a JSON object"},
    {"[1]", "not a JSON object"},
    {"{\"a\": 1}", "tensor a: unknown dtype (none)"},
    {"{" ENTRY("a", "F4", "[4]", 0, 16) "}", "tensor a: unknown dtype F4"},
    {"{" ENTRY("a", "F32", "[4]", 0, 16) ", " ENTRY("a", "F32", "[4]", 0,
                                                    16) "}",
     "duplicate"},
    {"{" ENTRY("a", "F32", "4", 0, 16) "}", "tensor a: no shape"},
    {"{" ENTRY("a", "F32", "[1,1,1,1,1,1,1,1,4]", 0, 16) "}",
     "tensor a: no shape"},
    {"{" ENTRY("a", "F32", "[-4]", 0, 16) "}", "dimension 0 is not a size"},
    {"{" ENTRY("a", "F32", "[2.0, 2]", 0, 16) "}", "dimension 0 is not a size"},
    {"{" ENTRY("a", "F32", "[4294967296, 4294967296]", 0, 16) "}",
     "dimension 1 is not a size"},
    {"{" ENTRY("a", "F32", "[4611686018427387908]", 0, 16) "}",
     "data_offsets span 16 bytes"},
    {"{\"a\": {\"dtype\": \"F32\", \"shape\": [4]}}", "data_offsets"},
    {"{" ENTRY("a", "F32", "[4]", 16, 0) "}", "data_offsets"},
    {"{" ENTRY("a", "F32", "[4]", -1, 15) "}", "data_offsets"},
    {"{" ENTRY("a", "F32", "[5]", 0, 20) "}",
     "tensor a ends at byte 20 of 16 bytes of data: the file is truncated"},
    {"{" ENTRY("a", "F32", "[3]", 0, 16) "}",
     "tensor a: its shape needs 3 values of 4 bytes, but data_offsets span "
     "16 bytes"},
    {"{" ENTRY("a", "F32", "[3]", 0, 12) ", " ENTRY("b", "F32", "[2]", 8,
                                                    16) "}",
     "tensors a and b overlap"},
    {"{" ENTRY("a", "F32", "[1]", 0, 4) ", " ENTRY("b", "F32", "[2]", 8,
                                                   16) "}",
     "bytes 4 to 8 of the data, before b, belong to no tensor"},
    {"{" ENTRY("a", "F32", "[3]", 0, 12) "}", "4 bytes after the last tensor"},
    {"{}", "16 bytes after the last tensor"},
};

static void test_refuses(void **state)
{
    char *path = kv_path_join(test_folder(), "a.safetensors");
    const uint8_t data[16] = {0};
    struct kv_safetensors f;
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
        tiny_write_safetensors(path, strlen(lies[i].header), lies[i].header,
                               data, sizeof(data));
        assert_int_equal(kv_safetensors_open(&f, path, &e), -1);
        assert_says(e, path);
        assert_says(e, lies[i].says);
    }
    free(path);
}

/* Reads a valid file that is cut at every length, and files with a wrong header
 * length. */
static void test_truncated(void **state)
{
    char *path = kv_path_join(test_folder(), "a.safetensors");
    const char *header = "{" ENTRY("a", "F32", "[2]", 0, 8) "}";
    const size_t whole = 8 + strlen(header) + 8;
    struct kv_safetensors f;
    struct kv_err e = {""};

    (void)state;
    for (size_t n = whole; n-- > 0;) {
        tiny_write_safetensors(path, strlen(header), header, "01234567", 8);
        assert_int_equal(truncate(path, (off_t)n), 0);
        assert_int_equal(kv_safetensors_open(&f, path, &e), -1);
        assert_says(e, path);
        assert_says(e, n < whole - 8 ? "not a whole" : "truncated");
    }
    tiny_write_safetensors(path, UINT64_MAX, header, "01234567", 8);
    assert_int_equal(kv_safetensors_open(&f, path, &e), -1);
    assert_says(e, "header alone would be 18446744073709551615");
    assert_int_equal(kv_safetensors_open(&f, "/no/such/file", &e), -1);
    assert_says(e, "cannot open /no/such/file");
    free(path);
}

/* Two shards with a tensor each, and the index that names them. */
static const char *shards_in(const char *dir, const char *second_name)
{
    char *a = kv_path_join(dir, "a.safetensors");
    char *b = kv_path_join(dir, "b.safetensors"), header[256];

    snprintf(header, sizeof(header), "{%s}", ENTRY("x", "F32", "[1]", 0, 4));
    tiny_write_safetensors(a, strlen(header), header, "0000", 4);
    snprintf(header, sizeof(header),
             "{\"%s\": {\"dtype\": \"BF16\", \"shape\": [3], "
             "\"data_offsets\": [0, 6]}}",
             second_name);
    tiny_write_safetensors(b, strlen(header), header, "000000", 6);
    tiny_write_text(dir, "model.safetensors.index.json",
                    "{\"weight_map\": {\"x\": \"a.safetensors\", "
                    "\"y\": \"b.safetensors\"}}");
    free(a);
    free(b);
    return dir;
}

static void test_shards(void **state)
{
    const char *dir = shards_in(test_folder(), "y");
    struct kv_weights w;
    struct kv_err e = {""};

    (void)state;
    if (kv_weights_open(&w, dir, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(w.n_shards, 2);
    assert_int_equal(w.n_weights, 2);
    assert_int_equal(w.bytes, 10);
    assert_string_equal(kv_weights_type(&w), "bf16");
    assert_string_equal(kv_weights_find(&w, "y")->name, "y");
    assert_null(kv_weights_find(&w, "z"));
    kv_weights_clear(&w);
}

static void refused(const char *dir, const char *says)
{
    struct kv_weights w;
    struct kv_err e = {""};

    assert_int_equal(kv_weights_open(&w, dir, &e), -1);
    assert_says(e, says);
}

static void refused_index(const char *dir, const char *index, const char *says)
{
    tiny_write_text(dir, "model.safetensors.index.json", index);
    refused(dir, says);
}

static void test_bad_shards(void **state)
{
    const char *dir = test_folder();
    char *b;

    (void)state;
    refused(dir, "holds neither model.safetensors nor model.safetensors.index");
    refused(shards_in(dir, "x"), "tensor x is both in");
    refused(shards_in(dir, "z"), "tensor y is not in b.safetensors");
    shards_in(dir, "y");
    refused_index(dir, "{\"weight_map\": {\"y\": \"a.safetensors\"}}",
                  "tensor y is not in a.safetensors");
    refused_index(dir, "{", "model.safetensors.index.json: line 1");
    refused_index(dir, "{}", "no weight_map");
    refused_index(dir, "[]", "no weight_map");
    refused_index(dir, "{\"weight_map\": {\"x\": \"../a.safetensors\"}}",
                  "tensor x: its file is not a plain name");
    refused_index(dir, "{\"weight_map\": {\"x\": 1}}",
                  "tensor x: its file is not a plain name");
    shards_in(dir, "y");
    b = kv_path_join(dir, "b.safetensors");
    assert_int_equal(unlink(b), 0);
    refused(dir, "b.safetensors: No such file");
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),   cmocka_unit_test(test_reads_unaligned),
        cmocka_unit_test(test_refuses), cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_shards),  cmocka_unit_test(test_bad_shards),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
