/* kernels/transform in plain C: a tile's values equal the trellis's decoded
 * values, bit for bit, and int8 follows its definition.  check_ops compares the
 * other levels with it. */
#include "kernels/level.h"
#include "tests/test.h"
#include "tests/transform_setup.h"

enum { D = 90 };

static float want(const struct made *m, size_t head, size_t t, size_t j)
{
    if (j >= m->n[head])
        return 0;
    return m->decoded[t * m->n_values + m->value[head][j]];
}

/* [rows][64] of tile i. */
static void score(const struct kv_store *s, enum kv_path path, size_t head,
                  size_t i, const float *q, size_t rows, float *to)
{
    const struct kv_tile_ops *ops = s->family->ops(s, path);
    const size_t bytes = (ops->query_bytes(s) + 63) / 64 * 64;
    void *query = aligned_alloc(64, bytes);

    memset(query, 0x5a, bytes); /* earlier contents do not count */
    ops->prepare(s, head, q, rows, query);
    ops->qk(s, head, kv_store_tile(s, head, i), query, rows, to,
            KV_TILE_TOKENS);
    free(query);
}

static void pv(const struct kv_store *s, enum kv_path path, size_t head,
               size_t i, const float *p, size_t rows, float *out)
{
    const struct kv_tile_ops *ops = s->family->ops(s, path);
    const size_t bytes = (rows * ops->acc_floats(s) * sizeof(float) + 63) / 64;
    float *acc = aligned_alloc(64, bytes * 64);

    memset(acc, 0, bytes * 64);
    ops->pv(s, head, kv_store_tile(s, head, i), p, KV_TILE_TOKENS, rows, acc);
    ops->finish(s, head, acc, rows, out);
    free(acc);
}

/* The inverse is the unit matrix: with units as queries qk are values, and
 * so are outputs with one weight of 1. */
static void check_values(const struct made *m)
{
    struct kv_store k, v;
    struct kv_transform *kc = fill(m, false, NULL, &k);
    struct kv_transform *vc = fill(m, true, NULL, &v);
    float got[KV_TILE_TOKENS], out[D];

    for (size_t h = 0; h < HEADS; h++)
        for (size_t t = 0; t < TOKENS; t++) {
            float p[KV_TILE_TOKENS] = {0};

            p[t % KV_TILE_TOKENS] = 1;
            pv(&v, KV_PATH_EXACT, h, t / KV_TILE_TOKENS, p, 1, out);
            for (size_t j = 0; j < D; j++)
                assert_true(out[j] == want(m, h, t, j));
        }
    for (size_t h = 0; h < HEADS; h++)
        for (size_t j = 0; j < D; j++)
            for (size_t i = 0; i < 2; i++) {
                score(&k, KV_PATH_EXACT, h, i, m->unit[j], 1, got);
                for (size_t t = i * 64; t < TOKENS && t < (i + 1) * 64; t++)
                    assert_true(got[t % 64] == want(m, h, t, j));
            }
    kv_store_free(&k);
    kv_store_free(&v);
    kv_transform_free(kc);
    kv_transform_free(vc);
}

static void test_values(void **state)
{
    (void)state;
    for (size_t max = 0; max <= D; max += 30) {
        struct made *m = make(D, max);

        check_values(m);
        free_made(m);
    }
}

/* ---- int8, by its definition --------------------------------------------- */

/* Codes up to 127 in magnitude, and the value of one. */
static float round8(const float *x, size_t n, int *code)
{
    float max = 0;

    for (size_t i = 0; i < n; i++)
        max = fmaxf(max, fabsf(x[i]));
    for (size_t i = 0; i < n; i++)
        code[i] = max > 0 ? (int)rintf(x[i] * (127 / max)) : 0;
    return max / 127;
}

static int code8(const struct made *m, size_t head, size_t t, size_t j)
{
    return (int)rintf(want(m, head, t, j) / m->unit8[head][j]);
}

