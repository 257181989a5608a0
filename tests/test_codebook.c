/* The core of codebooks: transforms, layout, codebook scopes. */
#include "kernels/hadamard.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "lib/scheme.h"
#include "lib/schemes/codebook.h"
#include "lib/seq/cache.h"
#include "tests/codec_setup.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>

static void fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)kv_random_normal(seed, i);
}

/* ---- Hadamard ------------------------------------------------------------ */

/* H[i][j] of the block-diagonal matrix for d values. */
static double hadamard_at(size_t i, size_t j, size_t d)
{
    const size_t m = kv_hadamard_size(d);

    if (i / m != j / m)
        return 0;
    return (__builtin_popcountll(i % m & j % m) % 2 ? -1 : 1) / sqrt((double)m);
}

static void test_hadamard(void **state)
{
    const size_t dims[] = {1, 2, 3, 4, 6, 8, 16, 48, 64, 80, 96, 128, 512};
    enum { ROWS = 3 };

    (void)state;
    assert_int_equal(kv_hadamard_size(80), 16);
    assert_int_equal(kv_hadamard_size(128), 128);
    assert_int_equal(kv_hadamard_size(3), 1);
    for (size_t t = 0; t < sizeof(dims) / sizeof(*dims); t++) {
        const size_t d = dims[t];
        float x[ROWS * 512], y[ROWS * 512];

        fill(x, ROWS * d, d);
        memcpy(y, x, sizeof(x));
        kv_hadamard(y, 0, d);
        assert_memory_equal(y, x, ROWS * d * sizeof(*x));
        kv_hadamard(y, ROWS, d);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t j = 0; j < d; j++) {
                double want = 0;

                for (size_t i = 0; i < d; i++)
                    want += (double)x[r * d + i] * hadamard_at(i, j, d);
                assert_true(fabs((double)y[r * d + j] - want) < 1e-5);
            }
        kv_hadamard(y, ROWS, d); /* inverts itself */
        for (size_t i = 0; i < ROWS * d; i++)
            assert_true(fabsf(y[i] - x[i]) < 1e-5f);
    }
}

/* ---- a codec over codebooks made by hand --------------------------------- */

struct rig {
    struct kv_shape shape;
    struct kv_spec spec;
    struct kv_calib calib;
    struct kv_calib_set set;
};

/* Random codebooks for every scope the spec asks for; random factors. */
static void rig_init(struct rig *r, const char *text, size_t n_kv_heads,
                     size_t head_dim)
{
    *r = (struct rig){.shape = synthetic_shape(head_dim)};
    r->shape.n_kv_heads = n_kv_heads;
    r->shape.n_heads = 2 * n_kv_heads;
    r->spec = spec_of(text, &r->shape);
    r->calib =
        (struct kv_calib){.shape = r->shape, .set = &r->set, .n_sets = 1};
    kv_spec_calib_key(&r->spec, r->set.key);
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;
        const struct kv_codebook_layout l =
            kv_codebook_layout(&r->spec, side, &r->shape);
        const size_t dims[] = {l.sub_books, l.k, l.d};
        const bool model = kv_spec_is(&r->spec, side, "books", "model");
        const bool head = kv_spec_is(&r->spec, side, "books", "head");

        for (size_t layer = 0; layer < (model ? 1 : r->shape.n_layers); layer++)
            for (size_t h = 0; h < (head ? n_kv_heads : 1); h++) {
                struct kv_table *t = kv_calib_add(
                    &r->set, "codebook", i, model ? KV_ALL : (int)layer,
                    head ? (int)h : KV_ALL, 3, dims);

                fill(t->data, l.sub_books * l.k * l.d, 100 + 10 * layer + h);
                t->type = KV_TABLE_F16;
            }
    }
    for (size_t layer = 0; layer < r->shape.n_layers; layer++) {
        const size_t dims[] = {n_kv_heads, head_dim};
        float *factor =
            kv_calib_add(&r->set, "smooth", KV_K, (int)layer, KV_ALL, 2, dims)
                ->data;

        for (size_t i = 0; i < n_kv_heads * head_dim; i++)
            factor[i] = 0.5f + 2 * kv_random_unit(layer, i);
    }
}

