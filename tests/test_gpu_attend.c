/* Attention on the device apart from its kernels: the choice of a kernel, and
 * codes decoded to halves first.  The tests of a family are in
 * test_gpu_attend_<family>.c. */
#include "tests/gpu_attend_setup.h"

/* Codes that exceed a device's shared memory run on the generic kernel. */
static void test_small_device(void **state)
{
    const size_t shared = test_device.shared;

    (void)state;
    test_device.shared = 99 << 10;
    check_name("nf4:g32r0", 256, "generic");
    check_name("kivi:b2g32r0", 256, "generic");
    test_device.shared = shared;
}

/* Codes written as halves, then attended to: with sinks and tail, in a space of
 * their own, in prefill. */
static void test_dequant(void **state)
{
    static const struct sized cases[] = {
        {"kivi:b2g32s5r128", 128, 4, 64, 700, 2},
        {"kivi:b3g128r0", 96, 2, 48, 300, 1},
        {"vecinfer:d4b8r40,iters=1", 64, 8, 32, 400, 3},
        {"evasion:d8b6r0,iters=1", 256, 1, 128, 300, 1},
        {"fp6:e3m2r0", 64, 4, 32, 100, 1},
        {"kvquant:s2r40", 128, 2, 64, 400, 2},
        {"rotatekv:s2r40,min", 64, 2, 32, 400, 2},
        {"turboquant:b4", 128, 2, 64, 260, 100}};

    (void)state;
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_DEQUANT);
}

/* Codes without a kernel are named in the sentence. */
static void check_missing(const char *text, size_t head_dim, const char *says)
{
    const struct kv_shape s = synthetic_shape(head_dim);
    struct kv_calib *calib = NULL;
    struct rig r = rig(text, &s, 10, &calib);
    const struct kv_tiles_job job = kv_tile_cache_job(r.tiled, 1);
    struct kv_gpu_attend *g;
    struct kv_err e = {""};

    assert_int_not_equal(
        kv_gpu_attend_new(&g, &test_device, &job, 1, KV_PATH_EXACT, &e), 0);
    if (!strstr(e.msg, says))
        fail_msg("%s: \"%s\" does not say \"%s\"", text, e.msg, says);
    rig_clear(&r);
    kv_calib_free(calib);
}

static void test_missing(void **state)
{
    static const struct {
        const char *spec;
        size_t head_dim;
        const char *says;
    } cases[] = {
        {"evasion:d2b8,rope=pre,iters=1", 66, "keys stored before RoPE"},
        {"f16", 258, "family float and values of family"},
        {"kvquant:r0", 66, "keys of family levels"},
        {"klt", 80, "keys of family transform"},
        {"klt:b8", 64, "keys of family transform"}, /* of two heads */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        check_missing(cases[i].spec, cases[i].head_dim, cases[i].says);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_device),
        cmocka_unit_test(test_dequant),
        cmocka_unit_test(test_missing),
    };

    return RUN_ON_DEVICE(tests);
}
