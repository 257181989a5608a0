/* Prompts by a policy's patterns, through the loop (eval/loop.h), and the
 * search that finds patterns for each head. */
#include "calib/calibrate.h"
#include "eval/sweep.h"
#include "lib/mixed.h"
#include "lib/policies/minference.h"
#include "tests/protocol_setup.h"

/* ---- all is seen --------------------------------------------------------- */

static void check_all_seen(struct ready *r)
{
    static const char *const how[][2] = {
        {"a-shape:s3w1+", "all"},
        {"vertical-slash:v0.01s1+", "prefill:70"},
        {"block-sparse:k1+", "llama.cpp"},
        {"vertical-slash:v1s0.01+", "all"},
        {"a-shape:s64w0.5+", "prefill:30"}};
    static size_t next;
    const char *const *h = how[next++ % 5];
    const struct ready p = with_policy(r, h[0]);
    struct kv_err e = {""};
    struct windows w;
    float *dense, *sparse;

    if (kv_codec_attends(r->codec[KV_K])) {
        assert_false(takes(&p, h[1], &e));
        assert_says(e, "which attends on its codes");
        return;
    }
    if (!takes(&p, h[1], &e))
        fail_msg("%s", e.msg);
    make_windows(r, &w);
    dense = by_protocol(r, &w, h[1], NULL);
    sparse = by_protocol(&p, &w, h[1], NULL);
    assert_close(&p, h[1], sparse, dense);
    free(sparse);
    free(dense);
    free_windows(&w);
}

static void test_all_seen(void **state)
{
    (void)state;
    every(check_all_seen);
}

/* ---- some is ------------------------------------------------------------- */

/* f32 on the synthetic model. */
static struct ready exact(void)
{
    struct ready r = {.shape = synthetic_shape(32), .layer = 1};
    struct kv_err e;

    assert_int_equal(kv_spec_parse(&r.spec, "f32", &e), 0);
    assert_int_equal(kv_spec_fit(&r.spec, &r.shape, &e), 0);
    return r;
}

/* Queries of the prompt by the pattern, the others as without a policy. */
static void check_prompt(const char *protocol, size_t prompt)
{
    struct ready r = exact(), p = with_policy(&r, "a-shape:s2w9+");
    const struct kv_pattern a = {KV_A_SHAPE, 2, 9}, head[4] = {a, a, a, a};
    struct kv_attend_job job;
    struct windows w;
    float *want, *loop;

    make_windows(&r, &w);
    want = by_protocol(&r, &w, protocol, NULL);
    w.x.layer = r.layer;
    w.x.out = want;
    job = kv_qkv_job(&w.x, 0, prompt);
    assert_true(kv_pattern_attend(&job, head) <
                kv_pattern_all_pairs(&job.view));
    loop = by_protocol(&p, &w, protocol, NULL);
    assert_close(&p, protocol, loop, want);
    free(loop);
    free(want);
    free_windows(&w);
}

static void test_prompt(void **state)
{
    (void)state;
    check_prompt("all", LENGTH);
    check_prompt("llama.cpp", LENGTH);
    check_prompt("prefill:70", 70);
}

/* The cost of prompts, dense and with a pattern. */
static void test_cost(void **state)
{
    struct ready r = exact();
    const struct ready specs[] = {r, with_policy(&r, "a-shape:s2w9+")};
    struct kv_protocol protocol;
    struct kv_err e = {""};
    struct windows w;

    (void)state;
    make_windows(&r, &w);
    w.x.layer = 1;
    assert_int_equal(kv_protocol_parse(&protocol, "prefill:70", false, &e), 0);
    for (size_t i = 0; i < 2; i++) {
        const double all = WINDOWS * 4 * 70 * 71 / 2.0;
        struct kv_prefill cost;
        struct kv_loop *l;

        assert_int_equal(kv_loop_new(&l, &specs[i].spec, &r.shape, NULL,
                                     &protocol, 1, NULL, &e),
                         0);

        const struct kv_attention a = kv_loop_attention(l, 0, LENGTH);

        assert_int_equal(a.run(a.arg, &w.x, &e), 0);
        cost = kv_loop_prefill(l);
        assert_true(cost.all_pairs == all && cost.seconds > 0);
        /* 6 queries of the second block miss [2, 56) */
        assert_true(cost.pairs == all - (double)i * WINDOWS * 4 * 6 * 54);
        kv_loop_free(l);
    }
    free_windows(&w);
}