static void rig_clear(struct rig *r)
{
    kv_calib_set_clear(&r->set);
}

static struct kv_codec *rig_codec(const struct rig *r, enum kv_side side,
                                  size_t layer)
{
    struct kv_codec *c;
    struct kv_err e = {""};

    if (kv_codec_new(&c, &r->spec, &r->shape, layer, side, &r->calib, &e))
        fail_msg("%s", e.msg);
    return c;
}

static const float *rig_book(const struct rig *r, const struct kv_codec *c,
                             size_t head, size_t sub)
{
    const struct kv_table *t =
        kv_calib_table(&r->set, "codebook", c->side, c->layer, head);

    return t->data + (t->dims[0] > 1 ? sub : 0) * t->dims[1] * t->dims[2];
}

static struct kv_codebook_transform rig_transform(const struct rig *r,
                                                  const struct kv_codec *c)
{
    struct kv_codebook_transform t =
        kv_codebook_transform_of(&r->spec, c->side, &r->shape);

    if (kv_codebook_smooths(&r->spec, c->side))
        t.smooth = kv_calib_table(&r->set, "smooth", KV_K, c->layer, 0)->data;
    return t;
}

static size_t nearest(const float *x, const float *centers, size_t k, size_t d)
{
    size_t best = 0;
    float min = INFINITY;

    for (size_t c = 0; c < k; c++) {
        float s = 0;

        for (size_t j = 0; j < d; j++) {
            const float t = x[j] - centers[c * d + j];

            s = fmaf(t, t, s);
        }
        if (s < min) {
            min = s;
            best = c;
        }
    }
    return best;
}

static unsigned code_at(const uint8_t *bytes, size_t i, unsigned bits)
{
    unsigned code = 0;

    for (size_t j = 0; j < bits; j++) {
        const size_t at = i * bits + j;

        code |= (bytes[at / 8] >> at % 8 & 1u) << j;
    }
    return code;
}

/* Every code is the index of the transformed sub-vector's nearest centroid in
 * the book of its layer, head and sub-space, is stored as drawn, and decodes to
 * that centroid, transformed back. */
static void check_codec(const struct rig *r, enum kv_side side, size_t layer,
                        size_t n)
{
    struct kv_codec *c = rig_codec(r, side, layer);
    const struct kv_codebook_layout l =
        kv_codebook_layout(&r->spec, side, &r->shape);
    const struct kv_codebook_transform t = rig_transform(r, c);
    const unsigned bits = (unsigned)kv_spec_size(&r->spec, side, "b");
    const size_t row = r->shape.n_kv_heads * r->shape.head_dim;
    float *x = kv_alloc(n, row * sizeof(*x));
    float *want = kv_alloc(n, row * sizeof(*want));
    float *got = kv_alloc(n, row * sizeof(*got));
    uint8_t *bytes = kv_alloc(n, c->block_bytes);
    const struct kv_where w = {.first = 0};

    assert_int_equal(c->block, 1);
    assert_int_equal(c->block_bytes, (row / l.d * bits + 7) / 8);
    fill(x, n * row, 5);
    memcpy(want, x, n * row * sizeof(*x));
    kv_codebook_forward(&t, want, n);
    c->scheme->encode(c, w, x, n, bytes);
    for (size_t i = 0; i < n; i++)
        for (size_t h = 0; h < l.n_heads; h++)
            for (size_t s = 0; s < l.n_sub; s++) {
                const float *book = rig_book(r, c, h, s);
                float *at = want + ((i * l.n_heads + h) * l.n_sub + s) * l.d;
                const size_t code = nearest(at, book, l.k, l.d);

                assert_int_equal(
                    code_at(bytes + i * c->block_bytes, h * l.n_sub + s, bits),
                    code);
                memcpy(at, book + code * l.d, l.d * sizeof(*at));
            }
    kv_codebook_inverse(&t, want, n);
    c->scheme->decode(c, bytes, n, got);
    assert_memory_equal(got, want, n * row * sizeof(*got));
    free(bytes);
    free(got);
    free(want);
    free(x);
    kv_codec_free(c);
}

