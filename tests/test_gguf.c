/* lib/model/gguf: valid files, and every way in which a file can be wrong. */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/model/gguf.h"
#include "tests/test.h"
#include "tests/tiny_gguf.h"

#include <math.h>

static const char *const words[] = {"one", "", "three"};

/* A file with a key of each kind and three tensors. */
static void make(struct tiny_gguf *g)
{
    const float x[] = {1, -2, 0.5f, 4, 5, 6};
    const uint16_t half[] = {0x3c00, 0xc000};
    const uint8_t yes = 1, q4_0[2 * 18] = {0};
    const int8_t low = -5;
    const int32_t types[] = {1, -1, 6};
    const uint64_t huge = UINT64_MAX;
    const double real = 0.1;

    tiny_key_text(g, "general.architecture", "llama");
    tiny_key_u32(g, "llama.block_count", 4000000000u);
    tiny_key_f32(g, "llama.epsilon", 1e-5f);
    tiny_key(g, "a.bool", TINY_BOOL, &yes, 1);
    tiny_key(g, "a.low", TINY_I8, &low, 1);
    tiny_key(g, "a.huge", TINY_U64, &huge, 8);
    tiny_key(g, "a.real", TINY_F64, &real, 8);
    tiny_key_array(g, "a.types", TINY_I32, 3, types, sizeof(types));
    tiny_key_texts(g, "a.words", 3, words);
    tiny_key_texts(g, "a.none", 0, NULL);
    tiny_tensor(g, "x", 0, 2, (size_t[]){2, 3}, x, sizeof(x));
    tiny_tensor(g, "half", 1, 1, (size_t[]){2}, half, sizeof(half));
    tiny_tensor(g, "b", 2, 2, (size_t[]){2, 32}, q4_0, sizeof(q4_0));
}

static void check_values(const struct kv_gguf *g)
{
    const struct kv_gguf_value *v;
    struct kv_err e = {""};
    size_t n;

    v = kv_gguf_find(g, "general.architecture");
    assert_memory_equal(kv_gguf_text(v, 0, &n), "llama", 5);
    assert_int_equal(n, 5);
    assert_null(kv_gguf_find(g, "general.arch"));
    assert_int_equal(kv_gguf_int(kv_gguf_find(g, "llama.block_count"), 0),
                     4000000000);
    assert_int_equal(kv_gguf_int(kv_gguf_find(g, "a.low"), 0), -5);
    assert_true(kv_gguf_real(kv_gguf_find(g, "a.low"), 0) == -5);
    assert_true(kv_gguf_int(kv_gguf_find(g, "a.huge"), 0) == INT64_MAX);
    assert_true(kv_gguf_real(kv_gguf_find(g, "a.real"), 0) == 0.1);
    assert_true(kv_gguf_real(kv_gguf_find(g, "llama.epsilon"), 0) ==
                (double)1e-5f);
    assert_true(kv_gguf_bool(kv_gguf_find(g, "a.bool"), 0));
    v = kv_gguf_find(g, "a.types");
    assert_true(v->array && v->n == 3);
    assert_int_equal(kv_gguf_int(v, 1), -1);
    assert_int_equal(kv_gguf_int(v, 2), 6);
    assert_int_equal(kv_gguf_get(g, "a.words", KV_GGUF_TEXT, true, &v, &e), 0);
    assert_int_equal(v->n, 3);
    for (size_t i = 0; i < 3; i++) {
        const char *text = kv_gguf_text(v, i, &n);

        assert_int_equal(n, strlen(words[i]));
        assert_memory_equal(text, words[i], n);
    }
    assert_int_equal(kv_gguf_get(g, "a.low", KV_GGUF_REAL, false, &v, &e), 0);
    assert_non_null(v);
    assert_int_equal(kv_gguf_get(g, "absent", KV_GGUF_INT, false, &v, &e), 0);
    assert_null(v);
    assert_int_equal(kv_gguf_get(g, "a.words", KV_GGUF_INT, false, &v, &e), -1);
    assert_says(e, "key a.words is an array of strings; a whole number was "
                   "expected");
    assert_int_equal(kv_gguf_get(g, "a.low", KV_GGUF_BOOL, true, &v, &e), -1);
    assert_says(e, "is a whole number; an array of truth values was expected");
}

static void check_tensors(const struct kv_gguf *g)
{
    float x[6];

    assert_int_equal(g->n_tensors, 3);
    assert_string_equal(g->tensor[0].name, "b");
    assert_string_equal(g->tensor[0].dtype, "Q4_0");
    assert_int_equal(g->tensor[0].bytes, 36);
    assert_string_equal(g->tensor[1].name, "half");
    kv_weight_dequantize(&g->tensor[1], 0, 2, x);
    assert_true(x[0] == 1 && x[1] == -2);
    assert_int_equal(g->tensor[2].n_dims, 2);
    assert_int_equal(g->tensor[2].dims[0], 2);
    assert_int_equal(g->tensor[2].dims[1], 3);
    kv_weight_dequantize(&g->tensor[2], 0, 6, x);
    assert_true(x[0] == 1 && x[1] == -2 && x[5] == 6);
}

