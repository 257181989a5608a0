/* lib/model: the forward pass against a plain one in double, and its bits. */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/model/model.h"
#include "tests/test.h"
#include "tests/tiny_model.h"

#include <math.h>
#include <omp.h>

static int32_t *random_tokens(const struct kv_model *m, size_t n)
{
    int32_t *tokens = kv_alloc(n, sizeof(*tokens));

    for (size_t i = 0; i < n; i++)
        tokens[i] =
            (int32_t)(i * i * 7 + i * 3) % (int32_t)kv_model_info(m)->n_vocab;
    return tokens;
}

static float *forward(struct kv_model *m, const int32_t *tokens, size_t windows,
                      size_t n)
{
    const size_t hidden = kv_model_info(m)->hidden;
    float *x = kv_alloc(windows * n * hidden, sizeof(*x));
    struct kv_err e = {""};

    if (kv_model_forward(m, tokens, windows, n, 0, NULL, x, &e))
        fail_msg("%s", e.msg);
    return x;
}

static float *logits_of(struct kv_model *m, const float *hidden, size_t n)
{
    float *x = kv_alloc(n * kv_model_info(m)->n_vocab, sizeof(*x));
    struct kv_err e = {""};

    assert_int_equal(kv_model_logits(m, hidden, n, x, &e), 0);
    return x;
}

static void test_against_definition(void **state)
{
    enum { N = 70 };

    (void)state;
    for (size_t i = 0; i < TINY_VARIANTS; i++) {
        struct tiny_model m = tiny_variant(i);
        struct kv_model *model = tiny_open(&m);
        int32_t *tokens = random_tokens(model, N);
        double *expected = kv_alloc(N * m.n_vocab, sizeof(*expected));
        float *hidden = forward(model, tokens, 1, N);
        float *logits = logits_of(model, hidden, N);

        tiny_logits(&m, tokens, N, expected);
        for (size_t j = 0; j < N * m.n_vocab; j++)
            if (!(fabs((double)logits[j] - expected[j]) <= 3e-5))
                fail_msg("variant %zu, logit %zu: %g, not %g", i, j,
                         (double)logits[j], expected[j]);
        free(hidden);
        free(logits);
        free(expected);
        free(tokens);
        kv_model_free(model);
        tiny_clear(&m);
    }
}

static bool is_pooled(const char *name)
{
    return strstr(name, "k_proj") || strstr(name, "v_proj");
}

/* A model whose KV heads are means of `pool` heads of m. */
static struct tiny_model pooled(const struct tiny_model *m, size_t pool)
{
    struct tiny_model to = *m;
    const size_t d = m->head_dim;

    to.n_kv_heads /= pool;
    tiny_init(&to);
    for (size_t i = 0; i < to.n_tensors; i++) {
        struct tiny_tensor *t = &to.tensor[i];
        const double *x = tiny_find(m, t->name)->x;
        const size_t cols = t->cols ? t->cols : 1;
        const size_t by = is_pooled(t->name) ? pool : 1;

        for (size_t j = 0; j < t->rows * cols; j++) {
            const size_t row = j / cols;

            t->x[j] = 0;
            for (size_t h = 0; h < by; h++)
                t->x[j] +=
                    x[((row / d * by + h) * d + row % d) * cols + j % cols] /
                    (double)by;
        }
    }
    return to;
}

