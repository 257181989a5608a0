/* Sparse attention (kernels/pattern.h), compared with masks and a softmax in
 * double and, if all tokens are seen, with dense attention. */
#include "kernels/pattern.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "tests/test.h"

#include <math.h>
#include <omp.h>

enum { SEQS = 2, HEADS = 4, KV_HEADS = 2, DIM = 16, AFTER = 3, MANY = 1000 };

struct problem {
    struct kv_attend_job job;
    float *q, *k, *v, *out, sink[HEADS];
    size_t values; /* size of out */
};

static float *random_floats(size_t n, uint64_t key)
{
    float *x = kv_alloc(n, sizeof(*x));

    for (size_t i = 0; i < n; i++)
        x[i] = (float)kv_random_normal(key, i);
    return x;
}

/* A prompt of nq tokens among nq + AFTER; cap 0: no cap and no sink logits. */
static void set_up(struct problem *p, size_t nq, float cap)
{
    const size_t n = nq + AFTER;

    p->values = SEQS * n * HEADS * DIM;
    p->q = random_floats(p->values, 1);
    p->k = random_floats(SEQS * n * KV_HEADS * DIM, 2);
    p->v = random_floats(SEQS * n * KV_HEADS * DIM, 3);
    p->out = kv_alloc(p->values, sizeof(*p->out));
    for (size_t h = 0; h < HEADS; h++)
        p->sink[h] = 2 - (float)h;
    p->job = (struct kv_attend_job){
        .view = {.n_seqs = SEQS,
                 .n_heads = HEADS,
                 .n_kv_heads = KV_HEADS,
                 .head_dim = DIM,
                 .n = n,
                 .nq = nq,
                 .scale = 0.4f,
                 .cap = cap,
                 .sink_logit = cap != 0 ? p->sink : NULL},
        .q = p->q,
        .out = p->out,
        .q_rows = n,
        .k = {.quantized = p->k},
        .v = {.unquantized = p->v}};
}

static void clear(struct problem *p)
{
    free(p->q);
    free(p->k);
    free(p->v);
    free(p->out);
}

/* ---- the definition ------------------------------------------------------ */

static const float *query(const struct problem *p, size_t seq, size_t head,
                          size_t i)
{
    return p->q + ((seq * p->job.q_rows + i) * HEADS + head) * DIM;
}

static const float *row(const struct problem *p, const float *x, size_t seq,
                        size_t head, size_t j)
{
    return x +
           ((seq * p->job.view.n + j) * KV_HEADS + head / (HEADS / KV_HEADS)) *
               DIM;
}

static double logit(const struct problem *p, size_t seq, size_t head, size_t i,
                    size_t j)
{
    const float *q = query(p, seq, head, i), *k = row(p, p->k, seq, head, j);
    const double cap = (double)p->job.view.cap;
    double s = 0;

    for (size_t c = 0; c < DIM; c++)
        s += (double)q[c] * (double)k[c];
    s *= (double)p->job.view.scale;
    return cap != 0 ? cap * tanh(s / cap) : s;
}

/* w [i + 1]: of all tokens that mask [i + 1] has; NULL: all. */
static void weights(const struct problem *p, size_t seq, size_t head, size_t i,
                    const bool *mask, double *w)
{
    const float *sink = p->job.view.sink_logit;
    double sum = sink ? exp((double)sink[head]) : 0;

    for (size_t j = 0; j <= i; j++) {
        w[j] = !mask || mask[j] ? exp(logit(p, seq, head, i, j)) : 0;
        sum += w[j];
    }
    for (size_t j = 0; j <= i; j++)
        w[j] /= sum;
}

/* picked [n]: the `most` largest of score [n], but 0 to forced - 1 before. */
static void pick(const double *score, size_t n, size_t most, size_t forced,
                 bool *picked)
{
    memset(picked, 0, n);
    for (size_t k = 0; k < most && k < n; k++) {
        size_t best = n;

        for (size_t j = 0; j < n; j++)
            if (!picked[j] &&
                (best == n || (best >= forced && score[j] > score[best])))
                best = j;
        picked[best] = true;
    }
}

/* The lines that a vertical-slash head takes. */
static void pick_lines(const struct problem *p, size_t seq, size_t head,
                       const struct kv_pattern *a, bool *token, bool *distance)
{
    const size_t n = p->job.view.nq;
    double *vertical = kv_alloc(n, sizeof(*vertical));
    double *slash = kv_alloc(n, sizeof(*slash));
    double *w = kv_alloc(n, sizeof(*w));

    for (size_t i = n < 64 ? 0 : n - 64; i < n; i++) {
        weights(p, seq, head, i, NULL, w);
        for (size_t j = 0; j <= i; j++) {
            vertical[j] += w[j];
            slash[i - j] += w[j];
        }
    }
    pick(vertical, n, a->first, 30, token);
    pick(slash, n, a->second, 100, distance);
    free(w);
    free(slash);
    free(vertical);
}

