#include "tests/test.h"

#include "lib/base/alloc.h"
#include "lib/h5.h"
#include "lib/h5_head.h"

#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char folder[4096];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "%s", test_folder());
    return 0;
}

static const char *in_folder(const char *name)
{
    static char path[5000];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

/* Files in the folder whose names start with this. */
static size_t count_files(const char *start)
{
    char command[5000], line[16] = "";
    FILE *p;

    snprintf(command, sizeof(command), "ls -A '%s' | grep -c '^%s'", folder,
             start);
    p = popen(command, "r");
    assert_non_null(fgets(line, sizeof(line), p));
    pclose(p);
    return strtoul(line, NULL, 10);
}

static const size_t odd_dims[] = {3, 5, 7};
enum { ODD = 3 * 5 * 7 };

static void fill(unsigned char *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (unsigned char)(i * 37 % 120 + 1); /* no NaN in any type */
}

static const enum kv_h5_type all_types[] = {KV_H5_U8,  KV_H5_I32,  KV_H5_U64,
                                            KV_H5_F16, KV_H5_BF16, KV_H5_F32,
                                            KV_H5_F64};
enum { N_TYPES = sizeof(all_types) / sizeof(*all_types) };

static struct kv_h5 *create(const char *path)
{
    struct kv_err e = {""};
    struct kv_h5 *h = NULL;

    if (kv_h5_create(&h, path, &e))
        fail_msg("%s", e.msg);
    return h;
}

static struct kv_h5 *open_file(const char *path)
{
    struct kv_err e = {""};
    struct kv_h5 *h = NULL;

    if (kv_h5_open(&h, path, &e))
        fail_msg("%s", e.msg);
    return h;
}

static void every_type_comes_back(void **state)
{
    const char *path = in_folder("types.h5");
    const size_t none[] = {4, 0}, first[] = {1, 2, 3}, box[] = {2, 3, 2};
    struct kv_err e = {""};
    struct kv_h5 *h = create(path);
    unsigned char x[ODD * 8], y[ODD * 8];
    char name[16];

    (void)state;
    fill(x, sizeof(x));
    for (size_t i = 0; i < N_TYPES; i++) {
        snprintf(name, sizeof(name), "/t%zu", i);
        kv_h5_dataset(h, name, all_types[i], 3, odd_dims);
        assert_int_equal(kv_h5_write(h, name, all_types[i], NULL, NULL, x, &e),
                         0);
    }
    kv_h5_dataset(h, "/none", KV_H5_F32, 2, none);
    assert_int_equal(kv_h5_write(h, "/none", KV_H5_F32, NULL, NULL, x, &e), 0);
    assert_int_equal(kv_h5_commit(h, &e), 0);

    h = open_file(path);
    for (size_t i = 0; i < N_TYPES; i++) {
        const size_t bytes = kv_h5_type_bytes(all_types[i]);

        snprintf(name, sizeof(name), "/t%zu", i);
        memset(y, 0xa5, sizeof(y));
        assert_int_equal(kv_h5_read(h, name, all_types[i], NULL, NULL, y, &e),
                         0);
        assert_memory_equal(x, y, ODD * bytes);
        assert_int_equal(y[ODD * bytes % sizeof(y)], bytes == 8 ? y[0] : 0xa5);
        assert_int_equal(kv_h5_read(h, name, all_types[i], first, box, y, &e),
                         0);
        for (size_t a = 0; a < 2; a++)
            for (size_t b = 0; b < 3; b++)
                assert_memory_equal(y + (a * 3 + b) * 2 * bytes,
                                    x + (((a + 1) * 5 + b + 2) * 7 + 3) * bytes,
                                    2 * bytes);
        assert_int_equal(kv_h5_check(h, name, all_types[i], 3, odd_dims, &e),
                         0);
        assert_int_equal(
            kv_h5_check(h, name, all_types[(i + 1) % N_TYPES], 3, odd_dims, &e),
            -1);
        assert_says(e, "does not hold");
    }
    assert_int_equal(kv_h5_read(h, "/none", KV_H5_F32, NULL, NULL, y, &e), 0);
    assert_int_equal(kv_h5_check(h, "/none", KV_H5_F32, 2, none, &e), 0);
    kv_h5_close(h);
}

static void boxes_outside_fail(void **state)
{
    const size_t first[] = {0, 0, 5}, count[] = {1, 1, 3};
    struct kv_err e = {""};
    struct kv_h5 *h = open_file(in_folder("types.h5"));
    unsigned char y[64];

    (void)state;
    assert_int_equal(kv_h5_read(h, "/t0", KV_H5_U8, first, count, y, &e), -1);
    assert_says(e, "has 7 entries in dimension 2, 5 to 8 were asked for");
    assert_int_equal(kv_h5_read(h, "/no", KV_H5_U8, NULL, NULL, y, &e), -1);
    assert_says(e, "types.h5 has no /no");
    assert_int_equal(kv_h5_check(h, "/t5", KV_H5_F32, 2, odd_dims, &e), -1);
    assert_says(e, "/t5 is [3][5][7], expected [3][5]");
    kv_h5_close(h);
}

static void attributes_come_back(void **state)
{
    const char *path = in_folder("attributes.h5");
    struct kv_err e = {""};
    struct kv_h5 *h = create(path);
    char text[16], (*names)[KV_H5_NAME_CHARS];
    int64_t i;
    uint64_t u;
    double x;
    size_t n;

    (void)state;
    kv_h5_group(h, "/b");
    kv_h5_group(h, "/a");
    kv_h5_put_text(h, "/a", "empty", "");
    kv_h5_put_text(h, "/", "text", "K\xc3\xb6ln");
    kv_h5_put_int(h, "/", "int", -1);
    kv_h5_put_u64(h, "/", "u64", UINT64_MAX);
    kv_h5_put_real(h, "/a", "real", 0.1);
    kv_h5_put_real(h, "/a", "nan", NAN);
    kv_h5_put_real(h, "/a", "whole", 3);
    assert_int_equal(kv_h5_commit(h, &e), 0);

    h = open_file(path);
    assert_int_equal(kv_h5_get_text(h, "/a", "empty", text, 16, &e), 0);
    assert_string_equal(text, "");
    assert_int_equal(kv_h5_get_text(h, "/", "text", text, 6, &e), 0);
    assert_string_equal(text, "K\xc3\xb6ln");
    assert_int_equal(kv_h5_get_text(h, "/", "text", text, 5, &e), -1);
    assert_says(e, "attribute text of / has 5 bytes");
    assert_int_equal(kv_h5_get_int(h, "/", "int", -1, 1, &i, &e), 0);
    assert_int_equal(i, -1);
    assert_int_equal(kv_h5_get_int(h, "/", "int", 0, 9, &i, &e), -1);
    assert_says(e, "attribute int of / is -1, expected 0 to 9");
    assert_int_equal(kv_h5_get_size(h, "/", "int", 0, 9, &n, &e), -1);
    assert_int_equal(kv_h5_get_u64(h, "/", "u64", &u, &e), 0);
    assert_true(u == UINT64_MAX);
    assert_int_equal(kv_h5_get_real(h, "/a", "real", &x, &e), 0);
    assert_true(x == 0.1);
    assert_int_equal(kv_h5_get_real(h, "/a", "nan", &x, &e), 0);
    assert_true(isnan(x));
    assert_int_equal(kv_h5_get_real(h, "/", "int", &x, &e), 0);
    assert_true(x == -1);
    assert_int_equal(kv_h5_get_real(h, "/", "text", &x, &e), -1);
    assert_says(e, "attribute text of / is not a number");
    assert_int_equal(kv_h5_get_u64(h, "/", "int", &u, &e), -1);
    assert_says(e, "attribute int of / is -1, expected 0 or more");
    assert_int_equal(kv_h5_get_int(h, "/", "u64", 0, INT64_MAX, &i, &e), -1);
    assert_says(e, "attribute u64 of / is 1.8446744073709552e+19, expected");
    assert_int_equal(kv_h5_get_int(h, "/a", "real", 0, 9, &i, &e), -1);
    assert_says(e, "attribute real of /a is not a whole number");
    assert_int_equal(kv_h5_get_int(h, "/a", "nan", 0, 9, &i, &e), -1);
    assert_int_equal(kv_h5_get_int(h, "/a", "whole", 0, 9, &i, &e), 0);
    assert_int_equal(i, 3);
    assert_int_equal(kv_h5_get_int(h, "/", "text", 0, 1, &i, &e), -1);
    assert_says(e, "is not a whole number");
    assert_int_equal(kv_h5_get_int(h, "/", "gone", 0, 1, &i, &e), -1);
    assert_says(e, "attribute gone of / is missing");
    assert_int_equal(kv_h5_children(h, "/", &names, &n, &e), 0);
    assert_int_equal(n, 2);
    assert_string_equal(names[0], "a");
    assert_string_equal(names[1], "b");
    free(names);
    assert_int_equal(kv_h5_children(h, "/gone", &names, &n, &e), -1);
    assert_says(e, "has no /gone");
    assert_null(names);
    assert_false(kv_h5_has(h, "/c"));
    kv_h5_close(h);
}

static void what_is_not_hdf5_is_named(void **state)
{
    const char *path = in_folder("plain.txt");
    struct kv_err e = {""};
    struct kv_h5 *h;
    FILE *f = fopen(path, "w");

    (void)state;
    fputs("tokens\n", f);
    fclose(f);
    assert_int_equal(kv_h5_open(&h, path, &e), -1);
    assert_says(e, "plain.txt is not an HDF5 file");
    f = fopen(path, "w");
    fputs("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", f);
    fclose(f);
    assert_int_equal(kv_h5_open(&h, path, &e), -1);
    assert_says(e, "plain.txt is a Git LFS pointer");
    assert_int_equal(kv_h5_open(&h, in_folder("absent.h5"), &e), -1);
    assert_says(e, "absent.h5: No such file or directory");
    assert_int_equal(kv_h5_open(&h, folder, &e), -1);
    assert_says(e, "it is a folder");
    assert_int_equal(kv_h5_create(&h, in_folder("no/such.h5"), &e), -1);
    assert_says(e, "no/such.h5: No such file or directory");
    if (geteuid() == 0)
        return; /* root may write anywhere */
    assert_int_equal(chmod(folder, 0500), 0);
    assert_int_equal(kv_h5_create(&h, in_folder("locked.h5"), &e), -1);
    chmod(folder, 0700);
    assert_says(e, "locked.h5: Permission denied");
}

static void nothing_appears_before_commit(void **state)
{
    struct kv_h5 *h = create(in_folder("half.h5"));
    struct kv_err e = {""};

    (void)state;
    kv_h5_put_int(h, "/", "n", 1);
    assert_int_equal(access(in_folder("half.h5"), F_OK), -1);
    assert_int_equal(count_files("half"), 1);
    kv_h5_close(h);
    assert_int_equal(count_files("half"), 0);

    h = create(in_folder("half.h5"));
    kv_h5_put_int(h, "/no/group", "n", 1);
    kv_h5_put_int(h, "/", "n", 1);
    assert_int_equal(kv_h5_commit(h, &e), -1);
    assert_says(e, "half.h5: cannot write attribute n");
    assert_int_equal(count_files("half"), 0);
}

/* The disk is full after `room` bytes. */
static int write_limited(size_t limit, struct kv_err *e)
{
    enum { N = 1 << 16, SETS = 4 };
    const size_t dims[] = {N};
    struct rlimit was, now;
    struct kv_h5 *h = create(in_folder("full.h5"));
    float *x = kv_alloc(N, sizeof(*x));
    int rc = 0;
    char name[8];

    getrlimit(RLIMIT_FSIZE, &was);
    now = was;
    now.rlim_cur = limit;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &now);
    for (size_t i = 0; i < SETS && !rc; i++) {
        snprintf(name, sizeof(name), "/s%zu", i);
        kv_h5_dataset(h, name, KV_H5_F32, 1, dims);
        rc = kv_h5_write(h, name, KV_H5_F32, NULL, NULL, x, e);
    }
    if (rc)
        kv_h5_close(h);
    else
        rc = kv_h5_commit(h, e);
    setrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, SIG_DFL);
    free(x);
    return rc;
}

