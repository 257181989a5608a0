/* Token policies (lib/policy.h) against literal ones, written here in double,
 * and at budgets that keep every token against no policy. */
#include "eval/policy_error.h"
#include "lib/mixed.h"
#include "lib/policies/policies.h"
#include "tests/protocol_setup.h"

#include <omp.h>

/* ---- every token kept ---------------------------------------------------- */

/* The wording of a refusal; "": the spec is accepted.  how: policy and
 * protocol. */
static const char *why_not(const struct ready *r, const char *const *how)
{
    const struct kv_codec *k = r->codec[KV_K];
    const bool all = strstr(how[0], ":b1") != NULL; /* budget: all tokens */
    const size_t budget = !all ? 200 : !strcmp(how[1], "prefill:30") ? 30 : 100;

    if (kv_spec_reads_below(&r->spec))
        return "which predicts layers from lower ones";
    if (kv_spec_size(&k->spec, KV_K, "s") > budget)
        return "fewer than its";
    if (!kv_codec_attends(k))
        return "";
    if (k->history || r->codec[KV_V]->history)
        return "expected rqe=yes";
    if (!strncmp(how[0], "streamingllm", 12))
        return "cannot move to other positions";
    return !strcmp(how[1], "prefill:30") && k->prefill_on_codes
               ? "expected prefill=full"
               : "";
}

static void check_all_kept(struct ready *r)
{
    static const char *const policies[][2] = {
        {"streamingllm:s0w200+", "stream:7"},
        {"h2o:b1+", "stream:7"},
        {"tova:b200+", "prefill:30"},
        {"knorm:b1l0+", "stream:7"},
        {"snapkv:b1w8+", "prefill:30"},
        {"pyramidkv:b1w8+", "prefill:30"}};
    static size_t next, next_on_codes;
    const char *const *how = kv_codec_attends(r->codec[KV_K])
                                 ? policies[next_on_codes++ % 6]
                                 : policies[next++ % 6];
    const struct ready p = with_policy(r, how[0]);
    struct kv_bits bits, kept_bits;
    struct kv_err e = {""};
    struct windows w;
    float *all, *kept;

    if (kv_spec_spans(&r->spec)) /* takes no policy */
        return;
    if (*why_not(r, how)) {
        if (takes(&p, how[1], &e))
            fail_msg("%s, %s is taken, expected '%s'", p.spec.text, how[1],
                     why_not(r, how));
        if (!strstr(e.msg, why_not(r, how)))
            fail_msg("%s: expected '%s'", e.msg, why_not(r, how));
        return;
    }
    if (!takes(&p, how[1], &e))
        fail_msg("%s", e.msg);
    make_windows(r, &w);
    all = by_protocol(r, &w, how[1], &bits);
    kept = by_protocol(&p, &w, how[1], &kept_bits);
    assert_close(&p, how[1], kept, all);
    if (!(fabs(bits.bytes - kept_bits.bytes) < 1e-6 * bits.bytes))
        fail_msg("%s: %g bytes, of all tokens %g", p.spec.text, kept_bits.bytes,
                 bits.bytes);
    assert_true(kept_bits.kept_values == kept_bits.values);
    free(kept);
    free(all);
    free_windows(&w);
}

static void test_all_kept(void **state)
{
    (void)state;
    every(check_all_kept);
}

/* ---- literally ----------------------------------------------------------- */

/* A KV head of a window, as one policy sees it. */
struct head {
    const struct ready *r;
    const struct windows *w;
    size_t window, head;
    size_t held[LENGTH], n;
    double mass[LENGTH]; /* indexed by position */
};

static const float *row(const struct head *h, const float *x, size_t heads,
                        size_t head, size_t t)
{
    return x + ((h->window * LENGTH + t) * heads + head) * h->r->shape.head_dim;
}

/* The key of token j, at a position of its own if it is reassigned. */
static void key_at(const struct head *h, size_t j, size_t position, float *key)
{
    const struct kv_shape *s = &h->r->shape;

    memcpy(key, row(h, h->w->k_pre, s->n_kv_heads, h->head, j),
           s->head_dim * sizeof(*key));
    kv_rope(s, key, 1, 1, position);
}

