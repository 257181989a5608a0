/* kernels/tiles, lib/tiled: attention in tiles against attention in double
 * over decode(), for every scheme that has tiles, at every level and path. */
#include "kernels/tiles/impl.h"
#include "lib/mixed.h"
#include "lib/rope_table.h"
#include "lib/scheme.h"
#include "lib/seq/cache.h"
#include "lib/seq/tile_cache.h"
#include "tests/append_rows.h"
#include "tests/attention_setup.h"
#include "tests/levels.h"

/* One query in f32, as anyone would write it. */
static void plain_f32(const float *q, const float *k, const float *v, size_t n,
                      size_t stride, size_t d, float scale, float *out)
{
    float *w = kv_alloc(n, sizeof(*w)), max = -INFINITY, sum = 0;

    for (size_t t = 0; t < n; t++) {
        for (size_t c = 0; c < d; c++)
            w[t] += q[c] * k[t * stride + c];
        w[t] *= scale;
        max = fmaxf(max, w[t]);
    }
    memset(out, 0, d * sizeof(*out));
    for (size_t t = 0; t < n; t++) {
        w[t] = expf(w[t] - max);
        sum += w[t];
        for (size_t c = 0; c < d; c++)
            out[c] += w[t] * v[t * stride + c];
    }
    for (size_t c = 0; c < d; c++)
        out[c] /= sum;
    free(w);
}

/* The allowed error of int8 in addition to a scheme's own error. */
static const double INT8_BOUND = 0.03;

static void check_paths(const char *what, const struct kv_cache *c,
                        struct kv_tile_cache *t, const struct attention *a)
{
    const size_t n = out_values(a);
    float *exact = kv_alloc(n, sizeof(float));
    float *plain = kv_alloc(n, sizeof(float));
    float *out = kv_alloc(2 * n, sizeof(float));
    struct kv_err e;

    attend_exact(a, exact);
    attend_by(plain_f32, a, plain);
    for (int path = 0; path < KV_PATHS; path++)
        for (int l = LOWEST; l <= (int)kv_level_max(); l++) {
            if (!kv_tile_cache_can(c, (enum kv_path)path))
                continue;

            const double bound = path == KV_PATH_INT8
                                     ? INT8_BOUND
                                     : 2 * rel_err(plain, exact, n) + 1e-6;

            assert_int_equal(kv_level_set((enum kv_level)l, &e), 0);
            for (size_t threads = 1 + SANITIZED; threads <= 2; threads++)
                kv_tile_cache_attend(&t, kv_cache_view(c, a->nq),
                                     (enum kv_path)path, a->q,
                                     out + (threads - 1) * n, threads);
            if (!SANITIZED)
                assert_memory_equal(out, out + n, n * sizeof(*out));
            if (!(rel_err(out + n, exact, n) <= bound))
                fail_msg("%s, %zu tokens, %zu queries, %s, level %s: error %g, "
                         "expected at most %g",
                         what, a->n, a->nq,
                         path == KV_PATH_INT8 ? "int8" : "exact",
                         kv_level_name((enum kv_level)l),
                         rel_err(out + n, exact, n), bound);
        }
    assert_int_equal(kv_level_set(kv_level_max(), &e), 0);
    free(out);
    free(plain);
    free(exact);
}

/* The tokens that the cache holds, and the newest nq queries. */
static void check_cache(const char *what, const struct kv_shape *s,
                        const struct kv_cache *c, struct kv_tile_cache *t,
                        const struct tensors *x, size_t nq)
{
    const size_t n = kv_cache_tokens(c), row = s->n_kv_heads * s->head_dim;
    float *k = kv_alloc(n, row * sizeof(*k));
    float *v = kv_alloc(n, row * sizeof(*v));
    const struct attention a = {.shape = *s,
                                .n = n,
                                .nq = nq,
                                .q = x->q + (n - nq) * s->n_heads * s->head_dim,
                                .k = k,
                                .v = v};

    kv_cache_decode(c, KV_K, k);
    kv_cache_decode(c, KV_V, v);
    kv_codec_rotate(kv_cache_reader(c, KV_K).codec, k, n);
    check_paths(what, c, t, &a);
    free(v);
    free(k);
}

