/* Every registered scheme against the law of lib/codec.h.  A new scheme is
 * tested by being listed; its flags select the checks.
 *
 *   test_conformance [SCHEME] */
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "lib/k_bias.h"
#include "lib/mixed.h"
#include "lib/scheme.h"
#include "lib/seq/cache.h"
#include "lib/seq/cache_bytes.h"
#include "tests/append_rows.h"
#include "tests/cache_rows.h"
#include "tests/every_scheme.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>

enum { N = 140 };

static bool needs_queries(const struct ready *r)
{
    return r->spec.scheme->probe;
}

static const size_t sizes[] = {0, 1, 2, 31, 32, 33, 63, 64, 65, N};

static void check_append(struct ready *r)
{
    const struct rows x = rows(r, N);

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        struct kv_cache *at_once = filled(r, x, sizes[i], N);
        struct kv_cache *one_by_one = filled(r, x, sizes[i], 1);
        struct kv_cache *sevens = filled(r, x, sizes[i], 7);

        assert_same(at_once, one_by_one, r->spec.text, "one by one", sizes[i]);
        assert_same(at_once, sevens, r->spec.text, "seven at a time", sizes[i]);
        kv_cache_free(sevens);
        kv_cache_free(one_by_one);
        kv_cache_free(at_once);
    }
    free_rows(x);
}

static void test_append(void **state)
{
    (void)state;
    every(check_append);
}

/* For schemes with a probe(); the others ignore it. */
static float *some_saliency(size_t n)
{
    float *x = kv_alloc(n, sizeof(*x));

    for (size_t i = 0; i < n; i++)
        x[i] = kv_random_unit(44, i);
    return x;
}

/* encode() of many blocks equals block by block, writes all of its bytes and
 * none beyond, and decode() reads no more than that. */
static void check_blocks(struct ready *r)
{
    enum { BLOCKS = 3, CANARY = 32 };

    for (int side = 0; side < KV_SIDES; side++) {
        const struct kv_codec *c = r->codec[side];
        const size_t values = kv_codec_block_values(c), nb = c->block_bytes;

        if (c->variable || c->layered)
            continue; /* test_variable, test_layered */

        float *saliency =
            some_saliency(BLOCKS * c->shape.n_kv_heads * c->block);
        struct kv_where w = {10, EVERY_SCHEME_SEED, saliency};
        float *x = kv_alloc(BLOCKS, values * sizeof(*x));
        float *back = kv_alloc(BLOCKS, values * sizeof(*back));
        uint8_t *a = kv_alloc(BLOCKS * nb + CANARY, 1);
        uint8_t *b = kv_alloc(BLOCKS * nb + CANARY, 1);
        uint8_t *exact = malloc(nb);

        synthetic_rows(&r->shape, r->shape.n_kv_heads, 43, BLOCKS * c->block,
                       x);
        kv_codec_input(c, x, BLOCKS * c->block, x);
        memset(a, 0xa5, BLOCKS * nb + CANARY);
        memset(b, 0x5a, BLOCKS * nb + CANARY);
        c->scheme->encode(c, w, x, BLOCKS, a);
        for (size_t i = 0; i < BLOCKS; i++) {
            c->scheme->encode(c, w, x + i * values, 1, b + i * nb);
            w.first += c->block;
            w.saliency += c->shape.n_kv_heads * c->block;
        }
        if (memcmp(a, b, BLOCKS * nb) != 0)
            fail_msg("%s %c: blocks at once and one by one differ",
                     r->spec.text, kv_side_name(c->side));
        for (size_t i = 0; i < CANARY; i++)
            assert_int_equal(a[BLOCKS * nb + i], 0xa5);
        memcpy(exact, a, nb); /* ASan sees a read past block_bytes */
        c->scheme->decode(c, exact, 1, back);
        for (size_t i = 0; i < values; i++)
            assert_true(isfinite(back[i]));
        free(exact);
        free(b);
        free(a);
        free(back);
        free(x);
        free(saliency);
    }
}

static void test_blocks(void **state)
{
    (void)state;
    every(check_blocks);
}

