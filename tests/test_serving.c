/* The simulator of serving: its queues against theory, its steps against a
 * plain loop, and what every run conserves. */
#include "eval/serving/cluster.h"
#include "eval/serving/events.h"
#include "eval/serving/network.h"
#include "eval/serving/stages.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "tests/test.h"

#include <math.h>
#include <stdbool.h>

static double exponential(uint64_t key, uint64_t i)
{
    return -log(kv_uniform(key, i));
}

static void assert_near(double got, double want, double relative)
{
    if (fabs(got - want) > relative * fabs(want))
        fail_msg("%.6g, expected %.6g within %g %%", got, want, 100 * relative);
}

/* ---- theory: the mean time in the system, of services of mean 1 -----------
 */

/* c servers that take jobs first come first served. */
static double queue_time(double load, size_t c, bool constant, size_t n)
{
    struct kv_stages s[4] = {{.n = 1}, {.n = 1}, {.n = 1}, {.n = 1}};
    double t = 0, sum = 0;

    for (size_t i = 0; i < n; i++) {
        size_t at = 0;

        for (size_t j = 1; j < c; j++)
            at = s[j].free[0] < s[at].free[0] ? j : at;
        t += exponential(1, i) / load / (double)c;
        sum +=
            kv_stages_serve(&s[at], t, constant ? 1 : exponential(2, i), NULL) -
            t;
    }
    return sum / (double)n;
}

/* P(Poisson(a) >= k) */
static double poisson_tail(double a, double k)
{
    double p = exp(k * log(a) - a - lgamma(k + 1)), sum = 0;

    for (; p > 1e-18 || k < a; k++, p *= a / k)
        sum += p;
    return sum;
}

/* Returns Crommelin's mean waiting time of the queue M/D/c plus the service
 * time. */
static double md_time(double load, double c)
{
    const double a = load * c;
    double wait = 0;

    for (double i = 1; i < 500; i++)
        wait +=
            poisson_tail(i * a, i * c) - c / a * poisson_tail(i * a, i * c + 1);
    return 1 + wait;
}

static void test_queue(void **state)
{
    (void)state;
    assert_near(md_time(.6, 1), 1 + .6 / (2 * .4), 1e-9);
    for (size_t i = 0; i < 3; i++) {
        const double load = (double[]){.3, .6, .8}[i];
        const size_t n = i < 2 ? 1000000 : 4000000;

        assert_near(queue_time(load, 1, false, n), 1 / (1 - load), .01);
        assert_near(queue_time(load, 1, true, n), md_time(load, 1), .01);
        assert_near(queue_time(load, 4, true, n), md_time(load, 4), .01);
    }
}

/* Jobs that share a link: 1 / (1 - load), whatever the law of their sizes. */
static double link_time(double load, bool constant, uint32_t n)
{
    struct kv_network net;
    double *begun = kv_alloc(n, sizeof(*begun)), t = 0, sum = 0;

    kv_network_init(&net, 1, 1, 1, 8);
    for (uint32_t i = 0; i < n; i++) {
        t += exponential(3, i) / load;
        for (double next; (next = kv_network_next(&net)) < t;)
            sum += next - begun[kv_network_end(&net, next)];
        begun[i] = t;
        kv_network_send(&net, t, i, constant ? 1 : exponential(4, i), 0, 0);
    }
    kv_network_clear(&net);
    free(begun);
    return sum / n;
}

static void test_sharing(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const double load = (double[]){.3, .6, .8}[i];

        assert_near(link_time(load, false, 1000000), 1 / (1 - load), .01);
        assert_near(link_time(load, true, 1000000), 1 / (1 - load), .01);
    }
}

/* If a step's time is proportional to its requests, the requests share a
 * processor. */
static void test_batch_shares(void **state)
{
    enum { N = 400000, STEPS = 1000 };
    const struct kv_step_cost cost = {.per_request = {0, 1. / STEPS},
                                      .side = 1};
    double *begun = kv_alloc(N, sizeof(*begun));

    (void)state;
    for (size_t l = 0; l < 2; l++) {
        const double load = (double[]){.3, .7}[l];
        struct kv_batching b;
        double t = 0, sum = 0;

        kv_batching_init(&b, &cost);
        for (uint32_t i = 0; i < N; i++) {
            struct kv_member m;

            t += exponential(5, i) / load;
            for (double next; (next = kv_batching_next(&b)) < t;) {
                kv_batching_run(&b);
                while (kv_batching_leave(&b, &m))
                    sum += next - begun[m.id];
                kv_batching_admit(&b);
            }
            begun[i] = t;
            kv_batching_join(&b, t, i, 1,
                             1 + (uint64_t)(STEPS * exponential(6, i)));
        }
        assert_near(sum / N, 1 / (1 - load), .01);
        kv_batching_clear(&b);
    }
    free(begun);
}

