/* lib/model/forward, kernels/cuda/{backend_cuda,layer}: the forward pass
 * on a device against the equations in double.  Here the device is the host
 * twin of tests/gpu_twin.h. */
#include "eval/ppl.h"
#include "kernels/cuda/layer.h"
#include "kernels/cuda/runtime.h"
#include "kernels/device.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/model/model.h"
#include "tests/test.h"
#include "tests/tiny_model.h"

#include <math.h>

static struct kv_device device;

enum { MEMORY = 1 << 20 };

static struct kv_model *on_device(const struct tiny_model *m, size_t free_bytes)
{
    struct kv_model *model = tiny_open(m);
    struct kv_device d = device;
    struct kv_err e = {""};

    d.free = free_bytes;
    if (kv_model_to_device(model, &d, MEMORY, &e))
        fail_msg("%s", e.msg);
    return model;
}

static int32_t *random_tokens(size_t n, size_t n_vocab)
{
    int32_t *tokens = kv_alloc(n, sizeof(*tokens));

    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(i * i * 7 + i * 3) % (int32_t)n_vocab;
    return tokens;
}

static float *logits_of(struct kv_model *m, const int32_t *tokens,
                        size_t windows, size_t n,
                        const struct kv_attention *attention)
{
    const struct kv_model_info *info = kv_model_info(m);
    float *x = kv_alloc(windows * n, info->hidden * sizeof(*x));
    float *logits = kv_alloc(windows * n, info->n_vocab * sizeof(*logits));
    struct kv_err e = {""};

    if (kv_model_forward(m, tokens, windows, n, 0, attention, x, &e) ||
        kv_model_logits(m, x, windows * n, logits, &e))
        fail_msg("%s", e.msg);
    free(x);
    return logits;
}

/* Returns the relative RMS error. */
static double error_of(const float *got, const double *want, size_t n)
{
    double e2 = 0, x2 = 0;

    for (size_t i = 0; i < n; i++) {
        const double diff = (double)got[i] - want[i];

        e2 += diff * diff;
        x2 += want[i] * want[i];
    }
    return sqrt(e2 / x2);
}

/* Rounding to a type with unit u has an RMS error of at most u / sqrt(3).  A
 * layer rounds four times before its products, the head once.  f32: sums of at
 * most 48 terms. */
static double bound_of(const struct tiny_model *m)
{
    const double roundings = sqrt(4 * (double)m->n_layers + 1) / sqrt(3);

    return !strcmp(m->dtype, "BF16")  ? roundings * 0x1p-8
           : !strcmp(m->dtype, "F16") ? roundings * 0x1p-11
                                      : 2e-6;
}

static void test_against_definition(void **state)
{
    enum { WINDOWS = 2, N = 70 };

    (void)state;
    for (size_t i = 0; i < TINY_VARIANTS; i++) {
        struct tiny_model m = tiny_variant(i);
        const size_t each = N * m.n_vocab;
        struct kv_model *model = on_device(&m, device.free);
        int32_t *tokens = random_tokens(WINDOWS * N, m.n_vocab);
        double *want = kv_alloc(WINDOWS * each, sizeof(*want));
        float *got = logits_of(model, tokens, WINDOWS, N, NULL);
        float *again = logits_of(model, tokens, WINDOWS, N, NULL);

        for (size_t w = 0; w < WINDOWS; w++)
            tiny_logits(&m, tokens + w * N, N, want + w * each);
        assert_within(error_of(got, want, WINDOWS * each), 0, bound_of(&m));
        assert_memory_equal(got, again, WINDOWS * each * sizeof(*got));
        free(again);
        free(got);
        free(want);
        free(tokens);
        kv_model_free(model);
        tiny_clear(&m);
    }
}

/* More tokens than one product takes, with windows across the border: results
 * equal those of each window alone. */
static void test_pieces(void **state)
{
    enum { WINDOWS = 33, N = 70, LAST = WINDOWS - 1 };
    struct tiny_model m = tiny_llama;
    const size_t each = N * m.n_vocab, border = 2048 / N;
    struct kv_model *model;
    int32_t *tokens = random_tokens(WINDOWS * N, m.n_vocab);
    float *all;

    (void)state;
    m.n_layers = 1;
    tiny_init(&m);
    model = on_device(&m, device.free);
    all = logits_of(model, tokens, WINDOWS, N, NULL);
    for (size_t w = border; w < WINDOWS; w += LAST - border) {
        float *one = logits_of(model, tokens + w * N, 1, N, NULL);

        for (size_t i = 0; i < each; i++)
            assert_within(one[i], all[w * each + i], 3e-5);
        free(one);
    }
    free(all);
    free(tokens);
    kv_model_free(model);
    tiny_clear(&m);
}