/* A block of a variable codec takes no more than it may, is refused when cut,
 * and, altered, is refused or gives numbers. */
static void check_variable(struct ready *r)
{
    for (int side = 0; side < KV_SIDES; side++) {
        const struct kv_codec *c = r->codec[side];
        const size_t values = kv_codec_block_values(c), nb = c->block_bytes;
        struct kv_err e = {""};

        if (!c->variable)
            continue;

        float *x = kv_alloc(values, sizeof(*x));
        float *y = kv_alloc(values, sizeof(*y));
        uint8_t *bytes = malloc(nb), *exact;
        size_t n, step;

        synthetic_rows(&r->shape, r->shape.n_kv_heads, 43, c->block, x);
        kv_codec_input(c, x, c->block, x);
        float *saliency = some_saliency(c->shape.n_kv_heads * c->block);

        n = c->variable->encode_block(
            c, (struct kv_where){10, EVERY_SCHEME_SEED, saliency}, x, bytes);
        free(saliency);
        assert_in_range(n, 1, nb);
        exact = malloc(n); /* ASan sees a read past the end */
        memcpy(exact, bytes, n);
        if (c->variable->decode_block(c, exact, n, y, &e))
            fail_msg("%s %c: %s", r->spec.text, kv_side_name(c->side), e.msg);
        for (size_t i = 0; i < values; i++)
            assert_true(isfinite(y[i]));
        step = n / 97 + 1;
        for (size_t i = 0; i < n; i += step) {
            assert_int_equal(c->variable->decode_block(c, exact, i, y, &e), -1);
            exact[i] ^= (uint8_t)(1 << i % 8);
            if (!c->variable->decode_block(c, exact, n, y, &e))
                for (size_t j = 0; j < values; j++)
                    assert_true(isfinite(y[j]));
            exact[i] ^= (uint8_t)(1 << i % 8);
        }
        free(exact);
        free(bytes);
        free(y);
        free(x);
    }
}

static void test_variable(void **state)
{
    (void)state;
    every(check_variable);
}

/* The state of a decoder of layered codes: the decoded forms of the layers so
 * far, for N tokens. */
struct decoder {
    float *x[KV_MAX_BELOW + 1][KV_SIDES];
};

/* Decodes a side's coded tokens from its codes and the lower layers' decoded
 * forms, some tokens at a time, and compares with the cache. */
static void check_decoded(const struct decoder *d, const struct kv_cache *cache,
                          enum kv_side side, size_t step, const char *spec)
{
    const struct kv_reader r = kv_cache_reader(cache, side);
    const struct kv_codec *c = r.codec;
    const size_t row = kv_codec_row(c);
    float *want = kv_alloc(r.n, row * sizeof(*want));
    float *got = d->x[c->layer][side];

    for (size_t t = 0; t < r.n_blocks; t += step) {
        const size_t n = r.n_blocks - t < step ? r.n_blocks - t : step;
        struct kv_neighbours at = {
            .own_k = side == KV_V ? d->x[c->layer][KV_K] + t * row : NULL};

        for (size_t i = 0; i < c->layered->n_below && i < c->layer; i++)
            for (int s = 0; s < KV_SIDES; s++)
                at.below[i][s] = d->x[c->layer - 1 - i][s] + t * row;

        uint8_t *exact = malloc(n * c->block_bytes); /* for ASan */

        memcpy(exact, r.blocks + t * c->block_bytes, n * c->block_bytes);
        c->layered->decode(c, &at, exact, n, got + t * row);
        free(exact);
    }
    kv_cache_decode(cache, side, want);

    float *read = kv_alloc(r.n_blocks + 1, row * sizeof(*read));

    memcpy(read, got, r.n_blocks * row * sizeof(*read));
    if (c->less_bias && side == KV_K)
        kv_k_bias_add(&c->shape, c->pre_rope, r.sinks, read, r.n_blocks);
    if (!c->massive && /* the cache reads these beside the codes */
        memcmp(read, want + r.sinks * row, r.n_blocks * row * sizeof(*read)))
        fail_msg("%s: layer %zu, %c: %zu tokens at a time decode to others",
                 spec, c->layer, kv_side_name(side), step);
    free(read);
    free(want);
}

