/* kv_measure() on a synthetic dump, over every scheme. */
#include "tests/measure_setup.h"

static void test_f32_is_exact(void **state)
{
    struct kv_dump *dump = example(true, false);
    struct kv_err e = {""};
    struct kv_spec spec;
    struct kv_measure_plan plan = {.dump = dump,
                                   .spec = &spec,
                                   .n_specs = 1,
                                   .memory = 1 << 30,
                                   .n_queries = CTX};
    struct kv_measured *out;

    (void)state;
    assert_int_equal(kv_spec_parse(&spec, "f32", &e), 0);
    assert_int_equal(kv_spec_fit(&spec, &kv_dump_info(dump)->shape, &e), 0);
    out = measure(&plan);
    for (size_t layer = 0; layer < N_LAYERS; layer++) {
        const struct kv_measured *m = &out[layer];

        for (int side = 0; side < KV_SIDES; side++) {
            assert_true(kv_reconstruction_mse(&m->reconstruction[side]) == 0);
            assert_int_equal(m->reconstruction[side].n_values,
                             N_WINDOWS * CTX * 2 * 64);
            assert_true(m->bits[side].bytes == 4 * m->bits[side].values);
        }
        assert_true(kv_attn_error_logit(&m->attn) == 0);
        assert_true(kv_attn_error_kl(&m->attn) == 0);
        assert_true(kv_attn_error_out(&m->attn, KV_ATTN_BOTH) == 0);
        assert_true(m->attn.n_rows == N_WINDOWS * CTX * 4);
    }
    free(out);
    kv_dump_close(dump);
}

static struct kv_attn_error one_window(const struct kv_shape *shape,
                                       const struct kv_cache *cache,
                                       const float *q, const float *k,
                                       const float *v, const float *ks,
                                       const float *vs)
{
    const size_t row = shape->n_heads * shape->head_dim;
    const struct kv_reader rk = kv_cache_reader(cache, KV_K);
    const struct kv_reader rv = kv_cache_reader(cache, KV_V);
    const struct kv_scheme *scheme = rk.codec->scheme;
    float *own = kv_alloc(CTX * row, sizeof(*own));
    struct kv_attn_error sum = {0};
    size_t at[CTX];
    struct kv_attn_window w = {.view = kv_shape_view(shape, CTX, 0, 0),
                               .q = q,
                               .k = k,
                               .v = v,
                               .k_stored = ks,
                               .v_stored = vs,
                               .at = at,
                               .n_at = kv_attn_positions(CTX, N_QUERIES, at)};

    for (size_t a = 0; a < w.n_at && scheme->attend; a++) {
        const struct kv_attend_view view = kv_shape_view(shape, CTX, at[a], 1);

        scheme->attend(&rk, &rv, &view, q + at[a] * row, 9, own + a * row,
                       NULL);
    }
    if (scheme->attend)
        w.own = own;
    kv_attn_error_add(&sum, &w);
    free(own);
    return sum;
}

/* The coefficients of one window's quantized tokens, a token at a time; power:
 * [2 * 64], added to.  Returns their squared error. */
static double coefficients_by_hand(const struct kv_cache *cache,
                                   enum kv_side side, const float *x,
                                   const float *stored, double *power)
{
    const struct kv_reader r = kv_cache_reader(cache, side);
    const size_t end = r.sinks + r.n_blocks * r.codec->block;
    float a[2 * 64], b[2 * 64];
    double window[2 * 64] = {0}, error = 0;

    for (size_t t = r.sinks; t < end; t++) {
        r.codec->scheme->coefficients(r.codec, x + t * 128, 1, a);
        r.codec->scheme->coefficients(r.codec, stored + t * 128, 1, b);
        for (size_t i = 0; i < 128; i++) {
            window[i] += (double)a[i] * (double)a[i];
            error += pow((double)b[i] - (double)a[i], 2);
        }
    }
    for (size_t i = 0; i < 128; i++)
        power[i] += window[i];
    return error;
}

