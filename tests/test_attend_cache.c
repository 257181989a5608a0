/* Attention to caches, decoded, in tiles and on codes, against the definition
 * (kernels/attend.h): views with each field and with all of them. */
#include "kernels/attend.h"
#include "kernels/level.h"
#include "lib/seq/tile_cache.h"
#include "tests/hack_setup.h"

enum {
    SEQS = 2,
    WINDOW = 1,
    SLOPE = 2,
    CAP = 4,
    ALIVE = 8,
    MASS = 16,
    SINK = 32
};

static const unsigned fields[] = {
    0,     WINDOW, SLOPE,          CAP,
    ALIVE, MASS,   WINDOW | ALIVE, WINDOW | SLOPE | CAP | ALIVE,
    SINK,  63};

/* Two sequences of one spec, and their decoded contents. */
struct rig {
    struct setup s[SEQS];
    struct kv_tile_cache *tiled[SEQS];
    struct kv_attend_view view;
    float *q, *k, *v;
    float slope[HEADS], sink[HEADS];
    uint64_t *alive;
    double *mass;
    size_t outputs, masses;
    bool tiles;
};

/* Half of the tokens are alive, but none in a few words; with a short window
 * query 0 sees none. */
static void make_alive(struct rig *r)
{
    const size_t words = kv_attend_words(r->view.n);

    r->alive = kv_alloc(SEQS * KV_HEADS * words, sizeof(*r->alive));
    for (size_t i = 0; i < SEQS * KV_HEADS * words; i++)
        r->alive[i] = i % words % 5 == 1 ? 0 : kv_random(8, i);
    r->alive[words - 1] = 0;
}

static void rig_init(struct rig *r, const char *text, size_t n, size_t nq,
                     size_t d)
{
    const size_t row = KV_HEADS * d;

    *r = (struct rig){.slope = {0.5f, 0.003f, -0.01f, 0.1f},
                      .sink = {2, -1, 0, 5},
                      .q = values(SEQS * nq, HEADS, d, 1),
                      .k = kv_alloc(SEQS * n, row * sizeof(float)),
                      .v = kv_alloc(SEQS * n, row * sizeof(float)),
                      .outputs = SEQS * nq * HEADS * d,
                      .masses = SEQS * KV_HEADS * n};
    for (size_t i = 0; i < SEQS; i++) {
        float *k = values(n, KV_HEADS, d, 10 + i);
        float *v = values(n, KV_HEADS, d, 20 + i);

        set_up(&r->s[i], text, d);
        append(&r->s[i], k, v, n);
        kv_cache_decode(r->s[i].cache, KV_K, r->k + i * n * row);
        kv_cache_decode(r->s[i].cache, KV_V, r->v + i * n * row);
        r->tiles = kv_tile_cache_can(r->s[i].cache, KV_PATH_EXACT);
        if (r->tiles) {
            r->tiled[i] = kv_tile_cache_new(r->s[i].cache);
            kv_tile_cache_update(r->tiled[i]);
        }
        free(k), free(v);
    }
    r->view = kv_cache_view(r->s[0].cache, nq);
    r->view.n_seqs = SEQS;
    r->mass = kv_alloc(r->masses, sizeof(*r->mass));
    make_alive(r);
}

static void rig_clear(struct rig *r)
{
    for (size_t i = 0; i < SEQS; i++) {
        kv_tile_cache_free(r->tiled[i]);
        tear_down(&r->s[i]);
    }
    free(r->mass), free(r->alive), free(r->q), free(r->k), free(r->v);
}

static struct kv_attend_view view_of(struct rig *r, unsigned f)
{
    struct kv_attend_view v = r->view;

    v.window = f & WINDOW ? v.n / 5 + 1 : 0;
    v.slope = f & SLOPE ? r->slope : NULL;
    v.cap = f & CAP ? 1.5f : 0;
    v.sink_logit = f & SINK ? r->sink : NULL;
    v.alive = f & ALIVE ? r->alive : NULL;
    v.mass = f & MASS ? r->mass : NULL;
    memset(r->mass, 0, r->masses * sizeof(*r->mass));
    return v;
}

/* ||a - b|| <= bound ||b|| */
static void assert_near(const struct rig *r, unsigned f, const char *what,
                        const float *a, const float *b, double bound)
{
    double e2 = 0, x2 = 0;

    for (size_t i = 0; i < r->outputs; i++) {
        const double e = (double)a[i] - (double)b[i];

        e2 += e * e;
        x2 += (double)b[i] * (double)b[i];
    }
    if (!(sqrt(e2) <= bound * sqrt(x2)))
        fail_msg("%s, fields %u, %s: error %g, expected at most %g",
                 r->s[0].spec.text, f, what, sqrt(e2 / x2), bound);
}

/* Returns the total mass: each query that sees a token adds 1 for each head. */
static double total(const double *mass, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += mass[i];
    return sum;
}

static void check_tiles(struct rig *r, unsigned f, const float *want)
{
    float *out = kv_alloc(r->outputs, sizeof(*out));
    struct kv_err e;

    for (int path = 0; path < KV_PATHS; path++)
        for (int l = KV_LEVEL_C; l <= (int)kv_level_max(); l++) {
            const struct kv_attend_view v = view_of(r, f);

            assert_int_equal(kv_level_set((enum kv_level)l, &e), 0);
            kv_tile_cache_attend(r->tiled, v, (enum kv_path)path, r->q, out, 2);
            assert_near(r, f, path == KV_PATH_INT8 ? "int8" : "exact", out,
                        want, path == KV_PATH_INT8 ? 0.05 : 1e-5);
        }
    free(out);
}

static void check(const char *text, size_t n, size_t nq, size_t d, double bound)
{
    const size_t row = nq * HEADS * d;
    struct rig r;

    rig_init(&r, text, n, nq, d);

    float *want = kv_alloc(r.outputs, sizeof(*want));
    float *out = kv_alloc(r.outputs, sizeof(*out));

    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
        struct kv_attend_view v = view_of(&r, fields[i]);
        double mass;

        kv_attend_c(&(struct kv_attend_job){.view = v,
                                            .q = r.q,
                                            .out = want,
                                            .q_rows = nq,
                                            .k = {.quantized = r.k},
                                            .v = {.quantized = r.v}});
        mass = total(r.mass, r.masses);
        v = view_of(&r, fields[i]);
        for (size_t s = 0; s < SEQS; s++)
            kv_cache_attend(r.s[s].cache, kv_attend_seq(&v, s), r.q + s * row,
                            out + s * row);
        assert_near(&r, fields[i], "through the cache", out, want, bound);
        assert_within(total(r.mass, r.masses), mass, 1e-3);
        if (r.tiles)
            check_tiles(&r, fields[i], want);
    }
    free(out), free(want);
    rig_clear(&r);
}

static void test_float(void **state)
{
    (void)state;
    check("f16:s3r0", 70, 1, 32, 1e-6);
    check("f16:s3r0", 600, 3, 64, 1e-6);
    check("f16:s3r0", 4500, 2, 16, 1e-6); /* two chunks */
}

static void test_codes(void **state)
{
    (void)state;
    check("kivi:b4g32s3r64", 700, 3, 64, 1e-6);
    check("kivi:b4g32s3r64", 700, 60, 64, 1e-6); /* expanded */
    check("nf4:r0", 600, 2, 64, 1e-6);
}

/* On its own codes, queries and weights of 8 bits. */
static void test_own(void **state)
{
    (void)state;
    check("hack:b8p64r0,nearest", 600, 3, 64, 0.02);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float),
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