/* Query t of each query head over the held tokens; weights are added to mass,
 * outputs go to out ([..][n_heads][head_dim], as windows have it), or NULL. */
static void attend(struct head *h, size_t t, bool reassigned, float *out)
{
    const struct kv_shape *s = &h->r->shape;
    const size_t group = s->n_heads / s->n_kv_heads, d = s->head_dim;
    float key[64];

    for (size_t g = h->head * group; g < (h->head + 1) * group; g++) {
        const float *q = row(h, h->w->q, s->n_heads, g, t);
        double weight[LENGTH], sum, acc[64] = {0};
        float *to = (float *)row(h, out, s->n_heads, g, t);

        sum = exp((double)s->sink_logit[g]);
        for (size_t i = 0; i < h->n; i++) {
            double dot = 0;

            key_at(h, h->held[i], reassigned ? t + 1 + i - h->n : h->held[i],
                   key);
            for (size_t c = 0; c < d; c++)
                dot += (double)q[c] * (double)key[c];
            weight[i] = exp(dot * (double)s->attn_scale);
            sum += weight[i];
        }
        for (size_t i = 0; i < h->n; i++) {
            const float *v =
                row(h, h->w->v, s->n_kv_heads, h->head, h->held[i]);

            h->mass[h->held[i]] += weight[i] / sum;
            for (size_t c = 0; c < d; c++)
                acc[c] += weight[i] / sum * (double)v[c];
        }
        for (size_t c = 0; c < d && out; c++)
            to[c] = (float)acc[c];
    }
}

/* Drops the held token with the least score, but none of the newest
 * `newest`. */
static void drop_least(struct head *h, const double *score, size_t newest)
{
    size_t least = 0;

    for (size_t i = 0; i + newest < h->n; i++)
        if (score[h->held[i]] < score[h->held[least]])
            least = i;
    h->n--;
    for (size_t i = least; i < h->n; i++)
        h->held[i] = h->held[i + 1];
}

enum kind { STREAMING, H2O, TOVA, KNORM };
enum { BUDGET = 20, SINKS = 3 };

/* One query a step; TOVA's heads of a layer go together. */
static void run_literally(struct head *heads, size_t n_heads, enum kind kind,
                          float *out)
{
    for (size_t t = 0; t < LENGTH; t++) {
        double score[LENGTH] = {0};

        for (size_t i = 0; i < n_heads; i++) {
            heads[i].held[heads[i].n++] = t;
            if (kind == TOVA)
                memset(heads[i].mass, 0, sizeof(heads[i].mass));
            attend(&heads[i], t, kind == STREAMING, out);
            for (size_t j = 0; j <= t; j++)
                score[j] += heads[i].mass[j];
        }
        for (size_t i = 0; i < n_heads; i++) {
            struct head *h = &heads[i];
            const struct kv_shape *s = &h->r->shape;

            for (size_t j = 0; j <= t && kind == KNORM; j++) {
                const float *k = row(h, h->w->k, s->n_kv_heads, h->head, j);

                score[j] = 0;
                for (size_t c = 0; c < s->head_dim; c++)
                    score[j] -= (double)k[c] * (double)k[c];
            }
            for (size_t j = 0; j <= t && kind == STREAMING; j++)
                score[j] = j < SINKS ? LENGTH : (double)j;
            while (h->n > BUDGET)
                drop_least(h, kind == H2O ? h->mass : score,
                           kind == H2O ? BUDGET / 2 : 0);
        }
    }
}