static double bound_by_hand(const struct kv_codec *c, const double *power,
                            double tokens)
{
    double mean[2 * 64];

    for (size_t i = 0; i < 128; i++)
        mean[i] = power[i] / tokens;
    return tokens * kv_rd_bound(mean, 128, (double)(8 * c->block_bytes));
}

/* Measures one layer in the plainest way: a cache per window, in order. */
static struct kv_measured literal(const struct kv_dump_info *info,
                                  const struct kv_spec *spec,
                                  const struct kv_calib *calib, size_t layer)
{
    const size_t window = CTX * info->shape.n_kv_heads * info->shape.head_dim;
    float *x[KV_TENSORS], *ks = kv_alloc(window, sizeof(*ks));
    float *vs = kv_alloc(window, sizeof(*vs));
    struct kv_measured sum = {0};
    struct kv_err e = {""};
    struct kv_codec *codec[KV_SIDES], *k, *v;
    double power[KV_SIDES][2 * 64] = {{0}};
    const struct kv_shape shape = kv_shape_layer(&info->shape, layer);

    for (int t = 0; t < KV_TENSORS; t++)
        x[t] = tensor(info, layer, (enum kv_tensor)t);
    assert_int_equal(
        kv_codec_new(&codec[KV_K], spec, &info->shape, layer, KV_K, calib, &e),
        0);
    assert_int_equal(
        kv_codec_new(&codec[KV_V], spec, &info->shape, layer, KV_V, calib, &e),
        0);
    k = codec[KV_K];
    v = codec[KV_V];
    for (size_t w = 0; w < N_WINDOWS; w++) {
        const float *kin = x[kv_dump_tensor(k)] + w * window;
        const float *vin = x[KV_T_V] + w * window;
        const float *q = x[KV_T_Q] + 2 * w * window;
        struct kv_measured m = {0};
        struct kv_cache *cache;

        assert_int_equal(kv_cache_new(&cache, k, v, 9, &e), 0);
        assert_int_equal(append_rows(cache, q, kin, vin, CTX, &e), 0);
        kv_cache_decode(cache, KV_K, ks);
        kv_cache_decode(cache, KV_V, vs);
        kv_reconstruction_add(&m.reconstruction[KV_K], kin, ks, CTX * 2, 64);
        kv_reconstruction_add(&m.reconstruction[KV_V], vin, vs, CTX * 2, 64);
        for (int side = 0; side < KV_SIDES; side++) {
            size_t bytes, tokens;

            m.bits[side].bytes = (double)kv_cache_bytes(
                cache, (enum kv_side)side, &bytes, &tokens);
            m.bits[side].values = (double)kv_shape_seen(&shape, CTX) * 2 * 64;
            m.bits[side].kept_values = m.bits[side].values;
            m.bits[side].quantized_bytes = (double)bytes;
            m.bits[side].quantized_values = (double)tokens * 2 * 64;
            m.bits[side].coded[side] =
                (double)kv_quantized(codec[side], CTX) * 2 * 64;
            if (spec->scheme->coefficients)
                m.rd_error[side] = coefficients_by_hand(
                    cache, (enum kv_side)side, side == KV_K ? kin : vin,
                    side == KV_K ? ks : vs, power[side]);
        }
        kv_codec_rotate(k, ks, CTX);
        m.attn =
            one_window(&shape, cache, q, x[KV_T_K] + w * window, vin, ks, vs);
        kv_measured_merge(&sum, &m);
        kv_cache_free(cache);
    }
    for (int side = 0; side < KV_SIDES; side++) {
        const double tokens = sum.bits[side].quantized_values / 128;

        if (spec->scheme->coefficients && tokens > 0)
            sum.rd_bound[side] =
                bound_by_hand(codec[side], power[side], tokens);
        kv_codec_free(codec[side]);
    }
    for (int t = 0; t < KV_TENSORS; t++)
        free(x[t]);
    free(ks);
    free(vs);
    return sum;
}

