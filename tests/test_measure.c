/* kv_measure() on a synthetic dump, over every scheme. */
#include "lib/scheme.h"
#include "tests/append_rows.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include "eval/measure.h"
#include "eval/rd_bound.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/h5.h"
#include "lib/mixed.h"
#include "lib/rope_table.h"
#include "lib/seq/bits.h"
#include "lib/seq/cache.h"
#include "lib/seq/codes_file.h"

#include <math.h>
#include <omp.h>
#include <signal.h>
#include <unistd.h>

enum { N_LAYERS = 2, N_WINDOWS = 3, CTX = 37, N_QUERIES = 7, MAX_SPECS = 128 };

/* Layers 1 and 2 of three. */
static struct kv_dump_info example_info(void)
{
    struct kv_dump_info info = {.model = "example",
                                .model_hash = "00",
                                .text = "none",
                                .shape = synthetic_shape(64),
                                .n_windows = N_WINDOWS,
                                .ctx = CTX,
                                .first_layer = 1,
                                .last_layer = N_LAYERS,
                                .have = {true, true, true, true}};

    info.shape.n_layers = 3;
    return info;
}

/* The same where layer 1 slides, with RoPE of its own, layer 2 has none, and
 * scores are capped; and with sink logits. */
static struct kv_dump_info sliding_info(void)
{
    static const float sink_logit[] = {0, 0, 0, 0, 1, 2, -1, 3, 5, -2, 1, 0};
    struct kv_dump_info info = example_info();

    info.shape.sink_logit = sink_logit;
    info.shape.cap = 3;
    info.shape.slides[0] = 1 << 1;
    info.shape.slide_window = 11;
    info.shape.still[0] = 1 << 2;
    for (size_t i = 0; i < info.shape.n_rot; i++)
        info.shape.slide_freq[i] = info.shape.inv_freq[i] / 3;
    return info;
}

/* [N_WINDOWS][CTX][heads][head_dim]; k is k_pre rotated. */
static float *tensor(const struct kv_dump_info *info, size_t layer,
                     enum kv_tensor t)
{
    const size_t heads =
        t == KV_T_Q ? info->shape.n_heads : info->shape.n_kv_heads;
    const size_t window = CTX * heads * info->shape.head_dim;
    const uint64_t key =
        kv_mix(layer, (uint64_t)(t == KV_T_K ? KV_T_K_PRE : t));
    const struct kv_shape shape = kv_shape_layer(&info->shape, layer);
    float *x = kv_alloc(N_WINDOWS * window, sizeof(*x));

    for (size_t i = 0; i < N_WINDOWS * window; i++)
        x[i] = (float)kv_random_normal(key, i);
    for (size_t w = 0; w < N_WINDOWS && t == KV_T_K; w++)
        kv_rope(&shape, x + w * window, CTX, heads, 0);
    return x;
}

static struct kv_dump *dump_of(struct kv_dump_info info)
{
    const int32_t tokens[N_WINDOWS * CTX] = {0};
    struct kv_err e = {""};
    struct kv_dump_writer *w;
    struct kv_dump *dump;
    char path[5000];

    snprintf(path, sizeof(path), "%s/dump.h5", test_folder());
    assert_int_equal(kv_dump_create(&w, path, &info, &e), 0);
    assert_int_equal(kv_dump_put_tokens(w, 0, N_WINDOWS, tokens, &e), 0);
    for (size_t layer = 1; layer <= N_LAYERS; layer++)
        for (int t = 0; t < KV_TENSORS; t++) {
            float *x = tensor(&info, layer, (enum kv_tensor)t);

            if (info.have[t])
                assert_int_equal(kv_dump_put(w, layer, (enum kv_tensor)t, 0,
                                             N_WINDOWS, x, &e),
                                 0);
            free(x);
        }
    assert_int_equal(kv_dump_commit(w, &e), 0);
    assert_int_equal(kv_dump_open(&dump, path, &e), 0);
    unlink(path); /* stays readable while it is open */
    return dump;
}

static struct kv_dump *example(bool with_q, bool with_k_pre)
{
    struct kv_dump_info info = example_info();

    info.have[KV_T_Q] = with_q;
    info.have[KV_T_K_PRE] = with_k_pre;
    return dump_of(info);
}