static void check_literal(const char *policy, enum kind kind)
{
    struct ready r = f32_ready(), p = with_policy(&r, policy);
    struct kv_bits bits;
    struct windows w;
    float *loop, *literal;

    make_windows(&r, &w);
    loop = by_protocol(&p, &w, "stream", &bits);
    literal = kv_alloc(WINDOWS * LENGTH, query_values(&r) * sizeof(*literal));
    for (size_t window = 0; window < WINDOWS; window++) {
        struct head heads[2] = {{&r, &w, window, 0, {0}, 0, {0}},
                                {&r, &w, window, 1, {0}, 0, {0}}};

        if (kind == TOVA) {
            run_literally(heads, 2, kind, literal);
            continue;
        }
        run_literally(&heads[0], 1, kind, literal);
        run_literally(&heads[1], 1, kind, literal);
    }
    assert_close(&p, policy, loop, literal);
    assert_true(bits.kept_values * LENGTH == bits.values * BUDGET);
    assert_true(bits.bytes * LENGTH == bits.values * BUDGET * 4);
    free(literal);
    free(loop);
    free_windows(&w);
}

static void test_literal(void **state)
{
    (void)state;
    check_literal("streamingllm:s3w17+", STREAMING);
    check_literal("h2o:b20+", H2O);
    check_literal("h2o:b0.2+", H2O);
    check_literal("tova:b20+", TOVA);
    check_literal("knorm:b20l0+", KNORM);
}

/* Of 100 tokens the newest 18: of keys in blocks of 16 the block from 80 on,
 * two of whose tokens a bit each says are dropped, and four in fp16; of values,
 * in blocks of one token, as many tokens. */
static void test_bits_of_blocks(void **state)
{
    enum { HELD = 18, BLOCK = 16, TAIL = LENGTH % BLOCK };
    struct ready r = {.shape = synthetic_shape(32), .layer = 1};
    struct kv_err e = {""};
    struct kv_bits bits;
    struct windows w;
    size_t k_bytes, v_bytes, bitmap;

    (void)state;
    if (kv_spec_parse(&r.spec, "streamingllm:s0w18+kivi:b2g16r0", &e) ||
        kv_spec_fit(&r.spec, &r.shape, &e))
        fail_msg("%s", e.msg);
    for (int side = 0; side < KV_SIDES; side++)
        assert_int_equal(kv_codec_new(&r.codec[side], &r.spec, &r.shape,
                                      r.layer, (enum kv_side)side, NULL, &e),
                         0);
    assert_int_equal(r.codec[KV_K]->block, BLOCK);
    assert_int_equal(r.codec[KV_V]->block, 1);
    make_windows(&r, &w);
    free(by_protocol(&r, &w, "stream", &bits));
    bitmap = r.shape.n_kv_heads * (BLOCK / 8);
    k_bytes = r.codec[KV_K]->block_bytes + bitmap +
              TAIL * row_values(&r) * sizeof(uint16_t);
    v_bytes = HELD * r.codec[KV_V]->block_bytes;
    assert_within(bits.bytes, WINDOWS * (k_bytes + v_bytes), 1e-6);
    assert_within(bits.kept_values, WINDOWS * 2 * HELD * row_values(&r), 1e-6);
    free_windows(&w);
    kv_codec_free(r.codec[KV_K]);
    kv_codec_free(r.codec[KV_V]);
}

/* ---- prompts ------------------------------------------------------------- */

/* Of 60 tokens of a prompt the policy keeps the newest 8 and, of the others, 12
 * around those that the newest 8 queries attend to most: of their votes for
 * tokens before the newest 8, the greatest of k neighbours. */
