/* Answers on a whole (tiny) model are the same alone and beside others, for any
 * batch and any number of threads, with the prompt appended at once or not. */
#include "eval/generate.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "lib/mixed.h"
#include "tests/synthetic.h"
#include "tests/test.h"
#include "tests/tiny_model.h"

#include <math.h>
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

static const struct kv_generation one = {.batch = 1};

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
    struct kv_generation g = one;
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

    end = once.ids[4]; /* the fifth generated token, unless it occurs before */
    kv_answer_clear(&once);
    g.ends = (struct kv_ends){&end, 1};
    run(s, g, &once, 1);
    assert_true(once.made <= 5 && once.ids[once.made - 1] == end);
    assert_int_equal(once.finish, KV_FINISH_EOS);
    kv_answer_clear(&once);
}

/* No end token comes among the least number of new tokens: of the first, which
 * it would be, the next probable is taken. */
static void test_least(void **state)
{
    const struct setup *s = *state;
    struct kv_generation g = one;
    struct kv_spec spec;
    struct kv_answer a = {.spec = &spec,
                          .prompt = s->tokens,
                          .n_prompt = 8,
                          .most = 16,
                          .n_top = 2};
    int32_t end;

    parse(&spec, s, "f16");
    run(s, g, &a, 1);
    end = a.ids[0];
    kv_answer_clear(&a);
    g.ends = (struct kv_ends){&end, 1};
    run(s, g, &a, 1);
    assert_int_equal(a.made, 1);
    assert_int_equal(a.finish, KV_FINISH_EOS);
    kv_answer_clear(&a);
    a.least = 12;
    run(s, g, &a, 1);
    assert_int_equal(a.top[0].id, end);
    assert_int_equal(a.top[1].id, a.ids[0]);
    assert_true(a.log_prob[0] == a.top[1].log_prob);
    assert_true(a.made > 12);
    for (size_t i = 0; i < 12; i++)
        assert_int_not_equal(a.ids[i], end);
    assert_int_equal(a.finish, a.made < 16 ? KV_FINISH_EOS : KV_FINISH_LENGTH);
    kv_answer_clear(&a);
}

/* Steps are in f32 although products are in bf16, and remain so. */
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
            run(s, one, &a, 1);
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

/* Some of the answers share a prompt, some end sooner, and some have prompts
 * that attend on codes. */
enum { ANSWERS = 12, NEW = 12 };

