/* The loops of eval/loop.h against the literal one, token by token through the
 * cache, for every registered scheme. */
#include "eval/loop.h"
#include "kernels/attend.h"
#include "lib/base/alloc.h"
#include "lib/rope_table.h"
#include "tests/every_scheme.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>
#include <omp.h>

enum { WINDOWS = 2, LENGTH = 100 };

struct windows {
    struct kv_qkv x;
    struct kv_backend *cpu;
    float *q, *k, *k_pre, *v, *out, *rope;
};

static void make_windows(const struct ready *r, struct windows *w)
{
    const size_t n = WINDOWS * LENGTH, row = row_values(r);
    const size_t q_row = r->shape.n_heads * r->shape.head_dim;

    w->q = kv_alloc(n, q_row * sizeof(float));
    w->out = kv_alloc(n, q_row * sizeof(float));
    w->k = kv_alloc(n, row * sizeof(float));
    w->k_pre = kv_alloc(n, row * sizeof(float));
    w->v = kv_alloc(n, row * sizeof(float));
    synthetic_rows(&r->shape, r->shape.n_heads, 51, n, w->q);
    for (size_t i = 0; i < n * q_row; i++)
        w->q[i] *= 0.3f;
    synthetic_rows(&r->shape, r->shape.n_kv_heads, 52, n, w->k_pre);
    synthetic_rows(&r->shape, r->shape.n_kv_heads, 53, n, w->v);
    for (size_t t = 0; t < n; t += 31) /* massive ones */
        for (size_t i = 0; i < row; i++)
            w->v[t * row + i] *= 0.02f;
    memcpy(w->k, w->k_pre, n * row * sizeof(float));
    for (size_t i = 0; i < WINDOWS; i++)
        kv_rope(&r->shape, w->k + i * LENGTH * row, LENGTH, r->shape.n_kv_heads,
                0);
    w->cpu = kv_backend_cpu(KV_TYPE_F32);
    w->rope = kv_alloc(LENGTH, 2 * r->shape.n_rot * sizeof(float));
    kv_rope_table(&r->shape, LENGTH, 0, w->rope);
    w->x = (struct kv_qkv){.shape = &r->shape,
                           .backend = w->cpu,
                           .rope = w->rope,
                           .layer = 1,
                           .n_windows = WINDOWS,
                           .n = LENGTH,
                           .q = w->q,
                           .k = w->k,
                           .k_pre = w->k_pre,
                           .v = w->v,
                           .out = w->out};
}

static void free_windows(struct windows *w)
{
    free(w->q);
    free(w->k);
    free(w->k_pre);
    free(w->v);
    free(w->out);
    free(w->rope);
    kv_backend_free(w->cpu);
}

/* Attention output of a protocol, [WINDOWS * LENGTH][n_heads][head_dim]. */
static float *by_protocol(const struct ready *r, struct windows *w,
                          const char *protocol, struct kv_bits *bits)
{
    const size_t n = WINDOWS * LENGTH * r->shape.n_heads * r->shape.head_dim;
    struct kv_protocol p;
    struct kv_loop *l;
    struct kv_err e = {""};
    float *out = kv_alloc(n, sizeof(*out));

    assert_int_equal(kv_protocol_parse(&p, protocol, false, &e), 0);
    if (kv_loop_new(&l, &r->spec, &r->shape, r->calib, &p, EVERY_SCHEME_SEED,
                    NULL, &e))
        fail_msg("%s", e.msg);

    const struct kv_attention a = kv_loop_attention(l, 0);

    w->x.out = out;
    if (a.run(a.arg, &w->x, &e))
        fail_msg("%s", e.msg);
    if (bits)
        *bits = kv_loop_bits(l);
    kv_loop_free(l);
    return out;
}

/* The literal loop: append one token, attend with its query; the first
 * `prompt` tokens at once, their queries over exact keys and values. */
static float *literally(const struct ready *r, const struct windows *w,
                        size_t prompt)
{
    const struct kv_shape *s = &r->shape;
    const size_t row = row_values(r), q_row = s->n_heads * s->head_dim;
    const float *keys = r->codec[KV_K]->pre_rope ? w->k_pre : w->k;
    float *out = kv_alloc(WINDOWS * LENGTH, q_row * sizeof(*out));
    struct kv_err e;

    for (size_t i = 0; i < WINDOWS; i++) {
        struct kv_cache *c = new_cache(r);
        const size_t at = i * LENGTH;

        if (prompt) {
            assert_int_equal(kv_cache_append(c, w->q + at * q_row,
                                             keys + at * row, w->v + at * row,
                                             prompt, &e),
                             0);
            if (r->codec[KV_K]->prefill_on_codes)
                kv_cache_attend(c, kv_cache_view(c, prompt), w->q + at * q_row,
                                out + at * q_row);
            else
                kv_attend_c(&(struct kv_attend_job){
                    .view = kv_shape_view(s, prompt, 0, prompt),
                    .q = w->q + at * q_row,
                    .out = out + at * q_row,
                    .q_rows = prompt,
                    .k = {.unquantized = w->k + at * row},
                    .v = {.unquantized = w->v + at * row},
                });
        }
        for (size_t t = at + prompt; t < at + LENGTH; t++) {
            assert_int_equal(kv_cache_append(c, w->q + t * q_row,
                                             keys + t * row, w->v + t * row, 1,
                                             &e),
                             0);
            kv_cache_attend(c, kv_cache_view(c, 1), w->q + t * q_row,
                            out + t * q_row);
        }
        kv_cache_free(c);
    }
    return out;
}

