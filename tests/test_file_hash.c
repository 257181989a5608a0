/* lib/file_hash: every byte of a file counts, whatever its size. */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/file_hash.h"
#include "tests/test.h"

#include <fcntl.h>
#include <omp.h>

enum { LEAF = 256 << 10, SPAN = 256 << 20, MAX_PLACES = 64 };

static void hash_of(const char *path, char hex[KV_HASH_CHARS])
{
    struct kv_hash *h = kv_hash_new();
    struct kv_err e = {""};

    if (kv_hash_add_file(h, path, UINT64_MAX, &e))
        fail_msg("%s", e.msg);
    kv_hash_end(h, hex);
}

/* n bytes, byte i is i % 251. */
static void write_bytes(const char *path, size_t n)
{
    uint8_t *x = kv_alloc(n, 1);
    FILE *f = fopen(path, "wb");

    for (size_t i = 0; i < n; i++)
        x[i] = (uint8_t)(i % 251);
    assert_int_equal(fwrite(x, 1, n, f), n);
    fclose(f);
    free(x);
}

/* SHA-256 by Python's hashlib over the size and the tags of AES-GCM: the leaf
 * as associated data, no text (openssl mac -cipher AES-128-GCM ... GMAC). */
static const struct {
    size_t n;
    const char *hex;
} known[] = {
    {0, "af5570f5a1810b7a"},        {1, "ec8938c9e3baa1ef"},
    {16, "f1cede5272237276"},       {17, "d11e8ba39bd0deb7"},
    {LEAF - 1, "0da56fc5ee91a54e"}, {LEAF, "10f58c60a489ecde"},
    {LEAF + 1, "056d1d09c1256472"}, {5 * LEAF + 17, "8de178f116304727"},
};

static void by_definition(void **state)
{
    static const int threads[] = {1, 2, 5};
    char *path = kv_path_join(test_folder(), "f"), hex[KV_HASH_CHARS];
    const int all = omp_get_max_threads();

    (void)state;
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
        for (size_t t = 0; t < 3; t++) {
            omp_set_num_threads(threads[t]);
            write_bytes(path, known[i].n);
            hash_of(path, hex);
            assert_string_equal(hex, known[i].hex);
        }
    omp_set_num_threads(all);
    free(path);
}

static void flip(const char *path, size_t at, uint8_t bits)
{
    const int fd = open(path, O_RDWR);
    uint8_t byte;

    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= bits;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

/* Around each multiple of `every`, the first few of them, and at both ends. */
static size_t list_places(size_t n, size_t every, size_t place[MAX_PLACES])
{
    size_t n_places = 0;

    place[n_places++] = n / 2;
    for (size_t at = 0; at <= n && n_places + 4 < MAX_PLACES; at += every)
        for (size_t i = at ? at - 1 : 0; i <= at + 1 && i < n; i++)
            place[n_places++] = i;
    place[n_places++] = n - 1;
    return n_places;
}

/* No two of these files have the same hash: the original, and copies with one
 * bit of one byte changed. */
static void check_flips(const char *path, size_t n, size_t every)
{
    char seen[MAX_PLACES + 1][KV_HASH_CHARS];
    size_t place[MAX_PLACES];
    const size_t n_places = list_places(n, every, place);

    hash_of(path, seen[0]);
    for (size_t i = 1; i <= n_places; i++) {
        const size_t at = place[i - 1];

        flip(path, at, (uint8_t)(1 << at % 8));
        hash_of(path, seen[i]);
        flip(path, at, (uint8_t)(1 << at % 8));
        for (size_t j = 0; j < i; j++)
            if (!strcmp(seen[i], seen[j]) && (!j || place[j - 1] != at))
                fail_msg("%zu bytes: byte %zu does not count", n, at);
    }
}

static void every_byte_counts(void **state)
{
    static const size_t sizes[] = {1,        2,        15,       16,
                                   17,       LEAF - 1, LEAF,     LEAF + 1,
                                   2 * LEAF, 4 * LEAF, 5 * LEAF, 6 * LEAF + 17};
    char *path = kv_path_join(test_folder(), "f");

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        write_bytes(path, sizes[i]);
        check_flips(path, sizes[i], sizes[i] < LEAF - 1 ? 1 : LEAF);
    }
    free(path);
}

/* Hashes files with holes, whose bytes are all read. */
static void of_large_files(void **state)
{
    char *path = kv_path_join(test_folder(), "f"), hex[KV_HASH_CHARS];

    (void)state;
    write_bytes(path, 0);
    for (size_t n = SPAN - 1; n <= SPAN + 1; n++) {
        assert_int_equal(truncate(path, (off_t)n), 0);
        check_flips(path, n, SPAN);
    }
    hash_of(path, hex);
    assert_string_equal(hex, "524978ba08fd8f1d"); /* the hash in known[] */
    unlink(path);
    free(path);
}

/* Zeros at the end count, and so do the positions of bytes. */
static void size_and_order_count(void **state)
{
    char *path = kv_path_join(test_folder(), "f");
    char one[KV_HASH_CHARS], two[KV_HASH_CHARS];

    (void)state;
    for (size_t n = 0; n <= 2 * LEAF; n += LEAF) {
        write_bytes(path, n);
        hash_of(path, one);
        for (size_t more = 1; more <= LEAF; more += LEAF - 1) {
            assert_int_equal(truncate(path, (off_t)(n + more)), 0);
            hash_of(path, two);
            assert_string_not_equal(one, two);
        }
    }
    for (size_t at = 0; at <= 3 * LEAF; at += LEAF) {
        write_bytes(path, 0);
        assert_int_equal(truncate(path, 4 * LEAF), 0);
        flip(path, at ? at - 1 : at, 1);
        hash_of(path, two);
        assert_string_not_equal(one, two);
        memcpy(one, two, sizeof(one));
    }
    free(path);
}

static void refused(void **state)
{
    const char *dir = test_folder();
    char *path = kv_path_join(dir, "none"), hex[KV_HASH_CHARS];
    struct kv_hash *h = kv_hash_new();
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(kv_hash_add_file(h, path, UINT64_MAX, &e), -1);
    assert_says(e, "none: No such file");
    assert_int_equal(kv_hash_add_file(h, dir, UINT64_MAX, &e), -1);
    assert_says(e, "is not a regular file");
    fclose(fopen(path, "w"));
    assert_int_equal(truncate(path, (off_t)1 << 40), 0); /* is not read */
    assert_int_equal(kv_hash_add_file(h, path, 1 << 20, &e), -1);
    assert_says(e, "is too long: expected at most 1048576 bytes");
    kv_hash_end(h, hex);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_definition),
        cmocka_unit_test(every_byte_counts),
        cmocka_unit_test(of_large_files),
        cmocka_unit_test(size_and_order_count),
        cmocka_unit_test(refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
