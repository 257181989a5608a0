/* kernels/cuda/hack_views: attention of many queries, each on the codes at its
 * step, equals append and attend of the CPU's cache, step by step.  Here the
 * device is the host twin of tests/gpu_twin.h. */
#include "kernels/hack/cuda_views.h"
#include "lib/codec.h"
#include "lib/codec_place.h"
#include "lib/seq/cache.h"
#include "tests/append_rows.h"
#include "tests/attention_setup.h"

static struct kv_device device;

enum { WINDOWS = 2, SEED = 5, LAYER = 1 };

/* The tolerance for the order of sums, and for a weight that another order
 * rounds to the neighbouring code. */
static const double BOUND = 3e-4;

struct problem {
    const char *spec;
    size_t head_dim, group, n;
    size_t prompt, step; /* tokens that come together; 0: all */
    size_t first;        /* query */
};

struct rig {
    struct kv_shape shape;
    struct kv_codec *codec[KV_SIDES];
    struct kv_gpu_code code[KV_SIDES];
    struct tensors x; /* tensors of all windows */
    float *out;       /* the CPU's result */
    uint32_t *until[KV_SIDES];
    uint8_t *blocks[KV_SIDES][WINDOWS];
    float *unquantized[KV_SIDES];
};

static void keep(struct rig *r, const struct kv_cache *c, size_t window)
{
    for (int side = 0; side < KV_SIDES; side++) {
        const struct kv_reader reader = kv_cache_reader(c, (enum kv_side)side);
        const size_t bytes = reader.n_blocks * r->codec[side]->block_bytes;

        r->blocks[side][window] = kv_alloc(bytes, 1);
        if (bytes)
            memcpy(r->blocks[side][window], reader.blocks, bytes);
    }
}

/* Tokens [from, to) come, and ask. */
static void one_step(struct rig *r, struct kv_cache *c, size_t window, size_t n,
                     size_t from, size_t to)
{
    const size_t row = r->shape.n_kv_heads * r->shape.head_dim;
    const size_t q_row = r->shape.n_heads * r->shape.head_dim;
    const size_t at = window * n + from;
    struct kv_err e = {""};

    if (append_rows(c, r->x.q + at * q_row, r->x.k + at * row,
                    r->x.v + at * row, to - from, &e))
        fail_msg("%s", e.msg);
    kv_cache_attend(c, kv_cache_view(c, to - from), r->x.q + at * q_row,
                    r->out + at * q_row);
    for (int side = 0; side < KV_SIDES; side++)
        for (size_t t = from; t < to; t++)
            r->until[side][t] =
                (uint32_t)(kv_spec_size(&r->codec[side]->spec,
                                        (enum kv_side)side, "s") +
                           kv_quantized(r->codec[side], to));
}

static void on_the_cpu(struct rig *r, const struct problem *p)
{
    for (size_t w = 0; w < WINDOWS; w++) {
        struct kv_cache *c;
        struct kv_err e = {""};

        if (kv_cache_new(&c, r->codec[KV_K], r->codec[KV_V], SEED, &e))
            fail_msg("%s", e.msg);
        for (size_t i = 0; i < p->n;) {
            const size_t want = !p->step        ? p->n
                                : i < p->prompt ? p->prompt
                                                : p->step;
            const size_t to = i + want < p->n ? i + want : p->n;

            one_step(r, c, w, p->n, i, to);
            i = to;
        }
        keep(r, c, w);
        kv_cache_free(c);
    }
}

static void rig_init(struct rig *r, const struct problem *p)
{
    const size_t tokens = WINDOWS * p->n;
    struct kv_spec spec;
    struct kv_err e = {""};

    *r = (struct rig){.shape = synthetic_shape(p->head_dim)};
    r->shape.n_heads = p->group * r->shape.n_kv_heads;

    const size_t row = r->shape.n_kv_heads * r->shape.head_dim;

    if (kv_spec_parse(&spec, p->spec, &e) || kv_spec_fit(&spec, &r->shape, &e))
        fail_msg("%s: %s", p->spec, e.msg);
    r->x = tensors(&r->shape, tokens);
    r->out =
        kv_alloc(tokens * r->shape.n_heads, r->shape.head_dim * sizeof(float));
    for (int side = 0; side < KV_SIDES; side++) {
        if (kv_codec_new(&r->codec[side], &spec, &r->shape, LAYER,
                         (enum kv_side)side, NULL, &e))
            fail_msg("%s: %s", p->spec, e.msg);
        assert_true(kv_codec_code(r->codec[side], &r->code[side]));
        r->until[side] = kv_alloc(p->n, sizeof(uint32_t));
        r->unquantized[side] = kv_alloc(tokens * row, sizeof(float));
        kv_codec_input(r->codec[side], side == KV_K ? r->x.k : r->x.v, tokens,
                       r->unquantized[side]);
    }
    on_the_cpu(r, p);
}

