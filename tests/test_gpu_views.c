/* kernels/cuda/views: attention over views on a device against its definition.
 * Here the device is the host twin of tests/gpu_twin.h. */
#include "kernels/attend.h"
#include "kernels/cuda/views.h"
#include "kernels/device.h"
#include "kernels/hack/cuda_views.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "tests/test.h"

#include <math.h>

/* Fills the existing views of a side; NULL stays NULL. */
static void random_side(float *x, size_t n, uint64_t key)
{
    for (size_t i = 0; x && i < n; i++)
        x[i] = (float)kv_random_normal(key, i);
}

static void *to_device(const void *x, size_t bytes)
{
    struct kv_err e = {""};
    void *p = NULL;

    if (x &&
        (kv_device_alloc(&p, bytes, &e) || kv_device_upload(p, x, bytes, &e)))
        fail_msg("%s", e.msg);
    return p;
}

struct views_case {
    size_t head_dim, n, first, sinks, residual; /* residual 0: one form */
    bool only_fresh;
    size_t window;
    float cap;
    bool slopes;
};

/* One side, on the host. */
struct views_side {
    float *unquantized, *quantized;
    uint32_t *until;
};

static struct views_side make_side(const struct views_case *c, size_t values,
                                   uint64_t key)
{
    struct views_side s = {NULL, NULL, NULL};

    if (c->residual || c->only_fresh)
        s.unquantized = kv_alloc(values, sizeof(float));
    if (c->residual || !c->only_fresh)
        s.quantized = kv_alloc(values, sizeof(float));
    random_side(s.unquantized, values, key);
    random_side(s.quantized, values, key + 1);
    if (c->residual) {
        s.until = kv_alloc(c->n, sizeof(*s.until));
        for (size_t i = 0; i < c->n; i++)
            s.until[i] =
                (uint32_t)(i > c->residual ? (i - c->residual) / 5 * 5 : 0);
    }
    return s;
}

/* The form that queries from c->first on see. */
static struct kv_attend_side side_of(const struct views_case *c,
                                     const struct views_side *s)
{
    return (struct kv_attend_side){
        .unquantized = s->unquantized,
        .quantized = s->quantized,
        .sinks = c->sinks,
        .until = s->until ? s->until + c->first : NULL,
    };
}

static struct kv_attend_side side_to_device(struct kv_attend_side s,
                                            size_t values, size_t nq)
{
    s.unquantized = to_device(s.unquantized, values * sizeof(float));
    s.quantized = to_device(s.quantized, values * sizeof(float));
    s.until = to_device(s.until, nq * sizeof(*s.until));
    return s;
}

static void free_side(struct views_side *s, struct kv_attend_side *d)
{
    kv_device_free((void *)(uintptr_t)d->unquantized);
    kv_device_free((void *)(uintptr_t)d->quantized);
    kv_device_free((void *)(uintptr_t)d->until);
    free(s->unquantized);
    free(s->quantized);
    free(s->until);
}

enum { SEQS = 2, HEADS = 4, KV_HEADS = 2 };

