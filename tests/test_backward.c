/* lib/model/backward: gradients against central differences of the plain model
 * in double, and their bits. */
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "lib/model/backward.h"
#include "tests/test.h"
#include "tests/tiny_model.h"

#include <math.h>
#include <omp.h>

enum { MAX_LAYERS = 3 };

/* The results: [layer][windows][n][kv_heads][head_dim]. */
struct got {
    size_t calls, values;    /* number of values in one layer */
    size_t fail_at;          /* layer; SIZE_MAX: none */
    float *x[MAX_LAYERS][2]; /* k_pre, v; NULL for layers without a call */
};

static int take(void *arg, const struct kv_gradient *g, struct kv_err *e)
{
    struct got *got = arg;
    const float *const from[] = {g->k_pre, g->v};

    if (g->layer == got->fail_at)
        return kv_fail(e, "layer %zu had enough", g->layer);
    assert_true(g->layer < MAX_LAYERS);
    got->calls++;
    got->values =
        g->n_windows * g->n * g->shape->n_kv_heads * g->shape->head_dim;
    for (int side = 0; side < 2; side++) {
        assert_null(got->x[g->layer][side]);
        got->x[g->layer][side] = kv_alloc(got->values, sizeof(float));
        memcpy(got->x[g->layer][side], from[side], got->values * sizeof(float));
    }
    return 0;
}

static void forget(struct got *got)
{
    for (size_t l = 0; l < MAX_LAYERS; l++)
        for (int side = 0; side < 2; side++)
            free(got->x[l][side]);
}

static int32_t *random_tokens(size_t n_vocab, size_t n)
{
    int32_t *tokens = kv_alloc(n, sizeof(*tokens));

    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(kv_random(5, i) % n_vocab);
    return tokens;
}

static struct got backward(struct kv_model *m, const int32_t *tokens,
                           size_t n_windows, size_t n, size_t first_layer)
{
    struct got got = {.fail_at = SIZE_MAX};
    const struct kv_gradient_sink sink = {take, &got};
    struct kv_err e = {""};

    if (kv_model_backward(m, tokens, n_windows, n, first_layer, NULL, &sink,
                          &e))
        fail_msg("%s", e.msg);
    return got;
}

/* Random entries of each layer, keys and values in turn. */
enum { ENTRIES = 100 };

struct entry {
    struct tiny_nudge at;
    size_t window;
    double difference;
};

static void pick(const struct tiny_model *m, size_t n_windows, size_t n,
                 struct entry *entry)
{
    for (size_t i = 0; i < m->n_layers * ENTRIES; i++) {
        const uint64_t key = kv_mix(11, i);

        entry[i] = (struct entry){
            .window = kv_random(key, 0) % n_windows,
            .at = {.layer = i / ENTRIES,
                   .token = kv_random(key, 1) % n,
                   .i = kv_random(key, 2) % (m->n_kv_heads * m->head_dim),
                   .is_value = i % 2}};
    }
}

/* (loss(x + h) - loss(x - h)) / 2h of each entry. */
static void differ(const struct tiny_model *m, const int32_t *tokens, size_t n,
                   struct entry *entry)
{
    const double h = 1e-4;

#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < m->n_layers * ENTRIES; i++) {
        const int32_t *window = tokens + entry[i].window * n;
        struct tiny_nudge up = entry[i].at, down = entry[i].at;

        up.by = h;
        down.by = -h;
        entry[i].difference =
            (tiny_loss(m, window, n, &up) - tiny_loss(m, window, n, &down)) /
            (2 * h);
    }
}

/* Returns the root mean square of a layer's gradients. */
static double size_of(const struct got *got, size_t layer, int side)
{
    double squares = 0;

    for (size_t i = 0; i < got->values; i++)
        squares +=
            (double)got->x[layer][side][i] * (double)got->x[layer][side][i];
    return sqrt(squares / (double)got->values);
}

/* The relative error is below 1e-3; if the terms of a gradient cancel, the
 * error is a few f32 roundings of the layer's typical magnitude. */
