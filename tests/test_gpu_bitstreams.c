/* kernels/trellis/cuda.cu: the device's search of a trellis finds, byte for
 * byte, the same bitstream as plain C (kernels/trellis/trellis.h), by
 * transitions of every kind.  Here the device is the host twin of
 * tests/gpu_twin.h.  Real coefficients are in tests/test_gpu_coder.c. */
#include "kernels/device_code.h"
#include "kernels/level.h"
#include "kernels/trellis/trellis.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/schemes/klt.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>

static struct kv_device device;

static const struct kv_gpu_transitions kinds[] = {
#define KIND(BITS, VALUES) {.bits = BITS, .values = VALUES},
    KV_GPU_TRANSITIONS(KIND)
#undef KIND
};

enum {
    STATES = KV_TRELLIS_STATES,
    KINDS = sizeof(kinds) / sizeof(*kinds),
    MAX_VALUES = 256,
    MAX_TRANSITIONS = 160,
    MAX_RUNS = 3 * KINDS
};

/* A bitstream of one head, whose coefficients are its values, the last one
 * first.
 */
struct setup {
    struct kv_gpu_transitions run[MAX_RUNS];
    struct kv_trellis_transition transition[MAX_TRANSITIONS];
    struct kv_gpu_coefficient coef[MAX_VALUES];
    struct kv_trellis_whole whole[MAX_VALUES];
    float scale[MAX_VALUES], mean[MAX_VALUES];
    uint32_t place[MAX_VALUES]; /* one after another */
    float *tables, *forward;
    struct kv_gpu_code code;
};

/* Values: with whole numbers paths cost the same, and by a scale that is none
 * the same but for rounding. */
enum data { ORDINARY, LARGE, TIES, NEAR_TIES, DATA };

static float number(uint64_t seed, size_t i, enum data data)
{
    const float x = 2 * (float)kv_random_normal(seed, i);

    return data == ORDINARY ? x : data == LARGE ? 1000 * x : rintf(x);
}

static float scale(uint64_t seed, size_t i, enum data data)
{
    return data == TIES        ? 1
           : data == NEAR_TIES ? 1.1f
                               : 0.5f + kv_random_unit(seed, i);
}

static void add_run(struct setup *s, const struct kv_gpu_transitions *kind,
                    unsigned n)
{
    struct kv_gpu_bitstreams *g = &s->code.bitstreams;
    struct kv_gpu_transitions *run = &s->run[g->n_runs++];

    *run = *kind;
    run->n = n;
    run->table = (unsigned)((kind - kinds) * KV_TRELLIS_MAX_VALUES * STATES);
    for (unsigned i = 0; i < n; i++)
        s->transition[g->n_transitions++] = kv_trellis_transition(
            kind->bits, kind->values, s->tables + run->table, true);
    g->n_coefs += n * kind->values;
    g->n_bits += n * kind->bits;
}

/* n_runs, each of the next kind, from kind `skip` on; longer each time. */
static void set_up(struct setup *s, size_t n_runs, size_t skip, enum data data)
{
    static const unsigned length[] = {1, 2, 6};
    struct kv_gpu_bitstreams *g = &s->code.bitstreams;
    const size_t n_tables = (size_t)KINDS * KV_TRELLIS_MAX_VALUES * STATES;
    size_t d;

    *s = (struct setup){.tables = kv_alloc(n_tables, sizeof(float))};
    for (size_t k = 0; k < KINDS; k++) {
        float kept[KV_TRELLIS_MAX_VALUES * KV_TRELLIS_ENTRIES / 2];

        for (size_t i = 0; i < sizeof(kept) / sizeof(*kept); i++)
            kept[i] =
                number(skip + 100 * k, i, data == LARGE ? ORDINARY : data);
        kv_trellis_unfold(kinds[k].bits, kinds[k].values, kept,
                          s->tables + k * KV_TRELLIS_MAX_VALUES * STATES);
    }
    for (size_t i = 0; i < n_runs; i++)
        add_run(s, &kinds[(i + skip) % KINDS], length[i / KINDS]);
    d = g->n_coefs + 2 - g->n_coefs % 2;
    s->forward = kv_alloc(d * d, sizeof(float));
    for (unsigned i = 0; i < g->n_coefs; i++) {
        const unsigned column = (unsigned)d - 1 - i;

        s->forward[i * d + column] = 1;
        s->coef[i] = (struct kv_gpu_coefficient){.index = column, .place = i};
        s->scale[i] = scale(skip + 50, i, data);
        s->place[i] = i;
    }
    kv_trellis_count(s->transition, g->n_transitions, s->scale, s->whole);
    s->code.n_heads = s->code.block = 1;
    s->code.head_dim = d;
    s->code.block_bytes = g->n_bits ? (g->n_bits + 7) / 8 : 1;
    s->code.coding = KV_GPU_BITSTREAMS;
    g->coef = s->coef;
    g->transitions = s->run;
    g->whole = s->whole;
    g->tables = s->tables;
    g->mean = s->mean;
    g->forward = g->inverse = s->forward;
    g->n_tables = n_tables;
}

static void tear_down(struct setup *s)
{
    free(s->forward);
    free(s->tables);
}

