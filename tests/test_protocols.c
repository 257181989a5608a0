/* The loops of eval/loop.h against the literal one, token by token through the
 * cache, for every registered scheme. */
#include "eval/loop.h"
#include "kernels/attend.h"
#include "lib/base/alloc.h"
#include "lib/rope_table.h"
#include "lib/scheme.h"
#include "tests/protocol_setup.h"

#include <omp.h>

/* The plain loop: it appends one token and attends with the token's query.  The
 * first `prompt` tokens are appended together; their queries attend over exact
 * keys and values. */
static float *literally(const struct ready *r, const struct windows *w,
                        size_t prompt)
{
    const struct kv_shape *s = &r->shape;
    const size_t row = row_values(r), q_row = s->n_heads * s->head_dim;
    const struct kv_tokens all = {.k = w->k, .k_pre = w->k_pre};
    const float *keys = kv_tokens_stored(&all, r->codec[KV_K]);
    float *out = kv_alloc(WINDOWS * LENGTH, q_row * sizeof(*out));
    struct kv_err e;

    for (size_t i = 0; i < WINDOWS; i++) {
        struct kv_cache *c = new_cache(r);
        const size_t at = i * LENGTH;

        if (prompt) {
            assert_int_equal(append_all(c, w->q + at * q_row, keys + at * row,
                                        w->v + at * row, prompt, &e),
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
            assert_int_equal(append_all(c, w->q + t * q_row, keys + t * row,
                                        w->v + t * row, 1, &e),
                             0);
            kv_cache_attend(c, kv_cache_view(c, 1), w->q + t * q_row,
                            out + t * q_row);
        }
        kv_cache_free(c);
    }
    return out;
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

/* The shape of this layer, for the codec, the pass and the view. */
static void check_layer(const struct ready *r, const char *what)
{
    struct ready s = *r;
    struct windows w;
    struct kv_err e;
    float *loop, *literal;

    for (enum kv_side side = KV_K; side < KV_SIDES; side++)
        assert_int_equal(kv_codec_new(&s.codec[side], &s.spec, &s.shape,
                                      s.layer, side, s.calib, &e),
                         0);
    s.shape = kv_shape_layer(&s.shape, s.layer);
    s.shape.k_bias = r->shape.k_bias; /* the loop takes the layer's */
    s.shape.sink_logit = r->shape.sink_logit;
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

/* In a sliding layer with its own RoPE, and with a soft cap and sink logits,
 * which are the same in all layers. */
static void check_sliding(struct ready *r)
{
    static const float sink_logit[] = {0, 1, 2, -1, 0, 1, 2, -1};
    struct ready s = *r;

    if (r->lower)
        return; /* no layer slides */
    s.shape.sink_logit = sink_logit;
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
    every_third(0, check_sliding);
}

static void test_alibi(void **state)
{
    (void)state;
    every_third(1, check_alibi);
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

/* The magnitude from which fp16 rounds to infinity. */
static void test_beyond(void **state)
{
    const float x[] = {65504, 65519.996f, 65520, -65519.996f, -65520, 3e38f, 0};

    (void)state;
    assert_int_equal(kv_beyond_f16(x, sizeof(x) / sizeof(*x)), 3);
    assert_int_equal(kv_beyond_f16(x, 2), 0);
}

enum { EVERY = 9 }; /* token of a window has values beyond fp16 */

/* 2 of a key, before RoPE and after it, and 1 of a value. */
static void plant(const struct ready *r, struct windows *w)
{
    for (size_t t = 0; t < WINDOWS * LENGTH; t++) {
        const size_t at = t * row_values(r);

        if (t % LENGTH % EVERY)
            continue;
        w->k[at] = w->k_pre[at + 1] = -7e4f;
        w->k[at + 3] = w->k_pre[at + 4] = 1e5f;
        w->v[at + 2] = 6.6e4f;
        w->v[at + 5] = 6.5e4f; /* not beyond */
    }
}

static size_t coded(const struct kv_codec *c)
{
    return c->history ? LENGTH - kv_spec_size(&c->spec, c->side, "s")
                      : kv_quantized(c, LENGTH);
}

/* The numbers of clipped and of coded values in each window and layer. */
static void check_counts(struct ready *r)
{
    const char *const protocols[] = {"all", "stream:7"};
    const size_t layers = r->lower ? r->layer + 1 : 1;
    const size_t tokens = WINDOWS * layers * ((LENGTH + EVERY - 1) / EVERY);
    const int before = omp_get_max_threads();
    size_t clipped = 0;
    struct windows w;

    for (int side = 0; side < KV_SIDES; side++)
        if (!r->codec[side]->scheme->wide)
            clipped += side == KV_K ? 2 * tokens : tokens;
    make_windows(r, &w);
    plant(r, &w);
    for (int i = 0; i < 2; i++) {
        struct kv_bits bits;

        omp_set_num_threads(i + 1);
        free(by_protocol(r, &w, protocols[i], &bits));
        if (bits.clipped != (double)clipped)
            fail_msg("%s %s: %g values are clipped, not %zu", r->spec.text,
                     protocols[i], bits.clipped, clipped);
        for (int side = 0; side < KV_SIDES; side++)
            if (bits.coded[side] != (double)(WINDOWS * layers * row_values(r) *
                                             coded(r->codec[side])))
                fail_msg("%s %s: %g values of %c became codes", r->spec.text,
                         protocols[i], bits.coded[side],
                         kv_side_name((enum kv_side)side));
    }
    omp_set_num_threads(before);
    free_windows(&w);
}

static void test_counts(void **state)
{
    (void)state;
    every(check_counts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream),  cmocka_unit_test(test_sliding),
        cmocka_unit_test(test_alibi),   cmocka_unit_test(test_all_is_stream),
        cmocka_unit_test(test_threads), cmocka_unit_test(test_beyond),
        cmocka_unit_test(test_counts),
    };

    return cmocka_run_group_tests(tests, prepare_every, release_every);
}
