#include "kernels/bitpack.h"
#include "lib/base/rng.h"
#include "tests/test.h"

enum { MAX = 200, CANARY = 16 };

/* Bit by bit, as the header draws it. */
static unsigned code_at(const uint8_t *bytes, size_t i, unsigned bits)
{
    unsigned code = 0;

    for (size_t j = 0; j < bits; j++) {
        const size_t at = i * bits + j;

        code |= (bytes[at / 8] >> at % 8 & 1u) << j;
    }
    return code;
}

static void round_trip(size_t n, unsigned bits)
{
    uint16_t codes[MAX], back[MAX + CANARY];
    uint8_t bytes[2 * MAX + CANARY];
    const size_t n_bytes = kv_pack_bytes(n, bits);

    assert_int_equal(n_bytes, (n * bits + 7) / 8);
    for (size_t i = 0; i < n; i++)
        codes[i] = (uint16_t)(kv_random(bits, i) & ((1u << bits) - 1));
    memset(bytes, 0xa5, sizeof(bytes));
    memset(back, 0xa5, sizeof(back));
    kv_pack(codes, n, bits, bytes);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(code_at(bytes, i, bits), codes[i]);
    for (size_t at = n * bits; at < 8 * n_bytes; at++)
        assert_int_equal(bytes[at / 8] >> at % 8 & 1, 0);
    for (size_t i = 0; i < CANARY; i++)
        assert_int_equal(bytes[n_bytes + i], 0xa5);

    /* An exact copy, so that the sanitizer sees a read past the end. */
    uint8_t *exact = malloc(n_bytes + 1);

    memcpy(exact + 1, bytes, n_bytes); /* an unaligned copy */
    kv_unpack(exact + 1, n, bits, back);
    free(exact);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(back[i], codes[i]);
    for (size_t i = 0; i < CANARY; i++)
        assert_int_equal(back[n + i], 0xa5a5);
}

static void test_round_trip(void **state)
{
    (void)state;
    for (unsigned bits = 1; bits <= 16; bits++)
        for (size_t n = 0; n <= MAX; n++)
            round_trip(n, bits);
}

static void test_high_bits_dropped(void **state)
{
    (void)state;
    for (unsigned bits = 1; bits <= 16; bits++) {
        uint16_t codes[19], back[19];
        uint8_t bytes[40];

        memset(codes, 0xff, sizeof(codes));
        kv_pack(codes, 19, bits, bytes);
        kv_unpack(bytes, 19, bits, back);
        for (size_t i = 0; i < 19; i++)
            assert_int_equal(back[i], (1u << bits) - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_high_bits_dropped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
