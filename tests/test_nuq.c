/* KVQuant on cases worked by hand: thresholds, codes, outliers where they
 * were put, levels of lumps, weights, Q-Norm. */
#include "kernels/top.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/schemes/nuq.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>

static struct kv_spec spec_of(const char *text, const struct kv_shape *shape)
{
    struct kv_spec s;
    struct kv_err e = {""};

    if (kv_spec_parse(&s, text, &e) || kv_spec_fit(&s, shape, &e))
        fail_msg("%s", e.msg);
    return s;
}

/* ---- a codec over tables made by hand ---------------------------------- */

enum { ROW = 8 };
static const float range[ROW][2] = {{-1, 1}, {0, 4},  {2, 2},   {-10, 10},
                                    {0, 8},  {-4, 0}, {1, 1.5}, {-2, 2}};

struct rig {
    struct kv_shape shape;
    struct kv_spec spec;
    struct kv_calib calib;
    struct kv_calib_set set;
};

/* Two KV heads of 4; the levels decode to themselves. */
static void rig_init(struct rig *r, const char *text)
{
    static const float level[2][4] = {{-1, -0.25f, 0.25f, 1},
                                      {-1, -0.25f, 0.25f, 1}};
    const size_t range_dims[] = {2, 4, 2}, level_dims[] = {2, 4};

    *r = (struct rig){.shape = synthetic_shape(4)};
    r->spec = spec_of(text, &r->shape);
    r->calib =
        (struct kv_calib){.shape = r->shape, .set = &r->set, .n_sets = 1};
    kv_spec_calib_key(&r->spec, r->set.key);
    memcpy(kv_calib_add(&r->set, "range", KV_K, KV_ALL, KV_ALL, 3, range_dims)
               ->data,
           range, sizeof(range));
    memcpy(
        kv_calib_add(&r->set, "levels", KV_ALL, KV_ALL, KV_ALL, 2, level_dims)
            ->data,
        level, sizeof(level));
}

static struct kv_codec *rig_codec(const struct rig *r, enum kv_side side)
{
    struct kv_codec *c;
    struct kv_err e = {""};

    if (kv_codec_new(&c, &r->spec, &r->shape, 1, side, &r->calib, &e))
        fail_msg("%s", e.msg);
    return c;
}

/* Channel 1 is above its threshold, 5 below its own; 2 is flat, 3 and 4 are
 * at a threshold, which is no outlier; 7 is midway between levels 1 and 2. */
static const float key[ROW] = {0.3f, 5, 2, -10, 8, -4.5f, 1.25f, 0};
static const float key_back[ROW] = {0.25f, 5, 2, -10, 8, -4.5f, 1.1875f, -0.5f};
static const uint8_t key_bytes[] = {
    2,    0,                      /* outliers */
    2,    0x03 | 1 << 4 | 1 << 6, /* codes 2 0 0 0, 3 0 1 1 */
    1,    0,
    5,    0, /* at */
    0x00, 0x45,
    0x80, 0xc4, /* 5, -4.5 */
};

static void test_keys(void **state)
{
    const struct kv_where w = {.first = 0};
    struct rig r;
    struct kv_codec *c;
    uint8_t bytes[2 + 2 + 4 * ROW];
    float back[ROW];
    struct kv_err e = {""};

    (void)state;
    rig_init(&r, "kvquant:b2o10");
    c = rig_codec(&r, KV_K);
    assert_true(c->variable && c->pre_rope && c->block == 1);
    assert_int_equal(c->block_bytes, sizeof(bytes));
    assert_int_equal(c->scheme->encode_block(c, w, key, bytes),
                     sizeof(key_bytes));
    assert_memory_equal(bytes, key_bytes, sizeof(key_bytes));
    if (c->scheme->decode_block(c, bytes, sizeof(key_bytes), back, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < ROW; i++)
        assert_within(back[i], key_back[i], 0);
    kv_codec_free(c);
    kv_calib_set_clear(&r.set);
}

static void test_broken_keys(void **state)
{
    static const struct {
        size_t at;
        uint8_t is;
        const char *why;
    } cases[] = {
        {0, 1, "12 bytes, but 1 outliers make 8"},
        {4, 8, "outlier 0 is at 8, expected 0 to 7"},
        {4, 5, "outlier 1 is at 5, expected 6 to 7"},
        {6, 1, "outlier 1 is at 1, expected 2 to 7"},
        {9, 0x40, "channel 1 has no outlier 2"},
        {9, 0x7c, "channel 1 has no outlier inf"},
        {9, 0x7e, "channel 1 has no outlier nan"},
        {2, 0x06, "channel 1 has no outlier 5"}, /* it has a code */
    };
    struct rig r;
    struct kv_codec *c;

    (void)state;
    rig_init(&r, "kvquant:b2o10");
    c = rig_codec(&r, KV_K);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint8_t bytes[sizeof(key_bytes)];
        float back[ROW];
        struct kv_err e = {""};

        memcpy(bytes, key_bytes, sizeof(bytes));
        bytes[cases[i].at] = cases[i].is;
        assert_int_equal(
            c->scheme->decode_block(c, bytes, sizeof(bytes), back, &e), -1);
        assert_says(e, cases[i].why);
    }
    kv_codec_free(c);
    kv_calib_set_clear(&r.set);
}

