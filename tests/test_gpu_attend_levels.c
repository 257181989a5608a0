/* Attention on the device on kvquant's codes. */
#include "kernels/levels/cuda_codes.h"
#include "kernels/levels/levels.h"
#include "tests/gpu_attend_setup.h"

/* Levels and outliers, on tensor cores: none to many of these; all channels
 * turn, or some, or none; sinks, so that no tile begins at a position that 64
 * divides; tiles of sizes far apart. */
static void test_levels(void **state)
{
    static const struct sized cases[] = {
        {"kvquant:b4o20s3r40", 64, 1, 32, 400, 1},
        {"kvquant:b2o0.2r0", 64, 16, 32, 300, 1},
        {"kvquant:b3o0r0", 128, 2, 0, 130, 1},
        {"kvquant:K-o45/V-o0,b=2,s=5,r=0", 128, 16, 64, 700, 2},
        {"kvquant:b4r0,type=nf", 128, 3, 64, 300, 8},
        {"kvquant:b3o2s2r40", 128, 7, 64, LONG, 2},
        {"kvquant:b2o1s2r40", 64, 4, 32, LONG, 2},
    };

    (void)state;
    check_sizes("kvquant:r0", 128, 4, BY_EXACT);
    check_sizes("kvquant:b4s3r40", 64, 8, BY_EXACT);
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_EXACT);
    check_name("kvquant:r0", 128, "exact");
    check_name("kvquant:b4o10r0", 64, "exact");
}

static void test_levels_kernels(void **state)
{
    static const struct {
        size_t head_dim, bits;
    } kernels[] = {
#define KERNEL(D, BITS) {D, BITS},
        KV_LEVELS_KERNELS(KERNEL)
#undef KERNEL
    };

    (void)state;
    for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++) {
        char text[64];

        snprintf(text, sizeof(text), "kvquant:b%zur0", kernels[i].bits);
        check_kernels(text, kernels[i].head_dim, BY_EXACT);
    }
}

/* For any number of outliers, two blocks of 2 or 3 bits share an H200's
 * multiprocessor: of 228 KB, each block's own KB among them. */
static void test_levels_shared(void **state)
{
    const struct kv_shape s = synthetic_shape(128);
    struct kv_calib *calib = NULL;
    struct rig r = rig("kvquant:b3r0", &s, 130, &calib);
    const struct kv_tiles_job job = kv_tile_cache_job(r.tiled, 1);
    const struct kv_gpu_family *const *family = kv_gpu_families;
    struct kv_gpu_side k = {.store = &job.k[1], .owned = 1 << 20};
    struct kv_gpu_side v = {.store = &job.v[1], .owned = 1 << 20};
    struct kv_gpu_launch l = {
        .p = {.group = 1, .nq = 1},
        .n_work = 1,
        .n_kv_heads = s.n_kv_heads,
        .head_dim = s.head_dim,
        .k = &k,
        .v = &v,
        .measure = true,
    };
    struct kv_err e = {""};

    (void)state;
    while (strcmp((*family)->name, "levels"))
        family++;
    assert_true((*family)->open(&k) && (*family)->open(&v));
    if ((*family)->launch(&l, &e))
        fail_msg("%s", e.msg);
    assert_true(2 * (l.shared + 1024) <= 228 << 10);
    free(k.table);
    free(v.table);
    rig_clear(&r);
    kv_calib_free(calib);
}

/* Keys' ranges that halves have no room for. */
static void test_levels_range(void **state)
{
    const struct kv_shape s = synthetic_shape(64);
    const size_t row = s.n_kv_heads * s.head_dim;
    struct kv_calib *calib = NULL;
    struct rig r = rig("kvquant:r0", &s, 130, &calib);
    struct kv_tiles_job job = kv_tile_cache_job(r.tiled, 1);
    struct kv_store k[KV_MAX_RUNS];
    float *offset = kv_alloc(row, sizeof(*offset));
    struct kv_levels_tiles wide;
    struct kv_err e = {""};

    (void)state;
    memcpy(k, job.k, sizeof(k));
    wide = *(const struct kv_levels_tiles *)k[1].params;
    memcpy(offset, wide.offset, row * sizeof(*offset));
    wide.offset = offset;
    k[1].params = &wide;
    job.k = k;
    for (int i = 0; i < 2; i++) {
        struct kv_gpu_attend *g;

        offset[row - 1] = i ? 9000 : 8000;
        if (kv_gpu_attend_new(&g, &test_device, &job, 1, KV_PATH_EXACT, &e))
            fail_msg("%s", e.msg);
        assert_string_equal(kv_gpu_attend_name(g), i ? "generic" : "exact");
        kv_gpu_attend_free(g);
    }
    free(offset);
    rig_clear(&r);
    kv_calib_free(calib);
}

/* A launch has room for the outliers of the sequence with the most, which need
 * not be the first; outputs equal those of each sequence alone. */
static void test_outliers_apart(void **state)
{
    static const size_t n[] = {128, 640};
    const struct kv_shape s = synthetic_shape(64);
    const size_t row = s.n_heads * s.head_dim;
    struct kv_calib *calib = NULL;
    struct rig r[2];
    struct kv_tiles_job jobs[2];
    float *q = kv_alloc(2 * row, sizeof(*q));
    float *out = kv_alloc(2 * row, sizeof(*out));
    float *alone = kv_alloc(row, sizeof(*alone));
    struct kv_gpu_attend *g;
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        r[i] = rig("kvquant:o3r0", &s, n[i], &calib);
        jobs[i] = kv_tile_cache_job(r[i].tiled, 1);
        memcpy(q + i * row, r[i].x.q, row * sizeof(*q));
    }
    if (kv_gpu_attend_new(&g, &test_device, jobs, 2, KV_PATH_EXACT, &e) ||
        kv_gpu_attend_ask(g, q, &e) || kv_gpu_attend_launch(g, &e) ||
        kv_gpu_attend_answer(g, out, &e))
        fail_msg("%s", e.msg);
    kv_gpu_attend_free(g);
    for (size_t i = 0; i < 2; i++) {
        if (kv_gpu_attend_new(&g, &test_device, &jobs[i], 1, KV_PATH_EXACT,
                              &e) ||
            kv_gpu_attend_ask(g, q + i * row, &e) ||
            kv_gpu_attend_launch(g, &e) || kv_gpu_attend_answer(g, alone, &e))
            fail_msg("%s", e.msg);
        assert_true(rel_err(out + i * row, alone, row) <= 1e-6);
        kv_gpu_attend_free(g);
        rig_clear(&r[i]);
    }
    kv_calib_free(calib);
    free(alone);
    free(out);
    free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_levels_kernels),
        cmocka_unit_test(test_levels_shared),
        cmocka_unit_test(test_levels_range),
        cmocka_unit_test(test_outliers_apart),
    };

    return RUN_ON_DEVICE(tests);
}