static void test_pooled_heads(void **state)
{
    enum { N = 20, HEADS = 6 };

    (void)state;
    for (size_t i = 0; i < TINY_VARIANTS * 2; i++) {
        const size_t pool = i % 2 ? HEADS : 3;
        struct tiny_model m = tiny_variant(i / 2), to;
        struct kv_model *model;
        struct kv_err e = {""};
        char hash[32];

        tiny_clear(&m);
        m.n_kv_heads = HEADS;
        tiny_init(&m);
        to = pooled(&m, pool);
        model = tiny_open(&m);
        strcpy(hash, kv_model_info(model)->hash);
        assert_int_equal(kv_model_pool_heads(model, pool, &e), 0);
        assert_int_equal(kv_model_info(model)->shape.n_kv_heads, HEADS / pool);
        assert_string_not_equal(kv_model_info(model)->hash, hash);
        assert_non_null(strstr(kv_model_info(model)->name, "+pool-heads="));

        int32_t *tokens = random_tokens(model, N);
        double *expected = kv_alloc(N * m.n_vocab, sizeof(*expected));
        float *hidden = forward(model, tokens, 1, N);
        float *logits = logits_of(model, hidden, N);

        tiny_logits(&to, tokens, N, expected);
        for (size_t j = 0; j < N * m.n_vocab; j++)
            assert_within(logits[j], expected[j], 3e-5);
        free(hidden);
        free(logits);
        free(expected);
        free(tokens);
        kv_model_free(model);
        tiny_clear(&to);
        tiny_clear(&m);
    }
}

static void test_pooled_refused(void **state)
{
    struct tiny_model m = tiny_variant(0);
    struct kv_model *model = tiny_open(&m);
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(kv_model_pool_heads(model, 3, &e), -1);
    assert_says(e, "--pool-heads 3 does not divide the model's 2 KV heads");
    assert_int_equal(kv_model_pool_heads(model, 0, &e), -1);
    kv_model_free(model);
    tiny_clear(&m);
}

/* One file and four shards hold the same model. */
static void test_shards(void **state)
{
    struct tiny_model m = tiny_variant(1);
    struct kv_model *one = tiny_open(&m), *four;
    int32_t *tokens = random_tokens(one, 20);
    const size_t bytes = 20 * m.hidden * sizeof(float);
    float *a, *b;

    (void)state;
    tiny_clear(&m);
    m.n_shards = 4;
    tiny_init(&m);
    four = tiny_open(&m);
    a = forward(one, tokens, 1, 20);
    b = forward(four, tokens, 1, 20);
    assert_memory_equal(a, b, bytes);
    free(a);
    free(b);
    free(tokens);
    kv_model_free(one);
    kv_model_free(four);
    tiny_clear(&m);
}

/* Windows that pass a layer `group` at a time. */
static float *forward_file(struct kv_model *m, const int32_t *tokens,
                           size_t windows, size_t n, size_t group)
{
    const size_t hidden = kv_model_info(m)->hidden;
    float *x = kv_alloc(windows * n * hidden, sizeof(*x));
    struct kv_err e = {""};
    FILE *f = kv_scratch_open(&e);

    if (!f ||
        kv_model_forward_file(m, tokens, windows, n, group, NULL, f, &e) ||
        kv_scratch_read(f, 0, x, windows * n * hidden * sizeof(*x), &e))
        fail_msg("%s", e.msg);
    fclose(f);
    return x;
}

static void same_bits(size_t n)
{
    enum { WINDOWS = 3 };
    struct tiny_model m = tiny_variant(0);
    struct kv_model *model = tiny_open(&m);
    int32_t *tokens = random_tokens(model, WINDOWS * n);
    const size_t window = n * m.hidden, hidden_bytes = sizeof(float) * window;
    const size_t logit_bytes = n * m.n_vocab * sizeof(float);
    const int threads = omp_get_max_threads();
    float *all, *logits;
    int wrong = 0;

    omp_set_num_threads(1);
    all = forward(model, tokens, WINDOWS, n);
    logits = logits_of(model, all, n);
    for (int t = 1; t <= 3; t++) {
        float *again, *some;

        omp_set_num_threads(t);
        again = forward(model, tokens, WINDOWS, n);
        some = logits_of(model, all, n);
        assert_memory_equal(again, all, WINDOWS * hidden_bytes);
        assert_memory_equal(some, logits, logit_bytes);
        free(again);
        again = forward_file(model, tokens, WINDOWS, n, (size_t)t);
        assert_memory_equal(again, all, WINDOWS * hidden_bytes);
        free(again);
        for (size_t w = 0; w < WINDOWS; w++) {
            again = forward(model, tokens + w * n, 1, n);
            assert_memory_equal(again, all + w * window, hidden_bytes);
            free(again);
        }
        free(some);
    }
    omp_set_num_threads(4);
#pragma omp parallel for reduction(+ : wrong)
    for (int i = 0; i < 4; i++) {
        float *inside = logits_of(model, all, n);

        wrong += memcmp(inside, logits, logit_bytes) != 0;
        free(inside);
    }
    assert_int_equal(wrong, 0);
    omp_set_num_threads(threads);
    free(all);
    free(logits);
    free(tokens);
    kv_model_free(model);
    tiny_clear(&m);
}