/* Every query by the definition; the rows of others stay. */
static void check_views(const struct views_case *c, uint64_t key)
{
    const size_t d = c->head_dim, n = c->n, skip = c->first * HEADS * d;
    const size_t q_values = SEQS * n * HEADS * d;
    const size_t values = SEQS * n * KV_HEADS * d;
    struct views_side k = make_side(c, values, 40 + key);
    struct views_side v = make_side(c, values, 80 + key);
    float *q = kv_alloc(q_values, sizeof(*q));
    float *got = kv_alloc(q_values, sizeof(*got));
    float *want = kv_alloc(q_values, sizeof(*want));
    const float slopes[HEADS] = {.5F, .25F, .125F, 0};
    const struct kv_attend_job host = {
        .view = {.n_seqs = SEQS,
                 .n_heads = HEADS,
                 .n_kv_heads = KV_HEADS,
                 .head_dim = d,
                 .n = n,
                 .nq = n - c->first,
                 .first = c->first,
                 .scale = 1 / sqrtf((float)d),
                 .window = c->window,
                 .cap = c->cap,
                 .slope = c->slopes ? slopes : NULL},
        .q = q + skip,
        .out = want + skip,
        .q_rows = n,
        .k = side_of(c, &k),
        .v = side_of(c, &v)};
    struct kv_attend_job job = host;
    struct kv_err e = {""};

    random_side(q, q_values, key);
    for (size_t i = 0; i < q_values; i++)
        got[i] = want[i] = 7;

    float *const device_q = to_device(q, q_values * sizeof(*q));
    float *const device_out = to_device(got, q_values * sizeof(*q));

    job.view.slope = to_device(host.view.slope, sizeof(slopes));
    job.q = device_q + skip;
    job.out = device_out + skip;
    job.k = side_to_device(host.k, values, n - c->first);
    job.v = side_to_device(host.v, values, n - c->first);
    kv_attend_c(&host);
    if (kv_gpu_attend_views(&job, &e) ||
        kv_device_download(got, device_out, q_values * sizeof(*got), &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < q_values; i++)
        assert_within(got[i], want[i], 1e-5);
    kv_device_free((void *)(uintptr_t)job.view.slope);
    kv_device_free(device_q);
    kv_device_free(device_out);
    free_side(&k, &job.k);
    free_side(&v, &job.v);
    free(q);
    free(got);
    free(want);
}

static void test_views(void **state)
{
    static const struct views_case cases[] = {
        {8, 1, 0, 0, 0, .only_fresh = true},
        {8, 65, 0, 0, 0, .only_fresh = false},
        {64, 130, 0, 4, 9, .only_fresh = false},
        {72, 64, 3, 0, 30, .only_fresh = false},
        {128, 200, 0, 70, 5, .only_fresh = true},
        {128, 129, 127, 0, 64, .only_fresh = true},
        {132, 70, 1, 3, 17, .only_fresh = false},
        {256, 66, 0, 0, 0, .only_fresh = true},
        {7, 70, 0, 2, 11, .only_fresh = false},
        {130, 5, 2, 0, 0, .only_fresh = true},
        {64, 200, 0, 4, 9, false, .window = 1},
        {16, 200, 0, 4, 30, false, .window = 65},
        {132, 150, 5, 0, 17, false, .window = 64, .cap = .5F},
        {8, 130, 0, 0, 0, true, .cap = 2, .slopes = true},
        {64, 131, 3, 4, 9, false, .window = 70, .slopes = true}};

    (void)state;
    for (size_t t = 0; t < sizeof(cases) / sizeof(*cases); t++)
        check_views(&cases[t], t);
}

/* Nothing is left out without a word.  Attention on codes has plain views
 * alone. */
static void test_no_kernel(void **state)
{
    const float slope[1] = {1};
    const uint64_t alive[1] = {1};
    double mass[1] = {0};
    const struct kv_attend_view none[] = {
        {.head_dim = 8, .alive = alive}, {.head_dim = 8, .mass = mass},
        {.head_dim = 8, .shift = slope}, {.head_dim = 8, .sink_logit = slope},
        {.head_dim = 8, .window = 3},    {.head_dim = 8, .cap = 2},
        {.head_dim = 8, .slope = slope}};
    const size_t everywhere = 4;
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < sizeof(none) / sizeof(*none); i++) {
        const struct kv_attend_job job = {.view = none[i]};

        assert_int_equal(kv_gpu_attend_hack(&job, NULL, &e), -1);
        assert_says(e, "no CUDA kernel of attention with");
        e.msg[0] = '\0';
        if (i < everywhere) {
            assert_int_equal(kv_gpu_attend_views(&job, &e), -1);
            assert_says(e, "no CUDA kernel of attention with");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_no_kernel),
    };
    struct kv_device device;
    struct kv_err e = {""};

    if (kv_device_cuda(0, &device, &e)) {
        printf("skipped: %s\n", e.msg);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