static void assert_close(const struct ready *r, const char *what,
                         const float *a, const float *b)
{
    const size_t n = WINDOWS * LENGTH * r->shape.n_heads * r->shape.head_dim;
    double diff = 0, size = 0;

    for (size_t i = 0; i < n; i++) {
        diff += pow((double)a[i] - (double)b[i], 2);
        size += pow((double)b[i], 2);
    }
    if (!(sqrt(diff / size) < 2e-6))
        fail_msg("%s: %s: relative difference %g", r->spec.text, what,
                 sqrt(diff / size));
}

static void check_stream(struct ready *r)
{
    struct windows w;

    make_windows(r, &w);
    for (size_t prompt = 0; prompt <= 70; prompt += 70) {
        float *loop =
            by_protocol(r, &w, prompt ? "prefill:70" : "stream", NULL);
        float *literal = literally(r, &w, prompt);

        assert_close(r, prompt ? "prefill:70" : "stream", loop, literal);
        free(literal);
        free(loop);
    }
    free_windows(&w);
}

/* As layer 1 of this shape: the codec's shape, the pass's and the view's. */
static void check_layer(const struct ready *r, const char *what)
{
    struct ready s = *r;
    struct windows w;
    struct kv_err e;
    float *loop, *literal;

    for (enum kv_side side = KV_K; side < KV_SIDES; side++)
        assert_int_equal(kv_codec_new(&s.codec[side], &s.spec, &s.shape, 1,
                                      side, s.calib, &e),
                         0);
    s.shape = kv_shape_layer(&s.shape, 1);
    make_windows(&s, &w);
    for (size_t prompt = 0; prompt <= 70; prompt += 70) {
        loop = by_protocol(&s, &w, prompt ? "prefill:70" : "stream", NULL);
        literal = literally(&s, &w, prompt);
        assert_close(&s, what, loop, literal);
        free(literal);
        free(loop);
    }
    free_windows(&w);
    for (int side = 0; side < KV_SIDES; side++)
        kv_codec_free(s.codec[side]);
}

/* In a layer that slides, with RoPE of its own and a soft cap. */
static void check_sliding(struct ready *r)
{
    struct ready s = *r;

    s.shape.slides[0] = 1 << 1;
    s.shape.slide_window = 24;
    s.shape.cap = 3;
    for (size_t i = 0; i < s.shape.n_rot; i++)
        s.shape.slide_freq[i] = s.shape.inv_freq[i] / 2;
    check_layer(&s, "prefill:70 in a layer that slides");
}

static void check_alibi(struct ready *r)
{
    struct ready s = *r;

    s.shape.alibi = true;
    s.shape.n_rot = 0;
    for (size_t i = 0; i < s.shape.n_heads; i++)
        s.shape.slope[i] = 1 / (float)(i + 1);
    check_layer(&s, "prefill:70 with ALiBi");
}

static void test_sliding(void **state)
{
    (void)state;
    every(check_sliding);
}

static void test_alibi(void **state)
{
    (void)state;
    every(check_alibi);
}

static void test_stream(void **state)
{
    (void)state;
    every(check_stream);
}

static void check_all_is_stream(struct ready *r)
{
    struct windows w;
    float *all, *stream;

    if (r->codec[KV_K]->block != 1 || r->codec[KV_V]->block != 1 ||
        kv_spec_size(&r->spec, KV_K, "r") || kv_spec_size(&r->spec, KV_V, "r"))
        return;
    make_windows(r, &w);
    all = by_protocol(r, &w, "all", NULL);
    stream = by_protocol(r, &w, "stream", NULL);
    assert_close(r, "all against stream", all, stream);
    free(stream);
    free(all);
    free_windows(&w);
}

static void test_all_is_stream(void **state)
{
    (void)state;
    every(check_all_is_stream);
}

static void check_threads(struct ready *r)
{
    const char *const protocols[] = {"all", "stream:3", "prefill:33"};
    const size_t n = WINDOWS * LENGTH * r->shape.n_heads * r->shape.head_dim;
    const int before = omp_get_max_threads();
    struct windows w;

    make_windows(r, &w);
    for (size_t i = 0; i < 3; i++) {
        struct kv_bits one_bits, two_bits;
        float *one, *two;

        omp_set_num_threads(1);
        one = by_protocol(r, &w, protocols[i], &one_bits);
        omp_set_num_threads(2);
        two = by_protocol(r, &w, protocols[i], &two_bits);
        if (memcmp(one, two, n * sizeof(*one)) != 0 ||
            one_bits.bytes != two_bits.bytes)
            fail_msg("%s %s: 1 and 2 threads differ", r->spec.text,
                     protocols[i]);
        free(two);
        free(one);
    }
    omp_set_num_threads(before);
    free_windows(&w);
}

static void test_threads(void **state)
{
    (void)state;
    every(check_threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream),  cmocka_unit_test(test_sliding),
        cmocka_unit_test(test_alibi),   cmocka_unit_test(test_all_is_stream),
        cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, prepare_every, release_every);
}