/* ---- norms --------------------------------------------------------------- */

static float value_of(const uint8_t *out, size_t i, enum kv_type type)
{
    const uint16_t *const halves = (const uint16_t *)(const void *)out;

    return type == KV_TYPE_F32   ? ((const float *)(const void *)out)[i]
           : type == KV_TYPE_F16 ? kv_f16_to_f32(halves[i])
                                 : kv_bf16_to_f32(halves[i]);
}

/* Three rows of n numbers; the weights begin `skip` floats after an aligned
 * address. */
static void check_norm(size_t n, size_t skip, enum kv_type type)
{
    enum { ROWS = 3, CANARY = 16 };
    const size_t bytes = ROWS * n * kv_type_bytes(type);
    /* A thread adds n / 256 squares, then threads are added. */
    const double bound =
        ((double)n / 256 + 16) * 0x1p-24 + (type == KV_TYPE_F32   ? 0
                                            : type == KV_TYPE_F16 ? 0x1p-11
                                                                  : 0x1p-8);
    float *x = kv_alloc((ROWS + 1) * n + skip, sizeof(*x));
    float *w = x + ROWS * n;
    uint8_t *out = kv_alloc(bytes + CANARY, 1);
    void *dx, *dw, *dout;
    struct kv_err e = {""};

    for (size_t i = 0; i < (ROWS + 1) * n + skip; i++)
        x[i] = kv_random_unit(n + type, i) + 0.5f;
    memset(out, 0xa5, bytes + CANARY);
    if (kv_device_alloc(&dx, ROWS * n * sizeof(*x), &e) ||
        kv_device_alloc(&dw, (n + skip) * sizeof(*w), &e) ||
        kv_device_alloc(&dout, bytes + CANARY, &e) ||
        kv_device_upload(dx, x, ROWS * n * sizeof(*x), &e) ||
        kv_device_upload(dw, w, (n + skip) * sizeof(*w), &e) ||
        kv_device_upload(dout, out, bytes + CANARY, &e) ||
        kv_gpu_rms_norm(dx, (float *)dw + skip, ROWS, n, 0.01f, type, dout,
                        &e) ||
        kv_device_download(out, dout, bytes + CANARY, &e))
        fail_msg("%s", e.msg);
    for (size_t row = 0; row < ROWS; row++) {
        const float *const its = x + row * n;
        double sum = 0;

        for (size_t i = 0; i < n; i++)
            sum += (double)its[i] * (double)its[i];
        for (size_t i = 0; i < n; i++) {
            const double want = (double)its[i] * (double)w[skip + i] /
                                sqrt(sum / (double)n + (double)0.01f);

            assert_within(value_of(out, row * n + i, type), want,
                          bound * fabs(want));
        }
    }
    for (size_t i = 0; i < CANARY; i++)
        assert_int_equal(out[bytes + i], 0xa5);
    kv_device_free(dx);
    kv_device_free(dw);
    kv_device_free(dout);
    free(out);
    free(x);
}

/* Rows that a block holds, up to 8,192 numbers in fours from an aligned
 * address; and others. */
static void test_norms(void **state)
{
    static const size_t sizes[] = {1,    3,    4,    6,    1020, 1024,
                                   1028, 4096, 8188, 8192, 8196, 9001};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int t = 0; t < 3; t++) {
            static const enum kv_type types[] = {KV_TYPE_F16, KV_TYPE_BF16,
                                                 KV_TYPE_F32};

            check_norm(sizes[i], 0, types[t]);
            check_norm(sizes[i], 1, types[t]);
        }
}

/* ---- weights ------------------------------------------------------------- */

/* The number of bytes that the error names; 0 if the model fits. */
static size_t bytes_needed(const struct tiny_model *m, size_t free_bytes)
{
    struct kv_model *model = tiny_open(m);
    struct kv_device d = device;
    struct kv_err e = {""};
    size_t bytes = 0;

    d.free = free_bytes;
    if (kv_model_to_device(model, &d, MEMORY, &e)) {
        const char *number = strstr(e.msg, "memory: ");

        assert_says(e, "not enough device memory");
        assert_says(e, kv_model_info(model)->name);
        assert_non_null(number);
        bytes = strtoull(number + strlen("memory: "), NULL, 10);
    }
    kv_model_free(model);
    return bytes;
}