/* From the lowest layer up. */
static void decode_up(struct decoder *d, const struct kv_cache *c, size_t step,
                      const char *spec)
{
    if (kv_cache_below(c))
        decode_up(d, kv_cache_below(c), step, spec);
    check_decoded(d, c, KV_K, step, spec);
    check_decoded(d, c, KV_V, step, spec);
}

/* Layered codes are decoded only from themselves, layer by layer, for any
 * tokens; a cache needs the lower layers that are read, with the same
 * tokens. */
static void check_layered(struct ready *r)
{
    struct decoder d;
    struct kv_cache *c;
    struct kv_err e;
    struct rows x;

    if (!kv_spec_layered(&r->spec, 0))
        return;
    x = rows(r, N);
    for (size_t i = 0; i < 2 * (KV_MAX_BELOW + 1); i++)
        d.x[i / 2][i % 2] = kv_alloc(N, row_values(r) * sizeof(float));
    c = filled(r, x, N, N);
    decode_up(&d, c, N, r->spec.text);
    decode_up(&d, c, 1, r->spec.text);
    decode_up(&d, c, 13, r->spec.text);
    if (r->lower) {
        assert_int_equal(append_rows(c, x.q, x.k, x.v, N, &e), -1);
        assert_says(e, "is not in the layer below, which has 140");
        kv_cache_free(c);
        assert_int_equal(
            kv_cache_new(&c, r->codec[KV_K], r->codec[KV_V], 1, &e), 0);
        assert_int_equal(append_rows(c, x.q, x.k, x.v, 1, &e), -1);
        assert_says(e, "wants the cache of the layer below");
    }
    kv_cache_free(c);
    for (size_t i = 0; i < 2 * (KV_MAX_BELOW + 1); i++)
        free(d.x[i / 2][i % 2]);
    free_rows(x);
}

static void test_layered(void **state)
{
    (void)state;
    every(check_layered);
}

/* kv_held_bytes() equals the bytes of a side of n tokens. */
static void check_held(const struct ready *r, const struct kv_cache *c,
                       enum kv_side side, size_t n)
{
    const struct kv_codec *codec = r->codec[side];
    size_t bytes[2], codes[2], quantized[2];

    if (codec->variable || codec->history || codec->massive || needs_queries(r))
        return;
    bytes[0] = kv_cache_bytes(c, side, &codes[0], &quantized[0]);
    bytes[1] = kv_held_bytes(codec, n, &codes[1], &quantized[1]);
    if (bytes[0] != bytes[1] || codes[0] != codes[1] ||
        quantized[0] != quantized[1])
        fail_msg("%s %c: of %zu tokens %zu bytes, held %zu", r->spec.text,
                 kv_side_name(side), n, bytes[1], bytes[0]);
}

static void check_bytes(struct ready *r)
{
    const struct rows x = rows(r, N);

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        struct kv_cache *c = filled(r, x, sizes[i], N);

        for (int side = 0; side < KV_SIDES; side++) {
            const struct kv_reader held =
                kv_cache_reader(c, (enum kv_side)side);
            uint8_t *bytes;

            assert_int_equal(kv_codes_of(&held, &bytes),
                             kv_cache_bytes(c, (enum kv_side)side, NULL, NULL));
            free(bytes);
            check_held(r, c, (enum kv_side)side, sizes[i]);
        }
        kv_cache_free(c);
    }
    free_rows(x);
}

static void test_bytes(void **state)
{
    (void)state;
    every(check_bytes);
}

/* Whether some token of the unit that token t of n is in, itself for a sink,
 * else a block, is in the window. */
static bool in_window(const struct kv_codec *c, size_t sinks, size_t t,
                      size_t n)
{
    const size_t last =
        t < sinks ? t : t + c->block - 1 - (t - sinks) % c->block;

    return last + c->shape.window >= n;
}

/* Returns a side's bytes, token by token; x: the decoded tokens, where it
 * overwrites tokens that are not held. */
