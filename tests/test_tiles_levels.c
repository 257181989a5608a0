/* kernels/levels: a part of a tile expands to the values that the cache
 * decodes, bit for bit, at every level, however the tiles were filled; and the
 * memory of the outliers is counted. */
#include "kernels/levels/levels.h"
#include "lib/base/alloc.h"
#include "lib/seq/cache.h"
#include "lib/seq/tile_cache.h"
#include "tests/append_rows.h"
#include "tests/synthetic.h"
#include "tests/levels.h"

#include <stdlib.h>

enum { TOKENS = 200 };

static void check_part(const char *what, const struct kv_store *s, size_t head,
                       size_t part, const float *decoded)
{
    const size_t d = s->head_dim, padded = kv_padded(d), row = s->n_heads * d;
    float *x = kv_alloc(KV_TILE_PART, padded * sizeof(*x));

    s->family->expand(s, head, kv_store_tile(s, head, part / 2), part % 2, x);
    for (size_t t = 0; t < KV_TILE_PART && part * KV_TILE_PART + t < s->n; t++)
        for (size_t c = 0; c < d; c++) {
            const float want =
                decoded[(s->first + part * KV_TILE_PART + t) * row + head * d +
                        c];
            const float got =
                s->values ? x[t * padded + c] : x[c * KV_TILE_PART + t];

            if (got != want)
                fail_msg("%s, %s, level %s: channel %zu of token %zu is %g, "
                         "expected %g",
                         what, s->values ? "values" : "keys",
                         kv_level_name(kv_level_get()), c,
                         part * KV_TILE_PART + t, (double)got, (double)want);
        }
    free(x);
}

/* Counts the outliers of a side's codes by the bytes that its blocks have
 * beyond those without outliers. */
static size_t count_outliers(const struct kv_reader *r, size_t plain)
{
    size_t n = 0;

    for (size_t i = 0; i < r->n_blocks; i++)
        n += ((r->size ? r->size[i] : r->codec->block_bytes) - plain) / 4;
    return n;
}

static void check_side(const char *what, const struct kv_cache *c,
                       const struct kv_store *s, size_t plain)
{
    const enum kv_side side = s->values ? KV_V : KV_K;
    const struct kv_reader r = kv_cache_reader(c, side);
    const size_t tiles = s->n_heads * kv_store_tiles(s);
    float *x = kv_alloc(kv_cache_tokens(c), s->n_heads * s->head_dim * 4);

    assert_ptr_equal(s->family, &kv_family_levels);
    assert_int_equal(
        kv_store_bytes(s),
        tiles * (s->tile_bytes + sizeof(struct kv_levels_outliers)) +
            count_outliers(&r, plain) * sizeof(struct kv_levels_outlier));
    kv_cache_decode(c, side, x);
    for (int l = LOWEST; l <= (int)kv_level_max(); l++) {
        struct kv_err e;

        assert_int_equal(kv_level_set((enum kv_level)l, &e), 0);
        for (size_t h = 0; h < s->n_heads; h++)
            for (size_t part = 0; part * KV_TILE_PART < s->n; part++)
                check_part(what, s, h, part, x);
    }
    free(x);
}

/* bits: the bits of both sides.  RoPE rotates no pair of channels, so that keys
 * are exact. */
static void check(const char *text, size_t bits)
{
    static const size_t lengths[] = {1, 33, 64, 129, TOKENS};
    struct kv_shape s = synthetic_shape(64);
    const size_t row = s.n_kv_heads * s.head_dim, codes = row * bits / 8;
    float *k = kv_alloc(TOKENS, row * sizeof(*k));
    float *v = kv_alloc(TOKENS, row * sizeof(*v));
    float *q = kv_alloc(TOKENS, s.n_heads * s.head_dim * sizeof(*q));
    struct kv_codec *codec[KV_SIDES];
    struct kv_calib *calib;
    struct kv_cache *c;
    struct kv_tile_cache *t;
    struct kv_spec spec;
    struct kv_err e = {""};

    s.n_rot = 0;
    synthetic_rows(&s, s.n_kv_heads, 41, TOKENS, k);
    synthetic_rows(&s, s.n_kv_heads, 42, TOKENS, v);
    if (kv_spec_parse(&spec, text, &e) || kv_spec_fit(&spec, &s, &e))
        fail_msg("%s: %s", text, e.msg);
    calib = synthetic_calib(&s, &spec, test_folder());
    for (int side = 0; side < KV_SIDES; side++)
        if (kv_codec_new(&codec[side], &spec, &s, 1, (enum kv_side)side, calib,
                         &e))
            fail_msg("%s: %s", text, e.msg);
    assert_int_equal(kv_cache_new(&c, codec[KV_K], codec[KV_V], 5, &e), 0);
    t = kv_tile_cache_new(c);
    for (size_t i = 0, n = 0; i < sizeof(lengths) / sizeof(*lengths);
         n = lengths[i++]) {
        if (append_rows(c, q, k + n * row, v + n * row, lengths[i] - n, &e))
            fail_msg("%s: %s", text, e.msg);
        kv_tile_cache_update(t);

        const struct kv_tiles_job job = kv_tile_cache_job(t, 1);

        check_side(text, c, &job.k[1], codes + (codec[KV_K]->variable ? 2 : 0));
        check_side(text, c, &job.v[1], codes + 4);
    }
    kv_tile_cache_free(t);
    kv_cache_free(c);
    for (int side = 0; side < KV_SIDES; side++)
        kv_codec_free(codec[side]);
    kv_calib_free(calib);
    free(q);
    free(v);
    free(k);
}

static void test_expand(void **state)
{
    (void)state;
    check("kvquant:b3o1s0r0", 3);
    check("kvquant:b2o10s2r3", 2);
    check("kvquant:b4o0s0r0", 4);
}

/* Tables of more than 16 levels have no tiles. */
static void test_refuses(void **state)
{
    struct kv_levels_tiles n;

    (void)state;
    assert_false(kv_levels_tiles_init(&n, 1, 5, NULL, 64));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expand),
        cmocka_unit_test(test_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
