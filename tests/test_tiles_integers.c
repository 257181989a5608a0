/* kernels/integers: a tile's values in plain C equal decode()'s, bit for bit;
 * the int8 operations are as close to the exact ones as rounding allows.
 * check_ops compares the other levels with plain C on the same specs. */
#include "tests/levels.h"
#include "tests/tile_setup.h"

static float decoded(const struct held *h, size_t t, size_t head, size_t c)
{
    const size_t d = h->store.head_dim;

    return t < h->n ? h->x[(t * h->store.n_heads + head) * d + c] : 0;
}

/* Returns false if the held tokens have nothing to check. */
typedef bool check_fn(const char *what, const struct held *h);

/* Checks `tokens` tokens; returns how many were checked. */
static size_t every_of(check_fn *check, size_t tokens)
{
    size_t n = 0;

    for (size_t i = 0; i < sizeof(integers_specs) / sizeof(*integers_specs);
         i++)
        for (size_t j = 0; j < sizeof(integers_dims) / sizeof(*integers_dims);
             j++)
            for (int side = 0; side < KV_SIDES; side++) {
                char what[128];
                struct held h;

                if (!fits(integers_specs[i], integers_dims[j]))
                    continue;
                snprintf(what, sizeof(what), "%s, head_dim %zu, %c",
                         integers_specs[i], integers_dims[j],
                         kv_side_name((enum kv_side)side));
                if (hold(&h, integers_specs[i], integers_dims[j],
                         (enum kv_side)side, tokens, false))
                    n += check(what, &h);
                let_go(&h);
            }
    return n;
}

/* With a little more than two tiles, so that the last is mostly empty. */
static size_t every(check_fn *check)
{
    return every_of(check, 131);
}

static bool check_expand(const char *what, const struct held *h)
{
    enum { CANARY = 16 };
    const struct kv_store *s = &h->store;
    const size_t d = s->head_dim;
    const size_t size = KV_TILE_PART * (s->values ? kv_padded(d) : d);
    float *x = kv_alloc(size + CANARY, sizeof(*x));

    for (size_t i = 0; i < s->n_heads * kv_store_tiles(s) * 2; i++) {
        const size_t head = i / 2 % s->n_heads, part = i % 2;
        const size_t tile = i / 2 / s->n_heads;

        for (size_t k = 0; k < size + CANARY; k++)
            x[k] = 12345;
        s->family->expand(s, head, kv_store_tile(s, head, tile), part, x);
        for (size_t k = size; k < size + CANARY; k++)
            assert_true(x[k] == 12345);
        for (size_t k = 0; k < KV_TILE_PART * d; k++) {
            const size_t t = k / d, c = k % d;
            const size_t at = tile * KV_TILE_TOKENS + part * 32 + t;
            const float got =
                s->values ? x[t * kv_padded(d) + c] : x[c * KV_TILE_PART + t];

            if (got != decoded(h, at, head, c))
                fail_msg("%s: token %zu, channel %zu is %.9g, "
                         "expected %.9g",
                         what, at, c, got, decoded(h, at, head, c));
        }
        for (size_t k = 0; s->values && k < KV_TILE_PART; k++)
            for (size_t c = d; c < kv_padded(d); c++)
                if (x[k * kv_padded(d) + c] != 0)
                    fail_msg("%s: padding %zu is %g", what, c,
                             x[k * kv_padded(d) + c]);
    }
    free(x);
    return true;
}

static void test_expand(void **state)
{
    (void)state;
    assert_true(every(check_expand) > 100);
}

/* ---- operations ------------------------------------------------------------
 */

enum { ROWS = 7 };

/* The result of weights w [ROWS][tiles * 64] over the first tiles of head 1
 * together: [ROWS][head_dim]. */
static void run_tiles(const struct held *h, size_t tiles, const float *w,
                      float *out)
{
    const struct kv_store *s = &h->store;
    const struct kv_tile_ops *ops = s->family->ops(s, KV_PATH_INT8);
    float *acc = kv_alloc(ROWS, ops->acc_floats(s) * sizeof(*acc));

    ops->pv_tiles(s, 1, kv_store_tile(s, 1, 0), tiles, w,
                  tiles * KV_TILE_TOKENS, ROWS, acc);
    ops->finish(s, 1, acc, ROWS, out);
    free(acc);
}

