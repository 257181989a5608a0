/* lib/model/forward, kernels/cuda/{backend_cuda,heads,layer,views}: the layers
 * of every architecture on the device beside the CPU's, which test_golden holds
 * to transformers.  Here the device is the host twin of tests/gpu_twin.h. */
#include "eval/loop.h"
#include "kernels/cuda/layer.h"
#include "kernels/device.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/model/model.h"
#include "tests/test.h"

#include <dirent.h>
#include <math.h>

/* DENSE: the golden models that the device takes; another one changes it. */
enum { TOKENS = 70, LAYERS = 16, SEED = 3, DENSE = 66 };

static struct kv_device device;

/* Relative root mean square errors beyond which a device is wrong: weights in
 * f32, and weights to whose type the device also rounds inputs. */
static const double exact = 4e-6, rounded = 0.02;

/* Keys and values as attention meets them, layer by layer. */
struct met {
    float *k[LAYERS], *k_pre[LAYERS], *v[LAYERS];
    size_t n[LAYERS];
    struct kv_attention inner;
};

static float *copy(const float *x, size_t n)
{
    float *y = kv_alloc(n, sizeof(*y));

    memcpy(y, x, n * sizeof(*y));
    return y;
}

static int meet(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    struct met *m = arg;
    const size_t row = x->shape->n_kv_heads * x->shape->head_dim;
    struct kv_qkv host;

    assert_true(x->layer < LAYERS);
    if (kv_qkv_to_host(x, &host, e))
        return -1;
    m->n[x->layer] = x->n_windows * x->n * row;
    m->k[x->layer] = copy(host.k, m->n[x->layer]);
    m->k_pre[x->layer] = copy(host.k_pre, m->n[x->layer]);
    m->v[x->layer] = copy(host.v, m->n[x->layer]);
    return m->inner.run ? m->inner.run(m->inner.arg, x, e)
                        : kv_attend_exact(NULL, x, e);
}

static void forget(struct met *m)
{
    for (size_t i = 0; i < LAYERS; i++) {
        free(m->k[i]);
        free(m->k_pre[i]);
        free(m->v[i]);
    }
}

static double distance(const float *a, const float *b, size_t n)
{
    double off = 0, all = 0;

    for (size_t i = 0; i < n; i++) {
        off += pow((double)a[i] - (double)b[i], 2);
        all += pow((double)b[i], 2);
    }
    return all > 0 ? sqrt(off / all) : sqrt(off);
}

static struct kv_model *open(const char *path, bool on_device, struct kv_err *e)
{
    struct kv_model *m = NULL;

    if (kv_model_open(&m, path, e))
        fail_msg("%s", e->msg);
    if (on_device && kv_model_to_device(m, &device, 1 << 20, e)) {
        kv_model_free(m);
        return NULL;
    }
    return m;
}

/* Logits of windows of n tokens, and what attention met. */
static float *logits_of(struct kv_model *m, size_t windows, size_t n,
                        struct met *met)
{
    const struct kv_model_info *info = kv_model_info(m);
    const struct kv_attention a = {.run = meet, .arg = met};
    int32_t *tokens = kv_alloc(windows * n, sizeof(*tokens));
    float *x = kv_alloc(windows * n, info->hidden * sizeof(*x));
    float *logits = kv_alloc(windows * n, info->n_vocab * sizeof(*logits));
    struct kv_err e = {""};

    for (size_t i = 0; i < windows * n; i++)
        tokens[i] = (int32_t)((i * i * 7 + i * 3) % info->n_vocab);
    kv_model_context(m, n);
    if (kv_model_forward(m, tokens, windows, n, 0, &a, x, &e) ||
        kv_model_logits(m, x, windows * n, logits, &e))
        fail_msg("%s: %s", info->name, e.msg);
    free(x);
    free(tokens);
    return logits;
}

static void check_near(const char *name, const char *what, size_t layer,
                       const float *is, const float *expected, size_t n,
                       double bound)
{
    const double off = distance(is, expected, n);

    if (!(off <= bound))
        fail_msg("%s: %s of layer %zu are off by %.2g, at most %.2g expected",
                 name, what, layer, off, bound);
}