/* Appends in steps of several sizes, so that tiles are filled in pieces.
 * Returns whether there are tiles. */
static bool check_spec(const struct kv_spec *spec, const struct kv_shape *s,
                       const struct kv_calib *calib, const size_t *lengths)
{
    struct kv_codec *codec[KV_SIDES];
    struct kv_cache *c;
    struct kv_tile_cache *t;
    struct tensors x;
    struct kv_err e = {""};
    size_t max = 0;
    bool can;

    for (int side = 0; side < KV_SIDES; side++)
        if (kv_codec_new(&codec[side], spec, s, 1, (enum kv_side)side, calib,
                         &e))
            fail_msg("%s", e.msg);
    assert_int_equal(kv_cache_new(&c, codec[KV_K], codec[KV_V], 5, &e), 0);
    for (size_t i = 0; lengths[i]; i++)
        max = lengths[i];
    x = tensors(s, max);
    can = kv_tile_cache_can(c, KV_PATH_EXACT) ||
          kv_tile_cache_can(c, KV_PATH_INT8);
    if (can) {
        const size_t row = s->n_kv_heads * s->head_dim;

        t = kv_tile_cache_new(c);
        for (size_t i = 0, n = 0; lengths[i]; n = lengths[i++]) {
            const size_t q = n * s->n_heads * s->head_dim;

            if (append_rows(c, x.q + q, x.k + n * row, x.v + n * row,
                            lengths[i] - n, &e))
                fail_msg("%s: %s", spec->text, e.msg);
            kv_tile_cache_update(t);
            check_cache(spec->text, s, c, t, &x, 1);
            if (lengths[i] >= 3)
                check_cache(spec->text, s, c, t, &x, 3);
            if (lengths[i] >= 40 && !lengths[i + 1])
                check_cache(spec->text, s, c, t, &x, 39);
        }
        kv_tile_cache_free(t);
    }
    free_tensors(x);
    kv_cache_free(c);
    for (int side = 0; side < KV_SIDES; side++)
        kv_codec_free(codec[side]);
    return can;
}

/* One below and above a part, a tile, a step. */
static const size_t lengths[] = {1, 31, 33, 63, 64, 65, 200, 321, 0};
static const size_t few_lengths[] = {33, 80, 200, 0}; /* a tile in pieces */

/* Whether there is such a spec with tiles.  calib: the last call's, or NULL;
 * kept if it fits this spec too. */
static bool check_text(const char *text, const struct kv_shape *s,
                       struct kv_calib **calib, const size_t *at_lengths)
{
    struct kv_spec spec;
    struct kv_err e = {""};

    if (kv_spec_parse(&spec, text, &e))
        return false; /* not with these letters */
    if (!spec.scheme->store || kv_spec_fit(&spec, s, &e))
        return false; /* no tiles, or not at this head_dim */
    if (kv_spec_calibrated(&spec) &&
        !(*calib && kv_calib_find(*calib, &spec))) {
        kv_calib_free(*calib);
        *calib = synthetic_calib_on(s, &spec, 2, test_folder());
    }
    return check_spec(&spec, s, *calib, at_lengths);
}

/* A sanitizer wants minutes for klt's trellis; test_schemes() has one, and
 * test_conformance some. */
static bool is_slow(const char *text)
{
    return SANITIZED && strncmp(text, "klt", 3) == 0;
}

/* Specs with their defaults, and without residual for every possible number of
 * bits, with sinks and a tail.  Where the test is slow a scheme has one
 * dimension, the first that fits. */
static void test_schemes(void **state)
{
    static const size_t dims[] = {20, 64, 128};
    const size_t *const at = SLOW ? few_lengths : lengths;

    (void)state;
    for (size_t i = 0; kv_schemes[i]; i++) {
        const struct kv_scheme *k = kv_schemes[i];
        bool fits = false;

        for (size_t j = 0; j < sizeof(dims) / sizeof(*dims); j++) {
            const struct kv_shape s = synthetic_shape(dims[j]);
            struct kv_calib *calib = NULL;
            char text[64];

            if (k->training && dims[j] != 64 && strcmp(k->name, "pq") != 0)
                continue; /* training takes its time: one dimension */
            if (SLOW && fits)
                continue;
            fits = check_text(k->name, &s, &calib, at);
            assert_true(fits || !k->store ||
                        k->attend ||    /* test_hack_attend.c */
                        dims[j] == 20); /* fits few */
            snprintf(text, sizeof(text), "%s:s3r0", k->name);
            check_text(text, &s, &calib, at);
            for (int b = 1; b <= 8 && !k->training; b += 1 + SLOW) {
                snprintf(text, sizeof(text), "%s:b%ds1r32", k->name, b);
                check_text(text, &s, &calib, few_lengths);
            }
            kv_calib_free(calib);
        }
    }
}

