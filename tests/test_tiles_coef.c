/* kernels/tiles_coef: what comes out of a tile is what the trellis decodes, bit
 * for bit, at every level; int8 has the same bits at every level. */
#include "kernels/level.h"
#include "kernels/tiles_coef.h"
#include "kernels/tiles_rope.h"
#include "kernels/trellis.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 3, D = 90, TOKENS = 100, KINDS = 5, ROWS = 8 };

/* The first steps are levels, of bits that end wherever in a byte. */
enum { LEVELS = 40, STEPS = LEVELS + 160 };

/* What int8 takes from or adds to a sum of D products, for each root of D. */
static const double ROUNDING = 0.0486;

/* Of a string, after its levels: bits from 7 to 1, in steps of several values
 * too.  Those of odd bits end anywhere in a byte. */
static const struct kv_trellis_step kinds[KINDS] = {{.bits = 7, .values = 1},
                                                    {.bits = 5, .values = 1},
                                                    {.bits = 3, .values = 2},
                                                    {.bits = 2, .values = 1},
                                                    {.bits = 1, .values = 4}};

struct made {
    float table[KINDS][KV_TRELLIS_MOST_VALUES * KV_TRELLIS_STATES];
    float level[9][KV_TRELLIS_STATES]; /* by bits */
    struct kv_trellis_step step[STEPS];
    size_t n_values, bytes, n[HEADS];
    struct kv_coef coef[STEPS * KV_TRELLIS_MOST_VALUES];
    size_t value[HEADS][D]; /* which of the string's values */
    float unit[D][D], mean[HEADS * D];
    uint8_t *string; /* [TOKENS][bytes] */
    float *decoded;  /* [TOKENS][n_values] */
};

/* Levels repeat themselves. */
static void make_tables(struct made *m)
{
    float kept[KV_TRELLIS_MOST_VALUES * KV_TRELLIS_ENTRIES / 2];

    for (size_t bits = 1; bits <= 8; bits++)
        for (size_t i = 0; i < KV_TRELLIS_STATES; i++)
            m->level[bits][i] =
                (float)kv_random_normal(KINDS + bits, i % ((size_t)1 << bits));
    for (size_t t = 0; t < KINDS; t++) {
        for (size_t i = 0; i < sizeof(kept) / sizeof(*kept); i++)
            kept[i] = (float)kv_random_normal(t, i);
        kv_trellis_unfold(kinds[t].bits, kinds[t].values, kept, m->table[t]);
    }
}

/* Of the last but one so many that each head has a few dozen. */
static size_t kind_of(size_t i)
{
    return i < 30 ? i / 10 : i < 150 ? 3 : 4;
}

static void make_steps(struct made *m)
{
    for (size_t i = 0; i < LEVELS; i++) {
        const unsigned bits = i < 8 ? 7 : 1 + (unsigned)kv_random(9, i) % 8;

        m->step[i] = (struct kv_trellis_step){
            .bits = bits, .values = 1, .table = m->level[bits]};
    }
    for (size_t i = LEVELS; i < STEPS; i++) {
        const size_t kind = kind_of(i - LEVELS);

        m->step[i] = kinds[kind];
        m->step[i].table = m->table[kind];
    }
    for (size_t i = 0; i < STEPS; i++)
        m->n_values += m->step[i].values;
    m->bytes = kv_trellis_bytes(m->step, STEPS);
}

/* Values are dealt out to heads; of a head that is full they are left out. */
static void make_coefs(struct made *m, size_t most)
{
    struct kv_coef *to = m->coef;

    for (size_t h = 0; h < HEADS; h++) {
        size_t end = 0, value = 0;

        for (size_t i = 0; i < STEPS; i++) {
            end += m->step[i].bits;
            for (unsigned v = 0; v < m->step[i].values; v++, value++) {
                if (kv_random(77, value) % HEADS != h || m->n[h] == most)
                    continue;
                *to++ = (struct kv_coef){
                    .end = end,
                    .table = m->step[i].table + v * KV_TRELLIS_STATES,
                    .map = i < LEVELS ? kv_trellis_last_bits(m->step[i].bits)
                                      : kv_trellis_map(m->step[i].bits,
                                                       m->step[i].values),
                    .scale = 1,
                    .inverse = m->unit[m->n[h]]};
                m->value[h][m->n[h]++] = value;
            }
        }
    }
    for (size_t i = 0; i < D; i++)
        m->unit[i][i] = 1;
}

static struct made *make(size_t most)
{
    struct made *m = kv_alloc(1, sizeof(*m));
    float one[STEPS * KV_TRELLIS_MOST_VALUES];
    uint32_t place[STEPS * KV_TRELLIS_MOST_VALUES];