static void rig_clear(struct rig *r)
{
    for (int side = 0; side < KV_SIDES; side++) {
        kv_codec_free(r->codec[side]);
        free(r->until[side]);
        free(r->unquantized[side]);
        for (size_t w = 0; w < WINDOWS; w++)
            free(r->blocks[side][w]);
    }
    free_tensors(r->x);
    free(r->out);
}

static void *put(const void *from, size_t bytes)
{
    struct kv_err e = {""};
    void *p;

    if (kv_device_alloc(&p, bytes, &e) || kv_device_upload(p, from, bytes, &e))
        fail_msg("%s", e.msg);
    return p;
}

/* Steps of both windows, over old contents. */
static uint8_t *arranged(const struct rig *r, const struct problem *p,
                         const struct kv_gpu_hack_views *h, int side)
{
    const struct kv_codec *c = r->codec[side];
    const struct kv_gpu_hack_side *s = side == KV_K ? &h->k : &h->v;
    const size_t quantized = kv_quantized(c, p->n);
    const size_t bytes =
        h->n_steps * r->shape.n_kv_heads * kv_gpu_hack_piece_bytes(s);
    uint8_t *nothing = kv_alloc(WINDOWS * bytes, 1), *steps;
    struct kv_err e = {""};

    memset(nothing, 0xff, WINDOWS * bytes);
    steps = put(nothing, WINDOWS * bytes);
    for (size_t w = 0; w < WINDOWS; w++) {
        void *blocks =
            put(r->blocks[side][w], quantized / c->block * c->block_bytes);

        if (kv_gpu_hack_arrange(&r->code[side], s, blocks, quantized,
                                h->n_steps, steps + w * bytes, &e))
            fail_msg("%s", e.msg);
        kv_device_free(blocks);
    }
    free(nothing);
    return steps;
}

static void attend(const struct rig *r, const struct problem *p, float *out)
{
    const size_t row = r->shape.n_kv_heads * r->shape.head_dim;
    const size_t q_row = r->shape.n_heads * r->shape.head_dim;
    const size_t n = WINDOWS * p->n, bytes = n * q_row * sizeof(float);
    const size_t k = kv_quantized(r->codec[KV_K], p->n);
    const size_t v = kv_quantized(r->codec[KV_V], p->n);
    struct kv_gpu_hack_views h = {0};
    struct kv_err e = {""};

    if (!kv_gpu_hack_views_open(&r->code[KV_K], &r->code[KV_V], SEED, &device,
                                &h))
        fail_msg("%s, head_dim %zu: there is no kernel", p->spec, p->head_dim);
    h.n_steps = ((k > v ? k : v) + h.k.tokens - 1) / h.k.tokens;

    uint8_t *steps[] = {arranged(r, p, &h, KV_K), arranged(r, p, &h, KV_V)};
    float *q = put(r->x.q, bytes), *to = put(out, bytes);
    float *unquantized[] = {put(r->unquantized[KV_K], n * row * sizeof(float)),
                            put(r->unquantized[KV_V], n * row * sizeof(float))};
    uint32_t *until[] = {put(r->until[KV_K], p->n * sizeof(uint32_t)),
                         put(r->until[KV_V], p->n * sizeof(uint32_t))};
    const size_t before = p->first * r->shape.n_heads * r->shape.head_dim;
    struct kv_attend_job job = {
        .view = kv_shape_view(&r->shape, p->n, p->first, p->n - p->first),
        .q = q + before,
        .out = to + before,
        .q_rows = p->n};

    job.view.n_seqs = WINDOWS;
    h.k_steps = steps[KV_K];
    h.v_steps = steps[KV_V];
    for (int side = 0; side < KV_SIDES; side++)
        *(side == KV_K ? &job.k : &job.v) = (struct kv_attend_side){
            .unquantized = unquantized[side],
            .until = until[side] + p->first,
            .sinks =
                kv_spec_size(&r->codec[side]->spec, (enum kv_side)side, "s")};
    if (kv_gpu_attend_hack(&job, &h, &e) ||
        kv_device_download(out, to, bytes, &e))
        fail_msg("%s", e.msg);
    for (int side = 0; side < KV_SIDES; side++) {
        kv_device_free(steps[side]);
        kv_device_free(unquantized[side]);
        kv_device_free(until[side]);
    }
    kv_device_free(q);
    kv_device_free(to);
}