/* Without outliers keys are clamped to their thresholds. */
static void test_keys_without(void **state)
{
    const float want[ROW] = {0.25f, 4, 2, -10, 8, -4, 1.1875f, -0.5f};
    struct rig r;
    struct kv_codec *c;
    uint8_t bytes[2];
    float back[ROW];

    (void)state;
    rig_init(&r, "kvquant:b2o0");
    c = rig_codec(&r, KV_K);
    assert_false(c->variable);
    assert_int_equal(c->block_bytes, sizeof(bytes));
    c->scheme->encode(c, (struct kv_where){.first = 0}, key, 1, bytes);
    c->scheme->decode(c, bytes, 1, back);
    for (size_t i = 0; i < ROW; i++)
        assert_within(back[i], want[i], 0);
    kv_codec_free(c);
    kv_calib_set_clear(&r.set);
}

/* A quarter of 8 values: one on each side, at 1 and 3.  The others go from 0
 * to 4. */
static void test_values(void **state)
{
    const float x[2 * ROW] = {1, -9, 3, 9, 2, 0, 4, 2, 7, 7, 7, 7, 7, 7, 7, 7};
    const float want[ROW] = {1.5f, -9, 2.5f, 9, 1.5f, 0, 4, 1.5f};
    const uint8_t bytes_of[2][14] = {
        {1 | 2 << 4, 1 | 0 << 2 | 3 << 4 | 1 << 6, 0, 0x40, 0, 0x40, 1, 0, 3, 0,
         0x80, 0xc8, 0x80, 0x48},
        /* flat: of equal values the first is largest, the last smallest */
        {0, 0, 0, 0x47, 0, 0, 0, 0, 7, 0, 0, 0x47, 0, 0x47}};
    struct rig r;
    struct kv_codec *c;
    uint8_t bytes[2][14];
    float back[2 * ROW];

    (void)state;
    rig_init(&r, "kvquant:b2o25");
    c = rig_codec(&r, KV_V);
    assert_false(c->variable || c->pre_rope);
    assert_int_equal(c->block_bytes, sizeof(*bytes));
    c->scheme->encode(c, (struct kv_where){.first = 0}, x, 2, bytes[0]);
    assert_memory_equal(bytes, bytes_of, sizeof(bytes));
    c->scheme->decode(c, bytes[0], 2, back);
    for (size_t i = 0; i < ROW; i++) {
        assert_within(back[i], want[i], 0);
        assert_within(back[ROW + i], 7, 0);
    }
    bytes[0][7] = 0xff; /* an outlier beyond the row is left out */
    c->scheme->decode(c, bytes[0], 1, back);
    assert_within(back[1], 0, 0);
    kv_codec_free(c);
    kv_calib_set_clear(&r.set);
}

static void test_refused_tables(void **state)
{
    struct rig r;
    struct kv_codec *c;
    struct kv_err e = {""};

    (void)state;
    rig_init(&r, "kvquant:b2");
    r.set.table[1].data[2] = -0.5f;
    assert_int_equal(kv_codec_new(&c, &r.spec, &r.shape, 1, KV_V, &r.calib, &e),
                     -1);
    assert_says(e, "levels of layer 1, V do not ascend");
    r.set.table[0].data[0] = 1.5f;
    assert_int_equal(kv_codec_new(&c, &r.spec, &r.shape, 1, KV_K, &r.calib, &e),
                     -1);
    assert_says(e, "thresholds of layer 1, channel 0 are the wrong way round");
    kv_calib_set_clear(&r.set);
}