/* The results of a tile's operations for w (queries, or weights of tokens):
 * [ROWS] rows of n_out. */
static void run(const struct held *h, enum kv_path path, size_t head, size_t i,
                const float *w, float *out)
{
    const struct kv_store *s = &h->store;
    const struct kv_tile_ops *ops = s->family->ops(s, path);
    const uint8_t *tile = kv_store_tile(s, head, i);

    if (s->values) {
        const size_t n = ops->acc_floats(s);
        float *acc = kv_alloc(ROWS, n * sizeof(*acc));

        ops->pv(s, head, tile, w, KV_TILE_TOKENS, ROWS, acc);
        ops->finish(s, head, acc, ROWS, out);
        free(acc);
    } else {
        void *query = aligned_alloc(64, (ops->query_bytes(s) + 63) / 64 * 64);

        ops->prepare(s, head, w, ROWS, query);
        ops->qk(s, head, tile, query, ROWS, out, KV_TILE_TOKENS);
        free(query);
    }
}

/* Queries of any sign, or weights of `left` tokens: [ROWS] rows of n; the
 * second row is all zeros. */
static float *new_w(const struct kv_store *s, size_t n, size_t left)
{
    float *w = kv_alloc(ROWS * n, sizeof(*w));

    for (size_t i = 0; i < ROWS * n; i++)
        w[i] = i / n == 1  ? 0
               : s->values ? (i % n < left ? kv_random_unit(5, i) : 0)
                           : (float)kv_random_normal(5, i);
    return w;
}

/* Sums of w times the decoded values of tile i, of output j: as they are, and
 * one product after another in f32. */
static double sum_of(const struct held *h, size_t i, const float *w, size_t n,
                     size_t j, float *in_f32)
{
    double sum = 0;

    *in_f32 = 0;
    for (size_t k = 0; k < n; k++) {
        const size_t t = i * KV_TILE_TOKENS + (h->store.values ? k : j);
        const float x = decoded(h, t, 1, h->store.values ? j : k);

        sum += (double)w[k] * (double)x;
        *in_f32 += w[k] * x;
    }
    return sum;
}

/* Path exact: hardly more than the error of plain sums of decoded values,
 * although codes are far from the middle one. */
static const double MAX_OF_PLAIN = 2.5;

static bool check_exact(const char *what, const struct held *h)
{
    const struct kv_store *s = &h->store;
    const size_t n_w = s->values ? KV_TILE_TOKENS : s->head_dim;
    const size_t n = s->values ? s->head_dim : KV_TILE_TOKENS;
    float *out = kv_alloc(ROWS * n, sizeof(*out));

    double error = 0, plain = 0;

    for (size_t i = 0; i < kv_store_tiles(s); i++) {
        const size_t left = h->n - i * KV_TILE_TOKENS;
        float *w = new_w(s, n_w, left);

        run(h, KV_PATH_EXACT, 1, i, w, out);
        for (size_t k = 0; k < ROWS * n; k++) {
            float in_f32;
            const double sum =
                sum_of(h, i, w + k / n * n_w, n_w, k % n, &in_f32);

            if (!s->values && k % n >= left)
                continue;
            if (k / n == 1)
                assert_true(out[k] == 0);
            error += ((double)out[k] - sum) * ((double)out[k] - sum);
            plain += ((double)in_f32 - sum) * ((double)in_f32 - sum);
        }
        free(w);
    }
    if (!(sqrt(error) <= MAX_OF_PLAIN * sqrt(plain)))
        fail_msg("%s: error %g times that of plain sums", what,
                 sqrt(error / plain));
    free(out);
    return true;
}

static void test_exact(void **state)
{
    (void)state;
    assert_true(every(check_exact) > 100);
}

/* ---- int8 ------------------------------------------------------------------
 */

/* The allowed effect of rounding w on one output: each product of w and step is
 * off by at most half a unit of the largest one, times a code no farther from
 * the middle than twice the largest value in steps.  One code of w more or less
 * is 1 / n of it, f32's rounding below 1e-4. */