/* Rows before the first query are not written. */
static void check(const struct problem *p)
{
    struct rig r;

    rig_init(&r, p);

    const size_t q_row = r.shape.n_heads * r.shape.head_dim;
    const size_t n = WINDOWS * p->n * q_row, skip = p->first * q_row;
    float *out = kv_alloc(n, sizeof(*out));

    memset(out, 0xff, n * sizeof(*out));
    attend(&r, p, out);
    for (size_t w = 0; w < WINDOWS; w++) {
        const size_t at = w * p->n * q_row;
        const double err =
            rel_err(out + at + skip, r.out + at + skip, p->n * q_row - skip);

        for (size_t i = 0; i < skip; i++)
            assert_true(isnan(out[at + i]));
        if (!(err <= BOUND))
            fail_msg("%s, head_dim %zu, %zu tokens, %zu + %zu at a time: "
                     "window %zu is off by %g",
                     p->spec, p->head_dim, p->n, p->prompt, p->step, w, err);
    }
    free(out);
    rig_clear(&r);
}

/* A window at once, in steps, a prompt first; below, at and above a step of
 * codes; sinks, residuals of each side's own, every query in the sinks. */
static void test_protocols(void **state)
{
    static const struct problem problems[] = {
        {"hack:b2p64r0", 128, 4, 150, 0, 0, 0},
        {"hack:b2p64r0,nearest", 64, 1, 200, 0, 1, 0},
        {"hack:b2p32s5r40", 64, 3, 170, 0, 7, 0},
        {"hack:b4p64s70r0,nearest", 32, 2, 140, 0, 10, 0},
        {"hack:b2p32r16s3", 64, 4, 130, 60, 1, 0},
        {"hack:K-b2p32r30/V-b2p32r3,nearest", 64, 2, 130, 20, 1, 20},
        {"hack:b2p64s9", 64, 2, 5, 0, 1, 0},
        {"hack:b2p64r0", 64, 1, 64, 0, 0, 63}};

    (void)state;
    for (size_t i = 0; i < sizeof(problems) / sizeof(*problems); i++)
        check(&problems[i]);
}

/* Every width; partitions of one 16 to 16 of them, of no power of two, of a
 * whole head that 16 does not divide; a last one of keys that is shorter; keys'
 * unlike values'; few bits of queries and weights; sums not stored. */
static void test_sizes(void **state)
{
    static const struct problem problems[] = {
        {"hack:b3p48r0", 96, 1, 110, 0, 13, 0},
        {"hack:b1p16r0,nearest", 16, 16, 70, 0, 5, 0},
        {"hack:b8p256r0", 256, 1, 300, 0, 0, 200},
        {"hack:K-b5p20/V-b6p80,r=0", 20, 2, 170, 0, 40, 0},
        {"hack:K-b2p64/V-b4p128,K-qb=5,V-qb=3,nearest", 128, 2, 260, 0, 0, 0},
        {"hack:b7p112r0,no-se", 112, 1, 230, 0, 50, 0},
        {"hack:b2p64r0", 96, 4, 140, 0, 11, 0},
        {"hack:b3p48r0,nearest", 100, 1, 100, 0, 9, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof(problems) / sizeof(*problems); i++)
        check(&problems[i]);
}

static bool opens(const char *text, size_t head_dim, size_t shared)
{
    const struct kv_shape s = synthetic_shape(head_dim);
    struct kv_device d = device;
    struct kv_gpu_hack_views h;
    struct kv_gpu_code code[KV_SIDES];
    struct kv_spec spec;
    struct kv_err e = {""};
    bool yes;

    if (kv_spec_parse(&spec, text, &e) || kv_spec_fit(&spec, &s, &e))
        fail_msg("%s: %s", text, e.msg);
    for (int side = 0; side < KV_SIDES; side++) {
        struct kv_codec *c;

        if (kv_codec_new(&c, &spec, &s, LAYER, (enum kv_side)side, NULL, &e))
            fail_msg("%s: %s", text, e.msg);
        assert_true(kv_codec_code(c, &code[side]));
        kv_codec_free(c);
    }
    d.shared = shared;
    yes = kv_gpu_hack_views_open(&code[KV_K], &code[KV_V], SEED, &d, &h);
    return yes;
}

static void test_missing(void **state)
{
    (void)state;
    assert_true(opens("hack:b2p64", 128, 64 << 10));
    assert_false(opens("hack:b2p64", 128, 32 << 10));
    assert_false(opens("hack:b2p320", 128, 227 << 10));
    assert_false(opens("hack:K-b2p66/V-b2p64", 66, 227 << 10) ||
                 opens("kivi:b2g64", 128, 227 << 10));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_protocols),
                                       cmocka_unit_test(test_sizes),
                                       cmocka_unit_test(test_missing)};
    struct kv_err e = {""};

    if (kv_device_cuda(0, &device, &e)) {
        printf("skipped: %s\n", e.msg);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