/* ---- parameters, levels, bits ------------------------------------------ */

static void test_specs(void **state)
{
    struct kv_shape shape = synthetic_shape(128);
    struct kv_spec s;
    struct kv_err e = {""};

    (void)state;
    s = spec_of("kvquant", &shape);
    assert_string_equal(s.text, "kvquant:b3o1r0s1,type=nuq,w=fisher,qnorm=no");
    assert_within(s.scheme->nominal(&s, KV_K, &shape), 3.32, 1e-12);
    s = spec_of("kvquant:K-b4/V-b2o0.5,V-int,K-w=fisher-s2", &shape);
    assert_string_equal(s.text, "kvquant:K-b4o1r0s1/V-b2o0.5r0s1,K-type=nuq,"
                                "V-type=int,K-w=fisher-s2,V-w=none,qnorm=no");
    assert_within(s.scheme->nominal(&s, KV_K, &shape), 4.32, 1e-12);
    assert_within(s.scheme->nominal(&s, KV_V, &shape), 2.16, 1e-12);
    shape.n_kv_heads = 512;
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "n_kv_heads x head_dim is 65536, more than 65535");
    s = spec_of("kvquant:o1", &(struct kv_shape){.n_kv_heads = 1});
    assert_int_equal(kv_nuq_each_side(&s, KV_V, 4096), 21);
    assert_int_equal(kv_nuq_each_side(&s, KV_V, 200), 1);
    assert_int_equal(kv_nuq_each_side(&s, KV_V, 2), 0);
    assert_int_equal(kv_nuq_each_side(&s, KV_V, 0), 0);
}

static void test_fixed_levels(void **state)
{
    /* NF4 as QLoRA prints it (arXiv 2305.14314, appendix E) */
    static const float nf4[] = {
        -1.0f,
        -0.6961928009986877f,
        -0.5250730514526367f,
        -0.39491748809814453f,
        -0.28444138169288635f,
        -0.18477343022823334f,
        -0.09105003625154495f,
        0.0f,
        0.07958029955625534f,
        0.16093020141124725f,
        0.24611230194568634f,
        0.33791524171829224f,
        0.44070982933044434f,
        0.5626170039176941f,
        0.7229568362236023f,
        1.0f,
    };
    float level[1 << KV_NUQ_MAX_BITS];

    (void)state;
    kv_nuq_nf_levels(4, level);
    for (size_t i = 0; i < 16; i++)
        assert_within(level[i], nf4[i], 1e-6);
    for (unsigned bits = 2; bits <= KV_NUQ_MAX_BITS; bits++) {
        const size_t n = (size_t)1 << bits;

        kv_nuq_nf_levels(bits, level);
        assert_true(level[0] == -1 && level[n - 1] == 1);
        for (size_t i = 1; i < n; i++)
            assert_true(level[i - 1] < level[i]);
    }
    kv_nuq_int_levels(2, level);
    assert_within(level[0], -1, 0);
    assert_within(level[1], -1.0 / 3, 1e-7);
    assert_within(level[2], 1.0 / 3, 1e-7);
    assert_within(level[3], 1, 0);
}

/* Beside a sort: many ties, every number of outliers. */
static void test_outliers(void **state)
{
    enum { N = 37 };

    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        const size_t n_side = seed % (N / 2 + 1);
        float x[N], high[N], low[N];
        bool outlier[N];
        uint16_t half[2];
        uint64_t k[N];
        struct kv_top top = {.key = k, .room = n_side};
        size_t n_high = 0, n_low = 0, n = 0;
        struct kv_nuq_range r;

        for (size_t i = 0; i < N; i++) {
            x[i] = (float)(kv_random(seed, i) % (2 + seed % 50)) - 9;
            kv_top_push(&top, kv_top_key(x[i], (uint32_t)i));
        }
        r = kv_nuq_row_range(x, N, n_side, outlier, half);
        for (size_t i = 0; i < n_side; i++) {
            assert_true(outlier[kv_top_index(k[i])]);
            assert_within(kv_top_value(k[i]), x[kv_top_index(k[i])], 0);
        }
        for (size_t i = 0; i < N; i++) {
            n += outlier[i];
            if (!outlier[i])
                continue;
            /* each outlier is at an end: not both fewer and more beyond it */
            n_high = n_low = 0;
            for (size_t j = 0; j < N; j++) {
                n_high += x[j] > x[i];
                n_low += x[j] < x[i];
            }
            assert_true(n_high < n_side || n_low < n_side);
        }
        assert_int_equal(n, 2 * n_side);
        high[0] = -INFINITY;
        low[0] = INFINITY;
        for (size_t i = 0; i < N; i++) {
            high[0] = outlier[i] ? high[0] : fmaxf(high[0], x[i]);
            low[0] = outlier[i] ? low[0] : fminf(low[0], x[i]);
        }
        assert_within(r.offset + r.half, high[0], 0);
        assert_within(r.offset - r.half, low[0], 0);
    }
}