    make_tables(m);
    make_steps(m);
    make_coefs(m, most);
    for (size_t i = 0; i < m->n_values; i++) {
        one[i] = 1;
        place[i] = (uint32_t)i;
    }
    m->string = kv_alloc(TOKENS, m->bytes);
    m->decoded = kv_alloc(TOKENS, m->n_values * sizeof(float));
    for (size_t i = 0; i < TOKENS * m->bytes; i++)
        m->string[i] = (uint8_t)kv_random(5, i);
    kv_trellis_decode(m->step, STEPS, m->string, m->bytes, one, TOKENS,
                      m->decoded, m->n_values, place);
    return m;
}

static void free_made(struct made *m)
{
    free(m->string);
    free(m->decoded);
    free(m);
}

static struct kv_coefs *fill(const struct made *m, bool values,
                             const struct kv_tiles_rope *rope,
                             struct kv_store *s)
{
    struct kv_coefs *c =
        kv_coefs_new(&(struct kv_coefs_about){.n_heads = HEADS,
                                              .head_dim = D,
                                              .string_bytes = m->bytes,
                                              .n = m->n,
                                              .coef = m->coef,
                                              .mean = m->mean,
                                              .rope = rope,
                                              .values = values,
                                              .int8 = true});

    *s = (struct kv_store){.values = values, .n_heads = HEADS, .head_dim = D};
    kv_store_coefs(s, c);
    kv_store_resize(s, TOKENS);
    for (size_t t = 0; t < TOKENS; t++)
        kv_store_put_string(s, t % KV_TILE_TOKENS, m->string + t * m->bytes,
                            kv_store_tile(s, 0, t / KV_TILE_TOKENS));
    return c;
}

static float want(const struct made *m, size_t head, size_t t, size_t j)
{
    if (j >= m->n[head])
        return 0;
    return m->decoded[t * m->n_values + m->value[head][j]];
}

/* [rows][64] of tile i. */
static void score(const struct kv_store *s, enum kv_path path, size_t head,
                  size_t i, const float *q, size_t rows, float *to)
{
    const struct kv_tile_ops *ops = s->family->ops(s, path);
    const size_t bytes = (ops->query_bytes(s) + 63) / 64 * 64;
    void *query = aligned_alloc(64, bytes);

    memset(query, 0x5a, bytes); /* what was there is no part of it */
    ops->prepare(s, head, q, rows, query);
    ops->scores(s, head, kv_store_tile(s, head, i), query, rows, to,
                KV_TILE_TOKENS);
    free(query);
}

static void gather(const struct kv_store *s, enum kv_path path, size_t head,
                   size_t i, const float *p, size_t rows, float *out)
{
    const struct kv_tile_ops *ops = s->family->ops(s, path);
    const size_t bytes = (rows * ops->acc_floats(s) * sizeof(float) + 63) / 64;
    float *acc = aligned_alloc(64, bytes * 64);

    memset(acc, 0, bytes * 64);
    ops->gather(s, head, kv_store_tile(s, head, i), p, KV_TILE_TOKENS, rows,
                acc);
    ops->finish(s, head, acc, rows, out);
    free(acc);
}

static void set_level(int level)
{
    struct kv_err e;

    assert_int_equal(kv_level_set((enum kv_level)level, &e), 0);
}

/* The inverse is the unit matrix: with units as queries scores are values, and
 * so are outputs with one weight of 1. */
static void check_values(const struct made *m)
{
    struct kv_store k, v;
    struct kv_coefs *kc = fill(m, false, NULL, &k);
    struct kv_coefs *vc = fill(m, true, NULL, &v);
    float got[KV_TILE_TOKENS], out[D];

    for (size_t h = 0; h < HEADS; h++)
        for (size_t t = 0; t < TOKENS; t++) {
            float p[KV_TILE_TOKENS] = {0};

            p[t % KV_TILE_TOKENS] = 1;
            gather(&v, KV_PATH_EXACT, h, t / KV_TILE_TOKENS, p, 1, out);
            for (size_t j = 0; j < D; j++)
                assert_true(out[j] == want(m, h, t, j));
        }
    for (size_t h = 0; h < HEADS; h++)
        for (size_t j = 0; j < D; j++)
            for (size_t i = 0; i < 2; i++) {
                score(&k, KV_PATH_EXACT, h, i, m->unit[j], 1, got);
                for (size_t t = i * 64; t < TOKENS && t < (i + 1) * 64; t++)
                    assert_true(got[t % 64] == want(m, h, t, j));
            }
    kv_store_free(&k);
    kv_store_free(&v);
    kv_coefs_free(kc);
    kv_coefs_free(vc);
}