/* q [D], of coefficients, with those of tokens [begin, end). */
static void products8(const struct made *m, size_t head, const float *q,
                      size_t begin, size_t end, double *to)
{
    float x[D];
    int code[D];

    for (size_t j = 0; j < D; j++)
        x[j] = q[j] * m->unit8[head][j];

    const double unit = (double)round8(x, D, code);

    for (size_t t = begin; t < end; t++) {
        int sum = 0;

        for (size_t j = 0; j < D; j++)
            sum += code[j] * code8(m, head, t, j);
        to[t - begin] = unit * sum;
    }
}

/* The mean has one channel: no order of sums. */
static void qk8(const struct made *m, size_t head, const float *q, size_t begin,
                size_t end, double *to)
{
    products8(m, head, q, begin, end, to);
    for (size_t t = begin; t < end; t++)
        to[t - begin] += (double)q[head] * (double)m->mean[head * D + head];
}

/* Weights p [64] of the tokens from begin on to outputs [D]. */
static void outputs8(const struct made *m, size_t head, const float *p,
                     size_t begin, size_t end, double *to)
{
    int code[KV_TILE_TOKENS];
    const double unit = (double)round8(p, KV_TILE_TOKENS, code);
    double all = 0;

    for (size_t t = 0; t < KV_TILE_TOKENS; t++)
        all += (double)p[t];
    for (size_t j = 0; j < D; j++) {
        int sum = 0;

        for (size_t t = begin; t < end; t++)
            sum += code[t - begin] * code8(m, head, t, j);
        to[j] = unit * (double)m->unit8[head][j] * sum +
                all * (double)m->mean[head * D + j];
    }
}

/* Scores of keys before RoPE: codes give each channel, by its column of the
 * inverse; channels turn as floats. */
static void qk8_rotated(const struct made *m, const float *inv_freq,
                        size_t head, const float *q, size_t begin, size_t end,
                        double *to)
{
    double x[D][KV_TILE_TOKENS];

    for (size_t c = 0; c < D; c++) {
        float column[D];

        for (size_t j = 0; j < D; j++)
            column[j] = m->unit[j][c];
        products8(m, head, column, begin, end, x[c]);
    }
    for (size_t t = 0; t < end - begin; t++) {
        to[t] = 0;
        for (size_t c = 0; c < D / 2; c++) {
            const double angle = (double)(begin + t) * (double)inv_freq[c];
            const double low = x[c][t] + (double)m->mean[head * D + c];
            const double high =
                x[c + D / 2][t] + (double)m->mean[head * D + c + D / 2];

            to[t] +=
                (double)q[c] * (low * cos(angle) - high * sin(angle)) +
                (double)q[c + D / 2] * (high * cos(angle) + low * sin(angle));
        }
    }
}

/* How far a is from b, both [n], in units of b. */
static double distance(const float *a, const float *b, size_t n)
{
    double far = 0, all = 0;

    for (size_t i = 0; i < n; i++) {
        far += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)b[i] * (double)b[i];
    }
    return sqrt(far / all);
}

/* The relative error that codes add to sums of D products, root mean square. */
static const double ROUNDING = 0.015;

/* Scores and outputs of all heads and tiles: equal to the codes' results, and
 * close to the exact ones. */