/* Llama-2-7B: 32 heads of 128. */
static void test_bits(void **state)
{
    const double want[] = {2.3359375, 3.3359375, 4.3359375};
    struct rig r;
    struct kv_codec *c;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        char text[32];

        rig_init(&r, "kvquant:b2");
        r.shape.n_heads = r.shape.n_kv_heads = 32;
        r.shape.head_dim = 128;
        snprintf(text, sizeof(text), "kvquant:b%zu", 2 + i);
        r.spec = spec_of(text, &r.shape);
        kv_spec_calib_key(&r.spec, r.set.key);
        r.set.table[1].dims[1] = (size_t)4 << i;
        r.set.table[1].data =
            kv_realloc(r.set.table[1].data, (size_t)8 << i, sizeof(float));
        for (size_t j = 0; j < (size_t)8 << i; j++)
            r.set.table[1].data[j] = (float)j;
        c = rig_codec(&r, KV_V);
        assert_within(8 * (double)c->block_bytes / 4096, want[i], 0);
        kv_codec_free(c);
        kv_calib_set_clear(&r.set);
    }
}

/* ---- training ---------------------------------------------------------- */

/* Two kinds of tokens in turn, of values (and keys) A and 100 B:
 * five lumps, of which four levels merge the nearest two, 0.2 and 0.4. */
static struct kv_calib *lumps(const char *text, bool fisher, struct kv_err *e)
{
    static const float a[ROW] = {-1, -1, -0.6f, -0.6f, 0.2f, 0.2f, 1, 1};
    static const float b[ROW] = {-100, -100, -60, -60, 40, 40, 100, 100};
    enum { N = 16 };
    struct kv_shape shape = synthetic_shape(4);
    struct kv_dump_info info = {.model = "lumps",
                                .arch = "none",
                                .weights = "f32",
                                .model_hash = "0",
                                .text = "none",
                                .text_hash = "0",
                                .n_windows = 1,
                                .ctx = N};
    char *path = kv_path_join(test_folder(), "lumps.h5");
    float x[N * ROW], f[N * ROW];
    int32_t tokens[N] = {0};
    struct kv_dump_writer *w;
    struct kv_dump *dump;
    struct kv_calib *c = kv_alloc(1, sizeof(*c));
    struct kv_spec spec;

    shape.n_layers = 1;
    info.shape = shape;
    spec = spec_of(text, &shape);
    for (enum kv_tensor t = 0; t < KV_TENSORS; t++)
        info.have[t] = t == KV_T_V || t == KV_T_K_PRE || (fisher && t >= 4);
    for (size_t i = 0; i < N * ROW; i++) {
        x[i] = i / ROW % 2 ? b[i % ROW] : a[i % ROW];
        f[i] = i / ROW % 2 ? 1e-9f : 3e-9f;
    }
    assert_int_equal(kv_dump_create(&w, path, &info, e), 0);
    assert_int_equal(kv_dump_put_tokens(w, 0, 1, tokens, e), 0);
    for (enum kv_tensor t = 0; t < KV_TENSORS; t++)
        if (info.have[t])
            assert_int_equal(kv_dump_put(w, 0, t, 0, 1, t >= 4 ? f : x, e), 0);
    assert_int_equal(kv_dump_commit(w, e), 0);
    assert_int_equal(kv_dump_open(&dump, path, e), 0);
    c->set = kv_alloc(1, sizeof(*c->set));
    c->n_sets = 1;
    if (kv_nuq_calibrate(&spec, dump, 1, c->set, e)) {
        kv_calib_free(c);
        c = NULL;
    }
    kv_dump_close(dump);
    free(path);
    return c;
}

