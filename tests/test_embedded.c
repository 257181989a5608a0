/* The embedded model (data/model) on the embedded text, against numbers that
 * were computed without kvtools (data/make_goldens.py). */
#include "eval/generate.h"
#include "eval/ppl.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/windows.h"
#include "tests/goldens.h"
#include "tests/test.h"

struct embedded {
    struct kv_model *model;
    struct kv_windows text;
};

static char *in_data(const char *name)
{
    const char *top = getenv("KV_SOURCE_ROOT");
    char *data = kv_path_join(top ? top : ".", "data");
    char *path = kv_path_join(data, name);

    free(data);
    return path;
}

static int prepare(void **state)
{
    struct embedded *m = kv_alloc(1, sizeof(*m));
    char *dir = in_data("model"), *text = in_data("sample.txt");
    struct kv_tokenizer *t = NULL;
    struct kv_err e = {""};

    if (kv_model_open(&m->model, dir, &e) || kv_tokenizer_open(&t, dir, &e) ||
        kv_windows_read(
            &m->text, t, text,
            &(struct kv_windows_wanted){.ctx = GOLDEN_CTX, .n = GOLDEN_WINDOWS},
            kv_model_info(m->model)->n_vocab, &e))
        fail_msg("%s", e.msg);
    kv_tokenizer_free(t);
    free(text);
    free(dir);
    *state = m;
    return 0;
}

static int release(void **state)
{
    struct embedded *m = *state;

    kv_windows_clear(&m->text);
    kv_model_free(m->model);
    free(m);
    return 0;
}

static void test_tokens(void **state)
{
    const struct embedded *m = *state;

    assert_int_equal(m->text.n_tokens, GOLDEN_TOKENS);
    for (size_t i = 0; i < GOLDEN_PROMPT; i++)
        assert_int_equal(m->text.tokens[i], golden_greedy[i]);
}

static void test_perplexity(void **state)
{
    const struct embedded *m = *state;
    const char *const protocols[] = {"all", "stream"};
    struct kv_spec f32;
    struct kv_err e = {""};
    double want = 0;

    for (size_t w = 0; w < GOLDEN_WINDOWS; w++)
        want += golden_nll[w] / GOLDEN_WINDOWS;
    assert_int_equal(kv_spec_parse(&f32, "f32", &e), 0);
    for (size_t i = 0; i < 2; i++) {
        struct kv_ppl_plan plan = {.model = m->model,
                                   .tokens = m->text.tokens,
                                   .n_windows = GOLDEN_WINDOWS,
                                   .n = GOLDEN_CTX,
                                   .memory = (size_t)1 << 30};
        struct kv_ppl_row row;
        struct kv_ppl *p = NULL;

        if (kv_protocol_parse(&plan.protocol, protocols[i], false, &e) ||
            kv_ppl_new(&p, &plan, &e) ||
            kv_ppl_run(p, &f32, NULL, NULL, &row, &e))
            fail_msg("%s", e.msg);
        assert_within(row.score.nll / want, 1, 1e-6);
        kv_ppl_free(p);
    }
}

static void test_greedy(void **state)
{
    const struct embedded *m = *state;
    const struct kv_generation g = {.model = m->model, .batch = 1};
    struct kv_spec f32;
    struct kv_answer a = {.spec = &f32,
                          .prompt = golden_greedy,
                          .n_prompt = GOLDEN_PROMPT,
                          .most = GOLDEN_NEW};
    struct kv_err e = {""};

    if (kv_spec_parse(&f32, "f32", &e) || kv_generate(&g, &a, 1, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(a.made, GOLDEN_NEW);
    for (size_t i = 0; i < GOLDEN_NEW; i++)
        assert_int_equal(a.ids[i], golden_greedy[GOLDEN_PROMPT + i]);
    kv_answer_clear(&a);
}

/* Compares each layer's keys and values on their way. */
static int check_layer(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const struct kv_shape *s = x->shape;
    const size_t at = (GOLDEN_TOKEN * s->n_kv_heads + 1) * s->head_dim;

    for (size_t i = 0; i < 4; i++) {
        assert_within(x->k[at + i], golden_k[4 * x->layer + i], 1e-4);
        assert_within(x->v[at + i], golden_v[4 * x->layer + i], 1e-4);
    }
    ++*(size_t *)arg;
    return kv_attend_exact(NULL, x, e);
}

static void test_keys_and_values(void **state)
{
    const struct embedded *m = *state;
    const struct kv_model_info *info = kv_model_info(m->model);
    size_t layers = 0;
    const struct kv_attention check = {.run = check_layer, .arg = &layers};
    float *hidden = kv_alloc(GOLDEN_CTX, info->hidden * sizeof(*hidden));
    struct kv_err e = {""};

    if (kv_model_forward(m->model, m->text.tokens, 1, GOLDEN_CTX, 0, &check,
                         hidden, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(layers, info->shape.n_layers);
    assert_int_equal(sizeof(golden_k) / sizeof(*golden_k), 4 * layers);
    free(hidden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_perplexity),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_keys_and_values),
    };

    return cmocka_run_group_tests(tests, prepare, release);
}
