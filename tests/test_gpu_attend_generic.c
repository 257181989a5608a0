/* Attention on the device by the kernel that takes any sizes. */
#include "tests/gpu_attend_setup.h"

/* Every kind of float; every width of integers,
 * groups of tokens and of channels along and across the lanes, lows, zeros and
 * one zero; every order of indices; tables and small floats with every kind of
 * scale; keys and values of different families. */
static void test_generic(void **state)
{
    static const struct {
        const char *spec;
        size_t head_dim, group;
    } cases[] = {
        {"f32", 64, 4},
        {"bf16", 128, 16},
        {"f16:s3r40", 80, 3},
        {"f16:r0", 2, 1},
        {"kivi:b3g32r0", 64, 4},
        {"kivi:b1g128r0", 66, 2},
        {"kivi:K-b4/V-b2,r=32,s=5", 64, 1},
        {"kivi:b7g16r0", 192, 4},
        {"absmax:b5g32,V-axis=channel", 64, 4},
        {"absmax:b6", 70, 1},
        {"zeropoint:K-b8g32/V-b6g48,K-axis=channel", 96, 2},
        {"zeropoint:b2g32,V-axis=channel", 256, 1},
        {"quarot:b3g32", 96, 4},
        {"q8_0", 96, 5},
        {"q5_1", 128, 2},
        {"iq4_nl", 64, 4},
        {"nf4:g64", 192, 4},
        {"nvfp4", 64, 4},
        {"fp8:e5m2g16", 48, 2},
        {"fp8:e4m3g50", 50, 2},
        {"fp6:e2m3", 64, 4},
        {"mxfp6:e3m2", 96, 1},
        {"mxfp4:e2m1", 128, 4},
        {"turboquant:K-b1/V-b3", 96, 4},
        {"vecinfer:d4b6r0,iters=1", 64, 4},
        {"vecinfer:d2b3s2,iters=1", 66, 1},
        {"evasion:d2b4,iters=1", 96, 2},
        {"evasion:d8b6r0,iters=1", 40, 2},
        {"vecinfer:K-d4b8/V-d8b9,r=0,iters=1", 128, 4},
        {"million:d6b8,iters=1", 96, 4},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_shape s = synthetic_shape(cases[i].head_dim);
        struct kv_calib *calib = NULL;

        s.n_heads = s.n_kv_heads * cases[i].group;
        check_by(cases[i].spec, &s, 300, 2, BY_GENERIC, &calib);
        kv_calib_free(calib);
    }
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
    static const struct {
        const char *spec;
        size_t head_dim, group, n_rot, n, nq;
    } cases[] = {
        {"kvquant:r0", 128, 4, 64, 300, 2},
        {"kvquant:b2o20s3r40", 64, 1, 32, 400, 1},
        {"kvquant:b4o0.2r0", 80, 16, 20, 300, 3},
        {"kvquant:b3o0r0", 256, 2, 128, 130, 1},
        {"kvquant:K-b4o5/V-b2o0,s=5,r=0", 8, 1, 4, 1300, 8},
        {"kvquant:b2r0,type=nf", 64, 3, 0, 300, 1},
        {"kvquant:b3o2s2r40", 128, 7, 64, LONG, 2},
        {"evasion:d4b8s5r40,rope=pre,iters=1", 64, 4, 32, 700, 2},
        {"evasion:d2b8,rope=pre,books=head,r=0,iters=1", 96, 2, 12, 300, 1},
        {"cq:c4b6r0,iters=1", 128, 1, 64, 300, 1},
        {"rotatekv:r0", 128, 4, 64, 300, 2},
        {"rotatekv:b3g32h1s5r40,zero=int", 64, 1, 20, 700, 1},
        {"rotatekv:b4g32r0,before", 64, 16, 32, 300, 3},
        {"rotatekv:K-b2g12/V-b8g24,r=0,h=2", 24, 2, 12, 300, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_shape s = synthetic_shape(cases[i].head_dim);
        struct kv_calib *calib = NULL;

        s.n_heads = s.n_kv_heads * cases[i].group;
        s.n_rot = cases[i].n_rot;
        check_by(cases[i].spec, &s, cases[i].n, cases[i].nq, BY_GENERIC,
                 &calib);
        kv_calib_free(calib);
    }
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
