/* Scores and the file of base log-probabilities. */
#include "eval/klbase.h"
#include "eval/protocol.h"
#include "eval/score.h"
#include "kernels/loss.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "tests/test.h"

#include <math.h>

static void test_means(void **state)
{
    struct kv_score *s = kv_score_new();
    const struct kv_loss a[2] = {
        {.nll = 1, .kl = 0.5f, .dp = 0.1f, .same = true},
        {.nll = 3, .kl = 0.1f, .dp = -0.1f}};
    const struct kv_loss b[1] = {{.nll = 5, .kl = 0.2f, .same = true}};
    struct kv_score_summary r;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(kv_score_window(s, a, 2, 1.5, true, 0, 1, &e), 0);
    assert_int_equal(kv_score_window(s, b, 1, 4.75, true, 1, 1, &e), 0);
    r = kv_score_summary(s);
    assert_within(r.tokens, 3, 0);
    assert_within(r.nll, 3.5, 1e-12); /* window means are 2 and 5 */
    assert_within(r.ppl, exp(3.5), 1e-9);
    assert_within(r.ppl_se, exp(3.5) * 1.5, 1e-9);
    assert_within(r.dnll, (0.5 + 0.25) / 2, 1e-12);
    assert_within(r.dnll_se, 0.125, 1e-12);
    assert_within(r.kl_mean, (0.3 + 0.2) / 2, 1e-7);
    assert_within(r.kl_max, 0.5, 1e-7);
    assert_within(r.kl_median, 0.2, 1e-7);
    assert_within(r.kl_p99, 0.2 + 0.98 * 0.3, 1e-7); /* at 0.99 * 2 of 0 to 2 */
    assert_within(r.kl_p999, 0.2 + 0.998 * 0.3, 1e-7);
    assert_within(r.kl_p95, 0.2 + 0.9 * 0.3, 1e-7);
    assert_within(r.kl_p90, 0.2 + 0.8 * 0.3, 1e-7);
    assert_within(r.kl_p10, 0.1 + 0.2 * 0.1, 1e-7);
    assert_within(r.kl_p5, 0.1 + 0.1 * 0.1, 1e-7);
    assert_within(r.kl_p1, 0.1 + 0.02 * 0.1, 1e-7);
    assert_within(r.same_top1, 2.0 / 3, 1e-12);
    assert_within(r.dp_rms, sqrt(0.02 / 3), 1e-7);
    kv_score_free(s);
    s = kv_score_new();
    assert_int_equal(kv_score_window(s, b, 1, NAN, false, 0, 1, &e), 0);
    r = kv_score_summary(s);
    assert_true(isnan(r.dnll) && isnan(r.kl_mean) && isnan(r.ppl_se) &&
                isnan(r.same_top1));
    kv_score_free(s);
}

/* NaN is an error and is not added to any sum. */
static void test_not_finite(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct kv_score *s = kv_score_new();

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        for (size_t field = 0; field < 4; field++) {
            struct kv_loss t[3] = {{.nll = 1}, {.nll = 2}, {.nll = 3}};
            float *const fields[] = {&t[1].nll, &t[1].kl, &t[1].dp,
                                     &t[1].base_nll};
            struct kv_err e = {""};

            *fields[field] = bad[i];
            assert_int_equal(kv_score_window(s, t, 3, NAN, true, 7, 4, &e), -1);
            assert_says(e, "window 7, token 5");
            assert_says(e, "not finite");
        }
    assert_true(isnan(kv_score_summary(s).nll));
    kv_score_free(s);
}

/* n divergences, the squares of n - 1 down to 0 and one below 0 by rounding
 * for the first, in windows of three sizes. */
static struct kv_score_summary of_squares(size_t n)
{
    struct kv_score *s = kv_score_new();
    struct kv_score_summary r;
    size_t window = 0;

    for (size_t i = 0, size; i < n; i += size, window++) {
        struct kv_loss t[3];

        size = 1 + window % 3 < n - i ? 1 + window % 3 : n - i;
        for (size_t j = 0; j < size; j++) {
            const float root = (float)(n - 1 - (i + j));

            t[j] = (struct kv_loss){.kl = root > 0 ? root * root : -1e-9f};
        }
        assert_int_equal(
            kv_score_window(s, t, size, NAN, true, window, 1, NULL), 0);
    }
    r = kv_score_summary(s);
    kv_score_free(s);
    return r;
}