static void test_sliding(void **state)
{
    struct ready r = exact();
    struct ready p = with_policy(&r, "a-shape:s0w1+"), layer = r;
    struct windows w;
    float *dense, *loop;

    (void)state;
    r.shape.slides[0] = 1 << 1;
    r.shape.slide_window = 24;
    memcpy(r.shape.slide_freq, r.shape.inv_freq, sizeof(r.shape.inv_freq));
    p.shape = r.shape;
    layer.shape = kv_shape_layer(&r.shape, 1);
    make_windows(&layer, &w);
    dense = by_protocol(&r, &w, "all", NULL);
    loop = by_protocol(&p, &w, "all", NULL);
    assert_close(&p, "a layer that slides", loop, dense);
    free(loop);
    free(dense);
    free_windows(&w);
}

/* ---- the search ---------------------------------------------------------- */

enum { CTX = 200 };

/* Calibrates specs on a dump of one window of CTX tokens; *dump: NULL, or for
 * kv_dump_close(). */
static struct kv_calib *search(const char *text, struct kv_dump **keep)
{
    const struct kv_shape shape = synthetic_shape(32);
    const char *const texts[] = {text};
    struct kv_spec *specs;
    struct kv_calib *c;
    struct kv_dump *dump;
    struct kv_err e = {""};
    char *path;
    size_t n;