static void test_int8(void **state)
{
    struct made *m = make(D, D);
    struct kv_store k, v;
    struct kv_transform *kc, *vc;
    float q[ROWS * D], p[ROWS * KV_TILE_TOKENS];

    (void)state;
    for (size_t h = 0; h < HEADS; h++)
        m->mean[h * D + h] = 0.7f;
    kc = fill(m, false, NULL, &k);
    vc = fill(m, true, NULL, &v);
    for (size_t i = 0; i < ROWS * D; i++)
        q[i] = (float)kv_random_normal(1, i);
    for (size_t i = 0; i < HEADS * 2; i++)
        for (size_t rows = 1; rows <= ROWS; rows++) {
            const size_t h = i / 2, begin = i % 2 * KV_TILE_TOKENS;
            const size_t end = begin ? TOKENS : KV_TILE_TOKENS;
            float s[ROWS * KV_TILE_TOKENS], o[ROWS * D];
            float exact[ROWS * KV_TILE_TOKENS], out[ROWS * D];
            double wanted[KV_TILE_TOKENS], wanted_out[D];

            for (size_t j = 0; j < ROWS * KV_TILE_TOKENS; j++)
                p[j] = j % KV_TILE_TOKENS < end - begin
                           ? (float)kv_random_unit(2, j)
                           : 0;
            score(&k, KV_PATH_INT8, h, i % 2, q, rows, s);
            pv(&v, KV_PATH_INT8, h, i % 2, p, rows, o);
            score(&k, KV_PATH_EXACT, h, i % 2, q, rows, exact);
            pv(&v, KV_PATH_EXACT, h, i % 2, p, rows, out);
            for (size_t r = 0; r < rows; r++) {
                const size_t at = r * KV_TILE_TOKENS;

                qk8(m, h, q + r * D, begin, end, wanted);
                for (size_t t = 0; t < end - begin; t++)
                    assert_within(s[at + t], wanted[t],
                                  1e-5 * (1 + fabs(wanted[t])));
                assert_within(distance(s + at, exact + at, end - begin), 0,
                              ROUNDING);
                outputs8(m, h, p + at, begin, end, wanted_out);
                for (size_t j = 0; j < D; j++)
                    assert_within(o[r * D + j], wanted_out[j],
                                  1e-5 * (1 + fabs(wanted_out[j])));
                assert_within(distance(o + r * D, out + r * D, D), 0, ROUNDING);
            }
        }
    kv_store_free(&k);
    kv_store_free(&v);
    kv_transform_free(kc);
    kv_transform_free(vc);
    free_made(m);
}

/* Keys before RoPE: what the codes give, near the exact qk. */
static void test_int8_rotated(void **state)
{
    const float inv_freq[D / 2] = {1, 0.3f, 0.1f, 0.03f};
    struct kv_tiles_rope *rope =
        kv_tiles_rope_new(D, (struct kv_rope_pairs){D / 2, 1, D / 2}, inv_freq);
    struct made *m = make(D, D);
    struct kv_store k;
    struct kv_transform *c;
    float q[ROWS * D];

    (void)state;
    for (size_t i = 0; i < ROWS * D; i++)
        q[i] = (float)kv_random_normal(1, i);
    for (size_t i = 0; i < D * D; i++)
        m->unit[i / D][i % D] = 0.16f * (float)kv_random_normal(2, i);
    for (size_t i = 0; i < HEADS * D; i++)
        m->mean[i] = (float)kv_random_normal(3, i);
    c = fill(m, false, rope, &k);
    for (size_t i = 0; i < HEADS * 2; i++)
        for (size_t rows = 1; rows <= ROWS; rows++) {
            const size_t h = i / 2, begin = i % 2 * KV_TILE_TOKENS;
            const size_t end = begin ? TOKENS : KV_TILE_TOKENS;
            float plain[ROWS * KV_TILE_TOKENS];
            float exact[ROWS * KV_TILE_TOKENS];
            double wanted[KV_TILE_TOKENS];

            score(&k, KV_PATH_INT8, h, i % 2, q, rows, plain);
            score(&k, KV_PATH_EXACT, h, i % 2, q, rows, exact);
            for (size_t r = 0; r < rows; r++) {
                const size_t at = r * KV_TILE_TOKENS;

                qk8_rotated(m, inv_freq, h, q + r * D, begin, end, wanted);
                for (size_t t = 0; t < end - begin; t++)
                    assert_within(plain[at + t], wanted[t],
                                  5e-5 * (1 + fabs(wanted[t])));
                assert_within(distance(plain + at, exact + at, end - begin), 0,
                              ROUNDING);
            }
        }
    kv_store_free(&k);
    kv_transform_free(c);
    kv_tiles_rope_free(rope);
    free_made(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_int8),
        cmocka_unit_test(test_int8_rotated),
    };

    kv_level_set(KV_LEVEL_C, NULL); /* the definition */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
