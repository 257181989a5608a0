/* Caches of every registered scheme as messages (lib/seq/cache_bytes.h), and as
 * planes of a codes.h5 (lib/seq/codes_file.h).
 *
 *   test_messages [SCHEME] */
#include "lib/seq/codes_file.h"
#include "tests/cache_rows.h"

#include <unistd.h>

enum { N = 140, CODED = 61 };

/* The cache loaded from a message, on top of lower layers if c has some. */
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

/* A message is refused if it is cut or damaged, at every third byte of its head
 * and at ten places after it, or if its cache has another seed. */
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

/* ---- codes.h5 ------------------------------------------------------------ */

static struct kv_codes *file;
static struct kv_codes_in *file_in;
static size_t n_put;

/* The cache's codes as the file's next spec. */
static void put_codes(struct ready *r)
{
    struct rows x = rows(r, CODED);
    struct kv_cache *c = filled(r, x, CODED, CODED);
    struct kv_codes_window w = {.spec = n_put++,
                                .layer = r->layer,
                                .text = r->spec.text,
                                .codec = r->codec};
    uint8_t *bytes[KV_SIDES];
    struct kv_err e = {""};

    for (int i = 0; i < KV_SIDES; i++) {
        const struct kv_reader reader = kv_cache_reader(c, (enum kv_side)i);

        w.side[i].n = kv_codes_of(&reader, &bytes[i]);
        w.side[i].bytes = bytes[i];
        w.side[i].n_tokens = CODED;
        w.side[i].clipped = (uint64_t)i;
    }
    if (kv_codes_put(file, &w, &e))
        fail_msg("%s: %s", r->spec.text, e.msg);
    free(bytes[KV_K]);
    free(bytes[KV_V]);
    kv_cache_free(c);
    free_rows(x);
}

/* On top of lower layers, if c has some. */
static struct kv_cache *empty_beside(const struct kv_cache *c,
                                     const struct ready *r)
{
    struct kv_cache *copy;
    struct kv_err e = {""};

    assert_int_equal(kv_cache_new(&copy, r->codec[KV_K], r->codec[KV_V],
                                  EVERY_SCHEME_SEED, &e),
                     0);
    if (r->codec[KV_K]->layered)
        kv_cache_put_on(copy, kv_cache_below(c)
                                  ? loaded(kv_cache_below(c), r->spec.text)
                                  : NULL);
    return copy;
}

/* Loads what the file has of r, n bytes fewer of its values. */
static int load_codes(const struct ready *r, struct kv_cache *to, size_t less,
                      struct kv_err *e)
{
    struct kv_side_bytes side[KV_SIDES];
    uint8_t *bytes[KV_SIDES] = {NULL, NULL};
    int rc;

    if (kv_codes_get(file_in, r->spec.text, r->layer, 0, bytes, side, e))
        fail_msg("%s", e->msg);
    assert_int_equal(side[KV_V].clipped, 1);
    side[KV_V].clipped = 0;
    side[KV_V].n -= less;
    rc = kv_cache_load_sides(to, side, e);
    free(bytes[KV_K]);
    free(bytes[KV_V]);
    return rc;
}

static void assert_decode_alike(const struct ready *r, const struct kv_cache *a,
                                const struct kv_cache *b)
{
    const size_t n = CODED * row_values(r);
    float *x = kv_alloc(2 * n, sizeof(*x));

    for (int side = 0; side < KV_SIDES; side++) {
        kv_cache_decode(a, (enum kv_side)side, x);
        kv_cache_decode(b, (enum kv_side)side, x + n);
        assert_memory_equal(x, x + n, n * sizeof(*x));
    }
    free(x);
}

static void check_codes(struct ready *r)
{
    struct rows x = rows(r, CODED);
    struct kv_cache *c = filled(r, x, CODED, CODED), *copy = empty_beside(c, r),
                    *cut = empty_beside(c, r);
    struct kv_err e = {""};

    if (load_codes(r, copy, 0, &e))
        fail_msg("%s: %s", r->spec.text, e.msg);
    assert_same(c, copy, r->spec.text, "read from a file", CODED);
    assert_decode_alike(r, c, copy);
    assert_int_equal(load_codes(r, cut, 1, &e), -1);
    assert_says(e, "V of a cache");
    kv_cache_free(cut);
    kv_cache_free(copy);
    kv_cache_free(c);
    free_rows(x);
}

static void test_codes_file(void **state)
{
    const struct kv_codes_info info = {.shape = synthetic_shape(32),
                                       .n_windows = 1,
                                       .ctx = CODED,
                                       .seed = EVERY_SCHEME_SEED};
    uint8_t *bytes[KV_SIDES] = {NULL, NULL};
    struct kv_side_bytes side[KV_SIDES];
    const char *const *texts;
    struct kv_err e = {""};
    char path[5000];

    (void)state;
    snprintf(path, sizeof(path), "%s/codes.h5", test_folder());
    assert_int_equal(kv_codes_create(&file, path, &info, &e), 0);
    every(put_codes);
    assert_int_equal(kv_codes_commit(file, &e), 0);
    assert_int_equal(kv_codes_open(&file_in, path, &e), 0);
    assert_int_equal(kv_codes_about(file_in)->seed, EVERY_SCHEME_SEED);
    assert_int_equal(kv_codes_specs(file_in, &texts), n_put);
    every(check_codes);
    assert_int_equal(
        kv_codes_get(file_in, "f16:r0s0,no", 0, 0, bytes, side, &e), -1);
    assert_says(e, "has no codes of f16:r0s0,no");
    kv_codes_close(file_in);
    unlink(path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_codes_file),
    };

    every_only(argc, argv, false);
    return cmocka_run_group_tests(tests, prepare_every, release_every);
}