static void test_codec(void **state)
{
    static const char *const specs[] = {
        "pq:d4b8",
        "pq:d2b3,sub=shared",
        "pq:d16b5,books=head",
        "pq:d8b12,books=head,sub=shared",
        "million:d1b2",
        "million:d4b4,K-sub=shared",
        "evasion:d3b7",
        "vecinfer:d4b6",
        "vecinfer:K-d8b9/V-d2b4,t=HS",
        "vecinfer:d4b5,t=S,books=head",
        "vecinfer:d4b5,t=H,sub=own",
        "vecinfer:d4b5,t=none,pre",
        "cq:c4b5",
        "cq:K-c2b6/V-c8b3",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
        struct rig r;

        rig_init(&r, specs[i], 1 + i % 3, 48);
        for (int side = 0; side < KV_SIDES; side++) {
            check_codec(&r, (enum kv_side)side, 0, 1);
            check_codec(&r, (enum kv_side)side, 1, 67);
        }
        rig_clear(&r);
    }
}

/* The values with the largest coding errors are decoded exactly, in fp16; all
 * others as without outliers. */
static void test_outliers(void **state)
{
    enum { N = 5, ROW = 2 * 48, KEPT = 3, BYTES = 128 };
    static const char *const specs[] = {"evasion:d3b7", "evasion:d3b7o2.5"};
    float x[N * ROW], y[2][N * ROW];
    uint8_t bytes[N * BYTES];

    (void)state;
    fill(x, N * ROW, 7);
    for (size_t i = 0; i < N * ROW; i++)
        x[i] = kv_f16_to_f32(kv_f32_to_f16(x[i]));
    for (int side = 0; side < KV_SIDES; side++) {
        for (size_t i = 0; i < 2; i++) {
            struct rig r;

            rig_init(&r, specs[i], 2, 48);

            struct kv_codec *c = rig_codec(&r, (enum kv_side)side, 1);

            assert_int_equal(c->block_bytes, ROW / 3 * 7 / 8 + 4 * KEPT * i);
            c->scheme->encode(c, (struct kv_where){0}, x, N, bytes);
            c->scheme->decode(c, bytes, N, y[i]);
            kv_codec_free(c);
            rig_clear(&r);
        }
        for (size_t t = 0; t < N; t++) {
            float least = INFINITY, most = 0;
            size_t n = 0;

            for (size_t i = t * ROW; i < (t + 1) * ROW; i++) {
                const float miss = fabsf(x[i] - y[0][i]);

                if (y[1][i] == y[0][i]) {
                    most = fmaxf(most, miss);
                    continue;
                }
                assert_true(y[1][i] == x[i]);
                least = fminf(least, miss);
                n++;
            }
            assert_int_equal(n, KEPT);
            assert_true(least >= most);
        }
    }
}

static void test_pre_rope(void **state)
{
    struct rig r;

    (void)state;
    rig_init(&r, "pq:b2,pre", 2, 16);
    for (int side = 0; side < KV_SIDES; side++) {
        struct kv_codec *c = rig_codec(&r, (enum kv_side)side, 0);

        assert_int_equal(c->pre_rope, side == KV_K);
        kv_codec_free(c);
    }
    rig_clear(&r);
}

/* ---- transforms ---------------------------------------------------------- */

/* forward() against the matrices in double; inverse() undoes it; the product
 * with a query stays. */
