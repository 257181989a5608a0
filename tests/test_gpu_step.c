/* eval/latency, kernels/cuda/step: a decode step on the device against the
 * same model in double.  Here the device is the host twin of
 * tests/gpu_twin.h. */
#include "eval/latency.h"
#include "kernels/cuda/layer.h"
#include "lib/base/half.h"
#include "lib/rope_table.h"
#include "lib/seq/cache.h"
#include "lib/seq/tile_cache.h"
#include "tests/append_rows.h"
#include "tests/attention_setup.h"
#include "tests/codec_setup.h"

enum { LAYERS = 2, HIDDEN = 96, INTER = 72, VOCAB = 40, SEED = 11 };

static struct kv_device device;

static struct kv_config config_of(const struct kv_shape *s)
{
    static const struct kv_arch plain = {.name = "plain"};
    struct kv_config c = {.arch = &plain,
                          .hidden = HIDDEN,
                          .inter = INTER,
                          .n_vocab = VOCAB,
                          .norm_eps = 1e-5f,
                          .embed_scale = 1,
                          .logit_scale = 1,
                          .rope.scale = 1,
                          .shape = *s};

    c.shape.n_layers = LAYERS;
    return c;
}

/* ---- the model in double ------------------------------------------------- */

/* The numbers of kv_gpu_random(): a matrix of halves, a vector of floats. */
static void matrix(size_t rows, size_t columns, uint64_t seed, double *x)
{
    const float scale = sqrtf(3 / (float)columns);

    for (size_t i = 0; i < rows * columns; i++)
        x[i] = (double)kv_f16_to_f32(
            kv_f32_to_f16((2 * kv_random_unit(seed, i) - 1) * scale));
}

static double *vector(size_t n, uint64_t seed)
{
    double *x = kv_alloc(n, sizeof(*x));

    for (size_t i = 0; i < n; i++)
        x[i] = (double)(2 * kv_random_unit(seed, i) - 1);
    return x;
}

static uint64_t seed_of(size_t layer, size_t part)
{
    return kv_mix(SEED, layer * KV_PARTS + part);
}

/* The parts that form one matrix, one after the other. */
static double *parts(size_t layer, enum kv_part first, size_t n,
                     const size_t *rows, size_t columns)
{
    size_t all = 0;
    double *x;

    for (size_t i = 0; i < n; i++)
        all += rows[i];
    x = kv_alloc(all, columns * sizeof(*x));
    all = 0;
    for (size_t i = 0; i < n; i++) {
        matrix(rows[i], columns, seed_of(layer, first + i), x + all * columns);
        all += rows[i];
    }
    return x;
}

static void times(const double *x, const double *w, size_t rows, size_t columns,
                  double *to)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++)
            to[i] += x[j] * w[i * columns + j];
}

static void norm(const double *x, const double *w, double *to)
{
    double sum = 0;

    for (size_t i = 0; i < HIDDEN; i++)
        sum += x[i] * x[i];
    for (size_t i = 0; i < HIDDEN; i++)
        to[i] = x[i] / sqrt(sum / HIDDEN + 1e-5) * w[i];
}

static void rope(const struct kv_shape *s, double *x, size_t position)
{
    const size_t half = s->head_dim / 2;

    for (size_t i = 0; i < half; i++) {
        const double angle = (double)position * (double)s->inv_freq[i];
        const double a = x[i], b = x[i + half];

        x[i] = a * cos(angle) - b * sin(angle);
        x[i + half] = b * cos(angle) + a * sin(angle);
    }
}

/* One query head over n tokens, the newest of which is in row n - 1. */
static void attend(const struct kv_shape *s, const double *q, const float *k,
                   const float *v, size_t n, double *out)
{
    const size_t row = s->n_kv_heads * s->head_dim;
    double *w = kv_alloc(n, sizeof(*w)), max = -INFINITY, sum = 0;

    for (size_t t = 0; t < n; t++) {
        for (size_t c = 0; c < s->head_dim; c++)
            w[t] += q[c] * (double)k[t * row + c] * (double)s->attn_scale;
        max = fmax(max, w[t]);
    }
    for (size_t t = 0; t < n; t++)
        sum += w[t] = exp(w[t] - max);
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < s->head_dim; c++)
            out[c] += w[t] / sum * (double)v[t * row + c];
    free(w);
}

/* qkv [heads + 2 kv heads][d] to out [heads][d]; the newest token of k and v
 * [n][kv heads][d] is written. */
static void attention(const struct kv_shape *s, double *qkv, float *k, float *v,
                      size_t n, double *out)
{
    const size_t d = s->head_dim, row = s->n_kv_heads * d;
    double *keys = qkv + s->n_heads * d, *values = keys + row;

    for (size_t h = 0; h < s->n_heads + s->n_kv_heads; h++)
        rope(s, qkv + h * d, n - 1);
    for (size_t i = 0; i < row; i++) {
        k[(n - 1) * row + i] = (float)keys[i];
        v[(n - 1) * row + i] = (float)values[i];
    }
    for (size_t h = 0; h < s->n_heads; h++) {
        const size_t at = h / (s->n_heads / s->n_kv_heads) * d;

        attend(s, qkv + h * d, k + at, v + at, n, out + h * d);
    }
}

