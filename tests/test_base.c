/* lib/base: half floats, random numbers, errors, files, sizes. */
#include "lib/base/alloc.h"
#include "lib/base/crc32.h"
#include "lib/base/err.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/base/hash.h"
#include "lib/base/opt.h"
#include "lib/base/rng.h"
#include "lib/base/utf8.h"
#include "tests/test.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

static void test_f16_round_trip(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float f = kv_f16_to_f32((uint16_t)h);

        if (isnan(f))
            assert_true((h & 0x7c00) == 0x7c00 && (h & 0x3ff));
        else
            assert_int_equal(kv_f32_to_f16(f), h);
    }
}

/* Against the definition: the nearest half, ties to the even one. */
static void test_f16_rounding(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        const double low = (double)kv_f16_to_f32((uint16_t)h);
        const double high = (double)kv_f16_to_f32((uint16_t)(h + 1));
        const float middle = (float)((low + high) / 2);

        assert_int_equal(kv_f32_to_f16(middle), h & 1 ? h + 1 : h);
        assert_int_equal(kv_f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(kv_f32_to_f16(nextafterf(middle, 1e9f)), h + 1);
        assert_int_equal(kv_f32_to_f16(-middle), 0x8000 | (h & 1 ? h + 1 : h));
    }
    assert_int_equal(kv_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(kv_f32_to_f16(65520), 0x7c00);
    assert_int_equal(kv_f16_clamp(1e30f), 0x7bff);
    assert_int_equal(kv_f16_clamp(-1e30f), 0xfbff);
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float f = kv_bf16_to_f32((uint16_t)h);

        if (!isnan(f))
            assert_int_equal(kv_f32_to_bf16(f), h);
    }
    assert_int_equal(kv_f32_to_bf16(kv_bits_f32(0x3f808000)), 0x3f80);
    assert_int_equal(kv_f32_to_bf16(kv_bits_f32(0x3f818000)), 0x3f82);
}

static void test_random(void **state)
{
    double sum = 0, normal = 0, normal2 = 0;
    enum { N = 100000 };

    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        const double z = kv_random_normal(2, i);

        sum += (double)kv_random_unit(1, i);
        normal += z;
        normal2 += z * z;
    }
    assert_within(sum / N, 0.5, 0.005);
    assert_within(normal / N, 0, 0.02);
    assert_within(normal2 / N, 1, 0.03);
    assert_true(kv_random(1, 2) != kv_random(2, 1));
}

static void test_errors(void **state)
{
    struct kv_err e;
    char longest[3000];

    (void)state;
    assert_int_equal(kv_fail(&e, "b %d", 2), -1);
    assert_int_equal(kv_fail_in(&e, "a"), -1);
    assert_string_equal(e.msg, "a: b 2");
    memset(longest, 'x', sizeof(longest));
    longest[sizeof(longest) - 1] = 0;
    kv_fail(&e, "%s", longest);
    kv_fail_in(&e, "%s", longest);
    assert_int_equal(strlen(e.msg), sizeof(e.msg) - 1);
    assert_int_equal(kv_fail(NULL, "dropped"), -1);
}

/* Memory is zero even if other bytes were there, and begins at a cache line or
 * a huge page. */
static void test_lines(void **state)
{
    (void)state;
    assert_null(kv_lines(0, 8));
    for (size_t bytes = 1; bytes <= (size_t)9 << 20; bytes *= 3)
        for (int again = 0; again < 2; again++) {
            uint8_t *p = kv_lines(bytes, 1);

            assert_int_equal((uintptr_t)p % (bytes < 4 << 20 ? 64 : 2 << 20),
                             0);
            for (size_t i = 0; i < bytes; i++)
                assert_true(p[i] == 0);
            memset(p, 0xa5, bytes);
            free(p);
        }
}

static void test_out(void **state)
{
    struct kv_err e = {""};
    struct kv_out o;
    char *path = kv_path_join(test_folder(), "out.txt"), *text, *inside;
    size_t n;

    (void)state;
    assert_int_equal(kv_out_open(&o, path, true, &e), 0);
    fputs("whole", o.file);
    assert_false(kv_file_exists(path));
    assert_int_equal(kv_out_commit(&o, &e), 0);
    assert_int_equal(kv_file_read(path, &text, &n, &e), 0);
    assert_string_equal(text, "whole");
    assert_int_equal(kv_out_open(&o, path, true, &e), 0);
    fputs("half", o.file);
    inside = kv_strdup(o.temp);
    kv_out_discard(&o);
    assert_false(kv_file_exists(inside));
    free(inside);
    free(text);
    assert_int_equal(kv_file_read(path, &text, &n, &e), 0);
    assert_string_equal(text, "whole");
    inside = kv_path_join(path, "x");
    assert_int_equal(kv_out_open(&o, inside, true, &e), -1);
    assert_says(e, "cannot write");
    assert_int_equal(kv_out_open(&o, "/", true, &e), -1);
    assert_says(e, "it is a folder");
    free(inside);
    free(text);
    free(path);
}