/* ministral3's longer texts are refused: its queries have a factor there. */
static size_t tokens_of(const struct kv_model *m)
{
    const struct kv_model_info *info = kv_model_info(m);
    const size_t n = !strcmp(info->name, "ministral3") ? 24 : info->n_ctx;

    return n < TOKENS ? n : TOKENS;
}

/* Returns whether the device takes the model. */
static bool check_folder(const char *path, const char *name)
{
    enum { WINDOWS = 2 };
    struct met there = {.n = {0}}, here = {.n = {0}};
    struct kv_err e = {""};
    struct kv_model *host, *dev = open(path, true, &e);
    size_t n, n_vocab;
    double bound;
    float *is, *expected;

    if (!dev) {
        assert_says(e, "CUDA: ");
        assert_says(e, "is not implemented");
        return false;
    }
    host = open(path, false, &e);
    n = tokens_of(host);
    n_vocab = kv_model_info(host)->n_vocab;
    bound = kv_model_backend(dev)->weight_type == KV_TYPE_F32 ? exact : rounded;
    is = logits_of(dev, WINDOWS, n, &there);
    expected = logits_of(host, WINDOWS, n, &here);
    for (size_t i = 0; i < LAYERS && here.n[i]; i++) {
        assert_int_equal(there.n[i], here.n[i]);
        check_near(name, "keys", i, there.k[i], here.k[i], here.n[i], bound);
        check_near(name, "keys before RoPE", i, there.k_pre[i], here.k_pre[i],
                   here.n[i], bound);
        check_near(name, "values", i, there.v[i], here.v[i], here.n[i], bound);
    }
    check_near(name, "logits", 0, is, expected, WINDOWS * n * n_vocab, bound);
    print_message("%-18s %zu tokens, logits off by %.1e\n", name, n,
                  distance(is, expected, WINDOWS * n * n_vocab));
    free(is);
    free(expected);
    forget(&there);
    forget(&here);
    kv_model_free(dev);
    kv_model_free(host);
    return true;
}

static char *golden(const char *name)
{
    char *all = kv_path_join(getenv("KV_SOURCE_ROOT"), "tests/golden");
    char *path = name ? kv_path_join(all, name) : kv_strdup(all);

    free(all);
    return path;
}

/* Experts, latents, hybrids, Gemma 3n and 4 stay on the CPU. */
static void test_every_folder(void **state)
{
    char *all = golden(NULL);
    DIR *dir = opendir(all);
    size_t n = 0, taken = 0;

    (void)state;
    assert_non_null(dir);
    for (struct dirent *d; (d = readdir(dir));) {
        char *path = *d->d_name == '.' ? NULL : golden(d->d_name);

        if (!path)
            continue;
        n++;
        taken += check_folder(path, d->d_name);
        free(path);
    }
    closedir(dir);
    free(all);
    print_message("the device takes %zu of %zu models\n", taken, n);
    assert_int_equal(taken, DENSE);
}

/* A quantized cache of layers that slide: the same bits, and states as near as
 * products are; HACK's own attention is then on the host. */
