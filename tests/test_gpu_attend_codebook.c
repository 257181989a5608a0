/* Attention on the device that reads codebook indices. */
#include "kernels/codebook/cuda.h"
#include "kernels/cuda/gpu_attend_impl.h"
#include "tests/gpu_attend_setup.h"

static void test_codebook_kernels(void **state)
{
    static const struct {
        size_t head_dim, d, bits;
        bool own;
    } kernels[] = {
#define KERNEL(D, DIMS, BITS, OWN, ...) {D, DIMS, BITS, OWN},
        KV_CODEBOOKS(KERNEL)
#undef KERNEL
    };

    (void)state;
    for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++) {
        const size_t d = kernels[i].head_dim;
        char text[64];
        const struct sized prompt = {text, d, 2, d / 2, 200, 70};

        snprintf(text, sizeof(text), "%s:d%zub%zur0,iters=1",
                 kernels[i].own ? "evasion" : "vecinfer", kernels[i].d,
                 kernels[i].bits);
        check_kernels(text, d, BY_EXACT | BY_INT8);
        check_sized(&prompt, 1, BY_EXACT);
    }
}

/* Pairs of 4 bits, tables of their own for each head, dimensions apart. */
static void test_codebook(void **state)
{
    (void)state;
    check_sizes("vecinfer:K-d2b4/V-d4b8,s=3,r=40,iters=2", 128, 8,
                BY_EXACT | BY_INT8);
    check_sizes("evasion:d4b8,books=head,iters=2", 64, 1, BY_EXACT | BY_INT8);
}

/* Each order of smoothing and the Hadamard transform, and each alone. */
static void test_transforms(void **state)
{
    static const char *const order[] = {"S", "H", "HS", "SH", "none"};

    (void)state;
    for (size_t i = 0; i < sizeof(order) / sizeof(*order); i++) {
        char text[64];

        snprintf(text, sizeof(text), "vecinfer:d4b8r0,iters=1,t=%s", order[i]);
        check_kernels(text, 64, BY_EXACT | BY_INT8 | BY_GENERIC);
    }
}

/* More queries than in a decoding step: more rows than a block takes, causal
 * from the first token, from within the codes, and only in the tail; tables of
 * 8 and 12 bits, shared and for each sub-space. */
static void test_prefill(void **state)
{
    static const struct sized cases[] = {
        {"vecinfer:d4b8r0,iters=1", 128, 4, 64, 256, 256},
        {"vecinfer:d8b8s5r128,iters=1", 64, 3, 32, 400, 150},
        {"vecinfer:d4b12r0,iters=1", 64, 1, 32, 390, 20},
        {"vecinfer:d8b12r0,iters=1", 128, 2, 64, 260, 70},
        {"million:d2b8r128,iters=1", 128, 2, 64, 300, 130},
        {"evasion:d4b8r0,iters=1", 64, 2, 32, 300, 140}};

    (void)state;
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_EXACT);
}

/* More warps than 8 where registers and shared memory hold them: two blocks of
 * 10 beside small tables, one of 16 beside large ones; 8 where larger blocks do
 * not fit. */
static void test_warps(void **state)
{
    static const struct {
        const char *text;
        size_t head_dim;
        enum kv_path path;
        size_t warps, blocks;
    } cases[] = {{"vecinfer:d4b8r0,iters=1", 128, KV_PATH_INT8, 10, 2},
                 {"vecinfer:d8b8r0,iters=1", 128, KV_PATH_INT8, 8, 2},
                 {"million:d2b8r0,iters=1", 128, KV_PATH_INT8, 16, 1},
                 {"vecinfer:d8b12r0,iters=1", 128, KV_PATH_EXACT, 8, 1}};

    (void)state;
    if (test_device.shared < 227 << 10) {
        skip();
        return;
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const struct kv_shape s = synthetic_shape(cases[i].head_dim);
        struct kv_calib *calib = NULL;
        struct rig r = rig(cases[i].text, &s, 300, &calib);
        const struct kv_tiles_job job = kv_tile_cache_job(r.tiled, 1);
        struct kv_gpu_attend *a;
        struct kv_err e = {""};

        if (kv_gpu_attend_new(&a, &test_device, &job, 1, cases[i].path, &e))
            fail_msg("%s: %s", cases[i].text, e.msg);
        if (a->launch.warps != cases[i].warps ||
            a->launch.blocks != cases[i].blocks)
            fail_msg("%s, head_dim %zu: %zu blocks of %u warps, expected %zu "
                     "of %zu",
                     cases[i].text, cases[i].head_dim, a->launch.blocks,
                     a->launch.warps, cases[i].blocks, cases[i].warps);
        kv_gpu_attend_free(a);
        rig_clear(&r);
        kv_calib_free(calib);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefill),
        cmocka_unit_test(test_codebook_kernels),
        cmocka_unit_test(test_codebook),
        cmocka_unit_test(test_transforms),
        cmocka_unit_test(test_warps),
    };

    return RUN_ON_DEVICE(tests);
}