static void test_reads(void **state)
{
    char *path = kv_path_join(test_folder(), "a.gguf");

    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct tiny_gguf made = {.version = version};
        struct kv_gguf g;
        struct kv_err e = {""};

        make(&made);
        tiny_gguf_write(&made, path);
        if (kv_gguf_open(&g, path, &e))
            fail_msg("%s", e.msg);
        assert_string_equal(g.path, path);
        assert_int_equal(g.header_bytes % 32, 0);
        check_values(&g);
        check_tensors(&g);
        kv_gguf_clear(&g);
        tiny_gguf_clear(&made);
    }
    free(path);
}

static void expect(const uint8_t *data, size_t n, const char *words_of_it)
{
    static char *path;
    FILE *f;
    struct kv_gguf g;
    struct kv_err e = {""};

    if (!path)
        path = kv_path_join(test_folder(), "a.gguf");
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(kv_gguf_open(&g, path, &e), -1);
    assert_says(e, words_of_it);
    assert_says(e, path);
}

/* The file just made cannot be opened, and is removed afterwards. */
static void refuse(struct tiny_gguf *g, const char *words_of_it)
{
    struct tiny_bytes b = tiny_gguf_bytes(g);

    expect(b.data, b.n, words_of_it);
    free(b.data);
    tiny_gguf_clear(g);
}

static void test_truncated(void **state)
{
    struct tiny_gguf g = {0};
    struct tiny_bytes b;

    (void)state;
    make(&g);
    b = tiny_gguf_bytes(&g);
    for (size_t n = 0; n < b.n; n++) /* no beginning of it opens */
        expect(b.data, n, "");
    expect(b.data, 3, "not a GGUF file");
    expect(b.data, 7, "ends inside its header, at byte 7");
    expect(b.data, b.n - 1, "tensor b takes 36 bytes from byte 64 of 99");
    b.data[0] = 'g';
    expect(b.data, b.n, "not a GGUF file");
    free(b.data);
    tiny_gguf_clear(&g);
}

static void test_versions(void **state)
{
    struct tiny_gguf g = {.version = 1};

    (void)state;
    refuse(&g, "GGUF version 1: only 2 and 3 are read");
    g.version = 4;
    refuse(&g, "GGUF version 4: only 2 and 3 are read");
    g.version = 0x03000000;
    refuse(&g, "big endian: only little endian is read");
}

static void test_counts(void **state)
{
    const uint64_t lie = 1ull << 60;
    struct tiny_gguf g = {.n_keys = lie};

    (void)state;
    refuse(&g, "1152921504606846976 keys are to follow at byte 24 of 32");
    g.n_tensors = 1000;
    refuse(&g, "1000 tensors are to follow at byte 24");
    tiny_key(&g, "k", TINY_STRING, &(uint64_t){1u << 30}, 8);
    refuse(&g, "key k: 1073741824 bytes of a string are to follow at byte 45");
    tiny_key_array(&g, "k", TINY_U16, lie, NULL, 0);
    refuse(&g, "key k: 1152921504606846976 elements are to follow");
    tiny_key_array(&g, "k", TINY_STRING, lie, NULL, 0);
    refuse(&g, "key k: 1152921504606846976 strings are to follow");
    tiny_key_array(&g, "k", TINY_STRING, 1, &lie, 8);
    refuse(&g, "key k: 1152921504606846976 bytes of a string are to follow");
}

static void test_values(void **state)
{
    struct tiny_gguf g = {0};

    (void)state;
    tiny_key_array(&g, "k", TINY_ARRAY, 1, (uint32_t[3]){0}, 12);
    refuse(&g, "key k: an array of arrays");
    tiny_key(&g, "k", 13, (uint32_t[3]){0}, 12);
    refuse(&g, "key k: type 13 of a value is not known");
    tiny_key(&g, "k", TINY_BOOL, "\2", 1);
    refuse(&g, "key k: a truth value of 2");
    tiny_key_u32(&g, "k", 1);
    tiny_key_u32(&g, "j", 1);
    tiny_key_u32(&g, "k", 1);
    refuse(&g, "key k is there twice");
    tiny_key_u32(&g, "a\nb", 1);
    refuse(&g, "the name at byte 32 has a byte 10");
    for (size_t i = 0; i < 3; i++) {
        tiny_key_u32(&g, "general.alignment", (uint32_t[]){0, 24, 1u << 31}[i]);
        refuse(&g, "key general.alignment is no power of two");
    }
    tiny_key_text(&g, "general.alignment", "32");
    refuse(&g, "key general.alignment is no power of two");
}