static void check_prompt(const char *policy, size_t k)
{
    enum { PROMPT = 60, NEWEST = 8 };
    struct ready r = f32_ready(), p = with_policy(&r, policy);
    struct windows w;
    float *loop, *literal;
    struct kv_bits bits;

    make_windows(&r, &w);
    loop = by_protocol(&p, &w, "prefill:60", &bits);
    literal = kv_alloc(WINDOWS * LENGTH, query_values(&r) * sizeof(*literal));
    memcpy(literal, loop,
           WINDOWS * LENGTH * query_values(&r) * sizeof(*literal));
    for (size_t i = 0; i < WINDOWS * 2; i++) {
        struct head h = {&r, &w, i / 2, i % 2, {0}, 0, {0}};
        double vote[LENGTH] = {0};

        for (size_t t = 0; t < PROMPT; t++) {
            h.held[h.n++] = t;
            if (t >= PROMPT - NEWEST)
                attend(&h, t, false, NULL);
        }
        for (size_t j = 0; j < PROMPT - NEWEST; j++)
            for (size_t t = 0; t < PROMPT - NEWEST; t++)
                if (t <= j + k / 2 && j <= t + k / 2)
                    vote[j] = fmax(vote[j], h.mass[t]);
        while (h.n > BUDGET)
            drop_least(&h, vote, NEWEST);
        for (size_t t = PROMPT; t < LENGTH; t++) {
            h.held[h.n++] = t;
            attend(&h, t, false, literal);
        }
    }
    assert_close(&p, "prefill:60", loop, literal);
    assert_true(bits.kept_values * LENGTH ==
                bits.values * (BUDGET + LENGTH - PROMPT));
    free(literal);
    free(loop);
    free_windows(&w);
}

static void test_prompt(void **state)
{
    (void)state;
    check_prompt("snapkv:b20w8k1+", 1);
    check_prompt("snapkv:b20w8k3+", 3);
    check_prompt("snapkv:b20w8k9+", 9);
}

/* ---- attention error ----------------------------------------------------- */

/* For every query of window 0; bits: of K and V. */
static struct kv_attn_error
error_of(const struct ready *p, const struct windows *w, struct kv_bits *bits)
{
    size_t at[LENGTH];
    struct kv_policy_window window = {.spec = &p->spec,
                                      .tokens = {.n = LENGTH,
                                                 .q = w->q,
                                                 .k = w->k,
                                                 .k_pre = w->k_pre,
                                                 .v = w->v},
                                      .at = at,
                                      .n_at = LENGTH};
    struct kv_attn_error sum = {0};
    struct kv_codecs *codecs;
    struct kv_err e;

    for (size_t i = 0; i < LENGTH; i++)
        at[i] = i;
    assert_int_equal(
        kv_codecs_new(&codecs, &p->spec, &p->shape, p->layer, 1, NULL, &e), 0);
    window.codec = kv_codecs_at(codecs, p->layer);
    assert_int_equal(kv_policy_error_add(&sum, bits, &window, &e), 0);
    kv_codecs_free(codecs);
    return sum;
}

/* ||b - a|| / ||a|| of window 0's queries from `first` on. */
static double difference(const struct ready *r, const float *a, const float *b,
                         size_t first)
{
    double e2 = 0, a2 = 0;

    for (size_t i = first * query_values(r); i < LENGTH * query_values(r);
         i++) {
        e2 += pow((double)b[i] - (double)a[i], 2);
        a2 += pow((double)a[i], 2);
    }
    return sqrt(e2 / a2);
}

/* The output error equals the loop's; without rounding of keys, the logits of
 * held tokens have no error. */
static void check_error(const char *policy, const char *protocol, size_t first,
                        size_t kept)
{
    struct ready r = f32_ready(), p = with_policy(&r, policy);
    struct kv_bits bits[KV_SIDES] = {{0}};
    struct windows w;
    float *all, *loop;

    make_windows(&r, &w);
    all = by_protocol(&r, &w, protocol, NULL);
    loop = by_protocol(&p, &w, protocol, NULL);

    const struct kv_attn_error sum = error_of(&p, &w, bits);
    const double out = kv_attn_error_out(&sum, KV_ATTN_BOTH);

    assert_true(fabs(out - difference(&r, all, loop, first)) < 1e-5);
    assert_true(kept < LENGTH ? out > 0.01 : out < 1e-6);
    assert_true(fabs(kv_attn_error_out(&sum, KV_ATTN_K) - out) < 1e-6);
    assert_true(kept < LENGTH ? kv_attn_error_kl(&sum) > 0.01
                              : kv_attn_error_kl(&sum) < 1e-9);
    if (!p.spec.policy.policy->reassigns)
        assert_true(kv_attn_error_logit(&sum) < 1e-9);
    for (int side = 0; side < KV_SIDES; side++) {
        assert_true(bits[side].kept_values * LENGTH ==
                    bits[side].values * (double)kept);
        assert_true(bits[side].bytes == bits[side].kept_values * 4);
    }
    free(loop);
    free(all);
    free_windows(&w);
}