/* x: [n][n_coefs] */
static void plain(const struct setup *s, const float *x, size_t n,
                  uint8_t *bytes)
{
    const struct kv_gpu_bitstreams *g = &s->code.bitstreams;
    void *workspace =
        kv_lines(kv_trellis_workspace(s->transition, g->n_transitions, n), 1);

    if (!g->n_transitions)
        memset(bytes, 0, n * s->code.block_bytes);
    kv_trellis_encode(s->transition, g->n_transitions, x, g->n_coefs, s->place,
                      s->whole, n, workspace, bytes, s->code.block_bytes);
    free(workspace);
}

/* x: [n][head_dim] halves; bytes, and one more for each bitstream, are written.
 */
static void on_device(const struct setup *s, const uint16_t *x, size_t n,
                      uint8_t *bytes)
{
    const size_t values = n * s->code.head_dim, all = n * s->code.block_bytes;
    struct kv_gpu_blocks b = {.n = n};
    struct kv_gpu_coder *coder;
    void *in = NULL, *out = NULL;
    struct kv_err e = {""};

    if (kv_gpu_coder_new(&coder, &s->code, &device, &e) ||
        kv_device_alloc(&in, values * sizeof(*x), &e) ||
        kv_device_alloc(&out, all + n, &e) ||
        kv_device_alloc(&b.workspace, kv_gpu_encode_workspace(coder, n), &e) ||
        kv_device_upload(in, x, values * sizeof(*x), &e) ||
        kv_device_upload(out, bytes, all + n, &e))
        fail_msg("%s", e.msg);
    b.x = in;
    b.bytes = out;
    if (kv_gpu_encode(coder, &b, &e) ||
        kv_device_download(bytes, out, all + n, &e))
        fail_msg("%s", e.msg);
    kv_device_free(b.workspace);
    kv_device_free(out);
    kv_device_free(in);
    kv_gpu_coder_free(coder);
}

static void check(size_t n_runs, size_t skip, enum data data, size_t n)
{
    struct setup s;

    set_up(&s, n_runs, skip, data);

    const size_t d = s.code.head_dim, coefs = s.code.bitstreams.n_coefs;
    const size_t bytes = n * (s.code.block_bytes + 1);
    uint16_t *half = kv_alloc(n * d, sizeof(*half));
    float *x = kv_alloc(n * coefs, sizeof(*x));
    uint8_t *want = kv_alloc(bytes, 1), *got = kv_alloc(bytes, 1);

    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < coefs; j++) {
            half[i * d + j] =
                kv_f32_to_f16(number(skip + 60, i * coefs + j, data));
            x[i * coefs + j] = kv_f16_to_f32(half[i * d + j]);
        }
    memset(want, 0xa5, bytes);
    memset(got, 0xa5, bytes);
    plain(&s, x, n, want);
    on_device(&s, half, n, got);
    for (size_t i = 0; i < bytes; i++)
        if (want[i] != got[i])
            fail_msg("%zu runs from kind %zu, %zu strings of %zu bytes: byte "
                     "%zu is %u, expected %u",
                     n_runs, skip, n, s.code.block_bytes, i, got[i], want[i]);
    free(got);
    free(want);
    free(x);
    free(half);
    tear_down(&s);
}

/* Every kind is the first, and the last. */
static void test_every_kind(void **state)
{
    (void)state;
    for (size_t skip = 0; skip < KINDS; skip++) {
        check(1, skip, ORDINARY, 2);
        for (int data = 0; data < DATA; data++)
            check(MAX_RUNS, skip, (enum data)data, 16);
    }
}

/* None, one, less than a block of coefficients and more, more than are searched
 * at once. */
static void test_counts(void **state)
{
    const size_t max = device.multiprocessors * KV_GPU_SEARCHES;

    (void)state;
    check(KINDS, 0, ORDINARY, 0);
    check(KINDS, 0, ORDINARY, 1);
    check(KINDS, 0, ORDINARY, 15);
    check(KINDS, 0, ORDINARY, 17);
    check(KINDS, 0, ORDINARY, 2 * max + 1);
    check(0, 0, ORDINARY, 5);
}

static void test_other_steps(void **state)
{
    struct kv_gpu_coder *coder;
    struct setup s;
    struct kv_err e = {""};

    (void)state;
    set_up(&s, KINDS, 0, ORDINARY);
    s.run[6].values = 3;
    assert_int_equal(kv_gpu_coder_new(&coder, &s.code, &device, &e), -1);
    assert_string_equal(e.msg,
                        "no CUDA kernel for steps of 3 bits for 3 values");
    tear_down(&s);
}

/* Every kind of transition of klt's is one that can be encoded. */
static void test_klt(void **state)
{
    (void)state;
    for (size_t i = 0; i < KV_KLT_KINDS; i++) {
        const struct kv_klt_kind *k = &kv_klt_kinds[i];
        size_t at = 0;

        while (at < KINDS &&
               (kinds[at].bits != k->bits || kinds[at].values != k->values))
            at++;
        if (at == KINDS)
            fail_msg(
                "no CUDA kernel for klt's transitions of %u bits for %u values",
                k->bits, k->values);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind), cmocka_unit_test(test_counts),
        cmocka_unit_test(test_klt), cmocka_unit_test(test_other_steps)};
    struct kv_err e = {""};

    if (kv_level_set(KV_LEVEL_C, &e) || kv_device_cuda(0, &device, &e)) {
        printf("skipped: %s\n", e.msg);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