/* Four jobs between a queue of mean 1 and a shared link of mean 1.3: the
 * product form's rate (Buzen), while each network of events runs through the
 * event queue. */
static void test_closed(void **state)
{
    enum { JOBS = 4, ENDS = 1000000 };
    const double demand = 1.3;
    struct kv_events q = {0};
    struct kv_stages s = {.n = 1};
    struct kv_network net;
    struct kv_event e;
    double g[JOBS + 1];
    uint64_t stamp = 0, draws = 0, ends = 0;

    (void)state;
    for (size_t i = 0; i <= JOBS; i++)
        g[i] = i ? g[i - 1] * demand + 1 : 1;
    kv_network_init(&net, 1, 1, 1, 1);
    for (uint32_t i = 0; i < JOBS; i++)
        kv_events_add(&q, kv_stages_serve(&s, 0, exponential(7, draws++), NULL),
                      0, i, 0);
    while (ends < ENDS && kv_events_take(&q, &e)) {
        if (!e.kind) {
            kv_network_send(&net, q.now, e.at, demand * exponential(7, draws++),
                            0, 0);
        } else if (e.stamp == stamp) {
            const uint32_t id = kv_network_end(&net, q.now);

            ends++;
            kv_events_add(
                &q, kv_stages_serve(&s, q.now, exponential(7, draws++), NULL),
                0, id, 0);
        } else {
            continue;
        }
        kv_events_add(&q, kv_network_next(&net), 1, 0, ++stamp);
    }
    assert_near((double)ends / q.now, g[JOBS - 1] / g[JOBS], .01);
    kv_network_clear(&net);
    kv_events_clear(&q);
}

/* ---- steps against a loop over them ---------------------------------------
 */

struct job {
    double arrives, joined, end, part[KV_STEP_PARTS];
    uint64_t tokens, steps, left;
    bool in;
};

static void plain(const struct kv_step_cost *c, struct job *j, size_t n)
{
    double now = 0;

    for (size_t done = 0; done < n;) {
        double held = 0, tokens = 0, time = 0, next = INFINITY;
        double part[KV_STEP_PARTS];

        for (size_t i = 0; i < n; i++) {
            if (!j[i].in && j[i].left && j[i].arrives <= now) {
                j[i].in = true;
                j[i].joined = now;
            }
            if (!j[i].in && j[i].left)
                next = fmin(next, j[i].arrives);
            held += j[i].in;
            tokens += j[i].in ? (double)j[i].tokens : 0;
        }
        if (held == 0) {
            now = next;
            continue;
        }
        for (size_t p = 0; p < KV_STEP_PARTS; p++) {
            part[p] = (p ? 0 : c->fixed) +
                      (c->per_request[p] * held + c->per_token[p] * tokens) /
                          fmin(held, c->side);
            time += part[p];
        }
        now += time;
        for (size_t i = 0; i < n; i++) {
            if (!j[i].in)
                continue;
            for (size_t p = 0; p < KV_STEP_PARTS; p++)
                j[i].part[p] += part[p];
            j[i].tokens++;
            if (!--j[i].left) {
                j[i].in = false;
                j[i].end = now;
                done++;
            }
        }
    }
}

static void compare_job(const struct job *j, const struct kv_member *m,
                        double end)
{
    assert_near(m->joined, j->joined, 1e-9);
    assert_near(end, j->end, 1e-9);
    for (size_t p = 0; p < KV_STEP_PARTS; p++)
        if (fabs(m->part[p] - j->part[p]) > 1e-7)
            fail_msg("part %zu: %g, expected %g", p, m->part[p], j->part[p]);
}