static void check_transform(const char *text, size_t head_dim)
{
    enum { HEADS = 3 };
    struct rig r;

    rig_init(&r, text, HEADS, head_dim);

    struct kv_codec *c = rig_codec(&r, KV_K, 1);
    const struct kv_codebook_transform t = rig_transform(&r, c);
    float k[HEADS * 128], y[HEADS * 128], q[128];

    fill(k, HEADS * head_dim, 1);
    memcpy(y, k, sizeof(k));
    kv_codebook_forward(&t, y, 1);
    for (size_t h = 0; h < HEADS; h++) {
        const float *kh = k + h * head_dim, *yh = y + h * head_dim;
        double before = 0, after = 0;

        for (size_t j = 0; j < head_dim; j++) {
            double want = t.hadamard ? 0 : (double)kh[j];

            for (size_t i = 0; t.hadamard && i < head_dim; i++) {
                const float by = t.smooth && !t.hadamard_first
                                     ? t.smooth[h * head_dim + i]
                                     : 1;

                want +=
                    (double)kh[i] / (double)by * hadamard_at(i, j, head_dim);
            }
            if (t.smooth && (t.hadamard_first || !t.hadamard))
                want /= (double)t.smooth[h * head_dim + j];
            assert_true(fabs((double)yh[j] - want) < 1e-5);
        }
        fill(q, head_dim, 2 + h);
        for (size_t i = 0; i < head_dim; i++)
            before += (double)q[i] * (double)kh[i];
        kv_codebook_query(&t, h, q);
        for (size_t i = 0; i < head_dim; i++)
            after += (double)q[i] * (double)yh[i];
        assert_true(fabs(before - after) < 1e-4);
    }
    kv_codebook_inverse(&t, y, 1);
    for (size_t i = 0; i < HEADS * head_dim; i++)
        assert_true(fabsf(y[i] - k[i]) < 1e-5f);
    kv_codec_free(c);
    rig_clear(&r);
}

static void test_transforms(void **state)
{
    (void)state;
    for (size_t head_dim = 48; head_dim <= 128; head_dim += 16) {
        check_transform("vecinfer:b2,t=none", head_dim);
        check_transform("vecinfer:b2,t=S", head_dim);
        check_transform("vecinfer:b2,t=H", head_dim);
        check_transform("vecinfer:b2,t=HS", head_dim);
        check_transform("vecinfer:b2,t=SH", head_dim);
    }
}

/* ---- refusals ------------------------------------------------------------ */