/* Group sizes and codebooks other than the defaults. */
static void test_more(void **state)
{
    static const char *const texts[] = {"f16:s7r40",
                                        "f16:s65r200",
                                        "kivi:b2g16r32",
                                        "kivi:b3g64r64s5",
                                        "kivi:b4g128r0",
                                        "kivi:b8g32r0",
                                        "kivi:b8g32r64s40",
                                        "kivi:b3g32r9,axis=token",
                                        "kivi:b2g16r32,axis=channel",
                                        "absmax:b4g32",
                                        "quarot:b4s2r9,none",
                                        "quarot:b2g0r3,heads=all",
                                        "q8_0:rot,s=3,r=9",
                                        "q5_1:rot",
                                        "iq4_nl:r5,K-rot=yes",
                                        "turboquant:b3r5,plain,nc",
                                        ("turboquant:K-b8/V-b4,K-levels=fp8,"
                                         "V-levels=uniform,r=5,s=2"),
                                        "turboquant:b4,nc,K-skip=1",
                                        "vecinfer:d2b4",
                                        "vecinfer:d8b8r9",
                                        "vecinfer:K-d4b8/V-d2b4",
                                        "million:d4b6s2r3",
                                        "evasion:d2b5",
                                        "vecinfer:d4b9",
                                        "rotatekv:g32h1",
                                        "rotatekv:b3g64s2,before,zero=int",
                                        "rotatekv:K-b4g4/V-b2,h=2,before,min",
                                        "kvquant:b2o5",
                                        "kvquant:b4o0r9",
                                        "kvquant:K-b2o0/V-b3o4"};
    const struct kv_shape s = synthetic_shape(64);
    struct kv_calib *calib = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        assert_true(check_text(texts[i], &s, &calib, lengths));
    kv_calib_free(calib);
}

/* A Hadamard transform of several blocks, of which a head wants one or some, or
 * of one. */
static void test_rotated_blocks(void **state)
{
    static const char *const texts[] = {"rotatekv:K-g16/V-g24,h=1,min",
                                        "rotatekv:K-g16/V-g24,h=2",
                                        "rotatekv:K-g16/V-g24,h=2,before"};
    const struct kv_shape s = synthetic_shape(24);
    struct kv_calib *calib = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        assert_true(check_text(texts[i], &s, &calib, few_lengths));
    kv_calib_free(calib);
}

/* llama.cpp's rotation: keys in larger blocks than values, or as large. */
static void test_rotated_types(void **state)
{
    static const char *const texts[] = {"q4_0:rot", "iq4_nl:rot", "q5_0:rot"};
    static const size_t dims[] = {64, 128, 192};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        for (size_t j = 0; j < sizeof(dims) / sizeof(*dims); j++) {
            const struct kv_shape s = synthetic_shape(dims[j]);
            struct kv_calib *calib = NULL;

            assert_true(check_text(texts[i], &s, &calib, few_lengths));
        }
}

/* RoPE of a part of a head and of neighbours; keys in llama.cpp's order. */
static void test_orders_of_channels(void **state)
{
    static const char *const texts[] = {"q4_0:ggml",
                                        "q4_0:rot,ggml",
                                        "iq4_nl:rot,ggml",
                                        "kvquant:b2o5",
                                        "rotatekv:g32h1",
                                        "klt:b2",
                                        "evasion:d4b5,rope=pre"};
    static const size_t n_rot[] = {10, 10, 32}; /* rotated channels of 64 */

    (void)state;
    for (size_t j = 0; j < 3; j++) {
        struct kv_shape s = synthetic_shape(64);
        struct kv_calib *calib = NULL;

        s.n_rot = n_rot[j];
        s.neighbours = j > 0;
        s.ggml_neighbours = true;
        for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
            if (!is_slow(texts[i]))
                assert_true(check_text(texts[i], &s, &calib, few_lengths));
        kv_calib_free(calib);
    }
}