static void test_error(void **state)
{
    (void)state;
    check_error("streamingllm:s3w17+", "stream", 0, 20);
    check_error("h2o:b20+", "stream", 0, 20);
    check_error("tova:b0.2+", "stream", 0, 20);
    check_error("knorm:b20l0+", "stream", 0, 20);
    check_error("snapkv:b20w8+", "prefill:50", 50, 20 + 50);
    check_error("streamingllm:s0w200+", "stream", 0, LENGTH);
    check_error("h2o:b1+", "stream", 0, LENGTH);
    check_error("tova:b1+", "stream", 0, LENGTH);
    check_error("knorm:b1+", "stream", 0, LENGTH);
    check_error("snapkv:b1+", "prefill:50", 50, LENGTH);
    check_error("pyramidkv:b1+", "prefill:50", 50, LENGTH);
}

/* ---- the rest ------------------------------------------------------------ */

static void test_threads(void **state)
{
    const int before = omp_get_max_threads();
    struct ready r = f32_ready(), p = with_policy(&r, "h2o:b20+");
    const size_t n = WINDOWS * LENGTH * query_values(&r);
    struct windows w;
    float *one, *two;

    (void)state;
    make_windows(&r, &w);
    omp_set_num_threads(1);
    one = by_protocol(&p, &w, "stream", NULL);
    omp_set_num_threads(2);
    two = by_protocol(&p, &w, "stream", NULL);
    assert_memory_equal(one, two, n * sizeof(*one));
    omp_set_num_threads(before);
    free(two);
    free(one);
    free_windows(&w);
}

/* The error of attention on 8-bit codes against exact tokens is about the same
 * with dropped tokens as without, and less than the effect of the dropped
 * tokens.  (knorm chooses by the keys themselves, and some have equal norms
 * except for rounding.) */
static void test_on_codes(void **state)
{
    static const char *const how[][2] = {{"h2o:b60+", "stream:5"},
                                         {"tova:b60+", "stream"},
                                         {"snapkv:b20w8+", "prefill:60"}};

    (void)state;
    for (size_t i = 0; i < sizeof(how) / sizeof(*how); i++) {
        struct ready f32 = f32_ready(), hack = f32_ready(), p;
        struct kv_bits bits, f32_bits;
        float *all, *kept, *codes, *all_codes;
        struct windows w;
        struct kv_err e;

        assert_int_equal(
            kv_spec_parse(&hack.spec, "hack:b8p16,prefill=full,nearest", &e),
            0);
        assert_int_equal(kv_spec_fit(&hack.spec, &hack.shape, &e), 0);
        p = with_policy(&f32, how[i][0]);
        make_windows(&f32, &w);
        all = by_protocol(&f32, &w, how[i][1], NULL);
        all_codes = by_protocol(&hack, &w, how[i][1], NULL);
        hack = with_policy(&hack, how[i][0]);
        kept = by_protocol(&p, &w, how[i][1], &f32_bits);
        codes = by_protocol(&hack, &w, how[i][1], &bits);

        const double dropped = difference(&f32, all, kept, 0);
        const double coded = difference(&f32, all, all_codes, 0);
        const double off = difference(&f32, kept, codes, 0);

        if (!(off < 2 * coded && off < dropped))
            fail_msg("%s: off by %g, without a policy by %g; dropped %g",
                     hack.spec.text, off, coded, dropped);
        assert_true(bits.kept_values == f32_bits.kept_values);
        free(codes);
        free(kept);
        free(all_codes);
        free(all);
        free_windows(&w);
    }
}