static double int8_bound(const struct held *h, const float *w, size_t n)
{
    const struct kv_integers *g = h->store.params;
    const double finer = g->bits > 5 ? 64 : 1; /* 15 bits */
    const size_t all = h->n * h->store.n_heads * h->store.head_dim;
    double max_w = 0, max_x = 0;

    for (size_t i = 0; i < ROWS * n; i++)
        max_w = fmax(max_w, fabs((double)w[i]));
    for (size_t i = 0; i < all; i++)
        max_x = fmax(max_x, fabs((double)h->x[i]));
    return sqrt((double)n) * max_w * 2 * max_x / 254 / finer;
}

static bool check_int8(const char *what, const struct held *h)
{
    const struct kv_store *s = &h->store;
    const size_t n_w = s->values ? KV_TILE_TOKENS : s->head_dim;
    const size_t n = s->values ? s->head_dim : KV_TILE_TOKENS;
    float *w, *exact, *out;
    double bound;

    if (!kv_store_has(s, KV_PATH_INT8))
        return false;
    w = new_w(s, n_w, h->n);
    exact = kv_alloc(ROWS * n, sizeof(*exact));
    out = kv_alloc(ROWS * n, sizeof(*out));
    bound = int8_bound(h, w, n_w);
    for (size_t i = 0; i < kv_store_tiles(s); i++) {
        const size_t left = h->n - i * KV_TILE_TOKENS;
        const size_t seen = s->values || left > n ? n : left;

        if (s->values && left < KV_TILE_TOKENS)
            for (size_t k = 0; k < ROWS * n_w; k++)
                w[k] = k % n_w < left ? w[k] : 0;
        run(h, KV_PATH_EXACT, 1, i, w, exact);
        run(h, KV_PATH_INT8, 1, i, w, out);
        for (size_t k = 0; k < ROWS * n; k++) {
            if (k % n >= seen)
                continue;
            if (!(fabs((double)(out[k] - exact[k])) <= bound))
                fail_msg("%s: %g, exactly %g, bound %g", what, out[k], exact[k],
                         bound);
            if (k / n == 1)
                assert_true(out[k] == 0);
        }
    }
    free(out);
    free(exact);
    free(w);
    return true;
}

static void test_int8(void **state)
{
    (void)state;
    assert_true(every(check_int8) > 100);
}

/* Many tiles of values: as near to their sums as the largest weight allows. */
static bool check_together(const char *what, const struct held *h)
{
    const struct kv_store *s = &h->store;
    const size_t tiles = h->n / KV_TILE_TOKENS, n = tiles * KV_TILE_TOKENS;
    const size_t d = s->head_dim;
    float *w, *out;
    double bound;

    if (!s->values || !kv_store_has(s, KV_PATH_INT8))
        return false;
    w = new_w(s, n, n);
    out = kv_alloc(ROWS * d, sizeof(*out));
    bound = int8_bound(h, w, n);
    run_tiles(h, tiles, w, out);
    for (size_t k = 0; k < ROWS * d; k++) {
        double sum = 0;

        for (size_t t = 0; t < n; t++)
            sum += (double)w[k / d * n + t] * (double)decoded(h, t, 1, k % d);
        if (!(fabs((double)out[k] - sum) <= bound))
            fail_msg("%s, %zu tiles: %g, exactly %g, bound %g", what, tiles,
                     out[k], sum, bound);
        if (k / d == 1)
            assert_true(out[k] == 0);
    }
    free(out);
    free(w);
    return true;
}

static void test_together(void **state)
{
    (void)state;
    assert_true(every_of(check_together, 7 * KV_TILE_TOKENS + 3) > 50);
}

/* A query caches its form for the heads of tiles: whatever tiles it has met,
 * and in any order, it gives the same results as a fresh one. */
