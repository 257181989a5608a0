/* Attention on the device on halves, fp16 and bf16. */
#include "tests/gpu_attend_setup.h"

static void test_float(void **state)
{
    static const size_t dims[] = {64, 96, 128, 256};

    (void)state;
    for (size_t i = 0; i < sizeof(dims) / sizeof(*dims); i++) {
        check_sizes("f16:r0", dims[i], 4, BY_EXACT);
        check_sizes("f16:s3r40", dims[i], i == 2 ? 16 : 1, BY_EXACT);
        check_kernels("bf16", dims[i], BY_EXACT);
    }
    check_sizes("bf16", 128, 4, BY_EXACT);
    check_name("bf16", 256, "exact");
}

/* More queries than in a decoding step: more rows than a block takes, causal
 * from the first token, from within the codes, and only in the tail. */
static void test_prefill(void **state)
{
    static const struct sized cases[] = {{"f16:r0", 64, 4, 32, 300, 300},
                                         {"f16:s3r40", 128, 1, 64, 200, 9},
                                         {"f16:r0", 128, 16, 64, 130, 30},
                                         {"bf16", 64, 2, 32, 300, 150},
                                         {"bf16", 128, 4, 64, 140, 20}};

    (void)state;
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_EXACT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float),
        cmocka_unit_test(test_prefill),
    };

    return RUN_ON_DEVICE(tests);
}
