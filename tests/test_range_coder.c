/* The range coder: symbols are decoded exactly, at the cost that the tables
 * give. */
#include "kernels/range_coder.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "tests/test.h"

#include <math.h>

enum { MAX_SYMBOLS = 256, CANARY = 16 };

/* Encodes, checks the header's promises and decodes again; returns the number
 * of bytes.  table: [n_tables][n_symbols + 1], used in turn. */
static size_t round_trip(const uint32_t *table, size_t n_tables,
                         size_t n_symbols, const uint16_t *symbol, size_t n)
{
    const size_t max = kv_range_max_bytes(n), width = n_symbols + 1;
    uint8_t *bytes = malloc(max + CANARY), *exact;
    struct kv_range_encoder e;
    struct kv_range_decoder d;
    size_t size;

    memset(bytes, 0xa5, max + CANARY);
    kv_range_encode_start(&e, bytes);
    for (size_t i = 0; i < n; i++)
        kv_range_encode(&e, table + i % n_tables * width, n_symbols, symbol[i]);
    size = kv_range_encode_end(&e);
    assert_in_range(size, 1, max);
    for (size_t i = size; i < max + CANARY; i++)
        assert_int_equal(bytes[i], 0xa5);
    exact = malloc(size); /* ASan sees a read past the end */
    memcpy(exact, bytes, size);
    kv_range_decode_start(&d, exact, size);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(
            kv_range_decode(&d, table + i % n_tables * width, n_symbols),
            symbol[i]);
    assert_true(kv_range_decode_ended(&d));
    free(exact);
    free(bytes);
    return size;
}

/* counts that grow tenfold at each step: a table of the most various costs */
static void steep(size_t n_symbols, size_t rotate, uint32_t *cum)
{
    uint32_t count[MAX_SYMBOLS];

    for (size_t i = 0; i < n_symbols; i++)
        count[i] = (uint32_t)pow(10, (double)((i + rotate) % 8));
    kv_range_table(count, n_symbols, cum);
}

static void check_table(const uint32_t *cum, size_t n_symbols)
{
    assert_int_equal(cum[0], 0);
    assert_int_equal(cum[n_symbols], KV_RANGE_TOTAL);
    for (size_t i = 0; i < n_symbols; i++)
        assert_true(cum[i] < cum[i + 1]);
}

/* 65536 - 4 places among 1 : 0 : 2 : 1, and one for each. */
static void test_table(void **state)
{
    const uint32_t count[4] = {1, 0, 2, 1}, none[4] = {0}, third[2] = {1, 2};
    const uint32_t want[5] = {0, 16384, 16385, 49152, 65536};
    const uint32_t alike[5] = {0, 16384, 32768, 49152, 65536};
    uint32_t cum[MAX_SYMBOLS + 1];
    uint32_t *every = kv_alloc(KV_RANGE_TOTAL + 1, sizeof(*every));

    (void)state;
    kv_range_table(count, 4, cum);
    assert_memory_equal(cum, want, sizeof(want));
    kv_range_table(none, 4, cum);
    assert_memory_equal(cum, alike, sizeof(alike));
    kv_range_table(third, 2, cum); /* 65534 / 3 is rounded up */
    assert_int_equal(cum[1], 21845 + 1);
    for (size_t n = 1; n <= MAX_SYMBOLS; n++) {
        steep(n, n, cum);
        check_table(cum, n);
    }
    kv_range_table(every, KV_RANGE_TOTAL, every); /* a place for each */
    check_table(every, KV_RANGE_TOTAL);
    free(every);
}

static void test_empty(void **state)
{
    (void)state;
    assert_int_equal(round_trip(NULL, 1, 0, NULL, 0), 1);
}

/* Every symbol by itself. */
static void test_one_symbol(void **state)
{
    (void)state;
    for (size_t n = 1; n <= MAX_SYMBOLS; n++) {
        uint32_t cum[MAX_SYMBOLS + 1];

        steep(n, 0, cum);
        for (uint16_t s = 0; s < n; s++)
            assert_in_range(round_trip(cum, 1, n, &s, 1), 1, 3);
    }
}

/* One symbol has the largest possible mass: it costs next to nothing, and the
 * others 16 bits each; a single symbol costs nothing. */