/* The last chunk is stored whole: chunks that do not divide the tokens would
 * make up to a third more. */
static void windows_take_their_own_bytes(void **state)
{
    static const size_t ctx[] = {1, 341, 342, 1000, 1023, 1024, 2048};
    const char *path = in_folder("chunks.h5");

    (void)state;
    for (size_t i = 0; i < sizeof(ctx) / sizeof(*ctx); i++) {
        const size_t dims[] = {2, ctx[i], 3, 64};
        const size_t bytes = 2 * ctx[i] * 3 * 64 * sizeof(float);
        float *x = kv_alloc(1, bytes);
        struct kv_h5 *h = create(path);
        struct stat file;

        kv_h5_dataset(h, "/k", KV_H5_F32, 4, dims);
        assert_int_equal(kv_h5_write(h, "/k", KV_H5_F32, NULL, NULL, x, NULL),
                         0);
        assert_int_equal(kv_h5_commit(h, NULL), 0);
        assert_int_equal(stat(path, &file), 0);
        assert_true((size_t)file.st_size <= bytes + bytes / 100 + 8192);
        free(x);
    }
}

static void a_full_disk_is_an_error(void **state)
{
    const size_t whole = 4 * (1 << 16) * sizeof(float);

    (void)state;
    for (size_t limit = 100; limit < whole; limit += whole / 9) {
        struct kv_err e = {""};

        assert_int_equal(write_limited(limit, &e), -1);
        assert_says(e, "full.h5");
        assert_says(e, "File too large");
        assert_int_equal(count_files("full"), 0);
    }
    assert_int_equal(write_limited(2 * whole, NULL), 0);
    assert_int_equal(count_files("full"), 1);
}

