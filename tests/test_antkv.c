/* AnTKV (arXiv 2506.19505): anchor scores against differences of attention, the
 * tokens that a block keeps, and the scores that a cache makes. */
#include "kernels/attend.h"
#include "lib/anchor_score.h"
#include "lib/base/alloc.h"
#include "lib/calib.h"
#include "lib/rope_table.h"
#include "lib/seq/cache.h"
#include "tests/codec_setup.h"
#include "tests/synthetic.h"

#include <math.h>
#include <stdlib.h>

enum { DIM = 8, N = 6, HEADS = 4, KV_HEADS = 2 };

struct tokens {
    float q[N * HEADS * DIM], k[N * KV_HEADS * DIM], v[N * KV_HEADS * DIM];
};

static void fill(const struct kv_shape *s, uint64_t seed, float size,
                 struct tokens *t)
{
    synthetic_rows(s, HEADS, 10 * seed + 1, N, t->q);
    synthetic_rows(s, KV_HEADS, 10 * seed + 2, N, t->k);
    synthetic_rows(s, KV_HEADS, 10 * seed + 3, N, t->v);
    for (size_t i = 0; i < sizeof(t->q) / sizeof(*t->q); i++)
        t->q[i] *= size;
}

static void attend(const struct kv_shape *s, const struct tokens *t, float *out)
{
    struct kv_attend_job job = {.view = kv_shape_view(s, N, 0, N),
                                .q = t->q,
                                .out = out,
                                .q_rows = N,
                                .k = {.unquantized = t->k},
                                .v = {.unquantized = t->v}};

    kv_attend_c(&job);
}

/* The sum, over queries and heads of a KV head, of how far an output moves if
 * key j moves by `by` along each query in turn, times the query's norm. */
static double moved(const struct kv_shape *s, const struct tokens *t,
                    size_t kv_head, size_t j, float by)
{
    float before[N * HEADS * DIM], after[N * HEADS * DIM];
    double sum = 0;

    attend(s, t, before);
    for (size_t i = j; i < N; i++)
        for (size_t g = 0; g < HEADS / KV_HEADS; g++) {
            const size_t at =
                (i * HEADS + kv_head * HEADS / KV_HEADS + g) * DIM;
            struct tokens other = *t;
            double norm = 0;

            for (size_t c = 0; c < DIM; c++)
                norm += pow((double)t->q[at + c], 2);
            norm = sqrt(norm);
            for (size_t c = 0; c < DIM; c++)
                other.k[(j * KV_HEADS + kv_head) * DIM + c] +=
                    by * t->q[at + c] / (float)norm;
            attend(s, &other, after);
            for (size_t c = 0; c < DIM; c++)
                sum += fabs((double)(after[at + c] - before[at + c]));
        }
    return sum;
}

/* A step along a query moves its output by scale A_ij |v_j - o_i|_1 |q_i| a
 * step; the values' scores are the weights. */
static void test_scores(void **state)
{
    const struct kv_shape s = synthetic_shape(DIM);
    const float step = 1e-3f;
    double mass[KV_HEADS * N] = {0};
    float of_k[KV_HEADS * N], of_v[KV_HEADS * N], out[N * HEADS * DIM];
    struct tokens t;
    struct kv_attend_job job;

    (void)state;
    fill(&s, 0, 0.2f, &t);
    kv_anchor_score(&s, t.q, t.k, t.v, N, of_k, of_v);
    job = (struct kv_attend_job){.view = kv_shape_view(&s, N, 0, N),
                                 .q = t.q,
                                 .out = out,
                                 .q_rows = N,
                                 .k = {.unquantized = t.k},
                                 .v = {.unquantized = t.v}};
    job.view.mass = mass;
    kv_attend_c(&job);
    for (size_t h = 0; h < KV_HEADS; h++)
        for (size_t j = 0; j < N; j++) {
            const double score = (double)of_k[h * N + j];

            assert_within(of_v[h * N + j], mass[h * N + j], 1e-5);
            assert_within(moved(&s, &t, h, j, step) /
                              (double)(step * s.attn_scale),
                          score, 0.02 * score + 1e-3);
        }
}

static struct kv_calib *calib_of(const char *text, struct kv_shape *shape)
{
    *shape = synthetic_shape(DIM);

    const struct kv_spec s = spec_of(text, shape);

    return synthetic_calib(shape, &s, test_folder());
}

/* A block of 4 keeps the two tokens whose scores, over both heads, are highest;
 * the others are decoded as cq's codes are. */
static void test_block(void **state)
{
    const char text[] = "antkv:d4b4n4r0,anchor=40,iters=3";
    const float score[KV_HEADS * 4] = {1, 5, 2, 0, 4, 1, 2.5f, 1};
    struct kv_shape shape;
    struct kv_calib *calib = calib_of(text, &shape);
    const struct kv_spec s = spec_of(text, &shape);

    (void)state;
    for (int side = 0; side < KV_SIDES; side++) {
        struct kv_codec *c =
            codec_from(&s, &shape, 1, (enum kv_side)side, calib);
        const size_t row = KV_HEADS * DIM;
        const float *book =
            kv_calib_table(calib->set, "codebook", (enum kv_side)side, 1, 0)
                ->data;
        float x[4 * KV_HEADS * DIM], back[4 * KV_HEADS * DIM];
        uint8_t bytes[4 * 2 + 2 * 2 + 2 * 2 * KV_HEADS * DIM];

        assert_int_equal(c->block, 4);
        assert_int_equal(c->block_bytes, sizeof(bytes));
        synthetic_rows(&shape, KV_HEADS, 5, 4, x);
        kv_codec_input(c, x, 4, x);
        round_trip(c, (struct kv_where){.saliency = score}, x, bytes, back);
        for (size_t t = 0; t < 4; t++) /* sums 5, 6, 4.5, 1 */
            assert_int_equal(
                memcmp(x + t * row, back + t * row, row * sizeof(*x)) == 0,
                t < 2);
        for (size_t i = 0; i < 4; i++) { /* a center of head 0 */
            size_t found = 0;

            for (size_t k = 0; k < 16; k++)
                found += !memcmp(book + k * 4, back + 2 * row, 4 * sizeof(*x));
            assert_int_equal(found, 1);
        }
        kv_codec_free(c);
    }
    kv_calib_free(calib);
}