static void check_cache(const char *name, const char *text)
{
    struct kv_err e = {""};
    char *path = golden(name);
    struct kv_model *m[2] = {open(path, false, &e), open(path, true, &e)};
    const struct kv_shape *shape = &kv_model_info(m[0])->shape;
    const struct kv_protocol protocol = {.kind = KV_STREAM, .step = 1};
    const size_t n = tokens_of(m[0]), n_vocab = kv_model_info(m[0])->n_vocab;
    struct kv_bits bits[2];
    struct kv_spec spec;
    float *logits[2];

    assert_true(shape->slide_window && shape->slide_window < n);
    if (kv_spec_parse(&spec, text, &e) || kv_spec_fit(&spec, shape, &e))
        fail_msg("%s: %s", text, e.msg);
    for (int i = 0; i < 2; i++) {
        struct kv_loop *l;
        struct met met = {.n = {0}};

        assert_non_null(m[i]);
        if (kv_loop_new(&l, &spec, shape, NULL, &protocol, SEED,
                        kv_model_backend(m[i]), &e))
            fail_msg("%s: %s", text, e.msg);
        met.inner = kv_loop_attention(l, 0, n);
        logits[i] = logits_of(m[i], 1, n, &met);
        bits[i] = kv_loop_bits(l);
        forget(&met);
        kv_loop_free(l);
    }
    if (bits[0].bytes != bits[1].bytes || bits[0].values != bits[1].values)
        fail_msg("%s of %s: %g bytes of %g values on the device, not %g of %g",
                 text, name, bits[1].bytes, bits[1].values, bits[0].bytes,
                 bits[0].values);
    check_near(name, text, 0, logits[1], logits[0], n * n_vocab, 1e-3);
    for (int i = 0; i < 2; i++) {
        free(logits[i]);
        kv_model_free(m[i]);
    }
    free(path);
}

static void test_windows(void **state)
{
    static const char *const specs[] = {"f32", "f16", "kivi:b4g10r20",
                                        "absmax:b4g10",
                                        "hack:b4p16,round=nearest"};

    (void)state;
    for (size_t i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
        check_cache("gemma3", specs[i]);
        check_cache("mistral", specs[i]);
    }
}

/* LayerNorm in the three types of products' inputs; an odd number of rows and
 * values, and no bias. */
static void test_layer_norm(void **state)
{
    enum { ROWS = 3, WIDE = 301, ALL = ROWS * WIDE };
    static const enum kv_type types[] = {KV_TYPE_F32, KV_TYPE_F16,
                                         KV_TYPE_BF16};
    static const double units[] = {2e-7, 0x1p-11, 0x1p-8};
    float x[ALL], w[WIDE], expected[ALL], is[ALL];
    struct kv_norm norm = {.n = WIDE, .eps = 1e-5F, .centers = true};
    void *at[3] = {NULL};
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < ALL; i++)
        x[i] = 3 + (float)kv_random_normal(1, i);
    for (size_t i = 0; i < WIDE; i++)
        w[i] = (float)kv_random_normal(2, i);
    for (size_t i = 0; i < ROWS; i++)
        kv_layer_norm(x + i * WIDE, w, NULL, WIDE, norm.eps,
                      expected + i * WIDE);
    if (kv_device_alloc(&at[0], sizeof(x), &e) ||
        kv_device_alloc(&at[1], sizeof(w), &e) ||
        kv_device_alloc(&at[2], sizeof(is), &e) ||
        kv_device_upload(at[0], x, sizeof(x), &e) ||
        kv_device_upload(at[1], w, sizeof(w), &e))
        fail_msg("%s", e.msg);
    norm.weight = at[1];
    for (size_t t = 0; t < sizeof(types) / sizeof(*types); t++) {
        const size_t bytes = kv_type_bytes(types[t]);
        uint8_t raw[sizeof(is)];

        if (kv_gpu_layer_norm(&norm, at[0], ROWS, types[t], at[2], &e) ||
            kv_device_download(raw, at[2], ALL * bytes, &e))
            fail_msg("%s", e.msg);
        for (size_t i = 0; i < ALL; i++) {
            uint16_t half;

            memcpy(&half, raw + i * bytes, sizeof(half));
            if (types[t] == KV_TYPE_F32)
                memcpy(&is[i], raw + i * bytes, sizeof(is[i]));
            else
                is[i] = types[t] == KV_TYPE_F16 ? kv_f16_to_f32(half)
                                                : kv_bf16_to_f32(half);
        }
        check_near("LayerNorm", "rows", t, is, expected, ALL, units[t]);
    }
    for (int i = 0; i < 3; i++)
        kv_device_free(at[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_folder),
                                       cmocka_unit_test(test_windows),
                                       cmocka_unit_test(test_layer_norm)};
    struct kv_err e = {""};

    if (kv_device_cuda(0, &device, &e)) {
        printf("skipped: %s\n", e.msg);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