/* Every scheme without calibration, with its defaults, at r0, and, where it has
 * a letter n, with blocks of 16 tokens; returns the number. */
static size_t every_spec(const struct kv_shape *shape, struct kv_spec *spec)
{
    const char *const letters[] = {"", ":r0", ":n16r0"};
    struct kv_err e = {""};
    size_t n = 0;

    for (size_t i = 0; kv_schemes[i]; i++)
        for (int j = 0; j < 3; j++) {
            struct kv_spec *s = &spec[n];
            char text[64];

            if (kv_schemes[i]->training)
                continue;
            assert_true(n < MAX_SPECS);
            snprintf(text, sizeof(text), "%s%s", kv_schemes[i]->name,
                     letters[j]);
            if (kv_spec_parse(s, text, &e)) {
                assert_int_equal(j, 2); /* it has no n */
                continue;
            }
            assert_int_equal(kv_spec_fit(s, shape, &e), 0);
            n++;
        }
    return n;
}

static struct kv_measured *measure(struct kv_measure_plan *plan)
{
    struct kv_measured *out = kv_alloc(plan->n_specs * N_LAYERS, sizeof(*out));
    struct kv_err e = {""};

    if (kv_measure(plan, out, &e))
        fail_msg("%s", e.msg);
    return out;
}

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

/* One layer by hand: a cache per window, in order. */
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
        if (kv_spec_reads_below(&spec[0])) /* no layer stands alone */
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

/* Of all windows of a place: one dataset, or one for each window. */
static double bytes_in_file(struct kv_h5 *h, const char *place)
{
    size_t n_dims, dims[KV_H5_MAX_DIMS];
    char name[96];
    double bytes = 0;
    struct kv_err e;

    snprintf(name, sizeof(name), "%s/window_000", place);
    if (!kv_h5_has(h, name)) {
        assert_int_equal(kv_h5_dims(h, place, &n_dims, dims, &e), 0);
        assert_int_equal(n_dims, 2);
        assert_int_equal(dims[0], N_WINDOWS);
        return (double)(dims[0] * dims[1]);
    }
    for (size_t w = 0; w < N_WINDOWS; w++) {
        snprintf(name, sizeof(name), "%s/window_%03zu", place, w);
        assert_int_equal(kv_h5_dims(h, name, &n_dims, dims, &e), 0);
        assert_int_equal(n_dims, 1);
        bytes += (double)dims[0];
    }
    return bytes;
}

/* By which a value is massive where it is longer than layer 1's first. */
static struct kv_calib *some_massive(struct kv_dump *dump)
{
    const struct kv_shape *s = &kv_dump_info(dump)->shape;
    const size_t row = s->n_kv_heads * s->head_dim;
    struct kv_calib *c = kv_alloc(1, sizeof(*c));
    float *v = kv_alloc(row, sizeof(*v)), norm = 0;
    struct kv_err e = {""};

    assert_int_equal(kv_dump_read(dump, 1, KV_T_V, 0, 1, v, &e), 0);
    for (size_t i = 0; i < row; i++)
        norm = hypotf(norm, v[i]);
    free(v);
    c->has_k_bias = s->k_bias;
    c->norms = kv_alloc(s->n_layers * KV_SIDES, sizeof(*c->norms));
    for (size_t i = 0; i < s->n_layers * KV_SIDES; i++)
        c->norms[i] = (struct kv_norm_range){0, i % 2 ? norm : 1e9f};
    return c;
}

/* held_bytes of a layer in the file: of all windows, by side. */
static void held_in_file(struct kv_h5 *h, size_t spec, size_t layer,
                         double held[KV_SIDES])
{
    const size_t dims[] = {N_WINDOWS, KV_SIDES};
    uint64_t x[N_WINDOWS][KV_SIDES];
    char name[64];
    struct kv_err e = {""};

    snprintf(name, sizeof(name), "/spec_%03zu/layer_%03zu/held_bytes", spec,
             layer);
    assert_int_equal(kv_h5_check(h, name, KV_H5_U64, 2, dims, &e) ||
                         kv_h5_read(h, name, KV_H5_U64, NULL, NULL, x, &e),
                     0);
    for (int side = 0; side < KV_SIDES; side++)
        for (size_t w = held[side] = 0; w < N_WINDOWS; w++)
            held[side] += (double)x[w][side];
}