/* Windows of more than one tile, the last of them short; windows of a few
 * tokens, whose products are with stored matrices. */
static void test_same_bits(void **state)
{
    (void)state;
    same_bits(131);
    same_bits(5);
    same_bits(1);
}

/* Attention that stores keys and values of one sequence. */
struct memory {
    size_t n; /* tokens before this step */
    float *k[8], *v[8];
    size_t fail_at; /* layer */
};

enum { MEMORY_TOKENS = 64 };

static int remember(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    struct memory *mem = arg;
    const struct kv_shape *s = x->shape;
    const size_t d = s->head_dim, kv_dim = s->n_kv_heads * d;
    float *k = mem->k[x->layer], *v = mem->v[x->layer];
    double q[64], out[64], keys[MEMORY_TOKENS * 64], values[MEMORY_TOKENS * 64];

    if (x->layer == mem->fail_at)
        return kv_fail(e, "layer %zu had enough", x->layer);
    assert_int_equal(x->first, mem->n);
    memcpy(k + mem->n * kv_dim, x->k, x->n * kv_dim * sizeof(*k));
    memcpy(v + mem->n * kv_dim, x->v, x->n * kv_dim * sizeof(*v));
    for (size_t i = 0; i < (mem->n + x->n) * kv_dim; i++) {
        keys[i] = (double)k[i];
        values[i] = (double)v[i];
    }
    for (size_t t = 0; t < x->n; t++)
        for (size_t h = 0; h < s->n_heads; h++) {
            const size_t at = (t * s->n_heads + h) * d;
            const size_t kv = h / (s->n_heads / s->n_kv_heads) * d;

            for (size_t i = 0; i < d; i++)
                q[i] = (double)x->q[at + i];
            tiny_attend(q, keys + kv, values + kv, mem->n + t + 1, kv_dim, d, 0,
                        out);
            for (size_t i = 0; i < d; i++)
                x->out[at + i] = (float)out[i];
        }
    return 0;
}

/* Each span's tokens see only each other. */
static int attend_spans(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const size_t q_row = x->shape->n_heads * x->shape->head_dim;
    size_t at = 0;

    (void)arg;
    for (size_t i = 0; i < x->batch->n_spans; at += x->batch->span[i++].n) {
        const size_t n = x->batch->span[i].n;
        const struct kv_tokens t = kv_qkv_tokens(x, 0, at, n);
        struct kv_qkv one = *x;

        one.n = n;
        one.q = t.q;
        one.k = t.k;
        one.v = t.v;
        one.out = x->out + at * q_row;
        if (kv_attend_exact(NULL, &one, e))
            return -1;
    }
    return 0;
}

/* Spans of a batch equal separate windows, bit for bit, with few tokens or
 * many. */