/* One f32 tensor of n_dims dimensions at an offset. */
static void add(struct tiny_gguf *g, const char *name, uint32_t type,
                uint32_t n_dims, const uint64_t *dims, uint64_t offset)
{
    tiny_put_text(&g->tensors, name);
    tiny_put(&g->tensors, &n_dims, 4);
    tiny_put(&g->tensors, dims, n_dims * sizeof(*dims));
    tiny_put(&g->tensors, &type, 4);
    tiny_put(&g->tensors, &offset, 8);
    g->n_tensors++;
}

static void test_tensors(void **state)
{
    const uint64_t eight[] = {8}, five[] = {1, 1, 1, 1, 1};
    const uint64_t big[] = {1ull << 33, 1ull << 33}, odd[] = {33, 1};
    const uint8_t data[128] = {0};
    struct tiny_gguf g = {0};

    (void)state;
    add(&g, "t", 0, 5, five, 0);
    refuse(&g, "tensor t has 5 dimensions; at most 4 are");
    add(&g, "t", 0, 2, big, 0);
    refuse(&g, "tensor t: dimension 0 is no size");
    add(&g, "t", 4, 1, eight, 0);
    refuse(&g, "tensor t: type 4 is not known");
    add(&g, "t", 99, 1, eight, 0);
    refuse(&g, "tensor t: type 99 is not known");
    add(&g, "t", 12, 2, odd, 0);
    refuse(&g, "rows of 33 values are no whole blocks of Q4_K, which has 256");
    add(&g, "t", 28, 2, (uint64_t[]){1ull << 61, 1}, 0);
    refuse(&g, "tensor t: 2305843009213693952 values of F64 are no size");
    add(&g, "t", 0, 1, eight, 16);
    tiny_put(&g.data, data, 64);
    refuse(&g, "tensor t is at byte 16 of the data, no multiple of the "
               "alignment, 32");
    add(&g, "t", 0, 1, eight, 1ull << 62);
    tiny_put(&g.data, data, 64);
    refuse(&g, "tensor t takes 32 bytes from byte 4611686018427387904 of 64");
    add(&g, "t", 0, 1, eight, 0);
    add(&g, "u", 0, 1, eight, 0);
    tiny_put(&g.data, data, 64);
    refuse(&g, "overlap");
    add(&g, "t", 0, 1, eight, 32);
    tiny_put(&g.data, data, 64);
    refuse(&g, "bytes 0 to 32 of the data, before t, belong to no tensor");
    add(&g, "t", 0, 1, eight, 0);
    tiny_put(&g.data, data, 64);
    refuse(&g, "32 bytes after the last tensor");
    add(&g, "t", 0, 1, eight, 0);
    add(&g, "t", 0, 1, eight, 32);
    tiny_put(&g.data, data, 64);
    refuse(&g, "tensor t is there twice");
}

/* Any piece of a tensor, with rows in order or not, equals the same piece of
 * the whole. */
static void test_pieces(void **state)
{
    enum { ROWS = 12, COLUMNS = 256, N = ROWS * COLUMNS, HEAD = 4 };
    uint8_t data[N * sizeof(float)];
    float whole[N], x[N];
    uint16_t half[N];

    (void)state;
    for (size_t i = 0; i < sizeof(data); i++) /* no infinite halves or floats */
        data[i] = (uint8_t)(kv_mix(1, i) & 0x37);
    for (enum kv_stored t = 0; t < KV_STORED_OTHER; t++) {
        struct kv_stored_rows rows = {
            .data = data, .type = t, .row = COLUMNS, .add = 0};

        kv_stored_decode(t, data, N, whole);
        for (size_t i = 0; i < 40; i++) {
            const size_t first = kv_mix(2, i) % N,
                         n = kv_mix(3, i) % (N - first);

            kv_stored_read(&rows, first, n, KV_TYPE_F32, x);
            assert_memory_equal(x, whole + first, n * sizeof(*x));
        }
        rows.head = HEAD;
        rows.add = -1;
        for (size_t i = 0; i < N; i += 100) {
            const size_t row = i / COLUMNS, in = row % HEAD;
            const size_t from = row - in + (size_t[]){0, 2, 1, 3}[in];
            const float want = whole[from * COLUMNS + i % COLUMNS] - 1;

            kv_stored_read(&rows, i, N - i < 300 ? N - i : 300, KV_TYPE_F32, x);
            assert_true(x[0] == want);
            kv_stored_read(&rows, i, N - i < 300 ? N - i : 300, KV_TYPE_F16,
                           half);
            assert_int_equal(half[0], kv_f16_clamp(want));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),    cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_versions), cmocka_unit_test(test_counts),
        cmocka_unit_test(test_values),   cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_pieces),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