static double mean_product(const struct problem *p, size_t seq, size_t head,
                           size_t bq, size_t bk)
{
    const size_t n = p->job.view.nq;
    const size_t q1 = bq * 64 + 64 < n ? bq * 64 + 64 : n;
    const size_t k1 = bk * 64 + 64 < n ? bk * 64 + 64 : n;
    double s = 0;

    for (size_t c = 0; c < DIM; c++) {
        double q = 0, k = 0;

        for (size_t i = bq * 64; i < q1; i++)
            q += (double)query(p, seq, head, i)[c] / (double)(q1 - bq * 64);
        for (size_t j = bk * 64; j < k1; j++)
            k += (double)row(p, p->k, seq, head, j)[c] / (double)(k1 - bk * 64);
        s += q * k;
    }
    return s;
}

/* mask [n][n]: what query i sees, tokens after it too. */
static void mask_blocks(const struct problem *p, size_t seq, size_t head,
                        const struct kv_pattern *a, bool *mask)
{
    const size_t n = p->job.view.nq, blocks = (n + 63) / 64;
    double *score = kv_alloc(blocks, sizeof(*score));
    bool *picked = kv_alloc(blocks, sizeof(*picked));

    for (size_t b = 0; b < blocks; b++) {
        for (size_t i = 0; i <= b; i++)
            score[i] = i == b ? HUGE_VAL : mean_product(p, seq, head, b, i);
        pick(score, b + 1, a->first, 0, picked);
        for (size_t i = b * 64; i < n && i < b * 64 + 64; i++)
            for (size_t j = 0; j <= i; j++)
                mask[i * n + j] = picked[j / 64];
    }
    free(picked);
    free(score);
}

static void mask_lines(const struct problem *p, size_t seq, size_t head,
                       const struct kv_pattern *a, bool *mask)
{
    const size_t n = p->job.view.nq;
    bool *token = kv_alloc(n, sizeof(*token));
    bool *distance = kv_alloc(n, sizeof(*distance));

    pick_lines(p, seq, head, a, token, distance);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            const size_t m0 = i / 64 * 64, m1 = m0 + 64 < n ? m0 + 64 : n;

            mask[i * n + j] = token[j];
            for (size_t s = 0; s < n; s++)
                if (distance[s] && j + s >= m0 && j + s < m1)
                    mask[i * n + j] = true;
        }
    free(distance);
    free(token);
}

static void mask_of(const struct problem *p, size_t seq, size_t head,
                    const struct kv_pattern *a, bool *mask)
{
    const size_t n = p->job.view.nq;

    memset(mask, 0, n * n);
    if (a->kind == KV_BLOCK_SPARSE)
        mask_blocks(p, seq, head, a, mask);
    else if (a->kind == KV_VERTICAL_SLASH)
        mask_lines(p, seq, head, a, mask);
    for (size_t i = 0; i < n && a->kind == KV_A_SHAPE; i++)
        for (size_t j = 0; j <= i; j++)
            mask[i * n + j] = j < a->first || j + a->second > i / 64 * 64;
}

/* Returns the pairs. */
static size_t attend_literally(const struct problem *p,
                               const struct kv_pattern *head, float *out)
{
    const size_t n = p->job.view.nq;
    bool *mask = kv_alloc(n * n, sizeof(*mask));
    double *w = kv_alloc(n, sizeof(*w));
    size_t pairs = 0;

    for (size_t a = 0; a < SEQS * HEADS; a++) {
        const size_t seq = a / HEADS, h = a % HEADS;

        mask_of(p, seq, h, &head[h], mask);
        for (size_t i = 0; i < n; i++) {
            const size_t at = (size_t)(query(p, seq, h, i) - p->q);
            double acc[DIM] = {0};

            weights(p, seq, h, i, mask + i * n, w);
            for (size_t j = 0; j <= i; j++) {
                pairs += mask[i * n + j];
                for (size_t c = 0; c < DIM; c++)
                    acc[c] += w[j] * (double)row(p, p->v, seq, h, j)[c];
            }
            for (size_t c = 0; c < DIM; c++)
                out[at + c] = (float)acc[c];
        }
    }
    free(w);
    free(mask);
    return pairs;
}

/* ---- tests --------------------------------------------------------------- */

static void assert_near(const struct problem *p, const float *want,
                        double bound)
{
    for (size_t i = 0; i < p->values; i++)
        if (!(fabs((double)p->out[i] - (double)want[i]) <= bound))
            fail_msg("%zu queries: output %zu is %.9g, expected %.9g",
                     p->job.view.nq, i, (double)p->out[i], (double)want[i]);
}

