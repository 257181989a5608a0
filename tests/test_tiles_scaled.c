/* kernels/scaled in plain C: a part of a tile expands to decode()'s values, bit
 * for bit (except for schemes that rotate), and to zeros elsewhere.  check_ops
 * compares the other levels with it. */
#include "kernels/level.h"
#include "kernels/scaled/scaled.h"
#include "lib/scheme.h"
#include "tests/tile_setup.h"

enum { TOKENS = 70 };

/* One part of one head. */
static void check_part(const char *what, const struct kv_store *s, size_t head,
                       size_t part, const float *decoded)
{
    const size_t d = s->head_dim, padded = kv_padded(d), row = s->n_heads * d;
    const size_t first = part * KV_TILE_PART;
    float *x = kv_alloc(KV_TILE_PART, padded * sizeof(*x));

    s->family->expand(s, head, kv_store_tile(s, head, part / 2), part % 2, x);
    for (size_t t = 0; t < KV_TILE_PART && first + t < TOKENS; t++)
        for (size_t c = 0; c < padded; c++) {
            const float want =
                c < d ? decoded[(first + t) * row + head * d + c] : 0;
            const float got =
                s->values ? x[t * padded + c] : x[c * KV_TILE_PART + t];

            if (c >= d && !s->values)
                break;
            if (memcmp(&got, &want, sizeof(got)))
                fail_msg("%s, %s: channel %zu of token %zu is %g, expected %g",
                         what, s->values ? "values" : "keys", c, first + t,
                         (double)got, (double)want);
        }
    free(x);
}

static void check(const char *text, size_t head_dim, enum kv_side side)
{
    struct held h;

    assert_true(hold(&h, text, head_dim, side, TOKENS, true));
    assert_ptr_equal(h.store.family, &kv_family_scaled);
    for (size_t i = 0; !h.store.space && i < h.store.n_heads; i++)
        for (size_t part = 0; part * KV_TILE_PART < TOKENS; part++)
            check_part(text, &h.store, i, part, h.x);
    assert_int_equal(kv_store_has(&h.store, KV_PATH_INT8),
                     ((const struct kv_scaled *)h.store.params)->bits <= 4);
    let_go(&h);
}

static void test_expand(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(scaled_specs) / sizeof(*scaled_specs); i++)
        for (int side = 0; side < KV_SIDES; side++)
            check(scaled_specs[i].text, scaled_specs[i].head_dim,
                  (enum kv_side)side);
}

/* Numbers are at most half a unit off, most of them less than by 127 steps. */
static void test_rounded_tables(void **state)
{
    static const float zero[KV_SCALED_TABLE], two[2] = {-0.25f, 3};
    float random[KV_SCALED_TABLE];
    struct kv_scaled c;

    (void)state;
    assert_true(kv_scaled_init(&c, 4, zero, NULL, KV_SCALE_F16, 1, 64, 64));
    for (size_t i = 0; i < KV_SCALED_TABLE; i++)
        assert_int_equal(c.near[i], 0);
    assert_true(kv_scaled_init(&c, 1, two, NULL, KV_SCALE_F16, 1, 64, 64));
    assert_within(c.unit * (float)c.near[2], two[0], 1e-6);
    assert_within(c.unit * (float)c.near[3], two[1], 1e-6);
    for (uint64_t key = 0; key < 50; key++) {
        double error = 0, plain = 0;
        float max = 0;

        for (size_t i = 0; i < KV_SCALED_TABLE; i++) {
            random[i] = (float)kv_random_normal(key, i);
            max = fmaxf(max, fabsf(random[i]));
        }
        assert_true(
            kv_scaled_init(&c, 4, random, NULL, KV_SCALE_F16, 1, 64, 64));
        assert_true(c.unit >= 0.999f * max / 127 &&
                    c.unit <= 1.001f * max / 96);
        for (size_t i = 0; i < KV_SCALED_TABLE; i++) {
            const float unit = max / 127;
            const double e = (double)(random[i] - c.unit * (float)c.near[i]);
            const double e127 =
                (double)(random[i] - unit * rintf(random[i] / unit));

            assert_true(fabs(e) <= 0.501 * (double)c.unit);
            error += e * e;
            plain += e127 * e127;
        }
        assert_true(error <= 1.001 * plain);
    }
}

/* Groups that end inside a register have no tiles. */
static void test_refuses(void **state)
{
    const struct kv_shape shape = synthetic_shape(64);
    struct kv_codec *c = codec_of("nf4:g8", &shape, 0, KV_K);
    struct kv_store s = {.n_heads = 2, .head_dim = 64};

    (void)state;
    assert_false(c->scheme->store(c, &s));
    kv_codec_free(c);
    c = codec_of("turboquant:b5", &shape, 0, KV_K);
    assert_false(c->scheme->store(c, &s));
    kv_codec_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expand),
        cmocka_unit_test(test_rounded_tables),
        cmocka_unit_test(test_refuses),
    };

    kv_level_set(KV_LEVEL_C, NULL); /* the definition */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