/* Query heads for a KV head, several queries, and more tokens than a chunk. */
static void test_groups(void **state)
{
    static const size_t groups[] = {1, 3, 8, 16};
    static const size_t few[] = {40, 0}, many[] = {4100, 8300, 0};

    (void)state;
    for (size_t i = 0; i < sizeof(groups) / sizeof(*groups); i++) {
        struct kv_shape s = synthetic_shape(32);

        s.n_heads = s.n_kv_heads * groups[i];
        for (size_t j = 0; j < 2; j++) {
            const char *const text = j ? "kivi:b2g32r64s2" : "f16:s2r9";
            struct kv_spec spec;
            struct kv_err e;

            assert_int_equal(kv_spec_parse(&spec, text, &e), 0);
            assert_int_equal(kv_spec_fit(&spec, &s, &e), 0);
            check_spec(&spec, &s, NULL, groups[i] == 3 ? many : few);
        }
    }
}

/* More tokens than a chunk: queries that are turned and sums that are turned
 * back once for all chunks, heads that share tiles, outliers, tables of codes
 * (and codes without, and a last chunk of too few), on path int8 too. */
static void test_chunks(void **state)
{
    static const char *const texts[] = {"vecinfer:d4b4r9",
                                        "vecinfer:d4b9r9",
                                        "million:d4b8s2r9",
                                        "cq:c4b5r9",
                                        "million:K-d4b8s2r9/V-d4b8s70r9",
                                        "million:K-d4b8s70r700/V-d4b8s2r9",
                                        "vecinfer:d8b5s2r9",
                                        "million:d4b5s2r9",
                                        "klt:b2s3r9",
                                        "klt:b2s3r9,heads=own",
                                        "klt:b2s3r9,vk",
                                        "klt:b2s3r9,vk,heads=own",
                                        "klt:b1s3r9,rope=post,vk",
                                        "rotatekv:b2g32s2r9",
                                        "kvquant:b2r9"};
    static const size_t more[] = {900, 4300, 0};
    const struct kv_shape s = synthetic_shape(32);

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        struct kv_calib *calib = NULL;

        if (is_slow(texts[i]))
            continue;
        assert_true(check_text(texts[i], &s, &calib, more));
        kv_calib_free(calib);
    }
}

/* The newest key, alone in its step, gives a NaN, so the output is NaN. */
static void test_no_number(void **state)
{
    enum { D = 16, N = 257 };
    static float q[D], k[N * D], v[N * D], out[D];
    struct kv_store keys[KV_MAX_RUNS] = {0}, values[KV_MAX_RUNS] = {0};
    struct kv_err e;

    (void)state;
    for (size_t i = 0; i < N * D; i++)
        k[i] = v[i] = 1;
    for (size_t i = 0; i < D; i++)
        q[i] = 1;
    k[N * D - 1] = NAN;
    kv_store_floats(&keys[0], KV_FLOAT_32, 0, 1, D);
    kv_store_floats(&values[0], KV_FLOAT_32, 1, 1, D);
    kv_store_resize(&keys[0], N);
    kv_store_resize(&values[0], N);
    kv_store_put_floats(&keys[0], 0, k, N);
    kv_store_put_floats(&values[0], 0, v, N);
    for (int l = LOWEST; l <= (int)kv_level_max(); l++) {
        assert_int_equal(kv_level_set((enum kv_level)l, &e), 0);
        kv_tiles_attend(&(struct kv_tiles_job){.view = {.n_seqs = 1,
                                                        .n_heads = 1,
                                                        .n_kv_heads = 1,
                                                        .head_dim = D,
                                                        .n = N,
                                                        .nq = 1,
                                                        .first = N - 1,
                                                        .scale = 1},
                                               .q = q,
                                               .out = out,
                                               .k = keys,
                                               .v = values},
                        1, 1);
        assert_true(isnan(out[0]) && isnan(out[D - 1]));
    }
    kv_store_free(&keys[0]);
    kv_store_free(&values[0]);
}

/* Rows in a matrix of longer ones, as many as go together and some more. */
enum { MAX_ROWS = 6, ROW = 80 };