/* Layers that pass through, and those that stay: the same bits. */
static void test_streamed(void **state)
{
    enum { N = 40, LAYER = 32 << 10 };
    struct tiny_model m = tiny_variant(3);
    const size_t need = bytes_needed(&m, 0);
    int32_t *tokens = random_tokens(N, m.n_vocab);
    struct kv_model *whole = on_device(&m, device.free);
    float *want = logits_of(whole, tokens, 1, N, NULL);

    (void)state;
    assert_true(need > 0);
    assert_int_equal(bytes_needed(&m, need - 1), need);
    for (size_t more = 0; more <= 3 * LAYER; more += LAYER) {
        struct kv_model *model = on_device(&m, need + more);

        for (int again = 0; again < 2; again++) {
            float *got = logits_of(model, tokens, 1, N, NULL);

            assert_memory_equal(got, want, N * m.n_vocab * sizeof(*got));
            free(got);
        }
        kv_model_free(model);
    }
    free(want);
    free(tokens);
    kv_model_free(whole);
    tiny_clear(&m);
}

/* All matrices are f32 then, and nothing is rounded. */
static void test_mixed_types(void **state)
{
    enum { N = 70 };
    struct tiny_model m = tiny_variant(1);
    int32_t *tokens = random_tokens(N, m.n_vocab);
    double *want = kv_alloc(N * m.n_vocab, sizeof(*want));
    struct kv_model *model;
    float *got;

    (void)state;
    tiny_find(&m, "model.layers.1.self_attn.o_proj.weight")->dtype = "F32";
    model = on_device(&m, device.free);
    got = logits_of(model, tokens, 1, N, NULL);
    tiny_logits(&m, tokens, N, want);
    assert_within(error_of(got, want, N * m.n_vocab), 0, 2e-6);
    free(got);
    free(want);
    free(tokens);
    kv_model_free(model);
    tiny_clear(&m);
}

/* ---- attention from the host --------------------------------------------- */

struct spy {
    size_t layers;
};

/* Attends on the host like kv_attend_exact(). */
static int attend_on_host(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    struct kv_qkv host;
    struct spy *s = arg;

    s->layers++;
    return kv_qkv_to_host(x, &host, e) || kv_attend_exact(NULL, &host, e) ||
           kv_qkv_from_host(x, &host, e);
}

static int attend_on_device(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    struct spy *s = arg;

    s->layers++;
    return kv_attend_exact(NULL, x, e);
}

static void test_host_attention(void **state)
{
    enum { WINDOWS = 2, N = 67 };
    struct tiny_model m = tiny_variant(9); /* with norms of heads */
    const size_t all = WINDOWS * N * m.n_vocab;
    struct kv_model *model = on_device(&m, device.free);
    int32_t *tokens = random_tokens(WINDOWS * N, m.n_vocab);
    float *want = logits_of(model, tokens, WINDOWS, N, NULL);
    struct spy s = {.layers = 0};
    const struct kv_attention host = {.run = attend_on_host, .arg = &s};
    const struct kv_attention there = {.run = attend_on_device, .arg = &s};
    float *a = logits_of(model, tokens, WINDOWS, N, &host);
    float *b = logits_of(model, tokens, WINDOWS, N, &there);

    (void)state;
    assert_int_equal(s.layers, 2 * m.n_layers);
    for (size_t i = 0; i < all; i++)
        assert_within(a[i], want[i], 3e-5);
    assert_memory_equal(b, want, all * sizeof(*b));
    free(a);
    free(b);
    free(want);
    free(tokens);
    kv_model_free(model);
    tiny_clear(&m);
}

/* ---- losses ----------------------------------------------------------------
 */

/* log sum exp of a row, in double. */
static double log_sum(const float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += exp((double)x[i]);
    return log(sum);
}

static size_t largest(const float *x, size_t n)
{
    size_t top = 0;

    for (size_t i = 1; i < n; i++)
        top = x[i] > x[top] ? i : top;
    return top;
}

/* Checks states that differ from the base's so little that the divergence is as
 * small as a float's rounding error, and states that differ more. */