static void check_model(const struct tiny_model *m, size_t n_windows, size_t n)
{
    struct kv_model *model = tiny_open(m);
    int32_t *tokens = random_tokens(m->n_vocab, n_windows * n);
    struct got got = backward(model, tokens, n_windows, n, 0);
    struct entry entry[MAX_LAYERS * ENTRIES];

    pick(m, n_windows, n, entry);
    differ(m, tokens, n, entry);
    assert_int_equal(got.calls, m->n_layers);
    for (size_t i = 0; i < m->n_layers * ENTRIES; i++) {
        const struct tiny_nudge *at = &entry[i].at;
        const size_t row =
            (entry[i].window * n + at->token) * m->n_kv_heads * m->head_dim;
        const double is = (double)got.x[at->layer][at->is_value][row + at->i];
        const double should = entry[i].difference;
        const double size = size_of(&got, at->layer, at->is_value);

        if (!(fabs(is - should) <= 1e-3 * fabs(should) + 1e-6 * size))
            fail_msg("%s, layer %zu, %s, window %zu, token %zu, %zu: %.9g is "
                     "not %.9g",
                     m->arch, at->layer, at->is_value ? "v" : "k",
                     entry[i].window, at->token, at->i, is, should);
    }
    forget(&got);
    free(tokens);
    kv_model_free(model);
}

static void test_against_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < TINY_VARIANTS; i++) {
        struct tiny_model m = tiny_variant(i);

        check_model(&m, 2, 24);
        tiny_clear(&m);
    }
}

/* More than two tiles of attention's queries, more than one of tokens. */
static void test_long_window(void **state)
{
    struct tiny_model m = tiny_variant(9);

    (void)state;
    check_model(&m, 1, 150);
    tiny_clear(&m);
}

/* A head in more than one piece, query heads that share no key. */
static void test_large_vocabulary(void **state)
{
    struct tiny_model m = tiny_llama;

    (void)state;
    m.n_vocab = 4100;
    m.n_layers = 1;
    m.n_kv_heads = m.n_heads;
    tiny_init(&m);
    check_model(&m, 1, 5);
    tiny_clear(&m);
}

/* The layers of `b` are those of `a` at window `first` of a. */
static void assert_same(const struct got *a, const struct got *b, size_t first)
{
    for (size_t l = 0; l < MAX_LAYERS; l++)
        for (int side = 0; side < 2 && b->x[l][side]; side++)
            assert_memory_equal(a->x[l][side] + first, b->x[l][side],
                                b->values * sizeof(float));
}

static void test_same_bits(void **state)
{
    enum { WINDOWS = 3, N = 131 };
    struct tiny_model m = tiny_variant(9);
    struct kv_model *model = tiny_open(&m);
    int32_t *tokens = random_tokens(m.n_vocab, WINDOWS * N);
    const int threads = omp_get_max_threads();
    const size_t row = m.n_kv_heads * m.head_dim;
    struct got all, again;

    (void)state;
    omp_set_num_threads(1);
    all = backward(model, tokens, WINDOWS, N, 0);
    for (int t = 1; t <= 3; t++) {
        omp_set_num_threads(t);
        again = backward(model, tokens, WINDOWS, N, 0);
        assert_same(&all, &again, 0);
        forget(&again);
        for (size_t w = 0; w < WINDOWS; w++) {
            again = backward(model, tokens + w * N, 1, N, 0);
            assert_same(&all, &again, w * N * row);
            forget(&again);
        }
    }
    omp_set_num_threads(threads);
    again = backward(model, tokens, WINDOWS, N, 1);
    assert_int_equal(again.calls, 2);
    assert_null(again.x[0][0]);
    assert_same(&all, &again, 0);
    forget(&again);
    for (size_t l = 0; l < MAX_LAYERS; l++) /* nothing follows the last token */
        for (size_t i = 0; i < 2 * row; i++)
            assert_true(all.x[l][i / row][(N - 1) * row + i % row] == 0);
    forget(&all);
    free(tokens);
    kv_model_free(model);
    tiny_clear(&m);
}