static void test_all_the_mass(void **state)
{
    enum { N = 5000 };
    uint16_t *symbol = kv_alloc(N, sizeof(*symbol));

    (void)state;
    for (size_t n = 1; n <= MAX_SYMBOLS; n = n < 4 ? n + 1 : n * 2)
        for (size_t heavy = 0; heavy<n; heavy += n> 4 ? n / 4 : 1) {
            uint32_t count[MAX_SYMBOLS] = {0}, cum[MAX_SYMBOLS + 1];
            const double bits = -log2(1 - ((double)n - 1) / KV_RANGE_TOTAL);

            count[heavy] = 7;
            kv_range_table(count, n, cum);
            check_table(cum, n);
            assert_int_equal(cum[heavy + 1] - cum[heavy],
                             KV_RANGE_TOTAL - n + 1);
            for (size_t i = 0; i < N; i++)
                symbol[i] = (uint16_t)heavy;
            assert_within(round_trip(cum, 1, n, symbol, N), N * bits / 8 + 1,
                          0.001 * N / 8 + 1);
            for (size_t i = 0; i < N; i++) /* the least likely only */
                symbol[i] =
                    (uint16_t)((heavy + 1 + i % (n < 2 ? 1 : n - 1)) % n);
            assert_within(round_trip(cum, 1, n, symbol, N), n < 2 ? 1 : 2.0 * N,
                          0.001 * 16 * N / 8 + 1);
        }
    free(symbol);
}

/* Carries: low runs along the top of the interval. */
static void test_carries(void **state)
{
    enum { N = 3000 };
    uint32_t cum[3 + 1] = {0, 1, 65535, 65536};
    uint16_t symbol[N];

    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        for (size_t i = 0; i < N; i++) {
            const uint64_t u = kv_random(seed, i) % (seed + 2);

            symbol[i] = u == 0 ? 0 : u == 1 ? 2 : 1;
        }
        round_trip(cum, 1, 3, symbol, N);
    }
}

/* Random symbols by tables of their own, and the bytes they may take. */
static void test_random(void **state)
{
    enum { N = 20000, TABLES = 5 };
    const size_t sizes[] = {2, 3, 15, 31, 32, 47, 255, 256};
    uint16_t *symbol = kv_alloc(N, sizeof(*symbol));

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        const size_t n = sizes[i];
        uint32_t table[TABLES * (MAX_SYMBOLS + 1)];
        double bits = 0;

        for (size_t t = 0; t < TABLES; t++)
            steep(n, t, table + t * (n + 1));
        for (size_t j = 0; j < N; j++) {
            const uint32_t *cum = table + j % TABLES * (n + 1);
            const uint64_t u = kv_random(n, j);
            size_t s = 0;

            if (u & 1 << 20) /* any symbol; else by the table's chances */
                s = u % n;
            else
                while (cum[s + 1] <= u % KV_RANGE_TOTAL)
                    s++;
            symbol[j] = (uint16_t)s;
            bits -= log2((double)(cum[s + 1] - cum[s]) / KV_RANGE_TOTAL);
        }
        assert_within(round_trip(table, TABLES, n, symbol, N), bits / 8 + 1,
                      0.001 * N / 8 + 1);
    }
    free(symbol);
}

/* Any bytes decode to symbols of the table; a message that was cut, or that
 * has a byte too many, does not end where it should. */
static void test_bad_bytes(void **state)
{
    enum { N = 300, SYMBOLS = 47 };
    uint32_t cum[SYMBOLS + 1];
    uint8_t bytes[2 * N + 2];
    struct kv_range_encoder e;
    size_t size;

    (void)state;
    steep(SYMBOLS, 0, cum);
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct kv_range_decoder d;

        for (size_t i = 0; i < N; i++)
            bytes[i] = seed ? (uint8_t)kv_random(seed, i) : 0xff;
        kv_range_decode_start(&d, bytes, seed);
        for (size_t i = 0; i < N; i++)
            assert_true(kv_range_decode(&d, cum, SYMBOLS) < SYMBOLS);
    }
    kv_range_encode_start(&e, bytes);
    for (size_t i = 0; i < N; i++)
        kv_range_encode(&e, cum, SYMBOLS, kv_random(9, i) % SYMBOLS);
    size = kv_range_encode_end(&e);
    for (size_t n = 0; n <= size + 1; n++) {
        struct kv_range_decoder d;
        bool same = true;

        kv_range_decode_start(&d, bytes, n);
        for (size_t i = 0; i < N; i++)
            same &=
                kv_range_decode(&d, cum, SYMBOLS) == kv_random(9, i) % SYMBOLS;
        assert_true((same && kv_range_decode_ended(&d)) == (n == size));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),      cmocka_unit_test(test_empty),
        cmocka_unit_test(test_one_symbol), cmocka_unit_test(test_all_the_mass),
        cmocka_unit_test(test_carries),    cmocka_unit_test(test_random),
        cmocka_unit_test(test_bad_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
