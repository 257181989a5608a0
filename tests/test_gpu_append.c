/* kernels/cuda/quantize: a tile of codes that the device encodes and quantizes
 * is, byte for byte, the tile packed on the CPU.  Here the device is the host
 * twin of tests/gpu_twin.h. */
#include "kernels/cuda/gpu_attend_impl.h"
#include "kernels/device_code.h"
#include "lib/base/half.h"
#include "lib/codec.h"
#include "lib/codec_place.h"
#include "lib/seq/cache.h"
#include "lib/seq/tile_cache.h"
#include "tests/append_rows.h"
#include "tests/attention_setup.h"

static struct kv_device device;

/* Two sequences with codes of two tiles, one with one tile, and one without. */
enum { TILE = 128, JOBS = 4, SEED = 5 };
static const size_t lengths[JOBS] = {2 * TILE + 40, 2 * TILE + 30, TILE + 20,
                                     90};

struct sequence {
    struct tensors x;
    struct kv_cache *cache;
    struct kv_tile_cache *tiled;
};

static void fill(struct sequence *q, struct kv_codec *const *codec, size_t n)
{
    struct kv_err e = {""};

    q->x = tensors(&codec[KV_K]->shape, n);
    if (kv_cache_new(&q->cache, codec[KV_K], codec[KV_V], SEED, &e) ||
        append_rows(q->cache, q->x.q, q->x.k, q->x.v, n, &e))
        fail_msg("%s", e.msg);
    q->tiled = kv_tile_cache_new(q->cache);
    kv_tile_cache_update(q->tiled);
}

/* The newest tile of a KV head, on the device. */
static uint8_t *tile_of(const struct kv_gpu_attend *a, size_t job, int side,
                        size_t head)
{
    const struct kv_gpu_run *r = &a->plan[job].run[KV_RUN_CODES];
    const uint8_t *first = side ? r->v : r->k;

    return (uint8_t *)(uintptr_t)first + head * (side ? r->v_head : r->k_head) +
           (kv_gpu_run_tiles(r) - 1) * a->side[side].tile_bytes;
}

/* The codes of the newest tiles of all sequences, encoded on the device, those
 * that begin at one token together; none for a sequence without a tile. */
static void *encode(const struct kv_gpu_attend *a, const struct kv_codec *c,
                    const struct kv_gpu_code *code, const struct sequence *q)
{
    const size_t row = c->shape.n_kv_heads * c->shape.head_dim;
    const size_t each = TILE / c->block, blocks = JOBS * each;
    const size_t n = JOBS * TILE * row;
    uint16_t *half = kv_alloc(n, sizeof(*half));
    struct kv_gpu_blocks b = {.seed = SEED};
    struct kv_gpu_coder *coder;
    void *x, *bytes;
    struct kv_err e = {""};

    for (size_t j = 0; j < JOBS; j++) {
        const size_t first = kv_gpu_attend_newest(a, j);
        const float *from = c->side == KV_K ? q[j].x.k : q[j].x.v;

        for (size_t i = 0; first != SIZE_MAX && i < TILE * row; i++)
            half[j * TILE * row + i] = kv_f16_clamp(from[first * row + i]);
    }
    if (kv_gpu_coder_new(&coder, code, &device, &e) ||
        kv_device_alloc(&x, n * sizeof(*half), &e) ||
        kv_device_upload(x, half, n * sizeof(*half), &e) ||
        kv_device_alloc(&bytes, blocks * c->block_bytes, &e) ||
        kv_device_alloc(&b.workspace, kv_gpu_encode_workspace(coder, blocks),
                        &e))
        fail_msg("%s", e.msg);
    for (size_t j = 0, n_alike; j < JOBS; j += n_alike) {
        const size_t first = kv_gpu_attend_newest(a, j);

        for (n_alike = 1; j + n_alike < JOBS &&
                          kv_gpu_attend_newest(a, j + n_alike) == first;)
            n_alike++;
        b.x = (uint16_t *)x + j * TILE * row;
        b.bytes = (uint8_t *)bytes + j * each * c->block_bytes;
        b.first = first;
        b.each = each;
        b.n = n_alike * each;
        if (first != SIZE_MAX && kv_gpu_encode(coder, &b, &e))
            fail_msg("%s", e.msg);
    }
    kv_device_free(b.workspace);
    kv_device_free(x);
    kv_gpu_coder_free(coder);
    free(half);
    return bytes;
}