static void check_literal(struct kv_measure_plan *plan)
{
    const struct kv_dump_info *info = kv_dump_info(plan->dump);
    struct kv_measured *out = measure(plan);

    for (size_t s = 0; s < plan->n_specs; s++)
        for (size_t i = 0; i < N_LAYERS; i++) {
            const struct kv_measured m =
                literal(info, &plan->spec[s], plan->calib, 1 + i);

            if (memcmp(&m, &out[s * N_LAYERS + i], sizeof(m)))
                fail_msg("%s, layer %zu differs", plan->spec[s].text, 1 + i);
        }
    free(out);
}

static void check_every_scheme(struct kv_dump_info of)
{
    struct kv_dump *dump = dump_of(of);
    const struct kv_dump_info *info = kv_dump_info(dump);
    struct kv_spec spec[MAX_SPECS];
    struct kv_measure_plan plan = {.dump = dump,
                                   .spec = spec,
                                   .n_specs = every_spec(&info->shape, spec),
                                   .seed = 9,
                                   .memory = 1 << 30,
                                   .n_queries = N_QUERIES};

    check_literal(&plan);
    for (size_t i = 0; kv_schemes[i]; i++) {
        struct kv_err e = {""};
        struct kv_calib *calib;

        if (!kv_schemes[i]->training)
            continue;
        assert_int_equal(kv_spec_parse(&spec[0], kv_schemes[i]->name, &e), 0);
        if (kv_spec_reads_below(&spec[0])) /* no layer can be decoded alone */
            continue;
        for (size_t j = 0; j < 2; j++) {
            char text[64];

            snprintf(text, sizeof(text), "%s%s", kv_schemes[i]->name,
                     j ? ":s2r3" : "");
            assert_int_equal(kv_spec_parse(&spec[j], text, &e), 0);
            assert_int_equal(kv_spec_fit(&spec[j], &info->shape, &e), 0);
        }
        calib = synthetic_calib(&info->shape, spec, test_folder());
        plan.calib = calib;
        plan.n_specs = 2;
        check_literal(&plan);
        kv_calib_free(calib);
    }
    kv_dump_close(dump);
}

static void test_equals_the_literal_loop(void **state)
{
    (void)state;
    check_every_scheme(example_info());
}

static void test_layers_that_slide(void **state)
{
    (void)state;
    check_every_scheme(sliding_info());
}

static void test_alibi(void **state)
{
    struct kv_dump_info info = example_info();

    (void)state;
    info.shape.alibi = true;
    info.shape.n_rot = 0;
    memset(info.shape.inv_freq, 0, sizeof(info.shape.inv_freq));
    for (size_t i = 0; i < info.shape.n_heads; i++)
        info.shape.slope[i] = 0.5f / (float)(i + 1);
    check_every_scheme(info);
}

static void test_any_threads_and_memory(void **state)
{
    struct kv_dump *dump = example(true, true);
    struct kv_spec spec[MAX_SPECS];
    struct kv_measure_plan plan = {
        .dump = dump,
        .spec = spec,
        .n_specs = every_spec(&kv_dump_info(dump)->shape, spec),
        .seed = 5,
        .memory = 1 << 30,
        .n_queries = N_QUERIES};
    struct kv_measured *a, *b;
    const int threads = omp_get_max_threads();

    (void)state;
    omp_set_num_threads(1);
    a = measure(&plan);
    omp_set_num_threads(3);
    plan.memory = 0; /* one window at a time */
    b = measure(&plan);
    omp_set_num_threads(threads);
    assert_memory_equal(a, b, plan.n_specs * N_LAYERS * sizeof(*a));
    free(a);
    free(b);
    kv_dump_close(dump);
}

/* Each layer counts a part of a table that all layers share; the parts add
 * up. */