static void test_batch(void **state)
{
    enum { SPANS = 4 };
    static const size_t n[2][SPANS] = {{3, 1, 8, 1}, {150, 9, 128, 40}};
    static const size_t first[SPANS] = {0, 7, 100, 41};
    struct tiny_model m = tiny_variant(9);
    struct kv_model *model = tiny_open(&m);
    int32_t *tokens = random_tokens(model, 400);
    float *x = kv_alloc(400 * m.hidden, sizeof(*x));
    float *alone = kv_alloc(400 * m.hidden, sizeof(*x));
    const struct kv_attention a = {.run = attend_spans};
    struct kv_err e = {""};

    (void)state;
    for (int many = 0; many < 2; many++) {
        struct kv_span span[SPANS];
        const struct kv_batch batch = {SPANS, span, tokens};

        for (size_t i = 0; i < SPANS; i++)
            span[i] = (struct kv_span){i, first[i], n[many][i]};
        assert_int_equal(kv_model_forward_batch(model, &batch, &a, x, &e), 0);
        for (size_t i = 0, at = 0; i < SPANS; at += n[many][i++]) {
            const size_t values = n[many][i] * m.hidden;

            assert_int_equal(kv_model_forward(model, tokens + at, 1, n[many][i],
                                              first[i], NULL, alone, &e),
                             0);
            assert_memory_equal(x + at * m.hidden, alone,
                                values * sizeof(*alone));
        }
    }
    tokens[3] = 1 << 30;
    assert_int_equal(
        kv_model_forward_batch(
            model, &(struct kv_batch){1, &(struct kv_span){0, 0, 4}, tokens},
            &a, x, &e),
        -1);
    assert_says(e, "token id 1073741824 at 3");
    free(alone);
    free(x);
    free(tokens);
    kv_model_free(model);
    tiny_clear(&m);
}

/* A sequence in steps of 1, 5, 2, ... is the sequence at once. */
static void test_steps(void **state)
{
    enum { N = 40 };
    const size_t steps[] = {1, 5, 2, 17, 1, 14};
    struct tiny_model m = tiny_variant(9);
    struct kv_model *model = tiny_open(&m);
    int32_t *tokens = random_tokens(model, N);
    float *all = forward(model, tokens, 1, N);
    float *x = kv_alloc(N * m.hidden, sizeof(*x));
    struct memory mem = {.fail_at = SIZE_MAX};
    const struct kv_attention a = {.run = remember, .arg = &mem};
    struct kv_err e = {""};

    (void)state;
    for (size_t l = 0; l < m.n_layers; l++) {
        mem.k[l] = kv_alloc(MEMORY_TOKENS * 64, sizeof(float));
        mem.v[l] = kv_alloc(MEMORY_TOKENS * 64, sizeof(float));
    }
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
        const size_t at = mem.n;

        assert_int_equal(kv_model_forward(model, tokens + at, 1, steps[i], at,
                                          &a, x + at * m.hidden, &e),
                         0);
        mem.n += steps[i];
    }
    assert_int_equal(mem.n, N);
    for (size_t i = 0; i < N * m.hidden; i++)
        assert_within(x[i], all[i], 1e-5);

    mem = (struct memory){.n = 0,
                          .fail_at = 1,
                          .k = {mem.k[0], mem.k[1], mem.k[2]},
                          .v = {mem.v[0], mem.v[1], mem.v[2]}};
    assert_int_equal(kv_model_forward(model, tokens, 1, 1, 0, &a, x, &e), -1);
    assert_says(e, "layer 1 had enough");
    for (size_t l = 0; l < m.n_layers; l++) {
        free(mem.k[l]);
        free(mem.v[l]);
    }
    free(x);
    free(all);
    free(tokens);
    kv_model_free(model);
    tiny_clear(&m);
}

static int see_keys(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const struct kv_shape *s = x->shape;
    const size_t d = s->head_dim, half = d / 2;

    (void)arg;
    for (size_t i = 0; i < x->n * s->n_kv_heads; i++)
        for (size_t j = 0; j < half; j++) {
            const double angle =
                (double)(x->first + i / s->n_kv_heads) * (double)s->inv_freq[j];
            const double a = (double)x->k_pre[i * d + j];
            const double b = (double)x->k_pre[i * d + j + half];

            assert_within(x->k[i * d + j], a * cos(angle) - b * sin(angle),
                          1e-5);
            assert_within(x->k[i * d + j + half],
                          b * cos(angle) + a * sin(angle), 1e-5);
        }
    return kv_attend_exact(NULL, x, e);
}

