/* Attention on the device on integers in groups. */
#include "tests/gpu_attend_setup.h"

/* Groups of tokens (kivi's keys; of a half, one and two CPU tiles), of
 * channels; lows, zeros of a group and one zero for all; steps below 0 (q4_0).
 */
static void test_integers(void **state)
{
    (void)state;
    check_sizes("kivi:b2g32r128", 128, 4, BY_EXACT);
    check_sizes("kivi:b2g128r128", 64, 16, BY_EXACT);
    check_sizes("kivi:b4g64r128", 256, 3, BY_EXACT);
    check_sizes("kivi:b8g32r0", 64, 4, BY_EXACT | BY_INT8);
    check_sizes("kivi:b4g64r0,axis=token", 128, 4, BY_EXACT);
    check_sizes("quarot:b2g128", 128, 4, BY_EXACT);
    check_sizes("quarot:b4g0,none,heads=all", 64, 4, BY_EXACT);
    check_sizes("zeropoint:b8g32", 128, 1, BY_EXACT | BY_INT8);
    check_sizes("zeropoint:b8g32,K-axis=channel", 128, 1, BY_EXACT | BY_INT8);
    check_sizes("q4_0", 128, 3, BY_EXACT);
    check_sizes("q4_0:rot", 128, 3, BY_EXACT);
    check_long("kivi:b2g32r128", 128, 8, BY_EXACT);
    check_long("absmax:b2g64", 64, 7, BY_EXACT);
}

/* 8 bits as integers: zeros of a group and one for all, steps of one group and
 * of several, in a step's bytes and in a tile's. */
static void test_integers_int8(void **state)
{
    (void)state;
    check_sizes("kivi:b8g128s3r128", 128, 4, BY_EXACT | BY_INT8);
    check_sizes("q8_0", 128, 16, BY_EXACT | BY_INT8);
    check_sizes("zeropoint:b8g64,K-axis=channel", 64, 8, BY_EXACT | BY_INT8);
    check_long("kivi:b8g64r0", 128, 8, BY_EXACT | BY_INT8);
    check_long("q8_0", 64, 4, BY_EXACT | BY_INT8);
    check_path("kivi:b8g32r0", 128, KV_PATH_INT8, "int8");
    check_path("absmax:b8", 64, KV_PATH_INT8, "int8");
    check_path("q8_0", 128, KV_PATH_INT8, "int8");
    check_path("kivi:b8g64r0", 64, KV_PATH_INT8, "int8");
    check_path("kivi:b8g128r0", 128, KV_PATH_INT8, "int8");
    check_path("zeropoint:b8g64r0", 128, KV_PATH_INT8, "int8");
    check_path("zeropoint:b8g64r0,K-axis=channel", 64, KV_PATH_INT8, "int8");
    check_path("kivi:b8g32r0", 256, KV_PATH_INT8, "exact");
    check_path("kivi:b4g32r0", 128, KV_PATH_INT8, "exact");
}

/* An A100's shared memory has no room for 16 rows beside the heads of products
 * of zeros and steps, but has room for 8. */
static void test_less_shared(void **state)
{
    static const struct sized cases[] = {
        {"zeropoint:b8g64r0,K-axis=channel", 128, 16, 64, 300, 1},
        {"zeropoint:K-b8g64/V-b8g128,r=0,K-axis=channel", 128, 3, 64, 300, 5}};
    const size_t shared = test_device.shared;

    (void)state;
    test_device.shared = 163 << 10;
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_INT8);
    test_device.shared = shared;
}

/* Keys folded and not. */
static void test_integers_kernels(void **state)
{
    static const size_t bits[] = {2, 4, 8}, dims[] = {64, 128, 256};

    (void)state;
    for (size_t i = 0; i < sizeof(bits) / sizeof(*bits); i++)
        for (size_t j = 0; j < sizeof(dims) / sizeof(*dims); j++) {
            const unsigned ways =
                bits[i] == 8 && dims[j] <= 128 ? BY_EXACT | BY_INT8 : BY_EXACT;
            char text[64];

            snprintf(text, sizeof(text), "kivi:b%zug64r0", bits[i]);
            check_kernels(text, dims[j], ways);
            snprintf(text, sizeof(text), "absmax:b%zug64", bits[i]);
            check_kernels(text, dims[j], ways);
        }
}

/* Groups of more tokens than a tile: whole ones are codes, tokens between these
 * and the tail are halves. */
static void test_long_groups(void **state)
{
    static const struct sized cases[] = {
        {"kivi:b2g256r0", 128, 4, 64, 700, 2},
        {"kivi:b3g192s3r0", 64, 2, 32, 900, 1},
        {"kivi:b4g1024r1024", 96, 1, 48, 2300, 8},
        {"kivi:b8g320r320", 256, 1, 128, 1500, 1},
        {"zeropoint:K-b4g512/V-b3g256,axis=channel,r=0", 64, 7, 32, 1100, 1},
        {"kivi:K-g256r0/V-r200,b=2", 64, 4, 32, 700, 1}, /* values are behind */
        {"kivi:b2g256r0", 64, 4, 32, 200, 1}};           /* no whole group */

    (void)state;
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_EXACT);
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_DEQUANT);
    check_name("kivi:b2g256r0", 128, "generic");
}

/* More queries than in a decoding step: more rows than a block takes, causal
 * from the first token, from within the codes, and only in the tail; groups of
 * tokens and of channels. */
static void test_prefill(void **state)
{
    static const struct sized cases[] = {
        {"kivi:b2g32r0", 128, 4, 64, 256, 256},
        {"kivi:b2g64s5r128", 64, 3, 32, 400, 150},
        {"kivi:b4g32r128", 128, 2, 64, 300, 20},
        {"kivi:b4g128r0", 64, 1, 32, 390, 200},
        {"quarot:b2g64", 128, 4, 64, 260, 140},
        {"quarot:b4g64", 128, 2, 64, 260, 70},
        {"absmax:b2g64", 64, 2, 32, 260, 70},
        {"q4_0", 64, 2, 32, 300, 130}};

    (void)state;
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_EXACT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefill),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_integers_int8),
        cmocka_unit_test(test_less_shared),
        cmocka_unit_test(test_integers_kernels),
        cmocka_unit_test(test_long_groups),
    };

    return RUN_ON_DEVICE(tests);
}