    synthetic_dump(&shape, 1, CTX, test_folder(), &path);
    if (kv_spec_expand(texts, 1, &specs, &n, &e) ||
        kv_dump_open(&dump, path, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(kv_spec_fit(&specs[i], &shape, &e), 0);
    if (kv_calib_run(&c, dump, specs, n, NULL, 1, &e))
        fail_msg("%s", e.msg);
    if (keep)
        *keep = dump;
    else
        kv_dump_close(dump);
    free(specs);
    free(path);
    return c;
}

static struct kv_pattern found(const struct kv_calib *c, const char *policy,
                               size_t layer, size_t n, size_t head)
{
    const struct kv_shape shape = synthetic_shape(32);
    struct kv_pattern all[4];
    struct kv_policy_spec p;
    struct kv_err e = {""};

    assert_non_null(kv_policy_parse(&p, policy, &e));
    if (p.policy->patterns->find(&p, c, &shape, layer, n, all, &e))
        fail_msg("%s", e.msg);
    return all[head];
}

/* A layer of the dump as a prompt. */
struct prompt {
    struct kv_shape shape;
    struct kv_attend_job job;
    float *q, *k, *v, *out, *exact;
};

static void read_prompt(struct prompt *p, struct kv_dump *dump, size_t layer)
{
    const size_t q_values = CTX * 4 * 32, values = CTX * 2 * 32;
    struct kv_err e = {""};

    p->shape = synthetic_shape(32);
    p->q = kv_alloc(q_values, sizeof(float));
    p->out = kv_alloc(q_values, sizeof(float));
    p->exact = kv_alloc(q_values, sizeof(float));
    p->k = kv_alloc(values, sizeof(float));
    p->v = kv_alloc(values, sizeof(float));
    if (kv_dump_read(dump, layer, KV_T_Q, 0, CTX, p->q, &e) ||
        kv_dump_read(dump, layer, KV_T_K, 0, CTX, p->k, &e) ||
        kv_dump_read(dump, layer, KV_T_V, 0, CTX, p->v, &e))
        fail_msg("%s", e.msg);
    p->job =
        (struct kv_attend_job){.view = kv_shape_view(&p->shape, CTX, 0, CTX),
                               .q = p->q,
                               .out = p->exact,
                               .q_rows = CTX,
                               .k = {.quantized = p->k},
                               .v = {.quantized = p->v}};
    kv_attend(&p->job);
    p->job.out = p->out;
}

static void free_prompt(struct prompt *p)
{
    free(p->q);
    free(p->k);
    free(p->v);
    free(p->out);
    free(p->exact);
}

/* The relative error of a head's output under a pattern. */
static double error_of(struct prompt *p, size_t h, struct kv_pattern a)
{
    const struct kv_pattern head[4] = {a, a, a, a};
    double wrong = 0, norm = 0;

    kv_pattern_attend(&p->job, head);
    for (size_t t = 0; t < CTX; t++)
        for (size_t i = (t * 4 + h) * 32; i < (t * 4 + h + 1) * 32; i++) {
            wrong += pow((double)p->out[i] - (double)p->exact[i], 2);
            norm += pow((double)p->exact[i], 2);
        }
    return sqrt(wrong / norm);
}

/* The share of pairs of a pattern in all heads of all layers. */
static double share_of(struct prompt *prompt, struct kv_pattern a)
{
    const struct kv_pattern head[4] = {a, a, a, a};
    size_t pairs = 0, all = 0;

    for (size_t layer = 0; layer < 2; layer++) {
        pairs += kv_pattern_attend(&prompt[layer].job, head);
        all += kv_pattern_all_pairs(&prompt[layer].job.view);
    }
    return (double)pairs / (double)all;
}

/* Of a head: its pattern's share is nearly the budget, it errs as the table
 * says, and no A-shape or block-sparse one of less pairs errs less. */
static void check_head(const struct kv_calib *c, struct prompt *prompt,
                       size_t layer, size_t h)
{
    const struct kv_table *t =
        kv_calib_table(&c->set[0], "patterns", KV_K, layer, 0);
    const double best =
        (double)t->data[h * KV_MINFERENCE_COLUMNS + KV_MINFERENCE_ERROR];
    const struct kv_pattern a = found(c, "minference:b0.7+", layer, CTX, h);

    assert_within(error_of(&prompt[layer], h, a), best, 1e-6);
    assert_within(share_of(prompt, a), 0.7, 0.01);
    for (size_t size = 1; size <= CTX; size += 9) {
        const struct kv_pattern others[] = {{KV_A_SHAPE, 64, size},
                                            {KV_BLOCK_SPARSE, size, 0}};

        for (size_t i = 0; i < 2; i++)
            assert_true(share_of(prompt, others[i]) > 0.69 ||
                        error_of(&prompt[layer], h, others[i]) >= best);
    }
}

static void test_search(void **state)
{
    struct kv_dump *dump;
    struct kv_calib *c = search("minference:b0.7+f32", &dump);
    struct prompt prompt[2];

    (void)state;
    assert_int_equal(c->n_sets, 1);
    assert_string_equal(c->set[0].key, "minference:b0.7");
    for (size_t layer = 0; layer < 2; layer++)
        read_prompt(&prompt[layer], dump, layer);
    for (size_t i = 0; i < 8; i++)
        check_head(c, prompt, i / 4, i % 4);
    for (size_t layer = 0; layer < 2; layer++)
        free_prompt(&prompt[layer]);
    kv_calib_free(c);
    kv_dump_close(dump);
}

/* A budget of 1 gives dense attention at any length, also when the calibration
 * has a spec's tables. */
static void test_whole_budget(void **state)
{
    struct ready r = exact();
    struct kv_calib *c = search("minference:b{1,0.5}+{f32,pq:d2b4}", NULL);
    struct ready p = with_policy(&r, "minference:b1+");
    struct kv_err e = {""};
    struct windows w;
    float *dense, *sparse;

    (void)state;
    assert_int_equal(c->n_sets, 3); /* two of patterns, one of codebooks */
    p.calib = c;
    assert_true(kv_spec_calibrated(&p.spec));
    if (!takes(&p, "all", &e))
        fail_msg("%s", e.msg);
    make_windows(&r, &w);
    dense = by_protocol(&r, &w, "all", NULL);
    sparse = by_protocol(&p, &w, "all", NULL);
    assert_close(&p, "all", sparse, dense);
    free(sparse);
    free(dense);
    free_windows(&w);
    kv_calib_free(c);
}

/* ---- bad input ----------------------------------------------------------- */

static void assert_refused(const char *spec, const struct kv_calib *c,
                           const char *protocol, const char *because)
{
    struct ready r = exact();
    struct kv_err e = {""};

    r.calib = (struct kv_calib *)c;
    if (kv_spec_parse(&r.spec, spec, &e) || kv_spec_fit(&r.spec, &r.shape, &e))
        fail_msg("%s", e.msg);
    assert_false(takes(&r, protocol, &e));
    assert_says(e, because);
}

static void test_refused(void **state)
{
    static const char text[] = "minference:b0.5+f32";
    struct kv_calib *c = search(text, NULL);
    struct kv_table *t = &c->set[0].table[1];
    const float kind = t->data[0];

    (void)state;
    assert_refused("a-shape:w5+f32", NULL, "stream", "is for prompts");
    assert_refused("block-sparse:k2+hack:b2p64", NULL, "all",
                   "attends on its codes");
    assert_refused(text, NULL, "all", "minference:b0.5 needs patterns");
    assert_refused("minference:b0.25+f32", c, "all",
                   "the calibration has no patterns of minference:b0.25");
    t->data[0] = 3;
    assert_refused(text, c, "all", "layer 1, head 0 holds no pattern");
    t->data[0] = kind;
    t->data[KV_MINFERENCE_COLUMNS + KV_MINFERENCE_SECOND] = 1.5f;
    assert_refused(text, c, "all", "layer 1, head 1 holds no pattern");
    t->dims[0] = 2;
    assert_refused(text, c, "all", "no patterns of layer 1 for 4 heads");
    t->dims[0] = 4;
    t->layer = 0;
    assert_refused(text, c, "all", "no patterns of layer 1 for 4 heads");
    kv_calib_free(c);
}

static void test_texts(void **state)
{
    static const char *const wrong[][2] = {
        {"minference:b0+f32", "b=0 is out of range: expected 0.001 to 1"},
        {"minference:b2+f32", "b=2 is out of range: expected 0.001 to 1"},
        {"a-shape:w0+f32", "w=0 is out of range"},
        {"vertical-slash:x1+f32", "vertical-slash has no 'x'; it has v (0.001"},
        {"block-sparse:k0.5", "a policy stands before a spec"}};
    const struct kv_shape shape = synthetic_shape(32);
    const struct kv_strings specs = {
        .item = (const char *[]){"a-shape:s1w0.5+f32"}, .n = 1};
    const struct kv_sweep sweep = {
        .base = "f32", .specs = &specs, .shape = &shape, .shard = {1, 1}};
    struct kv_err e = {""};
    struct kv_spec s, *list;
    size_t n;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        assert_int_equal(kv_spec_parse(&s, wrong[i][0], &e), -1);
        assert_says(e, wrong[i][1]);
    }
    assert_int_equal(kv_spec_parse(&s, "vertical-slash+f16", &e), 0);
    assert_string_equal(s.text, "vertical-slash:v0.1s0.1+f16:r0s0");
    assert_int_equal(kv_sweep_list(&sweep, &list, &n, &n, &e), -1);
    assert_says(e, "attention is dense here");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_seen), cmocka_unit_test(test_prompt),
        cmocka_unit_test(test_cost),     cmocka_unit_test(test_sliding),
        cmocka_unit_test(test_search),   cmocka_unit_test(test_whole_budget),
        cmocka_unit_test(test_refused),  cmocka_unit_test(test_texts),
    };

    return cmocka_run_group_tests(tests, prepare_every, release_every);
}