/* Codes that are read in place of encoding measure the same. */
static void check_read_back(struct kv_measure_plan plan, const char *path,
                            const struct kv_measured *out)
{
    struct kv_measured *again;
    struct kv_err e = {""};

    plan.codes = NULL;
    assert_int_equal(kv_codes_open(&plan.from, path, &e), 0);
    again = measure(&plan);
    assert_memory_equal(out, again, plan.n_specs * N_LAYERS * sizeof(*out));
    kv_codes_close(plan.from);
    free(again);
}

/* bits = 8 * held_bytes in the file / values, for every scheme and side; all
 * bytes are held in a layer that does not slide. */
static void check_codes(struct kv_dump_info info)
{
    const struct kv_codes_info codes = {.shape = info.shape,
                                        .n_windows = N_WINDOWS,
                                        .ctx = CTX,
                                        .first_layer = 1,
                                        .last_layer = N_LAYERS};
    struct kv_dump *dump = dump_of(info);
    struct kv_calib *calib = some_massive(dump);
    struct kv_spec spec[MAX_SPECS];
    struct kv_measure_plan plan = {
        .dump = dump,
        .spec = spec,
        .n_specs = every_spec(&kv_dump_info(dump)->shape, spec),
        .calib = calib,
        .memory = 0};
    struct kv_measured *out;
    struct kv_err e = {""};
    struct kv_h5 *h;
    char path[5000], name[64];

    assert_int_equal(kv_spec_parse(&spec[plan.n_specs], "nf4:r0,massive", &e) ||
                         kv_spec_fit(&spec[plan.n_specs], &info.shape, &e),
                     0);
    plan.n_specs++;
    snprintf(path, sizeof(path), "%s/codes.h5", test_folder());
    assert_int_equal(kv_codes_create(&plan.codes, path, &codes, &e), 0);
    out = measure(&plan);
    assert_false(kv_file_exists(path));
    assert_int_equal(kv_codes_commit(plan.codes, &e), 0);
    assert_int_equal(kv_h5_open(&h, path, &e), 0);
    for (size_t s = 0; s < plan.n_specs; s++) {
        snprintf(name, sizeof(name), "/spec_%03zu", s);

        char text[KV_SPEC_CHARS];

        assert_int_equal(
            kv_h5_get_text(h, name, "spec", text, sizeof(text), &e), 0);
        assert_string_equal(text, spec[s].text);
        for (size_t i = 0; i < N_LAYERS; i++) {
            double held[KV_SIDES];

            held_in_file(h, s, 1 + i, held);
            for (int side = 0; side < KV_SIDES; side++) {
                const double want = out[s * N_LAYERS + i].bits[side].bytes;

                snprintf(name, sizeof(name), "/spec_%03zu/layer_%03zu/%c", s,
                         1 + i, side == KV_K ? 'k' : 'v');
                if (held[side] != want ||
                    (!kv_shape_slides(&info.shape, 1 + i) &&
                     bytes_in_file(h, name) != want))
                    fail_msg("%s %s: %g bytes in the file, %g held, %g "
                             "measured",
                             spec[s].text, name, bytes_in_file(h, name),
                             held[side], want);
            }
        }
    }
    kv_h5_close(h);
    if (info.shape.slide_window)
        check_read_back(plan, path, out);
    unlink(path);
    free(out);
    kv_calib_free(calib);
    kv_dump_close(dump);
}

static void test_codes_hold_the_bits(void **state)
{
    (void)state;
    check_codes(example_info());
    check_codes(sliding_info());
}

/* Of a table that all layers share a layer has a part; the parts add up. */
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
        assert_int_equal(kv_measure(&plan, out, &e), -1);
        assert_says(e, "has no queries, which");
        assert_says(e, needs.text);
    }

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
        cmocka_unit_test(test_codes_hold_the_bits),
        cmocka_unit_test(test_shared_bytes),
        cmocka_unit_test(test_missing_queries), /* last: it interrupts */
    };

    kv_catch_signals();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