static void test_steps(void **state)
{
    enum { N = 300 };
    static const struct kv_step_cost cost[] = {
        {.per_request = {0, .3, 0, .1},
         .per_token = {0, .01, .002, .03},
         .fixed = 1,
         .side = 1},
        {.per_token = {0, .05}, .fixed = .01, .side = 3},
        {.fixed = 2, .side = 1}};

    (void)state;
    for (size_t c = 0; c < 3; c++) {
        struct job j[N] = {0};
        struct kv_batching b;
        struct kv_member m;
        double t = 0;
        size_t next = 0, done = 0;

        for (size_t i = 0; i < N; i++) {
            t += 40 * exponential(c, i);
            j[i] = (struct job){.arrives = t,
                                .tokens = kv_random(8, i) % 100,
                                .steps = 1 + kv_random(9, i) % 40};
            j[i].left = j[i].steps;
        }
        kv_batching_init(&b, &cost[c]);
        plain(&cost[c], j, N);
        for (size_t i = 0; i < N; i++)
            j[i].tokens -= j[i].steps;
        while (done < N) {
            const double at = kv_batching_next(&b);

            if (next < N && j[next].arrives < at) {
                kv_batching_join(&b, j[next].arrives, (uint32_t)next,
                                 j[next].tokens, j[next].steps);
                next++;
                continue;
            }
            kv_batching_run(&b);
            for (; kv_batching_leave(&b, &m); done++)
                compare_job(&j[m.id], &m, at);
            kv_batching_admit(&b);
        }
        assert_int_equal(b.tokens, 0);
        kv_batching_clear(&b);
    }
}

/* ---- a whole cluster ------------------------------------------------------
 */

static const struct kv_cluster usual = {
    .prefills = 3,
    .stages = 2,
    .decodes = 2,
    .prefill_fixed = .01,
    .prefill_token = 1e-4,
    .prefill_square = 1e-9,
    .up = 1e6,
    .down = 3e6,
    .transfer_fixed = .02,
    .sent = 100,
    .kept = 101.5,
    .layers = 10,
    .step = {.per_token = {0, 1e-6, 1e-7}, .fixed = .001, .side = 1},
    .room = 1e9};

static const struct kv_arrivals stream = {.in = {1000, 100, 4000, 4},
                                          .out = {50, 1, 200, 4},
                                          .longest = 100000,
                                          .rate = 3};

static void conserve(const struct kv_cluster *c, const struct kv_request *r,
                     size_t n, const struct kv_cluster_use *use)
{
    for (size_t i = 0; i < n; i++) {
        double decode = 0;

        for (size_t p = 0; p < KV_STEP_PARTS; p++)
            decode += r[i].part[p];
        assert_true(r[i].done);
        assert_true(r[i].service > 0);
        assert_true(r[i].prefilled >= r[i].is.time + r[i].service - 1e-9);
        assert_true(r[i].sent >= r[i].prefilled);
        assert_true(r[i].landed >= r[i].sent);
        assert_near(r[i].unpacked - r[i].landed,
                    c->unpack_fixed + c->unpack_token * r[i].is.in, 1e-6);
        assert_near(r[i].service,
                    kv_cluster_prefill(c, r[i].is.in) + r[i].quantize, 1e-12);
        assert_true(r[i].joined >= r[i].unpacked);
        assert_true(fabs(r[i].joined + decode - r[i].end) < 1e-6);
        assert_true(r[i].prefill < c->prefills && r[i].decode < c->decodes);
    }
    assert_near(use->bytes_sent, use->bytes_asked, 1e-9);
    assert_near(use->bytes_received, use->bytes_asked, 1e-9);
    assert_true(use->bytes_left == 0);
    assert_true(use->peak <= c->room);
    assert_true(use->prefill <= 1 && use->network <= 1 && use->decode <= 1);
}

static void test_conserved(void **state)
{
    enum { N = 5000 };
    struct kv_arrival *a = kv_alloc(N, sizeof(*a));
    struct kv_request *r = kv_alloc(N, sizeof(*r));
    struct kv_cluster_use use;
    struct kv_err e;

    (void)state;
    for (size_t k = 0; k < 24; k++) {
        struct kv_cluster c = usual;
        struct kv_arrivals from = stream;

        c.pipelined = k & 1;
        if (k & 4) {
            c.quantize_fixed = .003;
            c.quantize_token = 2e-5;
            c.unpack_fixed = .004;
            c.unpack_token = 3e-5;
        }
        c.room = k & 2 ? 1e6 : 1e9;
        from.rate = (double[]){.3, 5, 50}[k % 3];
        kv_arrivals_fill(&from, k, a, N);
        for (size_t i = 0; i < N; i++)
            r[i].is = a[i];
        assert_int_equal(kv_cluster_run(&c, k, r, N, &use, &e), 0);
        conserve(&c, r, N, &use);
        if (k % 3 == 2 && k & 2)
            assert_true(use.waiting > 0); /* caches wait in CPU memory */
        if (!(k & 2)) {
            assert_true(use.waiting == 0);
            if (!c.pipelined)
                assert_true(use.bytes_asked > 0);
        }
    }
    free(a);
    free(r);
}