/* The checks of a map, a whole read and HDF5. */
static void test_inputs(void **state)
{
    static const struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    char *path = kv_path_join(test_folder(), "in.txt"), *text;
    struct kv_err e = {""};
    struct kv_input *in;
    struct kv_map m;
    size_t n;
    FILE *f;

    (void)state;
    f = fopen(path, "w");
    assert_non_null(f);
    fputs("some text", f);
    fclose(f);
    assert_int_equal(kv_input_open(&in, path, &e), 0);
    assert_int_equal(kv_inputs_unchanged(&e), 0);
    assert_true(kv_input_close(in));
    assert_true(kv_input_close(NULL));

    assert_int_equal(kv_map_open(&m, path, &e), 0);
    assert_int_equal(m.bytes, 9);
    assert_int_equal(kv_file_read(path, &text, &n, &e), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_int_equal(kv_inputs_unchanged(&e), -1);
    assert_says(e, "in.txt was changed while it was read");
    kv_map_close(&m);
    assert_int_equal(kv_inputs_unchanged(&e), 0); /* checks open files only */

    assert_int_equal(kv_input_open(&in, path, &e), 0);
    f = fopen(path, "a");
    assert_non_null(f);
    fputs("more", f);
    fclose(f);
    assert_false(kv_input_close(in));
    assert_int_equal(kv_input_open(&in, test_folder(), &e), -1);
    assert_says(e, "is not a regular file");
    free(text);
    free(path);
}

static void test_sizes_and_hash(void **state)
{
    char hex[KV_HASH_CHARS];
    size_t n;

    (void)state;
    assert_int_equal(kv_parse_bytes("1.5G", &n), 0);
    assert_int_equal(n, 1610612736);
    assert_int_equal(kv_parse_bytes("64MiB", &n), 0);
    assert_int_equal(n, 64 << 20);
    assert_int_equal(kv_parse_bytes("7", &n), 0);
    assert_int_equal(n, 7);
    assert_int_equal(kv_parse_bytes("", &n), -1);
    assert_int_equal(kv_parse_bytes("-1M", &n), -1);
    assert_int_equal(kv_parse_bytes("3X", &n), -1);
    kv_hash_bytes("abc", 3, hex); /* FIPS 180-2, appendix B.1 */
    assert_string_equal(hex, "ba7816bf8f01cfea");
    assert_int_equal(kv_crc32("123456789", 9), 0xcbf43926);
    assert_int_equal(kv_crc32("", 0), 0);
}

/* Control characters are escaped, letters stay. */
static void test_shown(void **state)
{
    static const struct {
        const char *text, *keep, *shown;
    } cases[] = {
        {"", "", ""},
        {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "",
         "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\x1b[31m\a\r\n\t\x7f", "\n\t", "\\x1b[31m\\x07\\x0d\n\t\\x7f"},
        {"a\nb", "", "a\\x0ab"},
        {"\xc2\x9b\xc2\xa0", "", "\\xc2\\x9b\xc2\xa0"}, /* C1, a letter */
        {"\x9b\xe2\x82", "", "\\x9b\\xe2\\x82"},        /* no UTF-8 */
        {"\xed\xa0\x80\xc0\x9b", "", "\\xed\\xa0\\x80\\xc0\\x9b"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        size_t n;
        char *shown =
            kv_shown(cases[i].text, strlen(cases[i].text), cases[i].keep, &n);

        assert_string_equal(shown, cases[i].shown);
        assert_int_equal(n, strlen(cases[i].shown));
        free(shown);
    }
}

/* memory, item, parts, busy, threads, max: what fits.  Items and the threads
 * that are busy with their parts take no more than the memory. */
static void test_memory_fit(void **state)
{
    static const size_t rows[][7] = {
        {100, 10, 1, 0, 4, 99, 10}, /* threads take nothing */
        {100, 10, 1, 5, 4, 99, 8},  /* all four are busy */
        {100, 10, 1, 20, 4, 99, 3}, /* threads for all items */
        {100, 10, 3, 20, 4, 99, 2}, /* 2 items of 3 parts, 4 threads */
        {30, 10, 1, 10, 4, 99, 1},
        {100, 10, 1, 5, 4, 7, 7}, /* no more than there are */
        {1000, 10, 9, 5, 64, 99, 68},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        const size_t *r = rows[i];

        assert_int_equal(
            kv_memory_fit_threads(r[0], r[1], r[2], r[3], r[4], r[5], "it"),
            r[6]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_fit),
        cmocka_unit_test(test_f16_round_trip),
        cmocka_unit_test(test_f16_rounding),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_out),
        cmocka_unit_test(test_inputs),
        cmocka_unit_test(test_sizes_and_hash),
        cmocka_unit_test(test_shown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
