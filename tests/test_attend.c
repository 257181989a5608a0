/* Every attention on the CPU against one loop, over views with each field and
 * with all of them (kernels/attend.h). */
#include "kernels/attend.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "tests/test.h"

#include <math.h>
#include <omp.h>

enum { SEQS = 2, HEADS = 4, KV_HEADS = 2, GROUP = HEADS / KV_HEADS };

/* The optional fields of a view, a bit each. */
enum {
    WINDOW = 1,
    SLOPE = 2,
    CAP = 4,
    ALIVE = 8,
    MASS = 16,
    K_VIEWS = 32, /* both forms; without it only unquantized */
    V_VIEWS = 64, /* both forms; without it only quantized */
    SINK = 128,
    ALL = 256
};

struct problem {
    struct kv_attend_job job;
    float *q, *rows[4], slope[HEADS], sink[HEADS];
    uint32_t *until[2];
    uint64_t *alive;
    double *mass;
    size_t outputs, masses;
};

static float *random_floats(size_t n, uint64_t key)
{
    float *x = kv_alloc(n, sizeof(*x));

    for (size_t i = 0; i < n; i++)
        x[i] = (float)kv_random_normal(key, i);
    return x;
}

/* Ends that rise by fits and starts. */
static uint32_t *random_until(size_t n, size_t first, uint64_t key)
{
    uint32_t *until = kv_alloc(n, sizeof(*until));

    for (size_t i = 0; i < n; i++)
        until[i] =
            (uint32_t)((first + i) * (1 + kv_random(key, i / 7) % 3) / 4);
    return until;
}

/* Makes three of four tokens alive, and in one run of 64 none. */
static uint64_t *random_alive(size_t n, uint64_t key)
{
    const size_t words = kv_attend_words(n);
    uint64_t *alive = kv_alloc(SEQS * KV_HEADS * words, sizeof(*alive));

    for (size_t i = 0; i < SEQS * KV_HEADS * words; i++)
        alive[i] = i % words == 1
                       ? 0
                       : kv_random(key, 2 * i) | kv_random(key, 2 * i + 1);
    return alive;
}

/* Queries are the last nq tokens but `after`. */
static void set_up(struct problem *p, unsigned fields, size_t n, size_t nq,
                   size_t after, size_t d)
{
    const size_t values = SEQS * n * KV_HEADS * d;
    const size_t first = n - nq - after, q_rows = nq + 1;
    struct kv_attend_view v = {.n_seqs = SEQS,
                               .n_heads = HEADS,
                               .n_kv_heads = KV_HEADS,
                               .head_dim = d,
                               .n = n,
                               .nq = nq,
                               .first = first,
                               .scale = 1 / sqrtf((float)d)};

    *p = (struct problem){
        .q = random_floats(SEQS * q_rows * HEADS * d, 1),
        .slope = {0.5f, 0.03f, -0.1f, 0.01f},
        .sink = {1, -3, 9, 0},
        .alive = random_alive(n, 2),
        .until = {random_until(nq, first, 3), random_until(nq, first, 4)},
        .outputs = SEQS * q_rows * HEADS * d,
        .masses = SEQS * KV_HEADS * n};
    for (uint64_t i = 0; i < 4; i++)
        p->rows[i] = random_floats(values, 5 + i);
    p->mass = kv_alloc(p->masses, sizeof(*p->mass));
    v.window = fields & WINDOW ? 1 + n / 3 : 0;
    v.slope = fields & SLOPE ? p->slope : NULL;
    v.cap = fields & CAP ? 0.7f : 0;
    v.sink_logit = fields & SINK ? p->sink : NULL;
    v.alive = fields & ALIVE ? p->alive : NULL;
    v.mass = fields & MASS ? p->mass : NULL;
    p->job = (struct kv_attend_job){
        .view = v,
        .q = p->q,
        .q_rows = q_rows,
        .k = {.unquantized = p->rows[0],
              .quantized = fields & K_VIEWS ? p->rows[1] : NULL,
              .sinks = 2,
              .until = p->until[0]},
        .v = {.unquantized = fields & V_VIEWS ? p->rows[2] : NULL,
              .quantized = p->rows[3],
              .sinks = 5,
              .until = p->until[1]}};
}

static void tear_down(struct problem *p)
{
    for (int i = 0; i < 4; i++)
        free(p->rows[i]);
    free(p->until[0]);
    free(p->until[1]);
    free(p->alive);
    free(p->mass);
    free(p->q);
}

/* ---- the loop ------------------------------------------------------------ */

static double at(const struct problem *p, bool values, unsigned fields,
                 size_t seq, size_t i, size_t j, size_t kv_head, size_t c)
{
    const struct kv_attend_view *v = &p->job.view;
    const size_t sinks = values ? 5 : 2;
    const bool both = fields & (values ? V_VIEWS : K_VIEWS);
    const bool old = both ? j >= sinks && j < p->until[values][i] : values;

    return (double)
        p->rows[2 * values + old]
               [((seq * v->n + j) * KV_HEADS + kv_head) * v->head_dim + c];
}

static bool seen(const struct problem *p, unsigned fields, size_t seq, size_t i,
                 size_t j, size_t kv_head)
{
    const struct kv_attend_view *v = &p->job.view;
    const size_t position = v->first + i;
    const uint64_t *alive =
        p->alive + (seq * KV_HEADS + kv_head) * ((v->n + 63) / 64);

    if (j > position)
        return false;
    if (fields & WINDOW && position - j >= 1 + v->n / 3)
        return false;
    return !(fields & ALIVE) || (alive[j / 64] & (uint64_t)1 << j % 64) != 0;
}

