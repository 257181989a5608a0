/* kernels/cuda/gpu_attend_grow.c: caches that grow, come and go have, bit for
 * bit, the attention of the same caches copied to the device at once. */
#include "tests/append_rows.h"
#include "tests/gpu_attend_setup.h"

enum { SEQUENCES = 3, MOST = 700 };

/* The tokens of each sequence at each update; 0: it is not there. */
static const size_t lengths[][SEQUENCES] = {
    {1, 0, 0},     {2, 130, 0},     {127, 131, 0},   {128, 259, 3},
    {130, 260, 0}, {0, 261, 4},     {131, 520, 90},  {300, 521, 91},
    {301, 0, 300}, {699, 522, 301}, {700, 523, 302},
};

struct growing {
    const char *text;
    struct kv_shape shape;
    struct tensors x;
    struct rig rig[SEQUENCES];
    struct kv_calib *calib;
    struct kv_gpu_attend *grown;
};

static void append(struct growing *g, size_t i, size_t n)
{
    struct rig *r = &g->rig[i];
    const size_t have = kv_cache_tokens(r->cache);
    const size_t row = g->shape.n_kv_heads * g->shape.head_dim;
    struct kv_err e = {""};

    /* the sequences' tokens differ */
    if (append_rows(
            r->cache, g->x.q + have * g->shape.n_heads * g->shape.head_dim,
            g->x.k + (have + i) * row, g->x.v + (have + i) * row, n - have, &e))
        fail_msg("%s: %s", g->text, e.msg);
    kv_tile_cache_update(r->tiled);
}

static void answer(struct growing *g, struct kv_gpu_attend *a, size_t n,
                   float *out)
{
    struct kv_err e = {""};

    memset(out, 0xff, n * sizeof(*out));
    if (kv_gpu_attend_ask(a, g->x.q, &e) || kv_gpu_attend_launch(a, &e) ||
        kv_gpu_attend_answer(a, out, &e))
        fail_msg("%s: %s", g->text, e.msg);
}

static void update(struct growing *g, size_t step, enum kv_path path)
{
    const size_t row = g->shape.n_heads * g->shape.head_dim;
    struct kv_tiles_job jobs[SEQUENCES];
    uint64_t id[SEQUENCES];
    struct kv_gpu_attend *at_once;
    float *want = kv_alloc(SEQUENCES, row * sizeof(*want));
    float *got = kv_alloc(SEQUENCES, row * sizeof(*got));
    struct kv_err e = {""};
    size_t n = 0;

    for (size_t i = 0; i < SEQUENCES; i++) {
        const size_t turn = (i + step) % SEQUENCES; /* not always in order */

        if (!lengths[step][turn])
            continue;
        append(g, turn, lengths[step][turn]);
        jobs[n] = kv_tile_cache_job(g->rig[turn].tiled, 1);
        id[n++] = 70 + turn;
    }
    if (!step && kv_gpu_attend_new(&g->grown, &test_device, jobs, 0, path, &e))
        fail_msg("%s: %s", g->text, e.msg);
    if (kv_gpu_attend_update(g->grown, jobs, id, n, &e) ||
        kv_gpu_attend_new(&at_once, &test_device, jobs, n, path, &e))
        fail_msg("%s: %s", g->text, e.msg);
    answer(g, g->grown, n * row, got);
    answer(g, at_once, n * row, want);
    for (size_t i = 0; i < n * row; i++)
        if (!(got[i] == want[i]))
            fail_msg("%s, update %zu, sequence %d: output %zu is %g, expected "
                     "%g",
                     g->text, step, (int)id[i / row], i % row, (double)got[i],
                     (double)want[i]);
    assert_true(kv_gpu_attend_bytes(g->grown) >= kv_gpu_attend_bytes(at_once));
    kv_gpu_attend_free(at_once);
    free(got);
    free(want);
}

static void grow(const char *text, size_t head_dim, enum kv_path path)
{
    struct growing g = {.text = text, .shape = synthetic_shape(head_dim)};

    if (!strncmp(text, "klt", 3)) { /* as in check_sized() */
        g.shape.n_heads /= g.shape.n_kv_heads;
        g.shape.n_kv_heads = 1;
    }
    g.x = tensors(&g.shape, MOST + SEQUENCES);
    for (size_t i = 0; i < SEQUENCES; i++)
        g.rig[i] = rig(text, &g.shape, 1, &g.calib);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++)
        update(&g, i, path);
    kv_gpu_attend_drop(g.grown, 70);
    kv_gpu_attend_drop(g.grown, 71);
    kv_gpu_attend_drop(g.grown, 72);
    kv_gpu_attend_drop(g.grown, 73); /* was never there */
    assert_int_equal(kv_gpu_attend_bytes(g.grown), 0);
    kv_gpu_attend_free(g.grown);
    for (size_t i = 0; i < SEQUENCES; i++)
        rig_clear(&g.rig[i]);
    kv_calib_free(g.calib);
    free_tensors(g.x);
}

/* Blocks of one, 32, 64 and 128 tokens; rotated codes, outliers, codes of all
 * heads together, keys before RoPE. */
static void test_grow(void **state)
{
    (void)state;
    grow("f16", 64, KV_PATH_EXACT);
    grow("kivi:b2g32r0", 64, KV_PATH_EXACT);
    grow("kivi:b4g32r64s3", 128, KV_PATH_INT8);
    grow("kivi:b3g32r0", 64, KV_PATH_EXACT);
    grow("quarot:b4r0", 64, KV_PATH_EXACT);
    grow("hack:b2p64r0,nearest", 64, KV_PATH_INT8);
    grow("vecinfer:d4b8r0,iters=1", 64, KV_PATH_EXACT);
    grow("kvquant:b2o2r0s2", 64, KV_PATH_EXACT);
    grow("klt:b3s5r40,rope=post", 64, KV_PATH_EXACT);
    grow("q8_0:r0", 64, KV_PATH_EXACT);
}

static void test_view(void **state)
{
    const struct kv_shape s = synthetic_shape(64);
    struct kv_calib *calib = NULL;
    struct rig r = rig("f16", &s, 5, &calib);
    struct kv_tiles_job job = kv_tile_cache_job(r.tiled, 1);
    const uint64_t id = 0;
    struct kv_gpu_attend *a;
    struct kv_err e = {""};

    (void)state;
    assert_int_equal(
        kv_gpu_attend_new(&a, &test_device, &job, 0, KV_PATH_EXACT, &e), 0);
    job.view.window = 3;
    assert_int_equal(kv_gpu_attend_update(a, &job, &id, 1, &e), -1);
    assert_non_null(strstr(e.msg, "no CUDA kernel of attention with a window"));
    kv_gpu_attend_free(a);
    assert_int_equal(
        kv_gpu_attend_new(&a, &test_device, &job, 0, KV_PATH_EXACT, &e), -1);
    assert_non_null(strstr(e.msg, "no CUDA kernel of attention with a window"));
    rig_clear(&r);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_grow),
                                              cmocka_unit_test(test_view)};

    return RUN_ON_DEVICE(tests);
}
