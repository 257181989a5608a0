/* A sequence: its steps are append and attention of its caches, it goes on from
 * messages, and layers of layered codecs are closed under it. */
#include "lib/base/alloc.h"
#include "lib/calib.h"
#include "lib/mixed.h"
#include "lib/rope_table.h"
#include "lib/scheme.h"
#include "lib/seq/bits.h"
#include "lib/seq/seq.h"
#include "tests/stacked.h"
#include "tests/synthetic.h"
#include "tests/test.h"

enum { N = 90, STEP = 7, SEED = 3, HEAD_DIM = 32 };

struct setup {
    struct kv_shape shape;
    struct kv_tokens all; /* N tokens of every layer */
    size_t q_row;
};

static int prepare(void **state)
{
    struct setup *s = kv_alloc(1, sizeof(*s));
    const struct kv_shape shape = synthetic_shape(HEAD_DIM);
    const size_t row = shape.n_kv_heads * HEAD_DIM;
    float *q, *k, *k_pre, *v;

    s->shape = shape;
    s->q_row = shape.n_heads * HEAD_DIM;
    q = kv_alloc(N, s->q_row * sizeof(*q));
    k = kv_alloc(N, row * sizeof(*k));
    k_pre = kv_alloc(N, row * sizeof(*k));
    v = kv_alloc(N, row * sizeof(*v));
    synthetic_rows(&shape, shape.n_heads, 1, N, q);
    synthetic_rows(&shape, shape.n_kv_heads, 2, N, k_pre);
    synthetic_rows(&shape, shape.n_kv_heads, 3, N, v);
    memcpy(k, k_pre, N * row * sizeof(*k));
    kv_rope(&shape, k, N, shape.n_kv_heads, 0);
    s->all = (struct kv_tokens){.n = N, .q = q, .k = k, .k_pre = k_pre, .v = v};
    *state = s;
    return 0;
}

static int release(void **state)
{
    struct setup *s = *state;

    free((void *)(uintptr_t)s->all.q);
    free((void *)(uintptr_t)s->all.k);
    free((void *)(uintptr_t)s->all.k_pre);
    free((void *)(uintptr_t)s->all.v);
    free(s);
    return 0;
}

static struct kv_spec spec_of(const struct setup *s, const char *text)
{
    struct kv_spec spec;
    struct kv_err e = {""};

    if (kv_spec_parse(&spec, text, &e) || kv_spec_fit(&spec, &s->shape, &e))
        fail_msg("%s", e.msg);
    return spec;
}

/* A sequence with all layers open. */
static struct kv_seq *open_seq(const struct setup *s,
                               const struct kv_spec *spec,
                               const struct kv_codecs *codecs)
{
    struct kv_seq *seq =
        kv_seq_new(&(struct kv_seq_plan){.n_layers = s->shape.n_layers,
                                         .policy = &spec->policy,
                                         .share_of = N,
                                         .seed = SEED});
    struct kv_err e;

    for (size_t l = 0; l < s->shape.n_layers; l++)
        assert_int_equal(kv_seq_open(seq, kv_codecs_at(codecs, l), &e), 0);
    return seq;
}

/* Steps tokens [first, end) through all layers; out [end - first][q_row]: the
 * last layer's. */
static void step_all(const struct setup *s, struct kv_seq *seq, size_t first,
                     size_t end, float *out)
{
    struct kv_err e = {""};

    for (size_t i = first; i < end; i += STEP)
        for (size_t l = 0; l < s->shape.n_layers; l++) {
            const struct kv_tokens t = kv_tokens_part(
                &s->all, &s->shape, i, end - i < STEP ? end - i : STEP);

            if (kv_seq_step(seq, l, &t, out + (i - first) * s->q_row, &e))
                fail_msg("%s", e.msg);
        }
}

/* The same by only the last layer's cache, or on top of the one below. */
static void literally(const struct setup *s, const struct kv_codecs *codecs,
                      float *out)
{
    const size_t last = s->shape.n_layers - 1;
    struct kv_cache *c[2];
    struct kv_err e;

    for (size_t l = 0; l < 2; l++) {
        struct kv_codec *const *codec = kv_codecs_at(codecs, last - 1 + l);

        assert_int_equal(
            kv_cache_new(&c[l], codec[KV_K], codec[KV_V], SEED, &e), 0);
        if (l && codec[KV_K]->layered)
            kv_cache_put_on(c[1], c[0]);
    }
    for (size_t i = 0; i < N; i += STEP) {
        const struct kv_tokens t =
            kv_tokens_part(&s->all, &s->shape, i, N - i < STEP ? N - i : STEP);

        for (size_t l = 0; l < 2; l++)
            assert_int_equal(kv_cache_append(c[l], &t, &e), 0);
        kv_cache_attend(c[1], kv_cache_view(c[1], t.n), t.q,
                        out + i * s->q_row);
    }
    if (!kv_cache_below(c[1]))
        kv_cache_free(c[0]);
    kv_cache_free(c[1]);
}

/* keys before RoPE, tiles, attention on codes, a sink and a tail, blocks of
 * varying bytes, values upon keys and layers upon layers in place */
static const char *const specs[] = {"f16",
                                    "kivi:b2g16r16s2",
                                    "absmax:b4g16r0s0,no-k_bias",
                                    "hack:b2p16",
                                    "q4_0",
                                    "kvquant:b2o10s1",
                                    "cachegen:l2n16r0s0",
                                    "klt:b2s2r7,vk",
                                    "klt:b1s2r7,pair"};
/* klt's predictions train for minutes under sanitizers; test_conformance has
 * some of them. */
