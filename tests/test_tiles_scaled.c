/* kernels/tiles_scaled: what a part of a tile expands to is what decode()
 * gives, bit for bit, at every level (but for schemes that rotate), and what is
 * beside it is zero; path int8 gives the same bits of finite numbers at every
 * level. */
#include "kernels/level.h"
#include "kernels/scaled/scaled.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "lib/codec.h"
#include "tests/codec_setup.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 70 };

/* Of all sizes that fp16 holds, with tokens of zeros. */
static void fill(float *x, size_t row)
{
    for (size_t i = 0; i < TOKENS * row; i++) {
        const size_t t = i / row;
        const float size = t % 9 == 4 ? 0 : ldexpf(1, (int)(t % 37) - 22);

        x[i] = size * (float)kv_random_normal(1, i);
    }
}

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
                fail_msg("%s, %s, level %s: channel %zu of token %zu is %g, "
                         "expected %g",
                         what, s->values ? "values" : "keys",
                         kv_level_name(kv_level_get()), c, first + t,
                         (double)got, (double)want);
        }
    free(x);
}

/* Of one tile: keys' qk [rows][64], values' sums [rows][padded]. */
static void run_int8(const struct kv_store *s, size_t head, size_t i,
                     const float *x, size_t rows, float *out)
{
    const struct kv_tile_ops *ops = s->family->ops(s, KV_PATH_INT8);
    const uint8_t *tile = kv_store_tile(s, head, i);

    if (s->values) {
        ops->pv(s, head, tile, x, KV_TILE_TOKENS, rows, out);
        return;
    }

    void *query = kv_lines_unset(ops->query_bytes(s), 1);

    memset(query, 0x5a, ops->query_bytes(s));
    ops->prepare(s, head, x, rows, query);
    ops->qk(s, head, tile, query, rows, out, KV_TILE_TOKENS);
    free(query);
}

/* Queries, or weights, the most of them small. */
static void check_int8(const char *what, const struct kv_store *s, size_t rows)
{
    const size_t padded = kv_padded(s->head_dim);
    const size_t n_in = s->values ? KV_TILE_TOKENS : s->head_dim;
    const size_t n_out = s->values ? padded : KV_TILE_TOKENS;
    float *x = kv_alloc(rows, n_in * sizeof(*x));
    float *want = kv_alloc(rows, n_out * sizeof(*want));
    float *got = kv_alloc(rows, n_out * sizeof(*got));

    for (size_t i = 0; i < rows * n_in; i++)
        x[i] = s->values ? powf(kv_random_unit(5, i), 8)
                         : (float)kv_random_normal(5, i);
    for (size_t at = 0; at < s->n_heads * kv_store_tiles(s); at++) {
        const size_t head = at % s->n_heads, i = at / s->n_heads;

        for (int l = KV_LEVEL_C; l <= (int)kv_level_max(); l++) {
            float *out = l == KV_LEVEL_C ? want : got;
            struct kv_err e;

            assert_int_equal(kv_level_set((enum kv_level)l, &e), 0);
            for (size_t j = 0; j < rows * n_out; j++)
                out[j] = s->values ? (float)j : NAN;
            run_int8(s, head, i, x, rows, out);
            for (size_t j = 0; l != KV_LEVEL_C && j < rows * n_out; j++) {
                if (j % n_out >= (s->values ? s->head_dim : n_out))
                    continue;
                if (memcmp(&want[j], &got[j], sizeof(*got)))
                    fail_msg("%s, %s, %zu rows, level %s: number %zu is %g, "
                             "expected %g",
                             what, s->values ? "values" : "keys", rows,
                             kv_level_name((enum kv_level)l), j, (double)got[j],
                             (double)want[j]);
            }
        }
    }
    free(got);
    free(want);
    free(x);
}

static void check(const char *text, size_t head_dim, enum kv_side side)
{
    const struct kv_shape shape = synthetic_shape(head_dim);
    const size_t row = shape.n_kv_heads * head_dim;
    struct kv_codec *c = codec_of(text, &shape, 0, side);
    struct kv_store s = {.values = side == KV_V,
                         .n_heads = shape.n_kv_heads,
                         .head_dim = head_dim};
    float *x = kv_alloc(TOKENS, row * sizeof(*x));
    uint8_t *bytes = kv_alloc(TOKENS, c->block_bytes);

    fill(x, row);
    kv_codec_input(c, x, TOKENS, x);
    c->scheme->encode(c, (struct kv_where){.first = 0}, x, TOKENS, bytes);
    c->scheme->decode(c, bytes, TOKENS, x);
    assert_true(c->scheme->store(c, &s));
    assert_ptr_equal(s.family, &kv_family_scaled);
    kv_store_resize(&s, TOKENS);
    for (size_t h = 0; h < s.n_heads; h++)
        for (size_t i = 0; i < kv_store_tiles(&s); i++) {
            const size_t at = i * KV_TILE_TOKENS, left = TOKENS - at;

            c->scheme->tile(c, &s, bytes, at,
                            left < KV_TILE_TOKENS ? left : KV_TILE_TOKENS, h,
                            kv_store_tile(&s, h, i));
        }
    for (int l = KV_LEVEL_C; !s.space && l <= (int)kv_level_max(); l++) {
        struct kv_err e;

        assert_int_equal(kv_level_set((enum kv_level)l, &e), 0);
        for (size_t h = 0; h < s.n_heads; h++)
            for (size_t part = 0; part * KV_TILE_PART < TOKENS; part++)
                check_part(text, &s, h, part, x);
    }
    assert_int_equal(kv_store_has(&s, KV_PATH_INT8),
                     ((const struct kv_scaled *)s.params)->bits <= 4);
    for (size_t rows = 1; rows <= KV_TILE_ROWS; rows++)
        if (kv_store_has(&s, KV_PATH_INT8))
            check_int8(text, &s, rows);
    kv_store_free(&s);
    free(bytes);
    free(x);
    kv_codec_free(c);
}

static void test_expand(void **state)
{
    static const struct {
        const char *text;
        size_t head_dim;
    } of[] = {
        {"nf4", 64},
        {"nf4:g20", 20},
        {"nf4:g16", 128},
        {"iq4_nl", 32},
        {"iq4_nl", 128},
        {"fp4", 64},
        {"fp4:g22", 22},
        {"fp4,scale=none", 34},
        {"mxfp4", 128},
        {"nvfp4", 48},
        {"fp6", 64},
        {"fp6:e3m2,scale=token", 38},
        {"fp6,scale=none", 18},
        {"mxfp6", 96},
        {"mxfp6:e3m2", 64},
        {"fp8", 64},
        {"fp8:e5m2,scale=token", 26},
        {"fp8,scale=none", 20},
        {"fp8:e5m2,scale=none", 64},
        {"mxfp8", 20},
        {"mxfp8:e5m2", 512},
        {"turboquant:b1", 64},
        {"turboquant:b1", 24},
        {"turboquant:b2", 128},
        {"turboquant:b3", 64},
        {"turboquant:b3", 40},
        {"turboquant:b4", 256},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++)
        for (int side = 0; side < KV_SIDES; side++)
            check(of[i].text, of[i].head_dim, (enum kv_side)side);
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

    return cmocka_run_group_tests(tests, NULL, NULL);
}