static void test_shared_bytes(void **state)
{
    const struct kv_shape shape = synthetic_shape(64);
    const size_t dims[] = {3, 5};
    struct kv_calib_set set = {.n_tables = 0};
    const struct kv_calib calib = {.set = &set, .n_sets = 1};
    struct kv_err e = {""};
    struct kv_spec spec;
    struct kv_bits all = {0};
    double sum = 0;

    (void)state;
    assert_int_equal(kv_spec_parse(&spec, "million", &e), 0);
    kv_spec_calib_key(&spec, set.key);
    kv_calib_add(&set, "codebook", KV_K, KV_ALL, KV_ALL, 2, dims);
    kv_calib_add(&set, "codebook", KV_V, KV_ALL, KV_ALL, 2, dims);
    kv_calib_add(&set, "smooth", KV_K, 1, KV_ALL, 2, dims);
    kv_bits_of_spec(&all, &spec, &shape, &calib, KV_ALL, KV_ALL);
    assert_true(all.shared_bytes == 3 * 60);
    for (size_t l = 0; l < shape.n_layers; l++) {
        struct kv_bits one = {0};

        kv_bits_of_spec(&one, &spec, &shape, &calib, (int)l, KV_K);
        assert_true(one.shared_bytes ==
                    60. / (double)shape.n_layers + (l == 1 ? 60 : 0));
        kv_bits_of_spec(&one, &spec, &shape, &calib, (int)l, KV_ALL);
        sum += one.shared_bytes;
    }
    assert_true(sum == all.shared_bytes);
    kv_calib_set_clear(&set);
}

static void test_missing_queries(void **state)
{
    struct kv_dump *dump = example(false, false);
    struct kv_measured out[N_LAYERS];
    struct kv_err e = {""};
    struct kv_spec spec, needs;
    struct kv_measure_plan plan = {
        .dump = dump, .spec = &spec, .n_specs = 1, .n_queries = 1};
    struct kv_calib *calib;

    (void)state;
    assert_int_equal(kv_spec_parse(&spec, "f32", &e), 0);
    assert_int_equal(kv_spec_fit(&spec, &kv_dump_info(dump)->shape, &e), 0);
    assert_int_equal(kv_measure(&plan, out, &e), -1);
    assert_says(e, "has no q");
    assert_says(e, kv_dump_path(dump));

    plan.n_queries = 0;
    plan.spec = &needs;
    for (size_t i = 0; kv_schemes[i]; i++) {
        if (!kv_schemes[i]->probe)
            continue;
        assert_int_equal(kv_spec_parse(&needs, kv_schemes[i]->name, &e), 0);
        assert_int_equal(kv_spec_fit(&needs, &kv_dump_info(dump)->shape, &e),
                         0);
        calib = kv_schemes[i]->training
                    ? synthetic_calib(&kv_dump_info(dump)->shape, &needs,
                                      test_folder())
                    : NULL;
        plan.calib = calib;
        assert_int_equal(kv_measure(&plan, out, &e), -1);
        assert_says(e, "has no queries, which");
        assert_says(e, needs.text);
        kv_calib_free(calib);
    }
    plan.calib = NULL;

    assert_int_equal(kill(getpid(), SIGINT), 0);
    while (!kv_interrupted(&e)) /* it is handled on another thread */
        usleep(1000);
    plan.spec = &spec;
    assert_int_equal(kv_measure(&plan, out, &e), -1);
    assert_says(e, "interrupted");
    kv_dump_close(dump);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32_is_exact),
        cmocka_unit_test(test_equals_the_literal_loop),
        cmocka_unit_test(test_layers_that_slide),
        cmocka_unit_test(test_alibi),
        cmocka_unit_test(test_any_threads_and_memory),
        cmocka_unit_test(test_shared_bytes),
        cmocka_unit_test(test_missing_queries), /* last: it interrupts */
    };

    kv_catch_signals();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