static void test_values(void **state)
{
    (void)state;
    for (size_t most = 0; most <= D; most += 30) {
        struct made *m = make(most);

        for (int l = KV_LEVEL_C; l <= (int)kv_level_max(); l++) {
            set_level(l);
            check_values(m);
        }
        free_made(m);
    }
}

/* Scores and outputs of all heads and tiles: what the queries' and weights'
 * codes give, within their rounding, and the same at every level. */
static void test_int8(void **state)
{
    struct made *m = make(D);
    struct kv_store k, v;
    struct kv_coefs *kc, *vc;
    float q[ROWS * D], p[ROWS * KV_TILE_TOKENS];

    (void)state;
    for (size_t h = 0; h < HEADS; h++)
        m->mean[h * D + h] = 0.7f; /* one product: no order of sums */
    kc = fill(m, false, NULL, &k);
    vc = fill(m, true, NULL, &v);
    for (size_t i = 0; i < ROWS * D; i++)
        q[i] = (float)kv_random_normal(1, i);
    for (size_t i = 0; i < ROWS * KV_TILE_TOKENS; i++)
        p[i] = (float)kv_random_unit(2, i);
    for (size_t i = 0; i < HEADS * 2; i++)
        for (size_t rows = 1; rows <= ROWS; rows++) {
            float s[2][ROWS * KV_TILE_TOKENS], o[2][ROWS * D];
            float exact[ROWS * KV_TILE_TOKENS], out[ROWS * D];

            for (int l = KV_LEVEL_C; l <= (int)kv_level_max(); l++) {
                const size_t to = l > KV_LEVEL_C;

                set_level(l);
                score(&k, KV_PATH_INT8, i / 2, i % 2, q, rows, s[to]);
                assert_memory_equal(s[0], s[to],
                                    rows * KV_TILE_TOKENS * sizeof(float));
                gather(&v, KV_PATH_INT8, i / 2, i % 2, p, rows, o[to]);
                for (size_t j = 0; j < rows * D; j++)
                    assert_within(o[to][j], o[0][j],
                                  1e-5 * (1 + fabs((double)o[0][j])));
            }
            score(&k, KV_PATH_EXACT, i / 2, i % 2, q, rows, exact);
            for (size_t j = 0; j < rows * KV_TILE_TOKENS; j++)
                assert_within(s[0][j], exact[j], ROUNDING * sqrt(D));
            gather(&v, KV_PATH_EXACT, i / 2, i % 2, p, rows, out);
            for (size_t j = 0; j < rows * D; j++)
                assert_within(o[0][j], out[j], 0.3);
        }
    kv_store_free(&k);
    kv_store_free(&v);
    kv_coefs_free(kc);
    kv_coefs_free(vc);
    free_made(m);
}

/* Keys before RoPE: near the exact scores; apart from the order of the last
 * sum the same at every level. */
static void test_int8_turned(void **state)
{
    const float inv_freq[D / 2] = {1, 0.3f, 0.1f, 0.03f};
    struct kv_tiles_rope *rope = kv_tiles_rope_new(D, D / 2, inv_freq);
    struct made *m = make(D);
    struct kv_store k;
    struct kv_coefs *c;
    float q[ROWS * D];

    (void)state;
    for (size_t i = 0; i < ROWS * D; i++)
        q[i] = (float)kv_random_normal(1, i);
    for (size_t i = 0; i < D * D; i++)
        m->unit[i / D][i % D] = 0.16f * (float)kv_random_normal(2, i);
    for (size_t i = 0; i < HEADS * D; i++)
        m->mean[i] = (float)kv_random_normal(3, i);
    c = fill(m, false, rope, &k);
    for (size_t i = 0; i < HEADS * 2; i++)
        for (size_t rows = 1; rows <= ROWS; rows++) {
            float plain[ROWS * KV_TILE_TOKENS], got[ROWS * KV_TILE_TOKENS];
            float exact[ROWS * KV_TILE_TOKENS];

            set_level(KV_LEVEL_C);
            score(&k, KV_PATH_INT8, i / 2, i % 2, q, rows, plain);
            score(&k, KV_PATH_EXACT, i / 2, i % 2, q, rows, exact);
            for (size_t j = 0; j < rows * KV_TILE_TOKENS; j++)
                assert_within(plain[j], exact[j], ROUNDING * sqrt(D));
            for (int l = KV_LEVEL_C + 1; l <= (int)kv_level_max(); l++) {
                set_level(l);
                score(&k, KV_PATH_INT8, i / 2, i % 2, q, rows, got);
                for (size_t j = 0; j < rows * KV_TILE_TOKENS; j++)
                    assert_within(got[j], plain[j], 2e-5);
            }
        }
    kv_store_free(&k);
    kv_coefs_free(c);
    kv_tiles_rope_free(rope);
    free_made(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_int8),
        cmocka_unit_test(test_int8_turned),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