/* In a sliding layer a query sees its window, and no more is held. */
static void test_sliding(void **state)
{
    struct ready r = f32_ready();
    struct ready p = with_policy(&r, "tova:b1+");
    struct kv_bits bits, kept;
    struct windows w;
    float *all, *loop;

    (void)state;
    r.shape.slides[0] = p.shape.slides[0] = 1 << 1;
    r.shape.slide_window = p.shape.slide_window = 24;
    memcpy(r.shape.slide_freq, r.shape.inv_freq, sizeof(r.shape.inv_freq));
    p.shape = r.shape;

    struct ready layer = r;

    layer.shape = kv_shape_layer(&r.shape, 1);
    make_windows(&layer, &w);
    all = by_protocol(&r, &w, "stream:5", &bits);
    loop = by_protocol(&p, &w, "stream:5", &kept);
    assert_close(&p, "a layer that slides", loop, all);
    assert_true(bits.bytes == kept.bytes);
    free(loop);
    free(all);
    free_windows(&w);
}

static void assert_refused(const char *spec, const char *protocol,
                           const char *because)
{
    struct ready r = f32_ready();
    struct kv_err e = {""};

    assert_int_equal(kv_spec_parse(&r.spec, spec, &e), 0);
    assert_int_equal(kv_spec_fit(&r.spec, &r.shape, &e), 0);
    assert_false(takes(&r, protocol, &e));
    if (!strstr(e.msg, because))
        fail_msg("%s: expected '%s'", e.msg, because);
}

static void test_refused(void **state)
{
    (void)state;
    assert_refused("h2o:b0.5+f16", "all", "no steps");
    assert_refused("snapkv:b50+f16", "stream", "of a prompt");
    assert_refused("streamingllm:w9+hack:b2p64", "stream", "cannot move");
    assert_refused("h2o:b0.5+hack:b2p64,no-rqe", "stream", "rqe=yes");
    assert_refused("snapkv:b0.9w9+hack:b2p64", "prefill:64", "prefill=full");
    assert_refused("snapkv:b10w32+f16", "prefill:64", "fewer than the 32");
    assert_refused("pyramidkv:b10w32+f16", "prefill:64", "fewer than the 32");
    assert_refused("h2o:b10+kivi:b2g16s16", "stream", "16 sinks");
}

static void test_texts(void **state)
{
    static const char *const wrong[][2] = {
        {"h2o:b0+f16", "b=0 is out of range: expected 0.001 to 1048576"},
        {"h2o:b0.5", "a policy stands before a spec: h2o:b0.5+kivi:b2g32"},
        {"h2o:x5+f16", "h2o has no 'x'; it has b (0.001 to 1048576)"},
        {"streamingllm:s4w+f16", "'w' wants a number, not '+f16'"},
        {"streamingllm:s1.5+f16", "'s' wants a whole number, not '1.5'"},
        {"streamingllm:s4s4+f16", "'s' is given twice"},
        {"h2o+nosuch", "unknown scheme 'nosuch'"}};
    char key[KV_SPEC_CHARS];
    struct kv_err e = {""};
    struct kv_spec s;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        assert_int_equal(kv_spec_parse(&s, wrong[i][0], &e), -1);
        if (!strstr(e.msg, wrong[i][1]))
            fail_msg("%s: expected '%s'", e.msg, wrong[i][1]);
    }
    assert_int_equal(kv_spec_parse(&s, "streamingllm:w60+f16", &e), 0);
    assert_string_equal(s.text, "streamingllm:s4w60+f16:r0s0");
    kv_spec_calib_key(&s, key);
    assert_string_equal(key, "f16");
    assert_int_equal(kv_spec_parse(&s, "streamingllm:s4w60+f16:r0s0", &e), 0);
    assert_string_equal(s.text, "streamingllm:s4w60+f16:r0s0");
    assert_true(kv_spec_looks_like("h2o:b1+f16"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_kept),       cmocka_unit_test(test_literal),
        cmocka_unit_test(test_bits_of_blocks), cmocka_unit_test(test_prompt),
        cmocka_unit_test(test_threads),        cmocka_unit_test(test_sliding),
        cmocka_unit_test(test_refused),        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_error),          cmocka_unit_test(test_on_codes),
    };

    return cmocka_run_group_tests(tests, prepare_every, release_every);
}