static void test_losses(void **state)
{
    enum { N = 40 };
    static const float parts[] = {1e-3F, 0.5F};
    struct tiny_model m = tiny_variant(0);
    const size_t h = m.hidden, v = m.n_vocab;
    struct kv_model *model = on_device(&m, device.free);
    int32_t *target = random_tokens(N, v);
    float *base = kv_alloc(N, h * sizeof(*base));
    float *x = kv_alloc(N, h * sizeof(*x));
    float *p = kv_alloc(N, v * sizeof(*p)), *q = kv_alloc(N, v * sizeof(*q));
    struct kv_loss loss[N];
    struct kv_err e = {""};

    (void)state;
    for (size_t c = 0; c < sizeof(parts) / sizeof(*parts); c++) {
        for (size_t i = 0; i < N * h; i++) {
            base[i] = 2 * (float)kv_random_normal(1, i);
            x[i] = base[i] + parts[c] * (float)kv_random_normal(2, i);
        }
        if (kv_model_logits(model, base, N, p, &e) ||
            kv_model_logits(model, x, N, q, &e) ||
            kv_model_losses(
                model,
                &(struct kv_states){N, (const float *const[]){x}, 1, base},
                target, (struct kv_loss *const[]){loss}, &e))
            fail_msg("%s", e.msg);
        for (size_t r = 0; r < N; r++) {
            const float *pr = p + r * v, *qr = q + r * v;
            const double p_lse = log_sum(pr, v), q_lse = log_sum(qr, v);
            const struct kv_loss *l = &loss[r];
            double kl = 0;

            for (size_t i = 0; i < v; i++)
                kl += exp((double)pr[i] - p_lse) *
                      ((double)pr[i] - p_lse - ((double)qr[i] - q_lse));
            assert_within(l->nll, q_lse - (double)qr[target[r]], 1e-6);
            assert_within(l->base_nll, p_lse - (double)pr[target[r]], 1e-6);
            assert_within(l->kl, kl, 1e-7 + 1e-6 * kl);
            assert_within(
                l->dp, exp(-(double)l->nll) - exp(-(double)l->base_nll), 1e-6);
            assert_int_equal(l->same, largest(pr, v) == largest(qr, v));
        }
    }
    free(q);
    free(p);
    free(x);
    free(base);
    free(target);
    kv_model_free(model);
    tiny_clear(&m);
}

/* ---- the quantized cache in the loop --------------------------------------
 */

static struct kv_score_summary score_of(struct kv_model *m,
                                        const int32_t *tokens, size_t windows,
                                        size_t n, const char *protocol,
                                        const char *text)
{
    struct kv_ppl_plan plan = {.model = m,
                               .tokens = tokens,
                               .n_windows = windows,
                               .n = n,
                               .memory = MEMORY,
                               .seed = 3,
                               .kl = true};
    struct kv_ppl_row row = {0};
    struct kv_spec base, spec;
    struct kv_ppl *p = NULL;
    struct kv_err e = {""};

    if (kv_protocol_parse(&plan.protocol, protocol, false, &e) ||
        kv_spec_parse(&base, "f32", &e) || kv_spec_parse(&spec, text, &e) ||
        kv_spec_fit(&base, &kv_model_info(m)->shape, &e) ||
        kv_spec_fit(&spec, &kv_model_info(m)->shape, &e))
        fail_msg("%s", e.msg);
    kv_protocol_spec(&plan.protocol, &base);
    kv_protocol_spec(&plan.protocol, &spec);
    if (kv_ppl_new(&p, &plan, &e) ||
        kv_ppl_run(p, &base, NULL, NULL, &row, &e) ||
        kv_ppl_run(p, &spec, NULL, NULL, &row, &e))
        fail_msg("%s", e.msg);
    kv_ppl_free(p);
    return row.score;
}

/* With f32 weights: the CPU's numbers except the last bits, and except a 2-bit
 * code that these move to its neighbour. */
static void test_loop(void **state)
{
    static const struct {
        const char *protocol, *spec;
    } cases[] = {{"all", "f32"},
                 {"stream:7", "kivi:b2g8r16s3"},
                 {"prefill:70", "absmax:K-b3r20/V-b4r2"},
                 {"prefill:70", "hack:b2p16"},
                 {"llama.cpp", "kivi:b2g8"}};
    enum { WINDOWS = 2, N = 90 };
    struct tiny_model m = tiny_variant(0);
    struct kv_model *here = tiny_open(&m);
    struct kv_model *there = on_device(&m, device.free);
    int32_t *tokens = random_tokens(WINDOWS * N, m.n_vocab);

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const struct kv_score_summary a = score_of(
            there, tokens, WINDOWS, N, cases[i].protocol, cases[i].spec);
        const struct kv_score_summary b = score_of(
            here, tokens, WINDOWS, N, cases[i].protocol, cases[i].spec);

        assert_within(a.nll, b.nll, 2e-4);
        assert_within(a.dnll, b.dnll, 2e-4);
        assert_within(a.kl_mean, b.kl_mean, 5e-5);
        assert_within(a.kl_max, b.kl_max, 2e-3);
        assert_within(a.dp_rms, b.dp_rms, 5e-5);
        assert_within(a.same_top1, b.same_top1, 1.5 / b.tokens);
    }
    free(tokens);
    kv_model_free(here);
    kv_model_free(there);
    tiny_clear(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_definition),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_streamed),
        cmocka_unit_test(test_mixed_types),
        cmocka_unit_test(test_host_attention),
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_loop),
    };
    struct kv_err e = {""};

    if (kv_device_cuda(0, &device, &e)) {
        printf("skipped: %s\n", e.msg);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
