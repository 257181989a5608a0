/* calib/: the parts of a calibration have the tables of the whole, of every
 * scheme and policy that trains. */
#include "calib/calibrate.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/dump.h"
#include "lib/scheme.h"
#include "tests/synthetic.h"
#include "tests/test.h"

enum { LAYERS = 3, HEAD_DIM = 32 };

static struct kv_shape shape;
static char *dump_path, *whole_path, *joined_path;

static int make_dump(void **state)
{
    const char *folder = test_folder();

    (void)state;
    shape = synthetic_shape(HEAD_DIM);
    shape.n_layers = LAYERS;
    synthetic_dump(&shape, 2, 160, folder, &dump_path);
    whole_path = kv_path_join(folder, "whole.h5");
    joined_path = kv_path_join(folder, "joined.h5");
    return 0;
}

static int free_paths(void **state)
{
    (void)state;
    free(dump_path);
    free(whole_path);
    free(joined_path);
    return 0;
}

static struct kv_calib *run_part(struct kv_calib_part part,
                                 const struct kv_spec *spec)
{
    struct kv_dump *dump;
    struct kv_calib *c = NULL;
    struct kv_err e = {""};

    if (kv_dump_open(&dump, dump_path, &e) ||
        kv_calib_run_part(&c, part, dump, spec, 1, NULL, 7, &e))
        fail_msg("%s", e.msg);
    kv_dump_close(dump);
    return c;
}

static void save(struct kv_calib *c, const char *path)
{
    struct kv_err e = {""};

    if (kv_calib_save(c, path, &e))
        fail_msg("%s", e.msg);
    kv_calib_free(c);
}

/* Part 0 of n, with the tables of the others. */
static struct kv_calib *join(size_t n, const struct kv_spec *spec)
{
    struct kv_calib *all = run_part((struct kv_calib_part){0, n}, spec);

    for (size_t i = 1; i < n; i++) {
        struct kv_calib *c = run_part((struct kv_calib_part){i, n}, spec);
        uint8_t *bytes;
        const size_t size = kv_calib_pack(c, &bytes);
        struct kv_err e = {""};

        if (kv_calib_unpack(all, bytes, size, &e))
            fail_msg("%s", e.msg);
        free(bytes);
        kv_calib_free(c);
    }
    return all;
}

static void check_parts(const char *text)
{
    struct kv_spec spec;
    struct kv_err e = {""};

    if (kv_spec_parse(&spec, text, &e) || kv_spec_fit(&spec, &shape, &e))
        fail_msg("%s", e.msg);
    save(run_part((struct kv_calib_part){0, 1}, &spec), whole_path);
    for (size_t n = 2; n <= LAYERS + 1; n += LAYERS - 1) {
        char *a = NULL, *b = NULL;
        size_t na = 0, nb = 0;

        save(join(n, &spec), joined_path);
        if (kv_file_read(whole_path, &a, &na, &e) ||
            kv_file_read(joined_path, &b, &nb, &e))
            fail_msg("%s", e.msg);
        if (na != nb || memcmp(a, b, na) != 0)
            fail_msg("%s: %zu parts differ from the whole", text, n);
        free(a);
        free(b);
    }
}

static void test_schemes(void **state)
{
    (void)state;
    for (size_t i = 0; kv_schemes[i]; i++)
        if (kv_schemes[i]->training && strcmp(kv_schemes[i]->name, "exec") != 0)
            check_parts(kv_schemes[i]->name);
}

static void test_choices(void **state)
{
    (void)state;
    check_parts("pq:d4b4,books=model");
    check_parts("kvtc:b2,span=all");
    check_parts("vecinfer:K-d4b4/V-d8b4,iters=2");
    check_parts("minference:b0.25+f16");
    check_parts("K-pq:d4b4,rope=pre/V-kivi:b2g16r16");
}

static void test_damaged(void **state)
{
    struct kv_spec spec;
    struct kv_calib *c;
    struct kv_err e = {""};
    uint8_t *bytes;
    size_t n;

    (void)state;
    assert_int_equal(kv_spec_parse(&spec, "oscar", &e), 0);
    assert_int_equal(kv_spec_fit(&spec, &shape, &e), 0);
    c = run_part((struct kv_calib_part){1, 2}, &spec);
    n = kv_calib_pack(c, &bytes);
    for (size_t cut = 0; cut < n; cut += 97) {
        assert_int_equal(kv_calib_unpack(c, bytes, cut, &e), -1);
        assert_says(e, "a part of a calibration ends in oscar");
    }
    free(bytes);
    kv_calib_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_damaged),
    };

    return cmocka_run_group_tests(tests, make_dump, free_paths);
}
