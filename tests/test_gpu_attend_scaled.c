/* Attention on the device on codes of tables and small floats with scales. */
#include "tests/gpu_attend_setup.h"

/* Both formats of floats, scales of a head, groups of 16 channels. */
static void test_scaled(void **state)
{
    (void)state;
    check_sizes("nf4:g32s3r40", 64, 16, BY_EXACT);
    check_sizes("iq4_nl", 128, 12, BY_EXACT);
    check_sizes("nvfp4", 128, 3, BY_EXACT);
    check_sizes("turboquant:b3r0", 128, 4, BY_EXACT);
    check_sizes("turboquant:b2r0", 128, 4, BY_EXACT);
    check_sizes("fp8:K-e4m3/V-e5m2,scale=token,r=40", 64, 8, BY_EXACT);
    check_sizes("mxfp8:e5m2r0", 128, 4, BY_EXACT);
    check_long("nvfp4", 64, 8, BY_EXACT);
    check_long("turboquant:b2r0", 64, 4, BY_EXACT);
    check_long("mxfp4:r0", 64, 2, BY_EXACT);
    check_long("fp8,scale=none,r=0", 64, 2, BY_EXACT);
}

static void test_scaled_kernels(void **state)
{
    static const char *const texts[] = {
        "turboquant:b2r0", "turboquant:b3r0",    "nf4:r0",   "mxfp4:r0",
        "nvfp4:r0",        "fp8,scale=none,r=0", "mxfp8:r0", "fp8:r0"};
    static const size_t dims[] = {64, 128, 256};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        for (size_t j = 0; j < sizeof(dims) / sizeof(*dims); j++)
            check_kernels(texts[i], dims[j], BY_EXACT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scaled),
        cmocka_unit_test(test_scaled_kernels),
    };

    return RUN_ON_DEVICE(tests);
}
