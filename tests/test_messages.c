/* Caches of every registered scheme as messages (lib/seq/cache_bytes.h).
 *
 *   test_messages [SCHEME] */
#include "tests/cache_rows.h"

enum { N = 140 };

/* What a message gives, upon the layers below where c has some. */
static struct kv_cache *loaded(const struct kv_cache *c, const char *spec)
{
    const struct kv_codec *k = kv_cache_reader(c, KV_K).codec;
    const struct kv_codec *v = kv_cache_reader(c, KV_V).codec;
    struct kv_cache *copy;
    uint8_t *bytes, *exact;
    struct kv_err e = {""};
    size_t n;

    assert_int_equal(kv_cache_new(&copy, k, v, EVERY_SCHEME_SEED, &e), 0);
    if (k->layered)
        kv_cache_put_on(
            copy, kv_cache_below(c) ? loaded(kv_cache_below(c), spec) : NULL);
    n = kv_cache_write(c, &bytes);
    exact = malloc(n); /* for ASan */
    memcpy(exact, bytes, n);
    if (kv_cache_load(copy, exact, n, &e))
        fail_msg("%s: %s", spec, e.msg);
    free(bytes);
    free(exact);
    return copy;
}

static void attend_newest(const struct ready *r, const struct kv_cache *c,
                          const float *q, float *out)
{
    const size_t n = kv_cache_tokens(c), row = query_values(r);

    kv_cache_attend(c, kv_cache_view(c, 1), q + (n - 1) * row, out);
}

/* A cache that was written and loaded is the cache: its bytes, its attention
 * and what becomes of further tokens. */
static void check_message(struct ready *r)
{
    static const size_t lengths[] = {1, 61};
    struct rows x = rows(r, N);
    float *out = kv_alloc(2, query_values(r) * sizeof(*out));
    float *again = out + query_values(r);
    struct kv_err e = {""};

    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        const size_t n = lengths[i], m = N - n;
        struct kv_cache *c = filled(r, x, n, N),
                        *copy = loaded(c, r->spec.text);

        assert_same(c, copy, r->spec.text, "loaded", n);
        if (append(c, rows_from(r, x, n), m, &e) ||
            append(copy, rows_from(r, x, n), m, &e))
            fail_msg("%s: %s", r->spec.text, e.msg);
        assert_same(c, copy, r->spec.text, "loaded, and more", N);
        attend_newest(r, c, x.q, out);
        attend_newest(r, copy, x.q, again);
        assert_memory_equal(out, again, query_values(r) * sizeof(*out));
        kv_cache_free(copy);
        kv_cache_free(c);
    }
    free(out);
    free_rows(x);
}

static void test_message(void **state)
{
    (void)state;
    every(check_message);
}

/* A message that is cut or damaged, or of a cache with another seed, is
 * refused: at every third byte of its head and at ten places behind it. */
static void check_damaged(struct ready *r)
{
    enum { TOKENS = 40 };
    struct rows x = rows(r, TOKENS);
    struct kv_cache *c = filled(r, x, TOKENS, TOKENS), *to;
    const struct kv_codec *k = r->codec[KV_K], *v = r->codec[KV_V];
    uint8_t *bytes;
    const size_t n = kv_cache_write(c, &bytes), step = n / 10 + 1;
    struct kv_err e = {""};

    for (size_t i = 0; i < n; i += i < 88 ? 3 : step) {
        bytes[i] ^= 0x10;
        assert_int_equal(kv_cache_new(&to, k, v, EVERY_SCHEME_SEED, &e), 0);
        assert_int_equal(kv_cache_load(to, bytes, n, &e), -1);
        kv_cache_free(to);
        bytes[i] ^= 0x10;
        assert_int_equal(kv_cache_new(&to, k, v, EVERY_SCHEME_SEED, &e), 0);
        assert_int_equal(kv_cache_load(to, bytes, i, &e), -1);
        kv_cache_free(to);
    }
    assert_int_equal(kv_cache_new(&to, k, v, EVERY_SCHEME_SEED + 1, &e), 0);
    assert_int_equal(kv_cache_load(to, bytes, n, &e), -1);
    assert_says(e, "a cache of seed 5: expected 6");
    kv_cache_free(to);
    free(bytes);
    kv_cache_free(c);
    free_rows(x);
}

static void test_damaged(void **state)
{
    (void)state;
    every(check_damaged);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message),
        cmocka_unit_test(test_damaged),
    };

    every_only(argc, argv, false);
    return cmocka_run_group_tests(tests, prepare_every, release_every);
}