/* Percentiles as in numpy.percentile() and llama-perplexity. */
static void test_percentiles(void **state)
{
    static const struct {
        size_t n;
        double median, p99;
    } want[] = {
        {1, -1e-9, -1e-9},
        {2, 0.5, 0.99},         /* data: 0, 1 */
        {3, 1, 1 + 0.98 * 3},   /* data: 0, 1, 4 */
        {4, 2.5, 4 + 0.97 * 5}, /* data: 0, 1, 4, 9 */
        {101, 2500, 9801},      /* exactly the 51st and the 100th */
        {1000, 249500.5, 978121 + 0.01 * 1979}, /* data: 0 to 999 */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
        const struct kv_score_summary r = of_squares(want[i].n);

        assert_within(r.kl_median, want[i].median, 1e-8 + 1e-7 * r.kl_median);
        assert_within(r.kl_p99, want[i].p99, 1e-8 + 1e-7 * r.kl_p99);
    }
}

enum { CTX = 6, VOCAB = 5, CHUNKS = 2, ROWS = CTX - 1 - CTX / 2 };

static void test_klbase(void **state)
{
    const float logits[VOCAB] = {0, 1, 2, -30, 0.5f};
    int32_t tokens[CHUNKS * CTX] = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1};
    struct kv_klbase *b;
    struct kv_err e = {""};
    char *path = kv_path_join(test_folder(), "base.kld"), *bytes;
    float log_p[VOCAB], p[VOCAB];
    double lse = 0;
    size_t n;
    FILE *f;

    (void)state;
    for (size_t i = 0; i < VOCAB; i++)
        lse += exp((double)logits[i]);
    lse = log(lse);
    assert_int_equal(kv_klbase_create(&b, path, CTX, VOCAB, CHUNKS, tokens, &e),
                     0);
    for (size_t i = 0; i < CHUNKS * ROWS; i++)
        assert_int_equal(kv_klbase_put(b, logits, &e), 0);
    assert_int_equal(kv_klbase_commit(b, &e), 0);

    /* the layout, read off the bytes */
    assert_int_equal(kv_file_read(path, &bytes, &n, &e), 0);
    assert_memory_equal(bytes, "_logits_", 8);
    assert_int_equal(n, 8 + 12 + 4 * CHUNKS * CTX +
                            2 * CHUNKS * ROWS * (2 * ((VOCAB + 1) / 2) + 4));

    assert_int_equal(kv_klbase_open(&b, path, CTX, VOCAB, CHUNKS, tokens, &e),
                     0);
    assert_int_equal(kv_klbase_get(b, 1, ROWS - 1, log_p, p, &e), 0);
    for (size_t i = 0; i < VOCAB; i++) {
        const double want = fmax((double)logits[i], 2 - 16) - lse;

        assert_within(log_p[i], want, 16.0 / 65535);
        assert_within(p[i], exp((double)log_p[i]), 1e-6);
    }
    kv_klbase_close(b);

    tokens[0] = 4;
    assert_int_equal(kv_klbase_open(&b, path, CTX, VOCAB, CHUNKS, tokens, &e),
                     -1);
    assert_says(e, "other tokens");
    tokens[0] = 0;
    assert_int_equal(
        kv_klbase_open(&b, path, CTX + 2, VOCAB, CHUNKS, tokens, &e), -1);
    assert_says(e, "made with context 6");
    assert_int_equal(
        kv_klbase_open(&b, path, CTX, VOCAB, CHUNKS + 1, tokens, &e), -1);
    assert_says(e, "holds 2 chunks");
    f = fopen(path, "wb");
    fwrite(bytes, 1, n - 1, f);
    fclose(f);
    assert_int_equal(kv_klbase_open(&b, path, CTX, VOCAB, CHUNKS, tokens, &e),
                     -1);
    assert_says(e, "truncated");
    f = fopen(path, "wb");
    fputs("{}", f);
    fclose(f);
    assert_int_equal(kv_klbase_open(&b, path, CTX, VOCAB, CHUNKS, tokens, &e),
                     -1);
    assert_says(e, "not a file of base log-probabilities");
    free(bytes);
    free(path);
}

/* Writes a file with one row of n logits and reads it back. */
static int row_reads(const char *path, const uint16_t *row, size_t n,
                     struct kv_err *e)
{
    enum { CONTEXT = 4 };
    const int32_t head[3] = {CONTEXT, (int32_t)n, 1}, tokens[CONTEXT] = {0};
    float *log_p = kv_alloc(n, sizeof(*log_p)), *p = kv_alloc(n, sizeof(*p));
    struct kv_klbase *b;
    FILE *f = fopen(path, "wb");
    int rc;