static void check_lumps(const char *text, double third)
{
    struct kv_err e = {""};
    struct kv_calib *c = lumps(text, true, &e);
    const float *level = kv_calib_table(c->set, "levels", KV_V, 0, 0)->data;

    assert_within(level[0], -1, 1e-4);
    assert_within(level[1], -0.6, 3e-4);
    assert_within(level[2], third, 3e-4);
    assert_within(level[3], 1, 1e-4);
    for (size_t i = 0; i < 4; i++)
        assert_within(level[4 + i], level[i], 0);
    /* the keys of a channel are two numbers: two levels, the second thrice */
    level = kv_calib_table(c->set, "levels", KV_K, 0, 0)->data;
    assert_within(level[0], -1, 1e-6);
    assert_within(level[1], 1, 1e-6);
    assert_within(level[3], 1, 1e-6);
    kv_calib_free(c);
}

static void test_lumps(void **state)
{
    struct kv_err e = {""};

    (void)state;
    check_lumps("kvquant:b2o0,w=none", 0.3);
    check_lumps("kvquant:b2o0,w=fisher", (3 * 0.2 + 0.4) / 4);
    check_lumps("kvquant:b2o0,w=fisher-s2", (3 * 0.2 + 0.4e4) / (3 + 1e4));
    assert_null(lumps("kvquant:b2o0", false, &e));
    assert_says(e, "layer 0, K: ");
    assert_says(e, "has no k_fisher (kvdump --fisher writes it)");
    kv_calib_free(lumps("kvquant:b2o0,w=none", false, &e));
    kv_calib_free(lumps("kvquant:b2o0,int", false, &e));
}

enum { TOKENS = 640 }; /* of synthetic_calib()'s dump */