static void make(const struct setup *s, const struct kv_sampling *how,
                 struct kv_spec *spec, struct kv_answer *a)
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
                                  .sampling = how,
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
static void check_together(const struct setup *s, const struct kv_sampling *how)
{
    static const size_t batches[] = {1, 2, 3, 8, 20};
    const int threads = omp_get_max_threads();
    struct kv_generation g = one;
    struct kv_spec spec[6];
    struct kv_answer alone[ANSWERS];
    int32_t end;

    make(s, how, spec, alone);
    for (size_t i = 0; i < ANSWERS; i++)
        run(s, g, &alone[i], 1);
    end = alone[7].ids[alone[7].made / 2]; /* some end by it */
    g.ends = (struct kv_ends){&end, 1};
    for (size_t i = 0; i < ANSWERS; i++) {
        kv_answer_clear(&alone[i]);
        run(s, g, &alone[i], 1);
    }
    assert_int_equal(alone[7].finish, KV_FINISH_EOS);
    for (size_t i = 0; i < 2 * sizeof(batches) / sizeof(*batches); i++) {
        struct kv_answer beside[ANSWERS];

        omp_set_num_threads(1 + (int)(i % 2));
        make(s, how, spec, beside);
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
    check_together(*state, NULL);
}

static void test_sampled_together(void **state)
{
    check_together(*state, &(struct kv_sampling){1.1, 0.9, 0.95, 20});
}

/* Another key, another answer; the same key, the same one. */
static void test_keys(void **state)
{
    const struct setup *s = *state;
    const struct kv_sampling hot = {1, 2, 1, 0};
    struct kv_spec spec;
    struct kv_answer a[3];

    parse(&spec, s, "f32");
    for (size_t i = 0; i < 3; i++) {
        a[i] = (struct kv_answer){.spec = &spec,
                                  .prompt = s->tokens,
                                  .n_prompt = 9,
                                  .most = 40,
                                  .sampling = &hot,
                                  .key = i / 2};
        run(s, one, &a[i], 1);
    }
    assert_memory_equal(a[0].ids, a[1].ids, 40 * sizeof(*a->ids));
    assert_memory_not_equal(a[0].ids, a[2].ids, 40 * sizeof(*a->ids));
    for (size_t i = 0; i < 3; i++)
        kv_answer_clear(&a[i]);
}

/* The model's own text, forced, has the tokens, the probabilities and the cache
 * of the answer that chose it; each token is the most probable. */
static void test_forced(void **state)
{
    const struct setup *s = *state;
    enum { MOST = 24, FORCED = 17, TOP = 3 };
    struct kv_spec spec;
    struct kv_answer a = {.spec = &spec,
                          .prompt = s->tokens,
                          .n_prompt = 9,
                          .most = MOST,
                          .n_top = TOP};
    struct kv_answer b = a;

    parse(&spec, s, "kivi:b2g8r8");
    run(s, one, &a, 1);
    b.forced = a.ids;
    b.n_forced = FORCED;
    run(s, one, &b, 1);
    assert_int_equal(b.made, MOST);
    assert_memory_equal(a.ids, b.ids, MOST * sizeof(*a.ids));
    assert_memory_equal(a.log_prob, b.log_prob, MOST * sizeof(*a.log_prob));
    assert_true(a.bits.bytes == b.bits.bytes);
    for (size_t i = 0; i < MOST; i++) {
        const struct kv_top *top = a.top + i * TOP;

        assert_int_equal(top->id, a.ids[i]);
        assert_true(top->log_prob == a.log_prob[i] && top->log_prob < 0);
        assert_true(top[0].log_prob >= top[1].log_prob &&
                    top[1].log_prob >= top[2].log_prob);
    }
    kv_answer_clear(&b);
    b.forced = s->tokens; /* another text has other probabilities */
    b.n_forced = b.most = FORCED;
    run(s, one, &b, 1);
    assert_memory_equal(b.ids, s->tokens, FORCED * sizeof(*b.ids));
    for (size_t i = 0; i < FORCED; i++)
        assert_true(b.log_prob[i] <= b.top[i * TOP].log_prob &&
                    (b.log_prob[i] == b.top[i * TOP].log_prob ||
                     b.ids[i] != b.top[i * TOP].id));
    kv_answer_clear(&a);
    kv_answer_clear(&b);
}

/* The probabilities of all ids sum to 1. */
static void test_probabilities(void **state)
{
    const struct setup *s = *state;
    const size_t n = kv_model_info(s->model)->n_vocab;
    struct kv_spec spec;
    struct kv_answer a = {.spec = &spec,
                          .prompt = s->tokens,
                          .n_prompt = 5,
                          .most = 1,
                          .n_top = n + 2};
    double sum = 0;

    parse(&spec, s, "f32");
    run(s, one, &a, 1);
    for (size_t i = 0; i < n; i++)
        sum += exp(a.top[i].log_prob);
    assert_true(fabs(sum - 1) < 1e-5);
    assert_int_equal(a.top[n].id, -1);
    kv_answer_clear(&a);
}

struct ends {
    size_t n;
    const struct kv_answer *last;
};

static int note_end(void *arg, struct kv_answer *a, struct kv_err *e)
{
    struct ends *x = arg;

    (void)e;
    x->n++;
    x->last = a;
    return 0;
}

/* Answers that come late, and one that is dropped, change no other; nor does a
 * spec that is forgotten and comes again, even in the same place. */
static void test_generator(void **state)
{
    const struct setup *s = *state;
    struct ends ends = {0};
    const struct kv_generation g = {.model = s->model,
                                    .seed = SEED,
                                    .batch = 2,
                                    .ended = note_end,
                                    .arg = &ends};
    struct kv_generator *r = kv_generator_new(&g);
    struct kv_spec spec;
    struct kv_answer a[4],
        alone = {.spec = &spec, .prompt = s->tokens, .n_prompt = 9, .most = 12};
    struct kv_err e = {""};

    parse(&spec, s, "kivi:b2g8r8");
    for (size_t i = 0; i < 4; i++)
        a[i] = alone;
    run(s, one, &alone, 1);
    assert_true(kv_generator_idle(r));
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(kv_generator_add(r, &a[i], &e), 0);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(kv_generator_step(r, &e), 0);
    assert_true(a[0].made > 1 && !ends.n);
    kv_generator_drop(r, &a[0]); /* under way */
    kv_generator_drop(r, &a[2]); /* waiting */
    assert_int_equal(kv_generator_add(r, &a[3], &e), 0);
    while (!kv_generator_idle(r))
        assert_int_equal(kv_generator_step(r, &e), 0);
    assert_int_equal(ends.n, 2);
    assert_ptr_equal(ends.last, &a[3]);
    assert_true(a[0].made < 12);
    assert_memory_equal(a[1].ids, alone.ids, 12 * sizeof(*alone.ids));
    assert_memory_equal(a[3].ids, alone.ids, 12 * sizeof(*alone.ids));

    kv_generator_forget(r, &spec);
    kv_generator_forget(r, &spec);
    parse(&spec, s, "absmax:b2");
    kv_answer_clear(&alone);
    run(s, one, &alone, 1);
    assert_memory_not_equal(a[3].ids, alone.ids, 12 * sizeof(*alone.ids));
    kv_answer_clear(&a[3]);
    assert_int_equal(kv_generator_add(r, &a[3], &e), 0);
    while (!kv_generator_idle(r))
        assert_int_equal(kv_generator_step(r, &e), 0);
    assert_memory_equal(a[3].ids, alone.ids, 12 * sizeof(*alone.ids));
    kv_generator_free(r);
    for (size_t i = 0; i < 4; i++)
        kv_answer_clear(&a[i]);
    kv_answer_clear(&alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_least),
        cmocka_unit_test(test_steps_in_f32),
        cmocka_unit_test(test_greedy_together),
        cmocka_unit_test(test_sampled_together),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_forced),
        cmocka_unit_test(test_probabilities),
        cmocka_unit_test(test_generator),
    };

    return cmocka_run_group_tests(tests, prepare, release);
}