/* out: [head_dim]; mass: of the KV head, added to. */
static void one(const struct problem *p, unsigned fields, size_t seq, size_t i,
                size_t head, double *out, double *mass)
{
    const struct kv_attend_view *v = &p->job.view;
    const size_t d = v->head_dim, kv_head = head / GROUP;
    const float *q = p->q + ((seq * p->job.q_rows + i) * HEADS + head) * d;
    double *w = kv_alloc(v->n, sizeof(*w)), sum = 0, sink = 0;

    if (fields & SINK)
        sink = exp((double)p->sink[head]);

    for (size_t j = 0; j < v->n; j++) {
        double s = 0;

        for (size_t c = 0; c < d; c++)
            s += (double)q[c] * at(p, false, fields, seq, i, j, kv_head, c);
        s *= (double)v->scale;
        if (fields & CAP)
            s = (double)0.7f * tanh(s / (double)0.7f);
        if (fields & SLOPE)
            s -= (double)p->slope[head] * ((double)(v->first + i) - (double)j);
        w[j] = seen(p, fields, seq, i, j, kv_head) ? exp(s) : 0;
        sum += w[j];
    }
    memset(out, 0, d * sizeof(*out));
    sum += sink;
    for (size_t j = 0; j < v->n && sum > 0; j++) {
        mass[j] += w[j] / sum;
        for (size_t c = 0; c < d; c++)
            out[c] += w[j] / sum * at(p, true, fields, seq, i, j, kv_head, c);
    }
    free(w);
}

/* ---- tests --------------------------------------------------------------- */

/* Rows past the queries are not written. */
static void check_job(struct problem *p, unsigned fields,
                      void (*attend)(const struct kv_attend_job *),
                      double bound, double mass_bound)
{
    const struct kv_attend_view *v = &p->job.view;
    const size_t d = v->head_dim;
    float *out = kv_alloc(p->outputs, sizeof(*out));
    double *mass = kv_alloc(p->masses, sizeof(*mass)), want[64];

    for (size_t i = 0; i < p->masses; i++)
        mass[i] = p->mass[i] = 1;
    memset(out, 0xff, p->outputs * sizeof(*out));
    p->job.out = out;
    attend(&p->job);
    for (size_t r = 0; r < SEQS * p->job.q_rows * HEADS; r++) {
        const size_t seq = r / HEADS / p->job.q_rows;
        const size_t i = r / HEADS % p->job.q_rows, head = r % HEADS;

        if (i < v->nq)
            one(p, fields, seq, i, head, want,
                mass + (seq * KV_HEADS + head / GROUP) * v->n);
        for (size_t c = 0; c < d; c++)
            if (i < v->nq)
                assert_within(out[r * d + c], want[c], bound);
            else
                assert_true(isnan(out[r * d + c]));
    }
    for (size_t i = 0; i < p->masses; i++)
        assert_within(p->mass[i], fields & MASS ? mass[i] : 1, mass_bound);
    free(mass);
    free(out);
}

static const struct {
    size_t n, nq, after, d;
} sizes[] = {{0, 0, 0, 4},   {1, 1, 0, 4},    {3, 3, 0, 1},   {9, 2, 4, 6},
             {64, 1, 0, 16}, {65, 65, 0, 16}, {150, 7, 1, 8}, {131, 70, 0, 16}};

static void check_all(void (*attend)(const struct kv_attend_job *),
                      double bound)
{
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (unsigned fields = 0; fields < ALL;
             fields += fields < SINK ? 1 : 7) {
            struct problem p;

            set_up(&p, fields, sizes[i].n, sizes[i].nq, sizes[i].after,
                   sizes[i].d);
            check_job(&p, fields, attend, bound, 1e-9);
            tear_down(&p);
        }
}

static void test_plain(void **state)
{
    (void)state;
    check_all(kv_attend_c, 1e-6);
}

static void test_products(void **state)
{
    (void)state;
    check_all(kv_attend, 2e-5);
}

/* Only mass: no values, no output. */
static void test_mass_alone(void **state)
{
    struct problem p;
    double *mass;

    (void)state;
    set_up(&p, MASS, 70, 5, 2, 8);
    p.job.out = kv_alloc(p.outputs, sizeof(float));
    kv_attend_c(&p.job);
    free(p.job.out);
    mass = p.mass;
    p.job.view.mass = kv_alloc(p.masses, sizeof(*mass));
    p.job.out = NULL;
    p.job.v = (struct kv_attend_side){NULL, NULL, 0, NULL};
    kv_attend_c(&p.job);
    assert_memory_equal(p.job.view.mass, mass, p.masses * sizeof(*mass));
    free(p.job.view.mass);
    tear_down(&p);
}

/* One thread and four give the same bits. */
static void test_threads(void **state)
{
    void (*const attend[])(const struct kv_attend_job *) = {kv_attend_c,
                                                            kv_attend};

    (void)state;
    for (int i = 0; i < 2; i++) {
        float *out[2];
        struct problem p;
        const unsigned fields = i ? ALL - 1 - MASS : ALL - 1;

        set_up(&p, fields, 131, 130, 0, 64);
        for (int t = 0; t < 2; t++) {
            const int before = omp_get_max_threads();

            out[t] = p.job.out = kv_alloc(p.outputs, sizeof(float));
            omp_set_num_threads(t ? 4 : 1);
            attend[i](&p.job);
            omp_set_num_threads(before);
        }
        assert_memory_equal(out[0], out[1], p.outputs * sizeof(float));
        free(out[0]);
        free(out[1]);
        tear_down(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_mass_alone),
        cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