static void read_all(const struct kv_shape *s, enum kv_tensor t, float *x)
{
    struct kv_dump *dump;
    struct kv_err e = {""};
    char *path;

    synthetic_dump(s, 4, TOKENS / 4, test_folder(), &path);
    if (kv_dump_open(&dump, path, &e) ||
        kv_dump_read(dump, 1, t, 0, TOKENS, x, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < TOKENS * s->n_kv_heads * s->head_dim; i++)
        x[i] = kv_f16_to_f32(kv_f16_clamp(x[i]));
    kv_dump_close(dump);
    free(path);
}

static int ascending(const void *a, const void *b)
{
    const float *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* 2 % of 640 tokens: at most 7 beyond each threshold, which is a token's. */
static void test_thresholds(void **state)
{
    const struct kv_shape shape = synthetic_shape(16);
    const struct kv_spec spec = spec_of("kvquant:o2,w=none", &shape);
    const size_t row = 32;
    struct kv_calib *c = synthetic_calib(&shape, &spec, test_folder());
    const float *t = kv_calib_table(c->set, "range", KV_K, 1, 0)->data;
    float *x = kv_alloc(TOKENS, row * sizeof(*x)), one[TOKENS];

    (void)state;
    assert_null(kv_calib_table(c->set, "range", KV_V, 1, 0));
    read_all(&shape, KV_T_K_PRE, x);
    for (size_t i = 0; i < row; i++) {
        for (size_t j = 0; j < TOKENS; j++)
            one[j] = x[j * row + i];
        qsort(one, TOKENS, sizeof(*one), ascending);
        assert_within(t[2 * i], one[7], 0);
        assert_within(t[2 * i + 1], one[TOKENS - 1 - 7], 0);
    }
    free(x);
    kv_calib_free(c);
}

struct moments {
    double n, sum, squares;
};

static void moments_add(struct moments *m, double z)
{
    m->n++;
    m->sum += z;
    m->squares += z * z;
}

static double mean(const struct moments *m)
{
    return m->sum / m->n;
}

static double deviation(const struct moments *m)
{
    return sqrt(m->squares / m->n - mean(m) * mean(m));
}

/* The tokens a calibration was trained on, there and back: moments of what was
 * normalised, before and after; the mean squared error of all. */
static double train_and_code(const char *text, enum kv_side side,
                             struct moments *before, struct moments *after,
                             double *error)
{
    const struct kv_shape shape = synthetic_shape(32);
    const struct kv_spec spec = spec_of(text, &shape);
    const size_t row = 64, n_side = kv_nuq_each_side(&spec, KV_V, row);
    struct kv_calib *calib = synthetic_calib(&shape, &spec, test_folder());
    const float *range_of =
        kv_calib_table(calib->set, "range", KV_K, 1, 0)->data;
    struct kv_codec *c;
    struct kv_err e = {""};
    float *x = kv_alloc(TOKENS, row * sizeof(*x)), y[64];
    double sum = 0;

    *before = *after = (struct moments){0};
    *error = kv_calib_table(calib->set, "levels", side, 1, 0)->error;
    if (kv_codec_new(&c, &spec, &shape, 1, side, calib, &e))
        fail_msg("%s", e.msg);
    read_all(&shape, side == KV_K ? KV_T_K_PRE : KV_T_V, x);
    for (size_t t = 0; t < TOKENS; t++) {
        const float *at = x + t * row;
        uint8_t bytes[2 + 64 + 4 * 64];
        uint16_t half[2];
        bool outlier[64];
        struct kv_nuq_range r =
            kv_nuq_row_range(at, row, n_side, outlier, half);

        if (c->variable) {
            const size_t n = c->scheme->encode_block(
                c, (struct kv_where){.first = 0}, at, bytes);

            assert_int_equal(c->scheme->decode_block(c, bytes, n, y, &e), 0);
        } else {
            c->scheme->encode(c, (struct kv_where){.first = 0}, at, 1, bytes);
            c->scheme->decode(c, bytes, 1, y);
        }
        for (size_t i = 0; i < row; i++) {
            const float low = range_of[2 * i], high = range_of[2 * i + 1];

            sum += pow((double)at[i] - (double)y[i], 2);
            if (side == KV_K) {
                outlier[i] = at[i] < low || at[i] > high;
                r = kv_nuq_between(low, high);
            }
            if (outlier[i]) {
                assert_within(y[i], at[i], 0);
                continue;
            }
            moments_add(before, (double)((at[i] - r.offset) / r.half));
            moments_add(after, (double)((y[i] - r.offset) / r.half));
        }
    }
    kv_codec_free(c);
    kv_calib_free(calib);
    free(x);
    return sum / (double)(TOKENS * row);
}

static void test_qnorm(void **state)
{
    (void)state;
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;
        struct moments before, after;
        double error;

        train_and_code("kvquant:b2,int,qnorm", side, &before, &after, &error);
        assert_within(mean(&after), mean(&before), 2e-3);
        assert_within(deviation(&after) / deviation(&before), 1, 2e-3);
        train_and_code("kvquant:b2,qnorm", side, &before, &after, &error);
        assert_within(mean(&after), mean(&before), 2e-3);
        assert_within(deviation(&after) / deviation(&before), 1, 2e-3);
        /* without, k-means is too narrow */
        train_and_code("kvquant:b2,w=none", side, &before, &after, &error);
        assert_true(deviation(&after) < 0.98 * deviation(&before));
    }
}

/* The training error is what the codec does to the training text; nuq beats
 * nf and int, more bits and outliers beat fewer. */
static void test_errors(void **state)
{
    static const char *const better_first[] = {
        "kvquant:b4,w=none", "kvquant:b3,w=none", "kvquant:b3,nf",
        "kvquant:b2,w=none", "kvquant:b2,int",    "kvquant:b2o0,int"};

    (void)state;
    for (int i = 0; i < KV_SIDES; i++) {
        double last = 0;

        for (size_t j = 0; j < 6; j++) {
            struct moments before, after;
            double error, mse;

            mse = train_and_code(better_first[j], (enum kv_side)i, &before,
                                 &after, &error);
            if (!(fabs(mse - error) < 5e-3 * mse))
                fail_msg("%s: error %g, but %g in the table", better_first[j],
                         mse, error);
            assert_true(mse > last);
            last = mse;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_broken_keys),
        cmocka_unit_test(test_keys_without),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refused_tables),
        cmocka_unit_test(test_specs),
        cmocka_unit_test(test_fixed_levels),
        cmocka_unit_test(test_outliers),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_lumps),
        cmocka_unit_test(test_thresholds),
        cmocka_unit_test(test_qnorm),
        cmocka_unit_test(test_errors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