static void check(size_t nq, float cap, const struct kv_pattern *head)
{
    struct problem p;
    float *want;
    size_t pairs, apart = 0;

    set_up(&p, nq, cap);
    want = kv_alloc(p.values, sizeof(*want));
    pairs = attend_literally(&p, head, want);
    assert_int_equal(kv_pattern_attend(&p.job, head), pairs);
    assert_near(&p, want, 1e-5); /* rows after the prompt stay 0 */
    for (size_t i = 0; i < SEQS * HEADS; i++) {
        const struct kv_pattern *a = &head[i % HEADS];
        struct kv_pattern_index *x =
            kv_pattern_index_new(&p.job, i / HEADS, i % HEADS, a->kind);

        apart += kv_pattern_pairs(x, a);
        kv_pattern_index_free(x);
    }
    assert_int_equal(apart, pairs);
    free(want);
    clear(&p);
}

static const size_t sizes[] = {1, 5, 63, 64, 65, 130, 333};
enum { SIZES = sizeof(sizes) / sizeof(*sizes) };

static void test_literal(void **state)
{
    static const struct kv_pattern heads[][HEADS] = {
        {{KV_A_SHAPE, 0, 1},
         {KV_A_SHAPE, 4, 20},
         {KV_A_SHAPE, 70, 64},
         {KV_A_SHAPE, 1, 65}},
        {{KV_VERTICAL_SLASH, 1, 1},
         {KV_VERTICAL_SLASH, 40, 30},
         {KV_VERTICAL_SLASH, 31, 101},
         {KV_VERTICAL_SLASH, 100, 103}},
        {{KV_BLOCK_SPARSE, 1, 0},
         {KV_BLOCK_SPARSE, 2, 0},
         {KV_BLOCK_SPARSE, 3, 0},
         {KV_BLOCK_SPARSE, 5, 0}},
        {{KV_VERTICAL_SLASH, 35, 1},
         {KV_BLOCK_SPARSE, 2, 0},
         {KV_A_SHAPE, 10, 10},
         {KV_VERTICAL_SLASH, 5, 102}}};

    (void)state;
    for (size_t i = 0; i < SIZES; i++)
        for (size_t k = 0; k < sizeof(heads) / sizeof(*heads); k++)
            check(sizes[i], k == 3 ? 2.5f : 0, heads[k]);
}

/* A size that covers everything. */
static void test_all(void **state)
{
    static const struct kv_pattern all[] = {{KV_A_SHAPE, MANY, 1},
                                            {KV_A_SHAPE, 0, MANY},
                                            {KV_VERTICAL_SLASH, MANY, 1},
                                            {KV_VERTICAL_SLASH, 1, MANY},
                                            {KV_BLOCK_SPARSE, MANY, 0}};

    (void)state;
    for (size_t i = 0; i < SIZES; i++)
        for (size_t k = 0; k < sizeof(all) / sizeof(*all); k++) {
            const struct kv_pattern head[HEADS] = {all[k], all[k], all[k],
                                                   all[k]};
            struct problem p, dense;

            set_up(&p, sizes[i], 0);
            set_up(&dense, sizes[i], 0);
            kv_attend(&dense.job);
            assert_int_equal(kv_pattern_attend(&p.job, head),
                             kv_pattern_all_pairs(&p.job.view));
            assert_near(&p, dense.out, 1e-5);
            clear(&dense);
            clear(&p);
        }
}

static void test_threads(void **state)
{
    static const struct kv_pattern head[HEADS] = {{KV_A_SHAPE, 8, 40},
                                                  {KV_VERTICAL_SLASH, 50, 60},
                                                  {KV_BLOCK_SPARSE, 3, 0},
                                                  {KV_VERTICAL_SLASH, 9, 9}};
    struct problem one, two;
    size_t pairs;

    (void)state;
    set_up(&one, 333, 0);
    set_up(&two, 333, 0);
    omp_set_num_threads(1);
    pairs = kv_pattern_attend(&one.job, head);
    omp_set_num_threads(2);
    assert_int_equal(kv_pattern_attend(&two.job, head), pairs);
    assert_memory_equal(one.out, two.out, one.values * sizeof(*one.out));
    clear(&two);
    clear(&one);
}

static void test_takes(void **state)
{
    const float slope[HEADS] = {0};
    struct problem p;
    struct kv_attend_view v;

    (void)state;
    set_up(&p, 20, 3);
    assert_true(kv_pattern_takes(&p.job.view));
    v = p.job.view, v.first = 1;
    assert_false(kv_pattern_takes(&v));
    v = p.job.view, v.window = 5;
    assert_false(kv_pattern_takes(&v));
    v = p.job.view, v.slope = slope;
    assert_false(kv_pattern_takes(&v));
    clear(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_literal), cmocka_unit_test(test_all),
        cmocka_unit_test(test_threads), cmocka_unit_test(test_takes)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