static bool check_kept(const char *what, const struct held *h)
{
    const struct kv_store *s = &h->store;
    const struct kv_tile_ops *ops = s->family->ops(s, KV_PATH_INT8);
    const size_t d = s->head_dim, tiles = kv_store_tiles(s);
    const size_t bytes = ROWS * KV_TILE_TOKENS * sizeof(float);
    float *fresh, *kept, *q;
    void *query;

    if (s->values || !ops)
        return false;
    query = kv_lines(ops->query_bytes(s), 1);
    q = kv_alloc(ROWS * d, sizeof(*q));
    fresh = kv_alloc(bytes, 1);
    kept = kv_alloc(bytes, 1);
    for (size_t i = 0; i < ROWS * d; i++)
        q[i] = (float)kv_random_normal(9, i);
    ops->prepare(s, 1, q, ROWS, query);
    for (size_t i = 0; i < 3 * tiles; i++) {
        /* forwards, backwards, and two of three */
        const size_t t = i < tiles       ? i
                         : i < 2 * tiles ? 2 * tiles - 1 - i
                                         : i * 2 % tiles;

        run(h, KV_PATH_INT8, 1, t, q, fresh);
        ops->qk(s, 1, kv_store_tile(s, 1, t), query, ROWS, kept,
                KV_TILE_TOKENS);
        if (memcmp(fresh, kept, bytes))
            fail_msg("%s: tile %zu after others", what, t);
    }
    free(kept);
    free(fresh);
    free(q);
    free(query);
    return true;
}

static void test_kept(void **state)
{
    (void)state;
    for (int l = LOWEST; l <= (int)kv_level_max(); l++) {
        kv_level_set((enum kv_level)l, NULL);
        assert_true(every_of(check_kept, 5 * KV_TILE_TOKENS + 3) > 50);
    }
    kv_level_set(KV_LEVEL_C, NULL);
}

/* ---- what fits
 * --------------------------------------------------------------- */

static void check_fit(const char *text, size_t head_dim, bool k, bool v,
                      bool int8)
{
    const bool want[KV_SIDES] = {k, v};

    for (int side = 0; side < KV_SIDES; side++) {
        struct held h;
        const bool got =
            hold(&h, text, head_dim, (enum kv_side)side, KV_TILE_TOKENS, false);

        if (got != want[side])
            fail_msg("%s, %c: tiles %d", text, kv_side_name((enum kv_side)side),
                     got);
        if (got && kv_store_has(&h.store, KV_PATH_INT8) != int8)
            fail_msg("%s, %c: int8 %d", text, kv_side_name((enum kv_side)side),
                     !int8);
        let_go(&h);
    }
}

static void test_fit(void **state)
{
    (void)state;
    check_fit("kivi:b2g32r0", 128, true, true, true);
    check_fit("kivi:b2g128r0", 128, true, true, true);
    check_fit("kivi:K-g8r0/V-g32r0", 128, false, true, true);
    check_fit("kivi:K-g96r0/V-g32r0", 128, false, true, true);
    check_fit("kivi:K-g192r0/V-g8r0", 128, true, false, true);
    check_fit("absmax:b4g2", 128, false, false, false);
    check_fit("absmax:b4g32,heads=all", 48, false, false, false);
    check_fit("absmax:b4,heads=all", 48, true, true, true);
    check_fit("kivi:b1g32r0", 128, true, true, false);
    check_fit("kivi:b6g32r0", 128, true, true, true);
    check_fit("q8_0", 64, true, true, true);
    check_fit("q4_0", 64, true, true, true);
}

/* Codes and heads take their bits: nothing is padded at 128 channels. */
static void test_bytes(void **state)
{
    static const struct {
        const char *text;
        double bits;
    } cases[] = {{"kivi:b2g128r0", 2.25}, {"kivi:b3g32r0", 4},
                 {"kivi:b4g64r0", 4.5},   {"kivi:b2g256r256", 2.125},
                 {"absmax:b4g32", 4.5},   {"q5_1", 6}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct held h;

        assert_true(hold(&h, cases[i].text, 128, KV_K, 256, false));
        assert_within(8.0 * (double)kv_store_bytes(&h.store) / 256 / 2 / 128,
                      cases[i].bits, 0);
        let_go(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expand), cmocka_unit_test(test_exact),
        cmocka_unit_test(test_int8),   cmocka_unit_test(test_together),
        cmocka_unit_test(test_kept),   cmocka_unit_test(test_fit),
        cmocka_unit_test(test_bytes),
    };

    kv_level_set(KV_LEVEL_C, NULL); /* the definition */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