/* The time of a single request is the sum of its parts. */
static void test_alone(void **state)
{
    const struct kv_cluster *c = &usual;
    struct kv_request r = {.is = {5, 2000, 11}};
    struct kv_cluster_use use;
    struct kv_err e;
    const double service = .01 + .2 + .004, transfer = .02 + .2;
    const double steps = 10 * .001 + (10 * 2001 + 45) * 1.1e-6;

    (void)state;
    assert_int_equal(kv_cluster_run(c, 0, &r, 1, &use, &e), 0);
    assert_near(r.end, 5 + service + transfer + steps, 1e-12);

    struct kv_cluster coded = *c;

    coded.quantize_fixed = .5;
    coded.quantize_token = 1e-3;
    coded.unpack_fixed = .25;
    coded.unpack_token = 2e-3;
    assert_int_equal(kv_cluster_run(&coded, 0, &r, 1, &use, &e), 0);
    assert_near(r.end, 5 + service + 2.5 + transfer + 4.25 + steps, 1e-12);
    assert_near(r.quantize, 2.5, 1e-12);

    struct kv_cluster p = *c;

    p.pipelined = true; /* one of ten layers is left */
    p.up = p.down = 1e9;
    assert_int_equal(kv_cluster_run(&p, 0, &r, 1, &use, &e), 0);
    assert_near(r.landed - r.prefilled, .1 * (.02 + 2e5 / 1e9), 1e-6);
    p.room = 1000;
    assert_int_equal(kv_cluster_run(&p, 0, &r, 1, &use, &e), -1);
    assert_non_null(strstr(e.msg, "2000 + 11 tokens"));
}

/* Among free replicas each is chosen equally often. */
static void test_ties(void **state)
{
    enum { N = 30000 };
    struct kv_request *r = kv_alloc(N, sizeof(*r));
    struct kv_cluster c = usual;
    struct kv_cluster_use use;
    struct kv_err e;
    double prefill[5] = {0}, decode[3] = {0};

    (void)state;
    c.prefills = 5;
    c.decodes = 3;
    for (size_t i = 0; i < N; i++)
        r[i].is = (struct kv_arrival){1000. * (double)i, 100, 10};
    assert_int_equal(kv_cluster_run(&c, 3, r, N, &use, &e), 0);
    for (size_t i = 0; i < N; i++) {
        prefill[r[i].prefill]++;
        decode[r[i].decode]++;
    }
    for (size_t i = 0; i < 5; i++) /* five standard deviations */
        assert_true(fabs(prefill[i] - N / 5.) < 5 * sqrt(N * .2 * .8));
    for (size_t i = 0; i < 3; i++)
        assert_true(fabs(decode[i] - N / 3.) < 5 * sqrt(N * 2 / 9.));
    free(r);
}

static void test_lengths(void **state)
{
    enum { N = 200000 };
    struct kv_arrival *a = kv_alloc(N, sizeof(*a));
    struct kv_arrivals from = stream;
    double in = 0, out = 0, squares = 0;

    (void)state;
    kv_arrivals_fill(&from, 1, a, N);
    for (size_t i = 0; i < N; i++) {
        assert_true(a[i].in >= 100 && a[i].in <= 4000);
        assert_true(a[i].out >= 1 && a[i].out <= 200);
        in += a[i].in;
        squares += pow(a[i].in - 999.5, 2);
        out += a[i].out;
    }
    assert_near(a[N - 1].time, N / 3., .01);
    assert_near(in / N, 1000 - .5, .01); /* cut to whole tokens */
    assert_near(out / N, 50 - .5, .01);
    /* Beta's variance */
    assert_near(squares / N, 900. * 3000 / (4 + 1), .02);
    from.longest = 300;
    kv_arrivals_fill(&from, 1, a, N);
    for (size_t i = 0; i < N; i++)
        assert_true(a[i].in + a[i].out <= 300);
    free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queue),        cmocka_unit_test(test_sharing),
        cmocka_unit_test(test_batch_shares), cmocka_unit_test(test_closed),
        cmocka_unit_test(test_steps),        cmocka_unit_test(test_conserved),
        cmocka_unit_test(test_alone),        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_lengths),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