static void mlp(const double *y, const double *gate_up, const double *down,
                double *x)
{
    double both[2 * INTER] = {0}, gated[INTER];

    times(y, gate_up, 2 * INTER, HIDDEN, both);
    for (size_t i = 0; i < INTER; i++)
        gated[i] = both[i] / (1 + exp(-both[i])) * both[INTER + i];
    times(gated, down, HIDDEN, INTER, x);
}

/* Sequence `index` of `batch`; k, v: the cache, whose newest token is
 * replaced. */
static void model(const struct kv_config *c, size_t batch, size_t index,
                  float *k, float *v, size_t n, double *logits)
{
    const struct kv_shape *s = &c->shape;
    const size_t q = s->n_heads * s->head_dim;
    const size_t kv = s->n_kv_heads * s->head_dim, all = q + 2 * kv;
    const size_t qkv_rows[] = {q, kv, kv}, gate_rows[] = {INTER, INTER};
    const size_t hidden[] = {HIDDEN};
    double *weight = vector(HIDDEN, seed_of(LAYERS, 0));
    double *head = kv_alloc(VOCAB * HIDDEN, sizeof(*head));
    double *x = vector(batch * HIDDEN, seed_of(LAYERS, 2));
    double *mine = x + index * HIDDEN, y[HIDDEN];

    matrix(VOCAB, HIDDEN, seed_of(LAYERS, 1), head);
    for (size_t i = 0; i < LAYERS; i++) {
        double *w_qkv = parts(i, KV_P_Q, 3, qkv_rows, HIDDEN);
        double *w_out = parts(i, KV_P_O, 1, hidden, q);
        double *w_gate_up = parts(i, KV_P_GATE, 2, gate_rows, HIDDEN);
        double *w_down = parts(i, KV_P_DOWN, 1, hidden, INTER);
        double *attn_norm = vector(HIDDEN, seed_of(i, KV_P_ATTN_NORM));
        double *mlp_norm = vector(HIDDEN, seed_of(i, KV_P_MLP_NORM));
        double *qkv = kv_alloc(all, sizeof(*qkv));
        double *out = kv_alloc(q, sizeof(*out));

        norm(mine, attn_norm, y);
        times(y, w_qkv, all, HIDDEN, qkv);
        attention(s, qkv, k, v, n, out);
        times(out, w_out, HIDDEN, q, mine);
        norm(mine, mlp_norm, y);
        mlp(y, w_gate_up, w_down, mine);
        free(out);
        free(qkv);
        free(mlp_norm);
        free(attn_norm);
        free(w_down);
        free(w_gate_up);
        free(w_out);
        free(w_qkv);
    }
    norm(mine, weight, y);
    memset(logits, 0, VOCAB * sizeof(*logits));
    times(y, head, VOCAB, HIDDEN, logits);
    free(weight);
    free(head);
    free(x);
}

/* ---- tests ----------------------------------------------------------------
 */

static void check(const float *got, const double *want)
{
    double e2 = 0, x2 = 0;

    for (size_t i = 0; i < VOCAB; i++) {
        const double x = (double)got[i];

        e2 += (x - want[i]) * (x - want[i]);
        x2 += want[i] * want[i];
    }
    /* a dozen roundings to halves one after the other, 3e-4 each */
    assert_within(sqrt(e2 / x2), 0, 4e-3);
}

/* Two sequences of which the second is a copy; codes, halves, the newest token
 * over whatever the cache held. */
static void test_fused(void **state)
{
    static const struct {
        const char *text;
        size_t n;
    } cases[] = {
        {"f16:r0", 1}, {"f16:r0", 129}, {"f16:s3r9", 150}, {"f16:r0", 200}};
    const struct kv_shape s = synthetic_shape(64);
    const struct kv_config c = config_of(&s);
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const size_t n = cases[i].n, row = s.n_kv_heads * s.head_dim;
        struct tensors x = tensors(&s, n);
        struct kv_codec *k = codec_of(cases[i].text, &s, 0, KV_K);
        struct kv_codec *v = codec_of(cases[i].text, &s, 0, KV_V);
        float *keys = kv_alloc(n, row * sizeof(float));
        float *values = kv_alloc(n, row * sizeof(float));
        float logits[2 * VOCAB];
        double want[VOCAB];
        struct kv_cache *cache;
        struct kv_tile_cache *t;
        struct kv_step *d;
        struct kv_step_caches *caches;

        assert_int_equal(kv_cache_new(&cache, k, v, 1, &e), 0);
        assert_int_equal(append_rows(cache, NULL, x.k, x.v, n, &e), 0);
        t = kv_tile_cache_new(cache);
        kv_tile_cache_update(t);

        const struct kv_tiles_job job = kv_tile_cache_job(t, 1);
        const struct kv_tiles_job jobs[2] = {job, job};

        if (kv_step_new(&d, &c, &device, 2, n, SEED, &e) ||
            kv_step_caches_fused(&caches, &device, jobs, 2, LAYERS,
                                 KV_PATH_EXACT, &e) ||
            kv_step_run(d, caches, logits, &e))
            fail_msg("%s", e.msg);
        for (size_t b = 0; b < 2; b++) {
            kv_cache_decode(cache, KV_K, keys);
            kv_cache_decode(cache, KV_V, values);
            model(&c, 2, b, keys, values, n, want);
            check(logits + b * VOCAB, want);
        }
        kv_step_caches_free(caches);
        kv_step_free(d);
        kv_tile_cache_free(t);
        kv_cache_free(cache);
        kv_codec_free(k);
        kv_codec_free(v);
        free(keys);
        free(values);
        free_tensors(x);
    }
}