/* k is k_pre rotated, at any position of the window; sizes 0 and 1 work. */
static void test_windows(void **state)
{
    struct tiny_model m = tiny_variant(9);
    struct kv_model *model = tiny_open(&m);
    int32_t tokens[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    const struct kv_attention a = {.run = see_keys};
    struct kv_err e = {""};
    float x[10 * 24], y[24], z[1];

    (void)state;
    assert_int_equal(kv_model_forward(model, tokens, 1, 10, 100000, &a, x, &e),
                     0);
    assert_int_equal(kv_model_forward(model, tokens, 1, 1, 0, NULL, y, &e), 0);
    assert_int_equal(kv_model_forward(model, NULL, 0, 5, 0, NULL, z, &e), 0);
    assert_int_equal(kv_model_forward(model, NULL, 3, 0, 0, NULL, z, &e), 0);
    assert_int_equal(kv_model_logits(model, NULL, 0, z, &e), 0);
    for (size_t i = 0; i < 24; i++) /* the first token sees only itself */
        assert_within(x[i], y[i], 1e-5);

    tokens[7] = (int32_t)m.n_vocab;
    assert_int_equal(kv_model_forward(model, tokens, 2, 5, 0, NULL, x, &e), -1);
    assert_says(e, "token id 61 at 7 is outside the vocabulary of 61");
    tokens[7] = -1;
    assert_int_equal(kv_model_forward(model, tokens, 2, 5, 0, NULL, x, &e), -1);
    assert_says(e, "token id -1 at 7");

    /* 24 hidden, 2 x 48 q and out, 3 x 16 k, k_pre and v: 672 bytes */
    assert_int_equal(kv_model_windows(model, 10, false, 0), 1);
    assert_int_equal(kv_model_windows(model, 10, false, 6720 * 7 + 1), 7);
    /* half as much for what is decoded; a thread: 3 x 16 values a token */
    const size_t busy = (size_t)4 * 1920;

    omp_set_num_threads(4);
    assert_int_equal(kv_model_windows(model, 10, true, 70560 + busy), 7);
    assert_int_equal(kv_model_windows(model, 10, true, 70559 + busy), 6);
    assert_int_equal(kv_model_windows(model, 0, false, 1000), 1);
    kv_model_free(model);
    tiny_clear(&m);
}

static void test_wo_gram(void **state)
{
    struct tiny_model m = tiny_variant(0);
    struct kv_model *model = tiny_open(&m);
    const size_t d = m.head_dim, q_dim = m.n_heads * d;
    const struct tiny_tensor *wo =
        tiny_find(&m, "model.layers.1.self_attn.o_proj.weight");
    float *gram = kv_alloc(m.n_kv_heads * d * d, sizeof(*gram));
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < m.n_kv_heads * d * d; i++)
        gram[i] = NAN;
    assert_int_equal(kv_model_wo_gram(model, 1, gram, &e), 0);
    for (size_t g = 0; g < m.n_kv_heads; g++)
        for (size_t i = 0; i < d * d; i++) {
            double sum = 0;

            for (size_t h = g * 3; h < g * 3 + 3; h++)
                for (size_t r = 0; r < m.hidden; r++)
                    sum += wo->x[r * q_dim + h * d + i / d] *
                           wo->x[r * q_dim + h * d + i % d];
            assert_within(gram[g * d * d + i], sum, 1e-5);
        }
    assert_int_equal(kv_model_wo_gram(model, 3, gram, &e), -1);
    assert_says(e, "layer 3");
    free(gram);
    kv_model_free(model);
    tiny_clear(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_definition),
        cmocka_unit_test(test_pooled_heads),
        cmocka_unit_test(test_pooled_refused),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_wo_gram),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