static size_t bytes_by_token(const struct kv_cache *cache, enum kv_side side,
                             float *x)
{
    const struct kv_reader r = kv_cache_reader(cache, side);
    const struct kv_codec *c = r.codec;
    const size_t row = c->shape.n_kv_heads * c->shape.head_dim;
    const size_t tail = r.sinks + r.n_blocks * c->block;
    size_t bytes =
        r.open && r.n > tail ? c->history->open_bytes(c, r.n - tail) : 0;

    for (size_t t = 0; t < r.n; t++) {
        const bool coded = t >= r.sinks && t < tail;

        if (in_window(c, r.sinks, t, r.n))
            for (size_t i = 0; i < r.kept.n; i++)
                bytes += r.kept.at[i] == t ? kv_kept_token_bytes(&r.kept) : 0;
        if (!in_window(c, r.sinks, t, r.n))
            for (size_t i = 0; i < row; i++)
                x[t * row + i] = 99;
        else if (!coded)
            bytes += r.open && t >= tail ? 0 : row * sizeof(uint16_t);
        else if ((t - r.sinks) % c->block == 0)
            bytes += r.size ? sizeof(*r.size) + r.size[(t - r.sinks) / c->block]
                            : c->block_bytes;
    }
    return bytes;
}

/* The newest token's query over these keys and values. */
static void attend(const struct kv_cache *c, const float *q, float *const *kv,
                   float *out)
{
    kv_attend_c(&(struct kv_attend_job){.view = kv_cache_view(c, 1),
                                        .q = q,
                                        .out = out,
                                        .q_rows = 1,
                                        .k = {.quantized = kv[KV_K]},
                                        .v = {.quantized = kv[KV_V]}});
}

/* A sliding layer's bytes count exactly the tokens that it holds, and these are
 * all that a query sees. */
static void check_held_window(struct ready *r, struct rows x, size_t n)
{
    struct kv_cache *c = filled(r, x, n, N);
    const float *q = x.q + (n - 1) * query_values(r);
    float *kv[KV_SIDES], *out = kv_alloc(2, query_values(r) * sizeof(*out));

    for (enum kv_side side = KV_K; side < KV_SIDES; side++) {
        kv[side] = kv_alloc(n, row_values(r) * sizeof(*kv[side]));
        kv_cache_decode(c, side, kv[side]);
    }
    attend(c, q, kv, out);
    for (enum kv_side side = KV_K; side < KV_SIDES; side++) {
        const struct kv_reader held = kv_cache_held(c, side);
        const size_t count = kv_cache_bytes(c, side, NULL, NULL);
        uint8_t *bytes;

        assert_int_equal(kv_codes_of(&held, &bytes), count);
        assert_int_equal(bytes_by_token(c, side, kv[side]) +
                             held.n_queries * query_values(r) *
                                 sizeof(uint16_t),
                         count);
        check_held(r, c, side, n);
        free(bytes);
    }
    attend(c, q, kv, out + query_values(r));
    assert_memory_equal(out, out + query_values(r),
                        query_values(r) * sizeof(*out));
    free(kv[KV_K]);
    free(kv[KV_V]);
    free(out);
    kv_cache_free(c);
}

static void check_window(struct ready *r)
{
    const struct rows x = rows(r, N);
    struct ready s = *r;
    struct kv_err e;

    if (r->lower) {
        free_rows(x);
        return; /* no layer slides */
    }
    s.shape.slides[0] = 1 << 1;
    memcpy(s.shape.slide_freq, s.shape.inv_freq, sizeof(s.shape.slide_freq));
    for (size_t window = 5; window < N; window += 43) {
        s.shape.slide_window = window;
        for (enum kv_side side = KV_K; side < KV_SIDES; side++)
            assert_int_equal(kv_codec_new(&s.codec[side], &s.spec, &s.shape, 1,
                                          side, s.calib, &e),
                             0);
        for (size_t i = 1; i < sizeof(sizes) / sizeof(*sizes); i++)
            check_held_window(&s, x, sizes[i]);
        for (int side = 0; side < KV_SIDES; side++)
            kv_codec_free(s.codec[side]);
    }
    free_rows(x);
}