enum { SPECS = sizeof(specs) / sizeof(*specs) - 2 * SANITIZED };

static void test_steps(void **state)
{
    const struct setup *s = *state;
    float *got = kv_alloc(2 * N, s->q_row * sizeof(*got));
    float *want = got + N * s->q_row;
    struct kv_err e;

    for (size_t i = 0; i < SPECS; i++) {
        const struct kv_spec spec = spec_of(s, specs[i]);
        struct kv_calib *calib =
            synthetic_calib(&s->shape, &spec, test_folder());
        struct kv_codecs *codecs;
        struct kv_seq *seq;

        assert_int_equal(kv_codecs_new(&codecs, &spec, &s->shape, 0,
                                       s->shape.n_layers, calib, &e),
                         0);
        seq = open_seq(s, &spec, codecs);
        step_all(s, seq, 0, N, got);
        literally(s, codecs, want);
        for (size_t j = 0; j < N * s->q_row; j++)
            assert_within(got[j], want[j], 1e-4);
        kv_seq_free(seq);
        kv_codecs_free(codecs);
        kv_calib_free(calib);
    }
    free(got);
}

/* A sequence that is written after 40 tokens and loaded goes on as itself. */
static void test_messages(void **state)
{
    enum { WRITTEN = 40 };
    const struct setup *s = *state;
    const size_t bytes_out = (N - WRITTEN) * s->q_row * sizeof(float);
    float *got = kv_alloc(2 * N, s->q_row * sizeof(*got));
    float *want = got + N * s->q_row;
    struct kv_err e = {""};

    for (size_t i = 0; i < SPECS; i++) {
        const struct kv_spec spec = spec_of(s, specs[i]);
        struct kv_bits a = {0}, b = {0};
        struct kv_calib *calib =
            synthetic_calib(&s->shape, &spec, test_folder());
        struct kv_seq *seq, *copy;
        struct kv_codecs *codecs;

        assert_int_equal(kv_codecs_new(&codecs, &spec, &s->shape, 0,
                                       s->shape.n_layers, calib, &e),
                         0);
        seq = open_seq(s, &spec, codecs);
        copy = open_seq(s, &spec, codecs);
        step_all(s, seq, 0, WRITTEN, got);
        for (size_t l = 0; l < s->shape.n_layers; l++) {
            uint8_t *bytes;
            size_t n;

            if (kv_seq_write(seq, l, &bytes, &n, &e) ||
                kv_seq_load(copy, l, bytes, n, &e))
                fail_msg("%s", e.msg);
            free(bytes);
        }
        step_all(s, seq, WRITTEN, N, want);
        step_all(s, copy, WRITTEN, N, got);
        assert_memory_equal(got, want, bytes_out);
        kv_seq_bits(seq, 1, KV_K, &a);
        kv_seq_bits(copy, 1, KV_K, &b);
        assert_memory_equal(&a, &b, sizeof(a));
        kv_seq_free(copy);
        kv_seq_free(seq);
        kv_codecs_free(codecs);
        kv_calib_free(calib);
    }
    free(got);
}

/* The tokens that a policy keeps cannot be written as a message. */
static void test_policy(void **state)
{
    const struct setup *s = *state;
    const struct kv_spec spec = spec_of(s, "h2o:b0.3+kivi:b4g16r16");
    float *out = kv_alloc(N, s->q_row * sizeof(*out));
    struct kv_bits bits = {0};
    struct kv_codecs *codecs;
    struct kv_seq *seq;
    struct kv_err e = {""};
    uint8_t *bytes;
    size_t n;

    assert_int_equal(kv_codecs_new(&codecs, &spec, &s->shape, 0,
                                   s->shape.n_layers, NULL, &e),
                     0);
    seq = open_seq(s, &spec, codecs);
    step_all(s, seq, 0, N, out);
    kv_seq_bits(seq, 1, KV_V, &bits);
    assert_within(bits.kept_values / bits.values, 0.3, 0);
    assert_int_equal(kv_seq_write(seq, 1, &bytes, &n, &e), -1);
    assert_says(e, "what h2o keeps of a sequence is not written");
    kv_seq_free(seq);
    kv_codecs_free(codecs);
    free(out);
}

/* Lower layers are kept while a layer above reads them; then they are freed. */
static void test_layered(void **state)
{
    enum { LAYERS = 5 };
    const struct setup *s = *state;
    struct kv_shape shape = s->shape;
    struct kv_err e = {""};

    shape.n_layers = LAYERS;
    for (size_t n_below = 1; n_below <= KV_MAX_BELOW; n_below++) {
        const struct kv_spec spec = stacked_spec(n_below, 0, 0);
        struct kv_codecs *codecs;
        struct kv_seq *seq =
            kv_seq_new(&(struct kv_seq_plan){.n_layers = LAYERS, .seed = SEED});

        assert_int_equal(
            kv_codecs_new(&codecs, &spec, &shape, 0, LAYERS, NULL, &e), 0);
        for (size_t l = 0; l < LAYERS; l++) {
            if (kv_seq_open(seq, kv_codecs_at(codecs, l), &e) ||
                kv_seq_append(seq, l, &s->all, &e))
                fail_msg("%s", e.msg);
            kv_seq_close(seq, l);
            for (size_t below = 0; below <= l; below++)
                if (below + n_below <= l)
                    assert_null(kv_seq_cache(seq, below));
                else
                    assert_non_null(kv_seq_cache(seq, below));
        }
        kv_seq_free(seq);
        kv_codecs_free(codecs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_policy),
        cmocka_unit_test(test_layered),
    };

    return cmocka_run_group_tests(tests, prepare, release);
}