/* Its caches are random too; the newest token is one of them. */
static void unfused_side(const struct kv_shape *s, size_t batch, size_t index,
                         size_t n, uint64_t seed, int side, float *x)
{
    const size_t d = s->head_dim, heads = s->n_kv_heads;

    for (size_t t = 0; t < n; t++)
        for (size_t h = 0; h < heads; h++)
            for (size_t c = 0; c < d; c++) {
                const size_t i =
                    (((side * batch + index) * heads + h) * n + t) * d + c;
                const float unit = 2 * kv_random_unit(seed, i) - 1;

                x[(t * heads + h) * d + c] = kv_f16_to_f32(kv_f32_to_f16(unit));
            }
}

/* Only attention, with queries after RoPE. */
static void test_unfused(void **state)
{
    enum { N = 77, BATCH = 2 };
    const struct kv_shape s = synthetic_shape(64);
    const size_t q = s.n_heads * s.head_dim, row = s.n_kv_heads * s.head_dim;
    const size_t bytes = BATCH * q * sizeof(float);
    float *k = kv_alloc(N, row * sizeof(float));
    float *v = kv_alloc(N, row * sizeof(float));
    float *query = kv_alloc(BATCH * q, sizeof(*query));
    float *exact = kv_alloc(q, sizeof(*exact));
    float *got = kv_alloc(BATCH * q, sizeof(*got));
    struct kv_attend_view view = kv_shape_view(&s, N, N - 1, 1);
    struct kv_unfused *u;
    void *queries, *out;
    struct kv_err e = {""};

    (void)state;
    view.n_seqs = BATCH;
    for (size_t i = 0; i < BATCH * q; i++)
        query[i] = (float)kv_random_normal(4, i);
    if (kv_unfused_random(&u, &view, LAYERS, 8, &e) ||
        kv_device_alloc(&queries, bytes, &e) ||
        kv_device_alloc(&out, bytes, &e) ||
        kv_device_upload(queries, query, bytes, &e) ||
        kv_unfused_attend(u, 1, queries, KV_TYPE_F32, out, &e) ||
        kv_device_download(got, out, bytes, &e))
        fail_msg("%s", e.msg);
    for (size_t b = 0; b < BATCH; b++) {
        const struct attention a = {s, N, 1, query + b * q, k, v};

        unfused_side(&s, BATCH, b, N, kv_mix(8, 1), 0, k);
        unfused_side(&s, BATCH, b, N, kv_mix(8, 1), 1, v);
        attend_exact(&a, exact);
        assert_within(rel_err(got + b * q, exact, q), 0, 3e-3);
    }
    kv_device_free(queries);
    kv_device_free(out);
    kv_unfused_free(u);
    free(got);
    free(exact);
    free(query);
    free(k);
    free(v);
}

/* Weights of every type: the same numbers, rounded. */
static void test_random(void **state)
{
    enum { COUNT = 300 };
    float wide[COUNT];
    uint16_t half[COUNT], brain[COUNT];
    void *x;
    struct kv_err e = {""};

    (void)state;
    if (kv_device_alloc(&x, sizeof(wide), &e) ||
        kv_gpu_random(x, COUNT, KV_TYPE_F32, SEED, 0.3F, &e) ||
        kv_device_download(wide, x, sizeof(wide), &e) ||
        kv_gpu_random(x, COUNT, KV_TYPE_F16, SEED, 0.3F, &e) ||
        kv_device_download(half, x, sizeof(half), &e) ||
        kv_gpu_random(x, COUNT, KV_TYPE_BF16, SEED, 0.3F, &e) ||
        kv_device_download(brain, x, sizeof(brain), &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < COUNT; i++) {
        assert_true(wide[i] == (2 * kv_random_unit(SEED, i) - 1) * 0.3F);
        assert_int_equal(half[i], kv_f32_to_f16(wide[i]));
        assert_int_equal(brain[i], kv_f32_to_bf16(wide[i]));
    }
    kv_device_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_unfused),
        cmocka_unit_test(test_random),
    };
    struct kv_err e = {""};

    if (kv_device_cuda(0, &device, &e)) {
        printf("skipped: %s\n", e.msg);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