enum { BLOCK = 4, ROW = KV_HEADS * DIM }; /* the block follows one sink */

/* The token of the block with the highest score. */
static size_t anchor_of(const struct kv_shape *s, bool pre,
                        const struct tokens *t)
{
    float score[KV_HEADS * BLOCK];
    struct tokens seen = *t;
    size_t best = 0;

    if (pre)
        kv_rope(s, seen.k, N, KV_HEADS, 0);
    kv_anchor_score(s, seen.q + HEADS * DIM, seen.k + ROW, seen.v + ROW, BLOCK,
                    score, NULL);
    for (size_t i = 1; i < BLOCK; i++)
        if (score[i] + score[BLOCK + i] > score[best] + score[BLOCK + best])
            best = i;
    return best;
}

/* A cache scores a block by its rotated keys, its own queries and its own
 * values; the block is filled from the tail. */
static void check_block(struct kv_codec *const *c, uint64_t seed)
{
    const struct kv_shape *s = &c[KV_K]->shape;
    struct tokens t;
    float back[BLOCK * ROW];
    struct kv_cache *cache;
    struct kv_err e = {""};
    size_t best;

    fill(s, seed, 1, &t);
    for (size_t i = 0; i < N * HEADS * DIM; i++)
        t.q[i] = kv_f16_to_f32(kv_f16_clamp(t.q[i]));
    kv_codec_input(c[KV_K], t.k, N, t.k);
    kv_codec_input(c[KV_V], t.v, N, t.v);
    best = anchor_of(s, c[KV_K]->pre_rope, &t);
    assert_int_equal(kv_cache_new(&cache, c[KV_K], c[KV_V], 1, &e), 0);
    for (size_t i = 0; i < N; i += 2) {
        const struct kv_tokens part = {.n = 2,
                                       .q = t.q + i * HEADS * DIM,
                                       .k = t.k + i * ROW,
                                       .k_pre = t.k + i * ROW,
                                       .v = t.v + i * ROW};

        assert_int_equal(kv_cache_append(cache, &part, &e), 0);
    }
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;
        const struct kv_reader r = kv_cache_reader(cache, side);
        const float *x = (side == KV_K ? t.k : t.v) + ROW;

        assert_int_equal(r.n_blocks, 1);
        c[side]->scheme->decode(c[side], r.blocks, 1, back);
        for (size_t j = 0; j < BLOCK && !(side == KV_K && c[side]->less_bias);
             j++)
            assert_int_equal(
                memcmp(back + j * ROW, x + j * ROW, ROW * sizeof(*x)) == 0,
                j == best);
    }
    kv_cache_free(cache);
}

static void test_cache(void **state)
{
    static const char *const texts[] = {
        "antkv:d4b4n4s1r0,anchor=20,iters=3",
        "antkv:d4b4n4s1r0,anchor=20,iters=3,rope=post",
        "antkv:d4b4n4s1r0,anchor=20,iters=3,no-k_bias"};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct kv_shape shape;
        struct kv_calib *calib = calib_of(texts[i], &shape);
        const struct kv_spec s = spec_of(texts[i], &shape);
        struct kv_codec *c[KV_SIDES];

        for (int side = 0; side < KV_SIDES; side++)
            c[side] = codec_from(&s, &shape, 1, (enum kv_side)side, calib);
        for (uint64_t seed = 0; seed < 12; seed++)
            check_block(c, seed);
        for (int side = 0; side < KV_SIDES; side++)
            kv_codec_free(c[side]);
        kv_calib_free(calib);
    }
}

/* Weights of training: the books of tokens with scores are others than those
 * without. */
static void test_weights(void **state)
{
    struct kv_shape shape;
    struct kv_calib *by = calib_of("antkv:d4b4,iters=3", &shape);
    struct kv_calib *none = calib_of("antkv:d4b4,iters=3,w=none", &shape);

    (void)state;
    for (int side = 0; side < KV_SIDES; side++) {
        const struct kv_table *a =
            kv_calib_table(by->set, "codebook", (enum kv_side)side, 0, 0);
        const struct kv_table *b =
            kv_calib_table(none->set, "codebook", (enum kv_side)side, 0, 0);

        assert_memory_not_equal(a->data, b->data,
                                kv_table_values(a) * sizeof(*a->data));
    }
    kv_calib_free(by);
    kv_calib_free(none);
}

static void test_bits(void **state)
{
    const struct kv_shape shape = {
        .n_layers = 1, .n_heads = 8, .n_kv_heads = 8, .head_dim = 128};
    struct kv_spec s = spec_of("antkv", &shape);
    struct kv_err e = {""};

    (void)state;
    assert_within(s.scheme->nominal(&s, KV_K, &shape), 1.16, 1e-12);
    assert_int_equal(kv_spec_parse(&s, "antkv:K-n64/V-n32", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "n must be the same for K and V");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores), cmocka_unit_test(test_block),
        cmocka_unit_test(test_cache),  cmocka_unit_test(test_weights),
        cmocka_unit_test(test_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
