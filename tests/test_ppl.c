/* Perplexity with the cache in the loop, on a whole (tiny) model: against the
 * model's definition in double, and against a literal loop that appends one
 * token and attends. */
#include "eval/ppl.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "lib/mixed.h"
#include "lib/scheme.h"
#include "lib/seq/cache.h"
#include "tests/stacked.h"
#include "tests/synthetic.h"
#include "tests/test.h"
#include "tests/tiny_model.h"

#include <math.h>

enum { N = 80, WINDOWS = 2, SEED = 9, MAX_LAYERS = 4 };

struct setup {
    struct tiny_model tiny;
    struct kv_model *model;
    int32_t tokens[WINDOWS * N];
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
    for (size_t i = 0; i < WINDOWS * N; i++)
        s->tokens[i] =
            (int32_t)(i * i * 5 + i * 3 + i / N) % (int32_t)s->tiny.n_vocab;
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

/* Mean loss of the spec under a protocol, with this memory; the base line runs
 * first. */
static double nll_in(size_t memory, const struct setup *s,
                     const struct kv_spec *spec, const struct kv_calib *calib,
                     const char *protocol)
{
    struct kv_ppl_plan plan = {.model = s->model,
                               .tokens = s->tokens,
                               .n_windows = WINDOWS,
                               .n = N,
                               .memory = memory,
                               .seed = SEED};
    struct kv_ppl *p = NULL;
    struct kv_ppl_row row;
    struct kv_err e = {""};

    if (kv_protocol_parse(&plan.protocol, protocol, false, &e) ||
        kv_ppl_new(&p, &plan, &e) || kv_ppl_run(p, spec, calib, NULL, &row, &e))
        fail_msg("%s", e.msg);
    kv_ppl_free(p);
    return row.score.nll;
}

static double nll(const struct setup *s, const struct kv_spec *spec,
                  const struct kv_calib *calib, const char *protocol)
{
    return nll_in(1 << 20, s, spec, calib, protocol);
}

static void test_definition(void **state)
{
    const struct setup *s = *state;
    const size_t v = s->tiny.n_vocab;
    double *logits = kv_alloc(N, v * sizeof(*logits)), want = 0;
    struct kv_spec f32;
    struct kv_err e;

    for (size_t w = 0; w < WINDOWS; w++) {
        const int32_t *t = s->tokens + w * N;

        tiny_logits(&s->tiny, t, N, logits);
        for (size_t i = 0; i + 1 < N; i++) {
            double sum = 0;

            for (size_t j = 0; j < v; j++)
                sum += exp(logits[i * v + j]);
            want += (log(sum) - logits[i * v + (size_t)t[i + 1]]) /
                    (WINDOWS * (N - 1));
        }
    }
    assert_int_equal(kv_spec_parse(&f32, "f32", &e), 0);
    assert_within(nll(s, &f32, NULL, "all") / want, 1, 1e-5);
    assert_within(nll(s, &f32, NULL, "stream") / want, 1, 1e-5);
    free(logits);
}

/* The caches of every layer, appended to and read by definition. */
struct literal {
    struct kv_codecs *codecs;
    struct kv_cache *cache[MAX_LAYERS];
};

static int attend_literal(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const struct literal *l = arg;
    const struct kv_tokens t = kv_qkv_tokens(x, 0, 0, x->n);
    struct kv_cache *cache = l->cache[x->layer];

    if (kv_cache_append(cache, &t, e))
        return -1;
    kv_cache_attend(cache, kv_cache_view(cache, x->n), x->q, x->out);
    return 0;
}

/* The tokens' losses by a loop of append and attend: position i of tokens [n]
 * against token i + 1, nll [n - 1].  The definition that `stream` is held to.
 */
static void stream_literal(struct kv_model *m, const struct kv_spec *spec,
                           const struct kv_calib *calib, const int32_t *tokens,
                           double *nll)
{
    const struct kv_model_info *info = kv_model_info(m);
    const size_t layers = info->shape.n_layers;
    const bool layered = kv_spec_reads_below(spec); /* the top owns those */
    struct literal l;
    const struct kv_attention mine = {.run = attend_literal, .arg = &l};
    float *hidden = kv_alloc(1, info->hidden * sizeof(*hidden));
    float *logits = kv_alloc(info->n_vocab, sizeof(*logits));
    struct kv_err e = {""};

    assert_true(layers <= MAX_LAYERS);
    if (kv_codecs_new(&l.codecs, spec, &info->shape, 0, layers, calib, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < layers; i++) {
        struct kv_codec *const *codec = kv_codecs_at(l.codecs, i);

        if (kv_cache_new(&l.cache[i], codec[KV_K], codec[KV_V], SEED, &e))
            fail_msg("%s", e.msg);
        if (layered)
            kv_cache_put_on(l.cache[i], i ? l.cache[i - 1] : NULL);
    }
    for (size_t i = 0; i + 1 < N; i++) {
        if (kv_model_forward(m, tokens + i, 1, 1, i, &mine, hidden, &e) ||
            kv_model_logits(m, hidden, 1, logits, &e))
            fail_msg("%s", e.msg);
        nll[i] = kv_log_sum_exp(logits, info->n_vocab) -
                 (double)logits[tokens[i + 1]];
    }
    for (size_t i = layered ? layers - 1 : 0; i < layers; i++)
        kv_cache_free(l.cache[i]);
    kv_codecs_free(l.codecs);
    free(logits);
    free(hidden);
}

static void check_spec(const struct setup *s, const struct kv_spec *spec,
                       const struct kv_calib *calib)
{
    double token[N - 1], want = 0, got;

    for (size_t w = 0; w < WINDOWS; w++) {
        stream_literal(s->model, spec, calib, s->tokens + w * N, token);
        for (size_t i = 0; i + 1 < N; i++)
            want += token[i] / (WINDOWS * (N - 1));
    }
    got = nll(s, spec, calib, "stream");
    /* windows one by one */
    assert_within(nll_in(1, s, spec, calib, "stream"), got, 0);

    /* The two ways multiply matrices of different sizes, so that a key or
     * value in a hundred rounds to the neighbouring half; a scale of few bits,
     * or a prompt that attends on codes of few bits, may follow it to its own
     * neighbour, for a whole block. */
    const bool on_codes = strstr(spec->text, "prefill=codes");
    const double bound = spec->scheme->coarse || on_codes ? 1e-4 : 1e-5;

    if (!(fabs(got / want - 1) < bound))
        fail_msg("%s: stream %.9g, literally %.9g", spec->text, got, want);
}

/* calib: the last call's, or NULL; kept if it fits this spec too. */
static void check_stream(const struct setup *s, const char *text,
                         struct kv_calib **calib)
{
    const struct kv_shape *shape = &kv_model_info(s->model)->shape;
    struct kv_spec spec;
    struct kv_err e = {""};

    if (kv_spec_parse(&spec, text, &e) || kv_spec_fit(&spec, shape, &e))
        return; /* a scheme may refuse sinks and residual */
    if (kv_spec_calibrated(&spec) &&
        !(*calib && kv_calib_find(*calib, &spec))) {
        kv_calib_free(*calib);
        *calib = synthetic_calib(shape, &spec, s->folder);
    }
    check_spec(s, &spec, *calib);
}

static void test_stream_is_literal(void **state)
{
    const struct kv_spec stacked[] = {stacked_spec(2, 2, 16),
                                      stacked_spec(2, 0, 0)};
    static const char *const letters[] = {"", ":s2r16", ":r0s0"};
    static const char *const more[] = {
        "kivi:b1g16r16", "hack:b2p16,no-rqe", "hack:b2p16s4,artifact",
        "hack:b2p16s4,artifact,no-rqe", "hack:b2p16s4,artifact,codes,V-no-rqe"};
    struct kv_calib *calib = NULL;
    char text[64];

    for (size_t i = 0; kv_schemes[i]; i++)
        for (size_t j = 0; j < sizeof(letters) / sizeof(*letters); j++) {
            if (SANITIZED && (i + j) % 3)
                continue;
            snprintf(text, sizeof(text), "%s%s", kv_schemes[i]->name,
                     letters[j]);
            check_stream(*state, text, &calib);
        }
    check_spec(*state, &stacked[0], NULL);
    check_spec(*state, &stacked[1], NULL);
    for (size_t i = 0; i < sizeof(more) / sizeof(*more); i++)
        check_stream(*state, more[i], &calib);
    kv_calib_free(calib);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_stream_is_literal),
    };

    return cmocka_run_group_tests(tests, prepare, release);
}