static void check_side(const struct kv_gpu_attend *a, const struct kv_codec *c,
                       const struct kv_gpu_code *code, const struct sequence *q)
{
    const size_t bytes = a->side[c->side].tile_bytes;
    const size_t heads = c->shape.n_kv_heads;
    uint8_t *want = kv_alloc(JOBS * heads, bytes), *got = kv_alloc(bytes, 1);
    void *codes = encode(a, c, code, q);
    struct kv_err e = {""};

    memset(got, 0xa5, bytes);
    for (size_t i = 0; i < JOBS * heads; i++)
        if (kv_gpu_attend_newest(a, i / heads) != SIZE_MAX) {
            uint8_t *tile = tile_of(a, i / heads, c->side, i % heads);

            if (kv_device_download(want + i * bytes, tile, bytes, &e) ||
                kv_device_upload(tile, got, bytes, &e))
                fail_msg("%s", e.msg);
        }
    if (kv_gpu_attend_append(a, c->side, code, codes, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < JOBS * heads; i++) {
        if (kv_gpu_attend_newest(a, i / heads) == SIZE_MAX)
            continue;
        if (kv_device_download(got, tile_of(a, i / heads, c->side, i % heads),
                               bytes, &e))
            fail_msg("%s", e.msg);
        for (size_t at = 0; at < bytes; at++)
            if (got[at] != want[i * bytes + at])
                fail_msg("%s %c, head_dim %zu, sequence %zu, head %zu: byte "
                         "%zu of %zu is %u, expected %u",
                         c->spec.text, kv_side_name(c->side), c->shape.head_dim,
                         i / heads, i % heads, at, bytes, got[at],
                         want[i * bytes + at]);
    }
    kv_device_free(codes);
    free(got);
    free(want);
}

/* path: of the codes' tables and order. */
static void check_path(const char *text, size_t head_dim, enum kv_path path)
{
    const struct kv_shape shape = synthetic_shape(head_dim);
    struct kv_codec *codec[KV_SIDES];
    struct kv_gpu_code code[KV_SIDES];
    struct kv_tiles_job jobs[JOBS];
    struct sequence q[JOBS];
    struct kv_calib *calib;
    struct kv_gpu_attend *a;
    struct kv_spec spec;
    struct kv_err e = {""};

    if (kv_spec_parse(&spec, text, &e) || kv_spec_fit(&spec, &shape, &e))
        fail_msg("%s: %s", text, e.msg);
    calib = synthetic_calib(&shape, &spec, test_folder());
    for (int side = 0; side < KV_SIDES; side++)
        if (kv_codec_new(&codec[side], &spec, &shape, 1, (enum kv_side)side,
                         calib, &e) ||
            !kv_codec_code(codec[side], &code[side]))
            fail_msg("%s: %s", text, e.msg);
    for (size_t j = 0; j < JOBS; j++) {
        fill(&q[j], codec, lengths[j]);
        jobs[j] = kv_tile_cache_job(q[j].tiled, 1);
    }
    if (kv_gpu_attend_new(&a, &device, jobs, JOBS, path, &e))
        fail_msg("%s: %s", text, e.msg);
    if (!kv_gpu_attend_can_append(a, code))
        fail_msg("%s, head_dim %zu: cannot quantize", text, head_dim);
    for (int side = 0; side < KV_SIDES; side++)
        check_side(a, codec[side], &code[side], q);
    kv_gpu_attend_free(a);
    for (size_t j = 0; j < JOBS; j++) {
        kv_tile_cache_free(q[j].tiled);
        kv_cache_free(q[j].cache);
        free_tensors(q[j].x);
    }
    for (int side = 0; side < KV_SIDES; side++)
        kv_codec_free(codec[side]);
    kv_calib_free(calib);
}

/* Groups of tokens that fill a step, less and more; of channels, all; every
 * kind of head. */
static void test_groups(void **state)
{
    static const struct {
        const char *spec;
        size_t head_dim;
    } cases[] = {{"kivi:b2g32r0", 128},
                 {"kivi:b2g64r0s3", 64},
                 {"kivi:b4g128r0", 128},
                 {"kivi:b8g32r0", 64},
                 {"kivi:K-b4g32r0/V-b4g64r0", 256},
                 {"zeropoint:b2g32", 128},
                 {"zeropoint:K-b8g128/V-b8g64,K-axis=channel", 64},
                 {"absmax:b4g32", 128},
                 {"absmax:b8s5", 64},
                 {"absmax:b4g32,K-axis=channel", 64},
                 {"zeropoint:b4,heads=all", 64}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        check_path(cases[i].spec, cases[i].head_dim, KV_PATH_EXACT);
}

/* The same for 8 bits, as integers. */
static void test_groups_int8(void **state)
{
    static const char *const specs[] = {
        "kivi:b8g32r0",    "kivi:b8g128r0s3", "zeropoint:b8g64,K-axis=channel",
        "zeropoint:b8g64", "absmax:b8s5",     "absmax:b8g64,K-axis=channel"};

    (void)state;
    for (size_t i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
        check_path(specs[i], 64, KV_PATH_INT8);
        check_path(specs[i], 128, KV_PATH_INT8);
    }
}

/* Parts that are shorter than a step, and are one, or end with the head; random
 * numbers by the token. */
static void test_hack(void **state)
{
    (void)state;
    check_path("hack:b2p64r0", 128, KV_PATH_INT8);
    check_path("hack:b2p32r0s3", 128, KV_PATH_INT8);
    check_path("hack:b2p128r0,nearest", 128, KV_PATH_INT8);
    check_path("hack:b4p64r0,se=no", 128, KV_PATH_INT8);
}

/* Every kind of table, on both paths. */
static void test_codebook(void **state)
{
    static const struct {
        const char *spec;
        size_t head_dim;
    } cases[] = {
        {"vecinfer:d4b8r0,iters=1", 128}, {"vecinfer:d8b12r0s3,iters=1", 128},
        {"vecinfer:d4b12r0,iters=1", 64}, {"vecinfer:d8b8r0,iters=1", 64},
        {"vecinfer:d2b4r0,iters=1", 64},  {"million:d2b8r0,iters=1", 128},
        {"pq:d4b8,iters=1", 64}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        check_path(cases[i].spec, cases[i].head_dim, KV_PATH_EXACT);
        check_path(cases[i].spec, cases[i].head_dim, KV_PATH_INT8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups), cmocka_unit_test(test_groups_int8),
        cmocka_unit_test(test_hack), cmocka_unit_test(test_codebook)};
    struct kv_err e = {""};

    if (kv_device_cuda(0, &device, &e)) {
        printf("skipped: %s\n", e.msg);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