static void check_exp(size_t rows, size_t n)
{
    float x[MAX_ROWS * ROW], y[MAX_ROWS * ROW];
    float shift[MAX_ROWS], max[MAX_ROWS], got[MAX_ROWS];

    for (size_t i = 0; i < MAX_ROWS * ROW; i++)
        x[i] = y[i] =
            i % 16 == 15 ? -INFINITY : 2 - 0.1f * (float)(i * 7 % 1013);
    for (size_t r = 0; r < rows; r++)
        shift[r] = 2 + (float)r;
    kv_tile_loops()->max(x, ROW, rows, n, max);
    kv_tile_loops()->exp(y, ROW, rows, n, shift, got);
    for (size_t r = 0; r < MAX_ROWS; r++) {
        double sum = 0;
        float largest = -INFINITY;

        for (size_t i = r * ROW; i < (r + 1) * ROW; i++) {
            if (r >= rows || i >= r * ROW + n) {
                assert_true(y[i] == x[i]);
                continue;
            }

            const double at = fmaxf(x[i] - shift[r], -87), want = exp(at);

            assert_within(y[i], want, (2e-7 - 8e-8 * at) * want);
            sum += want;
            largest = fmaxf(largest, x[i]);
        }
        if (r < rows) {
            assert_within(got[r], sum, 5e-6 * sum);
            assert_true(max[r] == largest);
        }
    }
}

static void test_exp(void **state)
{
    float one = 5, weight[16], sum;

    (void)state;
    for (int l = LOWEST; l <= (int)kv_level_max(); l++) {
        struct kv_err e;

        assert_int_equal(kv_level_set((enum kv_level)l, &e), 0);
        for (size_t rows = 0; rows <= MAX_ROWS; rows++)
            for (size_t n = 16; n <= ROW; n += 16)
                check_exp(rows, n);
        for (size_t i = 0; i < 16; i++)
            weight[i] = one;
        kv_tile_loops()->exp(weight, 16, 1, 16, &one, &sum);
        assert_true(weight[0] == 1 && sum == 16);
        for (size_t i = 0; i < 16; i++)
            weight[i] = i == 9 ? NAN : one;
        kv_tile_loops()->exp(weight, 16, 1, 16, &one, &sum);
        assert_true(isnan(weight[9]) && isnan(sum) && weight[8] == 1);
    }
}

/* The int8 paths round to the same codes at every level, halves to even. */
static void test_round8(void **state)
{
    float x[MAX_ROWS * ROW] = {0}, scale[MAX_ROWS];
    int8_t code[MAX_ROWS * ROW];

    (void)state;
    for (size_t r = 0; r + 1 < MAX_ROWS; r++) { /* the last is of zeros */
        for (size_t i = 0; i < ROW; i++)
            x[r * ROW + i] =
                ldexpf((float)i - 20.5f + (i % 2 ? 0.25f : 0), (int)r);
        x[r * ROW + 7] = ldexpf(-63.5f, (int)r); /* codes are 2 x / 2^r */
    }
    for (int l = LOWEST; l <= (int)kv_level_max(); l++) {
        struct kv_err e;

        assert_int_equal(kv_level_set((enum kv_level)l, &e), 0);
        for (size_t rows = 1; rows <= MAX_ROWS; rows++)
            for (size_t n = 16; n <= ROW; n += 16) {
                const float *from = x + (MAX_ROWS - rows) * ROW;

                memset(code, 99, sizeof(code));
                kv_tile_loops()->round8(from, ROW, rows, n, code, ROW, scale);
                for (size_t r = 0; r < rows; r++) {
                    const float step =
                        r + 1 == rows
                            ? 0
                            : ldexpf(0.5f, (int)(MAX_ROWS - rows + r));

                    assert_true(scale[r] == step);
                    for (size_t i = 0; i < ROW; i++)
                        assert_int_equal(
                            code[r * ROW + i],
                            i >= n ? 99
                            : step ? (int)rintf(from[r * ROW + i] / step)
                                   : 0);
                }
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_round8),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_more),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_no_number),
        cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_rotated_blocks),
        cmocka_unit_test(test_rotated_types),
        cmocka_unit_test(test_orders_of_channels),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