static void test_window(void **state)
{
    (void)state;
    every(check_window);
}

/* Zeros, constants, the largest half and denormals decode to finite values, and
 * flat groups decode to fp16's precision unless the scheme is a table lookup or
 * coarse.  With a bias subtracted, no group of keys is flat. */
static void check_extremes(struct ready *r)
{
    const float levels[] = {0, 1, -3.25f, 65504, -65504, 0x1p-24f, 0x1p-20f};
    float *all = kv_alloc(N, query_values(r) * sizeof(*all));
    float *back = kv_alloc(N, row_values(r) * sizeof(*back));
    const struct rows x = {all, all, all};

    for (size_t i = 0; i < sizeof(levels) / sizeof(*levels); i++) {
        struct kv_cache *c;

        for (size_t j = 0; j < N * query_values(r); j++)
            all[j] = levels[i];
        c = filled(r, x, N, N);
        for (int side = 0; side < KV_SIDES; side++) {
            kv_cache_decode(c, (enum kv_side)side, back);
            for (size_t j = 0; j < N * row_values(r); j++) {
                if (!isfinite(back[j]))
                    fail_msg("%s %c: %g decodes to %g", r->spec.text,
                             "KV"[side], (double)levels[i], (double)back[j]);
                if (!r->calib && !r->spec.scheme->coarse &&
                    !r->codec[side]->less_bias)
                    assert_within(back[j], levels[i],
                                  fabsf(levels[i]) * 0x1p-10f + 0x1p-24f);
            }
        }
        kv_cache_free(c);
        for (size_t j = 0; j < N * query_values(r); j++)
            all[j] = (j & 1 ? -1 : 1) * 65504.0f;
        c = filled(r, x, N, N);
        for (int side = 0; side < KV_SIDES; side++) {
            kv_cache_decode(c, (enum kv_side)side, back);
            for (size_t j = 0; j < N * row_values(r); j++)
                assert_true(isfinite(back[j]));
        }
        kv_cache_free(c);
    }
    free(back);
    free(all);
}

static void test_extremes(void **state)
{
    (void)state;
    every(check_extremes);
}

static void check_not_finite(struct ready *r)
{
    const float bad[] = {NAN, INFINITY, -INFINITY};
    const struct rows x = rows(r, N);
    struct kv_err e;
    char at[64];

    for (size_t i = 0; i < 3; i++) {
        struct kv_cache *c = filled(r, x, 5, 1);
        struct kv_cache *want = filled(r, x, 5, 1);
        float *broken = kv_alloc(2, query_values(r) * sizeof(*broken));

        broken[row_values(r) + 3] = bad[i];
        assert_int_equal(append_rows(c, x.q, x.k, broken, 2, &e), -1);
        snprintf(at, sizeof(at), "layer %zu, V, token 6", r->layer);
        assert_says(e, at);
        assert_int_equal(append_rows(c, x.q, broken, x.v, 2, &e), -1);
        snprintf(at, sizeof(at), "layer %zu, K, token 6", r->layer);
        assert_says(e, at);
        if (needs_queries(r)) {
            broken[query_values(r) + 3] = bad[i];
            assert_int_equal(append_rows(c, broken, x.k, x.v, 2, &e), -1);
            assert_says(e, "layer 1, Q, token ");
            assert_int_equal(append_rows(c, NULL, x.k, x.v, 2, &e), -1);
            assert_says(e, "needs the queries");
        }
        assert_same(c, want, r->spec.text, "a refused append", 5);
        free(broken);
        kv_cache_free(want);
        kv_cache_free(c);
    }
    free_rows(x);
}

static void test_not_finite(void **state)
{
    (void)state;
    every(check_not_finite);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),   cmocka_unit_test(test_variable),
        cmocka_unit_test(test_append),   cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_extremes), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_window),   cmocka_unit_test(test_layered),
    };

    every_only(argc, argv, true);
    return cmocka_run_group_tests(tests, prepare_every, release_every);
}