static int count_layers(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    size_t *n = arg;

    assert_int_equal(x->layer, *n);
    ++*n;
    return kv_attend_exact(NULL, x, e);
}

static void test_edges(void **state)
{
    struct tiny_model m = tiny_variant(0);
    struct kv_model *model = tiny_open(&m);
    int32_t tokens[] = {1, 2, 3, 61};
    struct got got = {.fail_at = 1};
    size_t n_layers = 0;
    const struct kv_gradient_sink sink = {take, &got};
    const struct kv_attention count = {.run = count_layers, .arg = &n_layers};
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(
        kv_model_backward(model, tokens, 1, 3, 0, &count, &sink, &e), -1);
    assert_says(e, "layer 1 had enough");
    assert_int_equal(n_layers, 3);
    assert_int_equal(got.calls, 1); /* layer 2 alone */
    forget(&got);
    got = (struct got){.fail_at = SIZE_MAX};
    assert_int_equal(kv_model_backward(model, tokens, 1, 4, 0, NULL, &sink, &e),
                     -1);
    assert_says(e, "token id 61 at 3 is outside the vocabulary");
    assert_int_equal(kv_model_backward(model, tokens, 1, 3, 3, NULL, &sink, &e),
                     -1);
    assert_says(e, "layer 3: the model has 3");
    assert_int_equal(kv_model_backward(model, tokens, 0, 3, 0, NULL, &sink, &e),
                     0);
    assert_int_equal(kv_model_backward(model, tokens, 3, 0, 0, NULL, &sink, &e),
                     0);
    assert_int_equal(got.calls, 0);
    got = backward(model, tokens, 3, 1, 0); /* windows without a target */
    for (size_t i = 0; i < got.values; i++)
        assert_true(got.x[0][0][i] == 0 && got.x[2][1][i] == 0);
    forget(&got);

    /* 24 hidden, twice per layer and once; 2 x 48 q and out; 4 x 16 k, k_pre,
     * v and dv: 1312 bytes; 928 from layer 2 on */
    assert_int_equal(kv_backward_windows(model, 10, 0, 0), 1);
    assert_int_equal(kv_backward_windows(model, 10, 0, 13120 * 7 + 1), 7);
    assert_int_equal(kv_backward_windows(model, 10, 2, 9280 * 7 + 1), 7);
    kv_model_free(model);
    tiny_clear(&m);
}

static void check_tiny(struct tiny_model m)
{
    tiny_init(&m);
    check_model(&m, 2, 24);
    tiny_clear(&m);
}

static void test_sliding_window(void **state)
{
    struct tiny_model m = tiny_llama;

    (void)state;
    m.arch = "MistralForCausalLM";
    m.window = 8;
    m.more = ", \"sliding_window\": 8";
    check_tiny(m);
}

#define ALTERNATE                                                   \
    ", \"sliding_window\": 7, \"query_pre_attn_scalar\": 8, "       \
    "\"layer_types\": [\"sliding_attention\", \"full_attention\", " \
    "\"sliding_attention\"]"

/* Caps near the scores and the logits; norms of what joins the stream. */
static void test_gemma(void **state)
{
    struct tiny_model m = tiny_llama;

    (void)state;
    m.arch = "Gemma2ForCausalLM";
    m.tied = m.gemma = m.alternate = true;
    m.window = 7;
    m.cap = 2;
    m.logit_cap = 3;
    m.more = ALTERNATE ", \"attn_logit_softcapping\": 2, "
                       "\"final_logit_softcapping\": 3";
    check_tiny(m);
    m.arch = "Gemma3ForCausalLM";
    m.qk_norm = true;
    m.cap = m.logit_cap = 0;
    m.more = ALTERNATE ", \"rope_theta\": 100, \"rope_local_base_freq\": 50";
    check_tiny(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_differences),
        cmocka_unit_test(test_long_window),
        cmocka_unit_test(test_large_vocabulary),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_sliding_window),
        cmocka_unit_test(test_gemma),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
