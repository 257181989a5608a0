/* Answers on a whole (tiny) model: the same alone and beside others, for any
 * batch and any number of threads, whether the prompt comes whole or not. */
#include "eval/generate.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "lib/mixed.h"
#include "tests/synthetic.h"
#include "tests/test.h"
#include "tests/tiny_model.h"

#include <omp.h>

enum { N = 80, SEED = 9 };

struct setup {
    struct tiny_model tiny;
    struct kv_model *model;
    int32_t tokens[N];
    const char *folder;
};

static int prepare(void **state)
{
    struct setup *s = kv_alloc(1, sizeof(*s));
    struct kv_err e = {""};

    s->tiny = tiny_llama;
    s->folder = kv_strdup(test_folder());
    tiny_init(&s->tiny);
    tiny_write(&s->tiny, s->folder);
    if (kv_model_open(&s->model, s->folder, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < N; i++)
        s->tokens[i] = (int32_t)(i * i * 5 + i * 3) % (int32_t)s->tiny.n_vocab;
    *state = s;
    return 0;
}

static int release(void **state)
{
    struct setup *s = *state;

    kv_model_free(s->model);
    tiny_clear(&s->tiny);
    free((void *)(uintptr_t)s->folder);
    free(s);
    return 0;
}

static void run(const struct setup *s, struct kv_generation g,
                struct kv_answer *a, size_t n)
{
    struct kv_err e = {""};

    g.model = s->model;
    g.seed = SEED;
    if (kv_generate(&g, a, n, &e))
        fail_msg("%s", e.msg);
}

static const struct kv_generation greedy = {.sampling = KV_SAMPLING_GREEDY,
                                            .batch = 1};

static void parse(struct kv_spec *spec, const struct setup *s, const char *text)
{
    struct kv_err e = {""};

    if (kv_spec_parse(spec, text, &e) ||
        kv_spec_fit(spec, &kv_model_info(s->model)->shape, &e))
        fail_msg("%s", e.msg);
}

static void test_parts(void **state)
{
    const struct setup *s = *state;
    struct kv_generation g = greedy;
    int32_t ids[14], end;
    struct kv_spec spec;
    struct kv_answer once = {
        .spec = &spec, .prompt = s->tokens, .n_prompt = 8, .most = 16};
    struct kv_answer rest = {
        .spec = &spec, .prompt = ids, .n_prompt = 14, .most = 10};

    parse(&spec, s, "f16");
    run(s, g, &once, 1);
    assert_int_equal(once.made, 16);
    assert_int_equal(once.finish, KV_FINISH_LENGTH);
    memcpy(ids, s->tokens, 8 * sizeof(*ids));
    memcpy(ids + 8, once.ids, 6 * sizeof(*ids));
    run(s, g, &rest, 1);
    assert_memory_equal(once.ids + 6, rest.ids, 10 * sizeof(*ids));
    kv_answer_clear(&rest);

    end = once.ids[4]; /* the fifth that is made, if it is none before */
    kv_answer_clear(&once);
    g.end = &end;
    g.n_ends = 1;
    run(s, g, &once, 1);
    assert_true(once.made <= 5 && once.ids[once.made - 1] == end);
    assert_int_equal(once.finish, KV_FINISH_EOS);
    kv_answer_clear(&once);
}

/* Steps are in f32 where products are in bf16, and go on to be. */
static void test_steps_in_f32(void **state)
{
    const struct setup *s = *state;
    const struct kv_model_info *info = kv_model_info(s->model);
    struct kv_backend *b =
        (struct kv_backend *)(uintptr_t)kv_model_backend(s->model);
    float *x = kv_alloc(info->hidden, sizeof(*x)), *logits[3];
    struct kv_spec spec;
    struct kv_answer a = {
        .spec = &spec, .prompt = s->tokens, .n_prompt = 8, .most = 4};
    struct kv_err e = {""};

    parse(&spec, s, "f16");
    for (size_t i = 0; i < info->hidden; i++)
        x[i] = (float)kv_random_normal(6, i);
    for (size_t i = 0; i < 3; i++) {
        logits[i] = kv_alloc(info->n_vocab, sizeof(**logits));
        if (i == 2)
            run(s, greedy, &a, 1);
        assert_int_equal(kv_model_logits(s->model, x, 1, logits[i], &e), 0);
        b->stored_type = i == 0 ? KV_TYPE_BF16 : b->stored_type;
    }
    assert_memory_not_equal(logits[0], logits[1],
                            info->n_vocab * sizeof(**logits));
    assert_memory_equal(logits[0], logits[2], info->n_vocab * sizeof(**logits));
    for (size_t i = 0; i < 3; i++)
        free(logits[i]);
    free(x);
    kv_answer_clear(&a);
}

/* Of which some have the same prompt, some end sooner and some have their
 * prompts on codes. */
enum { ANSWERS = 12, NEW = 12 };

static void make(const struct setup *s, struct kv_spec *spec,
                 struct kv_answer *a)
{
    static const char *const specs[] = {"f32",        "kivi:b2g16",
                                        "hack:b2p16", "absmax:b2r0",
                                        "f32",        "kivi:b1g16r0"};
    static const size_t n_prompt[] = {12, 12, 12, 1, 16, 9};

    for (size_t i = 0; i < ANSWERS; i++) {
        if (i < 6)
            parse(&spec[i], s, specs[i]);
        a[i] = (struct kv_answer){.spec = &spec[i % 6],
                                  .prompt = s->tokens + (i % 6 < 3 ? 0 : i),
                                  .n_prompt = n_prompt[i % 6],
                                  .most = 1 + i * 5 % NEW,
                                  .key = kv_mix(SEED, i)};
    }
}

static void check_same(const struct kv_answer *a, const struct kv_answer *b)
{
    for (size_t i = 0; i < ANSWERS; i++) {
        assert_int_equal(a[i].made, b[i].made);
        assert_int_equal(a[i].finish, b[i].finish);
        assert_memory_equal(a[i].ids, b[i].ids, a[i].made * sizeof(*a[i].ids));
        assert_true(a[i].bits.bytes == b[i].bits.bytes);
        assert_int_equal(kv_answer_agrees(&a[i], &b[i]), a[i].made);
    }
}

/* The same, alone and beside others. */
static void check_together(const struct setup *s, struct kv_generation g)
{
    static const size_t batches[] = {1, 2, 3, 8, 20};
    const int threads = omp_get_max_threads();
    struct kv_spec spec[6];
    struct kv_answer alone[ANSWERS];
    int32_t end;

    make(s, spec, alone);
    for (size_t i = 0; i < ANSWERS; i++)
        run(s, g, &alone[i], 1);
    end = alone[7].ids[alone[7].made / 2]; /* some end by it */
    g.end = &end;
    g.n_ends = 1;
    for (size_t i = 0; i < ANSWERS; i++) {
        kv_answer_clear(&alone[i]);
        run(s, g, &alone[i], 1);
    }
    assert_int_equal(alone[7].finish, KV_FINISH_EOS);
    for (size_t i = 0; i < 2 * sizeof(batches) / sizeof(*batches); i++) {
        struct kv_answer beside[ANSWERS];

        omp_set_num_threads(1 + (int)(i % 2));
        make(s, spec, beside);
        g.batch = batches[i / 2];
        run(s, g, beside, ANSWERS);
        check_same(alone, beside);
        for (size_t j = 0; j < ANSWERS; j++)
            kv_answer_clear(&beside[j]);
    }
    omp_set_num_threads(threads);
    for (size_t i = 0; i < ANSWERS; i++)
        kv_answer_clear(&alone[i]);
}

static void test_greedy_together(void **state)
{
    check_together(*state, greedy);
}

static void test_sampled_together(void **state)
{
    struct kv_generation g = greedy;

    g.sampling = (struct kv_sampling){1.1, 0.9, 0.95, 20};
    check_together(*state, g);
}

/* Another key, another answer; the same key, the same one. */
static void test_keys(void **state)
{
    const struct setup *s = *state;
    struct kv_generation g = greedy;
    struct kv_spec spec;
    struct kv_answer a[3];

    g.sampling.temperature = 2;
    parse(&spec, s, "f32");
    for (size_t i = 0; i < 3; i++) {
        a[i] = (struct kv_answer){.spec = &spec,
                                  .prompt = s->tokens,
                                  .n_prompt = 9,
                                  .most = 40,
                                  .key = i / 2};
        run(s, g, &a[i], 1);
    }
    assert_memory_equal(a[0].ids, a[1].ids, 40 * sizeof(*a->ids));
    assert_memory_not_equal(a[0].ids, a[2].ids, 40 * sizeof(*a->ids));
    for (size_t i = 0; i < 3; i++)
        kv_answer_clear(&a[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_steps_in_f32),
        cmocka_unit_test(test_greedy_together),
        cmocka_unit_test(test_sampled_together),
        cmocka_unit_test(test_keys),
    };

    return cmocka_run_group_tests(tests, prepare, release);
}
