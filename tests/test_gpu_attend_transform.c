/* Attention on the device on klt's coefficients. */
#include "tests/gpu_attend_setup.h"

/* Keys before RoPE and after it; on a trellis, and as levels; from a head
 * without a coefficient to all of them; strings of whole words and not. */
static void test_coefs(void **state)
{
    static const struct sized cases[] = {
        {"klt:b2,rope=post", 64, 4, 32, 400, 1},
        {"klt:b2s3r40", 64, 4, 32, 400, 1},
        {"klt:b3r0", 128, 16, 64, 300, 1},
        {"klt:b3s5r40,rope=post,metric=none", 128, 2, 64, 700, 3},
        {"klt:b8r0,code=scalar", 64, 1, 32, 260, 8},
        {"klt:b8r0,rope=post", 64, 3, 32, 300, 1},
        {"klt:b1.3r0", 128, 4, 0, 1300, 2},
        {"klt:b0.0625r0", 64, 4, 32, 300, 1},
        {"klt:K-b1/V-b0.0625,r=0,rope=post", 64, 4, 32, 129, 1},
        {"klt:b2r0", 96, 8, 48, 300, 2},
        {"klt:b2r0,rope=post", 96, 1, 48, 300, 1},
        {"klt:b2r0,code=scalar", 256, 4, 128, 300, 1},
        {"klt:b1r0,rope=post,code=scalar", 256, 1, 128, 300, 1},
    };

    (void)state;
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_EXACT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coefs),
    };

    return RUN_ON_DEVICE(tests);
}