    fwrite("_logits_", 1, 8, f);
    fwrite(head, sizeof(head), 1, f);
    fwrite(tokens, sizeof(tokens), 1, f);
    fwrite(row, sizeof(*row), 4 + (n + 1) / 2 * 2, f);
    fclose(f);
    assert_int_equal(kv_klbase_open(&b, path, CONTEXT, n, 1, tokens, e), 0);
    rc = kv_klbase_get(b, 0, 0, log_p, p, e);
    kv_klbase_close(b);
    free(log_p);
    free(p);
    return rc;
}

/* A row from a writer that computes only in f32: the logarithm of the sum, the
 * least log-probability and the steps are each rounded to f32. */
static void float_row(const float *logits, size_t n, uint16_t *row)
{
    float max = logits[0], min = logits[0], head[2];
    double sum = 0;

    for (size_t i = 1; i < n; i++) {
        max = fmaxf(max, logits[i]);
        min = fminf(min, logits[i]);
    }
    min = fmaxf(min, max - 16);
    for (size_t i = 0; i < n; i++)
        sum += (double)expf(logits[i] - max);
    head[0] = (max - min) / 65535.0f;
    head[1] = min - max - (float)log(sum);
    memcpy(row, head, sizeof(head));
    for (size_t i = 0; i < n; i++)
        row[4 + i] = head[0] > 0 && logits[i] > min
                         ? (uint16_t)lrintf((logits[i] - min) * (1 / head[0]))
                         : 0;
}

/* Flat, peaked, wide and large logits all read back, from either writer; no
 * other number in the head of such a row does. */
static void test_klbase_rows(void **state)
{
    enum { MAX = 151936 };
    static const size_t vocab[] = {1, 2, 5, 512, MAX};
    static const float width[] = {0, 1e-3f, 1, 15.5f, 17, 60, 1e4f};
    static const float around[] = {0, -3000, 1e5f};
    char *path = kv_path_join(test_folder(), "row.kld");
    float *logits = kv_alloc(MAX, sizeof(*logits));
    uint16_t *row = kv_alloc(MAX + 6, sizeof(*row));
    struct kv_err e = {""};

    (void)state;
    for (size_t v = 0; v < sizeof(vocab) / sizeof(*vocab); v++)
        for (size_t w = 0; w < sizeof(width) / sizeof(*width); w++)
            for (size_t a = 0; a < sizeof(around) / sizeof(*around); a++) {
                const size_t n = vocab[v];
                const int32_t tokens[4] = {0};
                struct kv_klbase *b;

                for (size_t i = 0; i < n; i++)
                    logits[i] =
                        around[a] + width[w] * (float)kv_random_unit(v, i);
                float_row(logits, n, row);
                assert_int_equal(row_reads(path, row, n, &e), 0);
                assert_int_equal(
                    kv_klbase_create(&b, path, 4, n, 1, tokens, &e), 0);
                assert_int_equal(kv_klbase_put(b, logits, &e), 0);
                kv_klbase_close(b);
            }

    static const float heads[] = {NAN, INFINITY, -INFINITY, 0,    -1,
                                  1,   -1e30f,   1e30f,     5e-4f};

    for (size_t i = 0; i < 512; i++)
        logits[i] = 20 * (float)kv_random_unit(9, i);
    for (size_t at = 0; at < 2; at++)
        for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++) {
            float_row(logits, 512, row);
            memcpy(row + 2 * at, &heads[i], sizeof(float));
            assert_int_equal(row_reads(path, row, 512, &e), -1);
            assert_says(e, path);
            assert_says(e, "chunk 0, row 0");
            assert_says(e, at ? (isfinite(heads[i]) ? "sum to" : "log p")
                           : heads[i] > 0 || heads[i] < 0 || isnan(heads[i])
                               ? "scale"
                               : "largest code");
        }
    float_row(logits, 512, row);
    for (size_t i = 0; i < 512; i++)
        row[4 + i] = row[4 + i] == 65535 ? 65534 : row[4 + i];
    assert_int_equal(row_reads(path, row, 512, &e), -1);
    assert_says(e, "the largest code is 65534");
    float_row(logits, 512, row);
    row[4] = row[5] = 65535; /* two certain tokens */
    assert_int_equal(row_reads(path, row, 512, &e), -1);
    assert_says(e, "sum to");
    free(row);
    free(logits);
    free(path);
}

/* Logits that a row cannot represent are not written. */
static void test_klbase_refuses(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1e9f};
    char *path = kv_path_join(test_folder(), "refused.kld");
    const int32_t tokens[CTX * CHUNKS] = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        float logits[VOCAB] = {0, 1, 2, -30, 0.5f};
        struct kv_klbase *b;
        struct kv_err e = {""};

        assert_int_equal(
            kv_klbase_create(&b, path, CTX, VOCAB, CHUNKS, tokens, &e), 0);
        for (size_t r = 0; r < ROWS + 1; r++)
            assert_int_equal(kv_klbase_put(b, logits, &e), 0);
        logits[3] = bad[i];
        assert_int_equal(kv_klbase_put(b, logits, &e), -1);
        assert_says(e, "refused.kld: chunk 1, row 1 cannot be written");
        kv_klbase_close(b);
        assert_false(kv_file_exists(path));
    }
    free(path);
}

