/* Attention on the device on the codes of hack. */
#include "tests/gpu_attend_setup.h"

static void test_hack(void **state)
{
    (void)state;
    check_sizes("hack:b2p64r0", 128, 4, BY_INT8);
    check_sizes("hack:b2p64s5r40,nearest", 128, 16, BY_INT8);
    check_sizes("hack:b2p32r0,nearest", 128, 7, BY_INT8);
    check_sizes("hack:b2p128r0", 128, 1, BY_INT8);
    check_sizes("hack:b4p64r0", 64, 8, BY_INT8);
    check_sizes("hack:b2p64,nearest", 64, 2, BY_INT8);
    check_sizes("hack:b4p64s1", 128, 8, BY_INT8);
}

/* Queries rounded to the nearest and stochastically; prefill where it is. */
static void test_hack_kernels(void **state)
{
    static const struct {
        size_t bits, part, head_dim;
        bool prefill;
    } kernels[] = {{2, 64, 128, true},  {2, 32, 128, true}, {2, 128, 128, true},
                   {4, 64, 128, false}, {2, 64, 64, false}, {4, 64, 64, false}};
    static const char *const ways[] = {"", ",nearest"};

    (void)state;
    for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++)
        for (size_t j = 0; j < 2; j++) {
            struct kv_shape s = synthetic_shape(kernels[i].head_dim);
            struct kv_calib *calib = NULL;
            char text[64];

            snprintf(text, sizeof(text), "hack:b%zup%zur0%s", kernels[i].bits,
                     kernels[i].part, ways[j]);
            check_kernels(text, kernels[i].head_dim, BY_INT8);
            if (kernels[i].prefill)
                check_by(text, &s, 256, 20, BY_INT8, &calib);
        }
}

/* HACK at other sizes than its kernels': every width; partitions of 16, of
 * three 16s, of the whole head, of no multiple of 16, shorter at the end of a
 * head, keys' unlike values'; queries and weights of few bits; and where the
 * family has a better kernel. */
static void test_generic_hack(void **state)
{
    static const struct sized cases[] = {
        {"hack:b3p32r0", 96, 4, 48, 384, 1},
        {"hack:b2p64r0,nearest", 256, 2, 128, 256, 3},
        {"hack:b1p16r0,nearest", 64, 16, 32, 400, 8},
        {"hack:K-b8p48/V-b5p16,r=0", 96, 3, 48, 256, 2},
        {"hack:b4p128s5r40", 66, 1, 33, 300, 1},
        {"hack:K-b2p256/V-b3p128,r=0,K-qb=4,V-qb=6,nearest", 256, 1, 128, 256,
         1},
        {"hack:b7p64r0,no-se", 192, 4, 96, 384, 2},
        {"hack:b2p64r0", 128, 4, 64, 128, 1},
        {"hack:b2p32s1r0", 8, 1, 4, 1300, 2},
        {"hack:b2p64r0", 96, 4, 48, 256, 2},
        {"hack:K-b3p48/V-b2p128,r=0,nearest", 80, 1, 40, 256, 1},
        {"hack:b3p64r0", 128, 4, 64, LONG, 2}};

    (void)state;
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_GENERIC);
    check_sizes("hack:b3p32r0", 96, 7, BY_INT8);
    check_name("hack:b2p64r0", 96, "generic");
    check_name("hack:b3p64r0", 128, "generic");
    check_name("hack:b2p64r0", 128, "int8");
}

/* More queries than in a decoding step: more rows than a block takes, causal
 * from the first token, from within the codes, and only in the tail. */
static void test_prefill(void **state)
{
    static const struct sized cases[] = {
        {"hack:b2p64r0", 128, 4, 64, 256, 256},
        {"hack:b2p64s5r40,nearest", 128, 2, 64, 300, 150},
        {"hack:b2p128r0", 128, 1, 64, 400, 200},
        {"hack:b2p32r0", 128, 3, 64, 300, 130},
        {"hack:b2p32s5r40,nearest", 128, 4, 64, 260, 20}};

    (void)state;
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_INT8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hack),
        cmocka_unit_test(test_hack_kernels),
        cmocka_unit_test(test_generic_hack),
        cmocka_unit_test(test_prefill),
    };

    return RUN_ON_DEVICE(tests);
}