static void test_specs(void **state)
{
    const struct kv_shape shape = synthetic_shape(128);
    struct kv_spec s;
    struct kv_err e = {""};

    (void)state;
    s = spec_of("vecinfer", &shape);
    assert_string_equal(s.text, "vecinfer:d4b8r128s0,books=layer,sub=shared,"
                                "t=SH,rope=post,w=none,iters=30,"
                                "init=kmeans++,residual=sliding");
    s = spec_of("million", &shape);
    assert_string_equal(s.text, "million:d4b8r128s0,books=model,sub=own,"
                                "t=none,rope=post,w=none,iters=25,"
                                "init=random,residual=batched");
    s = spec_of("evasion", &shape);
    assert_string_equal(s.text, "evasion:d2b8o0r0s0,books=layer,sub=own,t=none,"
                                "rope=post,w=none,iters=25,init=kmeans++,"
                                "residual=sliding");
    s = spec_of("pq:K-d8b12/V-d8b8,K-t=HS,K-pre", &shape);
    assert_string_equal(s.text, "pq:K-d8b12r0s0/V-d8b8r0s0,books=layer,sub=own,"
                                "t=HS,rope=pre,w=none,iters=25,"
                                "init=kmeans++,residual=sliding");
    assert_true(s.scheme->nominal(&s, KV_K, &shape) == 1.5);
    assert_true(s.scheme->nominal(&s, KV_V, &shape) == 1);

    s = spec_of("cq", &shape);
    assert_string_equal(s.text, "cq:c4b8r0s0,books=head,sub=own,t=none,"
                                "rope=pre,w=fisher,iters=100,"
                                "init=kmeans++,residual=sliding");
    s = spec_of("cq:c8b10", &shape);
    assert_true(s.scheme->nominal(&s, KV_K, &shape) == 1.25);
    assert_int_equal(kv_spec_parse(&s, "cq:c3", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "c=3 must divide head_dim 128");
    assert_int_equal(kv_spec_parse(&s, "cq:c4,t=H", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "w=fisher weighs keys as they are before RoPE");
    assert_int_equal(kv_spec_parse(&s, "pq:d4,w=fisher", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "wants rope=pre and t=none (or K-w=none)");
    spec_of("pq:d4,V-w=fisher", &shape);
    assert_int_equal(kv_spec_parse(&s, "pq:d4,none", &e), -1);
    assert_says(e, "'none' may be t or w of pq: write t=none");

    s = spec_of("vecinfer,K-t=none", &shape);
    assert_string_equal(s.text, "vecinfer:d4b8r128s0,books=layer,sub=shared,"
                                "t=none,rope=post,w=none,iters=30,"
                                "init=kmeans++,residual=sliding");
    assert_int_equal(kv_spec_parse(&s, "pq:d4,V-t=SH", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "t concerns keys alone");
    assert_int_equal(kv_spec_parse(&s, "pq:d4,V-pre", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "leave V-rope out");
    assert_int_equal(kv_spec_parse(&s, "pq:d3", &e), 0);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "d=3 must divide head_dim 128");
    assert_int_equal(kv_spec_parse(&s, "pq:b17", &e), -1);
    assert_says(e, "b=17 is out of range");
}

/* MILLION's code encodes the prompt, then r tokens at a time; sliding keeps the
 * newest r. */
static void test_residual_rule(void **state)
{
    static const struct {
        const char *text;
        size_t n, k, v;
    } cases[] = {
        {"million:b2", 127, 0, 0},
        {"million:b2", 128, 128, 128},
        {"million:b2", 383, 256, 256},
        {"million:b2,sliding", 383, 255, 255},
        {"million:b2r0", 383, 383, 383},
        {"million:b2r64s5", 133, 128, 128},
        {"million:b2r64s5,sliding", 133, 64, 64},
        {"million:b2,V-sliding", 300, 256, 172},
        {"vecinfer:b2", 383, 255, 255},
        {"pq:b2r16,batched", 31, 16, 16},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct rig r;

        rig_init(&r, cases[i].text, 1, 8);
        for (int side = 0; side < KV_SIDES; side++) {
            struct kv_codec *c = rig_codec(&r, (enum kv_side)side, 0);

            assert_int_equal(kv_quantized(c, cases[i].n),
                             side == KV_K ? cases[i].k : cases[i].v);
            kv_codec_free(c);
        }
        rig_clear(&r);
    }
}

static void refused(const struct rig *r, bool calibrated, const char *why)
{
    struct kv_codec *c;
    struct kv_err e = {""};

    assert_int_equal(kv_codec_new(&c, &r->spec, &r->shape, 1, KV_K,
                                  calibrated ? &r->calib : NULL, &e),
                     -1);
    assert_says(e, why);
}

static void test_tables(void **state)
{
    struct rig r;

    (void)state;
    rig_init(&r, "vecinfer:d4b2", 2, 16);
    refused(&r, false, "needs a calibration");
    for (size_t i = 0; i < r.set.n_tables; i++) {
        struct kv_table *t = &r.set.table[i];

        if (t->layer == 1 && t->side == KV_K && !strcmp(t->name, "smooth"))
            t->data[3] = 0;
    }
    refused(&r, true, "not all positive");
    r.set.table[r.set.n_tables - 1].layer = 7;
    refused(&r, true, "'smooth' for layer 1, K, head 0 is missing");
    r.set.table[r.set.n_tables - 1].layer = 1;
    r.set.table[r.set.n_tables - 1].dims[0] = 1;
    refused(&r, true, "'smooth' for layer 1, K, head 0 is 1 x 16, expected");
    r.set.table[r.set.n_tables - 1].dims[0] = 2;
    for (size_t i = 0; i < r.set.n_tables; i++) {
        r.set.table[i].type = KV_TABLE_F32;
        if (!strcmp(r.set.table[i].name, "smooth"))
            r.set.table[i].data[3] = 1;
    }
    refused(&r, true,
            "'codebook' for layer 1, K, head 0 is f32, expected fp16");
    r.set.key[0] = 'V';
    refused(&r, true, "no tables for vecinfer:d4b2,books=layer");
    refused(&r, true, "it has Vecinfer:d4b2");
    rig_clear(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hadamard),      cmocka_unit_test(test_codec),
        cmocka_unit_test(test_outliers),      cmocka_unit_test(test_pre_rope),
        cmocka_unit_test(test_transforms),    cmocka_unit_test(test_specs),
        cmocka_unit_test(test_residual_rule), cmocka_unit_test(test_tables),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