static void test_protocols(void **state)
{
    struct kv_protocol p;
    struct kv_err e = {""};
    size_t first, last;

    (void)state;
    assert_int_equal(kv_protocol_parse(&p, "all", false, &e), 0);
    kv_protocol_scored(&p, 8, &first, &last);
    assert_int_equal(first, 0);
    assert_int_equal(last, 7);
    assert_int_equal(kv_protocol_parse(&p, "llama.cpp", false, &e), 0);
    kv_protocol_scored(&p, 8, &first, &last);
    assert_int_equal(first, 4);
    assert_int_equal(last, 7);
    assert_int_equal(kv_protocol_parse(&p, "prefill:5", false, &e), 0);
    kv_protocol_scored(&p, 8, &first, &last);
    assert_int_equal(first, 5); /* the first query of the compressed cache */
    assert_int_equal(last, 7);
    assert_int_equal(kv_protocol_parse(&p, "stream:16", false, &e), 0);
    assert_int_equal(p.step, 16);
    assert_string_equal(p.text, "stream:16");
    assert_int_equal(kv_protocol_parse(&p, "prefill", false, &e), -1);
    assert_int_equal(kv_protocol_parse(&p, "stream:0", false, &e), -1);
    assert_int_equal(kv_protocol_parse(&p, "stream:x", false, &e), -1);
    assert_int_equal(kv_protocol_parse(&p, "alles", false, &e), -1);
    assert_says(e, "unknown protocol 'alles'");
    assert_int_equal(kv_protocol_parse(&p, "stream", true, &e), -1);
    assert_says(e, "--keep-window");
}

/* Losses by definition, in double, and for rows whose logits arrive in
 * parts. */
static void loss_in_parts(float spread, size_t part, int32_t target)
{
    enum { N = 1000 };
    float q[N], p[N], work[N];
    double q_sum = 0, p_sum = 0, kl = 0;
    size_t q_top = 0, p_top = 0;
    struct kv_loss_sum sum = {0}, alone = {0};
    struct kv_loss loss;

    for (size_t i = 0; i < N; i++) {
        p[i] = 20 + spread * (float)kv_random_normal(1, i);
        q[i] = p[i] + 1 + 0.01f * spread * (float)kv_random_normal(2, i);
        q_sum += exp((double)q[i]);
        p_sum += exp((double)p[i]);
        q_top = q[i] > q[q_top] ? i : q_top;
        p_top = p[i] > p[p_top] ? i : p_top;
    }
    for (size_t i = 0; i < N; i++)
        kl += exp((double)p[i]) / p_sum *
              ((double)p[i] - log(p_sum) - (double)q[i] + log(q_sum));
    for (size_t i = 0; i < N; i += part) {
        const size_t n = N - i < part ? N - i : part;
        const struct kv_loss_base b = kv_loss_base(p + i, n, work);

        kv_loss_add(&sum, q + i, &b, n, target);
        kv_loss_add(&alone, q + i, NULL, n, target);
    }
    loss = kv_loss_end(&sum, true);
    assert_within(loss.nll / (log(q_sum) - (double)q[target]), 1, 1e-6);
    assert_within(loss.base_nll / (log(p_sum) - (double)p[target]), 1, 1e-6);
    assert_within(loss.kl, kl, 1e-8 + 1e-5 * kl);
    assert_within(
        loss.dp,
        exp((double)q[target]) / q_sum - exp((double)p[target]) / p_sum, 1e-7);
    assert_int_equal(loss.same, q_top == p_top);
    assert_true(kv_loss_end(&alone, false).nll == loss.nll);
}

static void test_loss_in_parts(void **state)
{
    (void)state;
    for (size_t part = 1; part <= 1000; part = part * 3 + 7)
        for (int32_t target = 0; target < 1000; target += 333) {
            loss_in_parts(0, part, target);
            loss_in_parts(1, part, target);
            loss_in_parts(10, part, target);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_means),
        cmocka_unit_test(test_percentiles),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_klbase),
        cmocka_unit_test(test_klbase_rows),
        cmocka_unit_test(test_klbase_refuses),
        cmocka_unit_test(test_protocols),
        cmocka_unit_test(test_loss_in_parts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