static size_t read_bytes(const char *path, unsigned char **bytes)
{
    FILE *f = fopen(path, "rb");
    size_t n;

    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    n = (size_t)ftell(f);
    rewind(f);
    *bytes = kv_alloc(n, 1);
    assert_int_equal(fread(*bytes, 1, n, f), n);
    fclose(f);
    return n;
}

static void write_bytes(const char *path, const unsigned char *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void small_file(const char *path)
{
    struct kv_err e = {""};
    struct kv_h5 *h = create(path);
    unsigned char x[ODD * 4];

    fill(x, sizeof(x));
    kv_h5_put_kind(h, "kvtools-test", 1);
    kv_h5_group(h, "/layer_000");
    kv_h5_dataset(h, "/layer_000/k", KV_H5_F32, 3, odd_dims);
    assert_int_equal(
        kv_h5_write(h, "/layer_000/k", KV_H5_F32, NULL, NULL, x, &e), 0);
    assert_int_equal(kv_h5_commit(h, &e), 0);
}

static void the_same_calls_give_the_same_bytes(void **state)
{
    unsigned char *a, *b;
    size_t n;

    (void)state;
    small_file(in_folder("one.h5"));
    n = read_bytes(in_folder("one.h5"), &a);
    sleep(1); /* a timestamp would show */
    small_file(in_folder("two.h5"));
    assert_int_equal(read_bytes(in_folder("two.h5"), &b), n);
    assert_memory_equal(a, b, n);
    free(a);
    free(b);
}

/* Reads the file of small_file(): 0 when it is right, -1 with a sentence. */
static int read_small(const char *path, struct kv_err *e)
{
    unsigned char x[ODD * 4], y[ODD * 4];
    struct kv_h5 *h;
    int rc = -1;

    if (kv_h5_open(&h, path, e))
        return -1;
    if (!kv_h5_check_kind(h, "kvtools-test", 1, e) &&
        !kv_h5_check(h, "/layer_000/k", KV_H5_F32, 3, odd_dims, e) &&
        !kv_h5_read(h, "/layer_000/k", KV_H5_F32, NULL, NULL, y, e)) {
        fill(x, sizeof(x));
        assert_memory_equal(x, y, sizeof(x));
        rc = 0;
    }
    kv_h5_close(h);
    return rc;
}

/* A flipped byte is an error or changes nothing that is read. */
static void every_flipped_byte_is_noticed(void **state)
{
    const char *path = in_folder("flipped.h5");
    unsigned char *bytes;
    size_t n, noticed = 0;

    (void)state;
    small_file(path);
    n = read_bytes(path, &bytes);
    for (size_t i = 0; i < n; i++) {
        struct kv_err e = {""};

        bytes[i] ^= 0xff;
        write_bytes(path, bytes, n);
        if (read_small(path, &e)) {
            noticed++;
            assert_says(e, "flipped.h5");
        }
        bytes[i] ^= 0xff;
    }
    assert_true(noticed >= ODD * 4); /* at least every byte of the values */
    free(bytes);
}

static void every_cut_is_noticed(void **state)
{
    const char *path = in_folder("cut.h5");
    struct kv_err e = {""};
    unsigned char *bytes;
    size_t n;

    (void)state;
    small_file(path);
    n = read_bytes(path, &bytes);
    for (size_t keep = 0; keep < n; keep += 13) {
        write_bytes(path, bytes, keep);
        assert_int_equal(read_small(path, &e), -1);
        assert_says(e, "cut.h5");
    }
    assert_says(e, "cut.h5 is cut short");
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_comes_back),
        cmocka_unit_test(boxes_outside_fail),
        cmocka_unit_test(attributes_come_back),
        cmocka_unit_test(what_is_not_hdf5_is_named),
        cmocka_unit_test(nothing_appears_before_commit),
        cmocka_unit_test(windows_take_their_own_bytes),
        cmocka_unit_test(a_full_disk_is_an_error),
        cmocka_unit_test(the_same_calls_give_the_same_bytes),
        cmocka_unit_test(every_flipped_byte_is_noticed),
        cmocka_unit_test(every_cut_is_noticed),
    };

    return cmocka_run_group_tests(tests, make_folder, NULL);
}
