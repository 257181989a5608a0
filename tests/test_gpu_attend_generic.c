/* Attention on the device by the kernel that takes any sizes. */
#include "tests/gpu_attend_setup.h"

/* Every kind of float; every width of integers,
 * groups of tokens and of channels along and across the lanes, lows, zeros and
 * one zero; every order of indices; tables and small floats with every kind of
 * scale; keys and values of different families. */
static void test_generic(void **state)
{
    static const struct sized cases[] = {
        {"f32", 64, 4, 32, 300, 2},
        {"bf16", 128, 16, 64, 300, 2},
        {"f16:s3r40", 80, 3, 40, 300, 2},
        {"f16:r0", 2, 1, 1, 300, 2},
        {"kivi:b3g32r0", 64, 4, 32, 300, 2},
        {"kivi:b1g128r0", 66, 2, 33, 300, 2},
        {"kivi:K-b4/V-b2,r=32,s=5", 64, 1, 32, 300, 2},
        {"kivi:b7g16r0", 192, 4, 96, 300, 2},
        {"kivi:b4g64r0,axis=channel", 128, 4, 64, 300, 2},
        {"kivi:b3g32r9,K-axis=token,V-axis=channel", 64, 1, 32, 300, 2},
        {"absmax:b5g32,V-axis=channel", 64, 4, 32, 300, 2},
        {"absmax:b6", 70, 1, 35, 300, 2},
        {"zeropoint:K-b8g32/V-b6g48,K-axis=channel", 96, 2, 48, 300, 2},
        {"zeropoint:b2g32,V-axis=channel", 256, 1, 128, 300, 2},
        {"quarot:b3g32", 96, 4, 48, 300, 2},
        {"q8_0", 96, 5, 48, 300, 2},
        {"q5_1", 128, 2, 64, 300, 2},
        {"iq4_nl", 64, 4, 32, 300, 2},
        {"nf4:g64", 192, 4, 96, 300, 2},
        {"nvfp4", 64, 4, 32, 300, 2},
        {"fp8:e5m2g16", 48, 2, 24, 300, 2},
        {"fp8:e4m3g50", 50, 2, 25, 300, 2},
        {"fp6:e2m3", 64, 4, 32, 300, 2},
        {"mxfp6:e3m2", 96, 1, 48, 300, 2},
        {"mxfp4:e2m1", 128, 4, 64, 300, 2},
        {"turboquant:K-b1/V-b3", 96, 4, 48, 300, 2},
        {"turboquant:K-b8/V-b4,K-levels=fp8,V-levels=uniform", 128, 4, 64, 300,
         2},
        {"turboquant:K-b3/V-b4,plain,nc,V-levels=uniform", 64, 4, 32, 300, 2},
        {"vecinfer:d4b6r0,iters=1", 64, 4, 32, 300, 2},
        {"vecinfer:d2b3s2,iters=1", 66, 1, 33, 300, 2},
        {"evasion:d2b4,iters=1", 96, 2, 48, 300, 2},
        {"evasion:d8b6r0,iters=1", 40, 2, 20, 300, 2},
        {"vecinfer:K-d4b8/V-d8b9,r=0,iters=1", 128, 4, 64, 300, 2},
        {"million:d6b8,iters=1", 96, 4, 48, 300, 2},
    };

    (void)state;
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_GENERIC);
    check_name("f16:r0", 128, "exact");
    check_name("bf16", 72, "generic");
    check_name("f32:r0", 128, "generic");
    check_name("vecinfer:d4b8r0,iters=1", 128, "exact");
    check_name("nvfp4", 64, "exact");
    check_name("fp6", 64, "generic");
    check_name("vecinfer:K-d4b8/V-d8b8,r=0,iters=1", 128, "generic");
    check_sizes("kivi:b3g32r128", 96, 16, BY_EXACT);
    check_sizes("bf16", 72, 4, BY_EXACT);
    check_long("kivi:b3g32r0", 96, 7, BY_EXACT);
}

/* Levels and outliers: of every width, none to many; keys before RoPE, all of
 * whose channels turn, or some; of sinks and tail, of many tiles. */
static void test_before_rope(void **state)
{
    static const struct sized cases[] = {
        {"kvquant:r0", 128, 4, 64, 300, 2},
        {"kvquant:b2o20s3r40", 64, 1, 32, 400, 1},
        {"kvquant:b4o0.2r0", 80, 16, 40, 300, 3},
        {"kvquant:b3o0r0", 256, 2, 128, 130, 1},
        {"kvquant:K-b4o5/V-b2o0,s=5,r=0", 8, 1, 4, 1300, 8},
        {"kvquant:b2r0,type=nf", 64, 3, 0, 300, 1},
        {"kvquant:b3o2s2r40", 128, 7, 64, LONG, 2},
        {"evasion:d4b8s5r40,rope=pre,iters=1", 64, 4, 32, 700, 2},
        {"evasion:d2b8,rope=pre,books=head,r=0,iters=1", 96, 2, 48, 300, 1},
        {"cq:c4b6r0,iters=1", 128, 1, 64, 300, 1},
        {"rotatekv:r0", 128, 4, 64, 300, 2},
        {"rotatekv:b3g32h1s5r40,zero=int", 64, 1, 32, 700, 1},
        {"rotatekv:b4g32r0,before,min", 64, 16, 32, 300, 3},
        {"rotatekv:K-b2g12/V-b8g24,r=0,h=2,min", 24, 2, 12, 300, 1},
    };

    (void)state;
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_GENERIC);
    check_name("kvquant:r0", 96, "generic");
    check_name("kvquant:K-b4/V-b3,r=0", 128, "generic");
    check_name("evasion:d2b8,rope=pre,iters=1", 64, "generic");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generic),
        cmocka_unit_test(test_before_rope),
    };

    return RUN_ON_DEVICE(tests);
}
