/* kernels/cuda: the device encodes to the bytes of encode(), and decodes these
 * to the bits of decode().  Here the device is the host twin of
 * tests/gpu_twin.h; scripts/gpu-check runs the same test on a GPU. */
#include "kernels/backend.h"
#include "kernels/device.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/calib.h"
#include "lib/codec_place.h"
#include "lib/mixed.h"
#include "lib/scheme.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>

static struct kv_device device;

/* The input of encode(): rounded to halves like all that enters a cache. */
enum data { ORDINARY, GRID, FLAT, ZEROS, TINY, LARGE, MIXED, KINDS };
static const char *const kind_name[] = {"ordinary", "grid",  "flat", "zeros",
                                        "tiny",     "large", "mixed"};

static float value(enum data kind, size_t i)
{
    const uint64_t r = kv_random(7, i);

    switch (kind) {
    case ORDINARY:
        return (float)kv_random_normal(11, i) * (float)(1 + i % 5);
    case GRID: /* halves between two codes, ties in every search */
        return (float)((int)(r % 9) - 4) / 2;
    case FLAT:
        return ldexpf(i / 512 % 2 ? -1.25f : 3.0f, (int)(i / 1024 % 20) - 10);
    case ZEROS: /* zeros of both signs, sometimes other numbers */
        return r % 64 == 0 ? (float)(r >> 32 & 3) : r % 2 ? 0.0f : -0.0f;
    case TINY: /* denormal halves */
        return (float)((int)(r % 41) - 20) * 0x1p-24f;
    case LARGE:
        return r % 3 ? (float)((int)(r % 5) - 2) * 32752 : 65504;
    default: /* any half that is finite */
        return kv_f16_to_f32((r & 0x7c00) == 0x7c00 ? (uint16_t)(r & 0xbfff)
                                                    : (uint16_t)r);
    }
}

static size_t differ(const uint8_t *a, const uint8_t *b, size_t n)
{
    size_t i = 0;

    while (i < n && a[i] == b[i])
        i++;
    return i;
}

/* Encodes n blocks; nothing is written past them. */
static void check_decode(const struct kv_codec *c, enum data kind, size_t n,
                         const uint8_t *bytes)
{
    enum { CANARY = 16 };
    const size_t values = n * kv_codec_block_values(c);
    float *want = kv_alloc(values + CANARY, sizeof(*want));
    float *got = kv_alloc(values + CANARY, sizeof(*got));
    struct kv_err e = {""};

    memset(want, 0xa5, (values + CANARY) * sizeof(*want));
    memset(got, 0x5a, values * sizeof(*got));
    memset(got + values, 0xa5, CANARY * sizeof(*got));
    if (n)
        c->scheme->decode(c, bytes, n, want);
    if (kv_codec_decode(c, bytes, n, got, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < values + CANARY; i++)
        if (memcmp(&want[i], &got[i], sizeof(*want)))
            fail_msg("%s %c, %zu blocks, head_dim %zu, %s: value %zu of %zu "
                     "is %a, expected %a",
                     c->spec.text, kv_side_name(c->side), n, c->shape.head_dim,
                     kind_name[kind], i, values, (double)got[i],
                     (double)want[i]);
    free(got);
    free(want);
}

/* The same. */
static void check_blocks(const struct kv_codec *c, enum data kind, size_t n)
{
    enum { CANARY = 64 };
    const size_t values = n * kv_codec_block_values(c);
    const size_t bytes = n * c->block_bytes;
    const struct kv_where w = {.first = 12, .seed = 3};
    float *x = kv_alloc(values, sizeof(*x));
    uint8_t *want = kv_alloc(bytes + CANARY, 1);
    uint8_t *got = kv_alloc(bytes + CANARY, 1);
    struct kv_err e = {""};

    for (size_t i = 0; i < values; i++)
        x[i] = value(kind, i + n);
    kv_codec_input(c, x, n * c->block, x);
    memset(want, 0xa5, bytes + CANARY);
    memset(got, 0xa5, bytes);
    memset(got + bytes, 0xa5, CANARY);
    c->scheme->encode(c, w, x, n, want);
    if (kv_codec_encode(c, w, x, n, got, &e))
        fail_msg("%s", e.msg);
    if (memcmp(want, got, bytes + CANARY)) {
        const size_t at = differ(want, got, bytes);

        fail_msg("%s %c, %zu blocks, head_dim %zu, %s: byte %zu of %zu is %u, "
                 "expected %u",
                 c->spec.text, kv_side_name(c->side), n, c->shape.head_dim,
                 kind_name[kind], at, bytes, got[at], want[at]);
    }
    check_decode(c, kind, n, want);
    free(got);
    free(want);
    free(x);
}

/* Frees it. */
static void check_codec(struct kv_codec *c)
{
    struct kv_backend *b = kv_backend_cuda(&device, KV_TYPE_F32);
    struct kv_err e = {""};

    if (kv_codec_place(c, b, &e))
        fail_msg("%s", e.msg);
    check_blocks(c, ORDINARY, 0);
    for (int kind = 0; kind < KINDS; kind++)
        check_blocks(c, (enum data)kind, 3);
    check_blocks(c, ORDINARY, 1);
    check_blocks(c, ORDINARY, c->block > 1 ? 5 : 70);
    kv_codec_free(c);
    kv_backend_free(b);
}

/* Centroids on a coarse grid: many are the same, and many as near. */
static void coarsen(struct kv_calib *calib)
{
    for (size_t i = 0; i < calib->n_sets; i++)
        for (size_t j = 0; j < calib->set[i].n_tables; j++) {
            struct kv_table *t = &calib->set[i].table[j];
            size_t n = 1;

            for (size_t k = 0; k < t->n_dims; k++)
                n *= t->dims[k];
            for (size_t k = 0; k < n; k++)
                t->data[k] = rintf(t->data[k]);
        }
}

/* coarse: with tables that are made so. */
static void check(const char *text, size_t head_dim, bool coarse)
{
    const struct kv_shape shape = synthetic_shape(head_dim);
    struct kv_calib *calib = NULL;
    struct kv_spec spec;
    struct kv_err e = {""};

    if (kv_spec_parse(&spec, text, &e) || kv_spec_fit(&spec, &shape, &e))
        fail_msg("%s: %s", text, e.msg);
    calib = synthetic_calib(&shape, &spec, test_folder());
    if (coarse)
        coarsen(calib);
    for (int side = 0; side < KV_SIDES; side++) {
        struct kv_codec *c;

        if (kv_codec_new(&c, &spec, &shape, 1, (enum kv_side)side, calib, &e))
            fail_msg("%s: %s", text, e.msg);
        check_codec(c);
    }
    kv_calib_free(calib);
}

static void check_spec(const char *text, size_t head_dim)
{
    check(text, head_dim, false);
}

/* Groups of every bits, of whole bytes and not, longer than a slice of channels
 * and than a head. */
static void test_groups(void **state)
{
    (void)state;
    for (int bits = 1; bits <= 8; bits++) {
        char text[64];

        snprintf(text, sizeof(text), "kivi:b%dg32r0", bits);
        check_spec(text, 64);
        snprintf(text, sizeof(text), "kivi:K-b%dg5r0/V-b%dg4r0", bits, bits);
        check_spec(text, 72);
        if (bits < 2)
            continue;
        for (int k = 0; k < 2; k++) {
            const char *const name = k ? "absmax" : "zeropoint";

            snprintf(text, sizeof(text), "%s:b%d", name, bits);
            check_spec(text, 18);
            snprintf(text, sizeof(text), "%s:b%dg24,axis=channel", name, bits);
            check_spec(text, 72);
        }
    }
    check_spec("kivi:K-b2g4096r0/V-b2g128r0", 128);
    check_spec("kivi:b3g1r0", 10);
    check_spec("kivi:b4g8r0,axis=token", 72);
    check_spec("kivi:b2g32r0,K-axis=token,V-axis=channel", 64);
    check_spec("absmax:b5,heads=all", 36);
    check_spec("zeropoint:b8g4,heads=all", 128);
}

/* Every bits, parts that do not fill a head, sums of 1 and 2 bytes and none,
 * rounded both ways. */
static void test_hack(void **state)
{
    (void)state;
    for (int bits = 1; bits <= 8; bits++) {
        char text[64];

        snprintf(text, sizeof(text), "hack:b%dp32%s", bits,
                 bits % 2 ? "" : ",nearest");
        check_spec(text, bits < 5 ? 64 : 80);
    }
    check_spec("hack:b2p64", 128);
    check_spec("hack:b4p128", 128);
    check_spec("hack:b2p16,se=no", 18);
    check_spec("hack:K-b3p40/V-b3p1024", 40);
}

/* Sub-vectors of every dimension, codes of whole bytes and not, every way to
 * share books and to transform. */
static void test_codebook(void **state)
{
    (void)state;
    for (int d = 1; d <= 16; d++) {
        char text[64];

        snprintf(text, sizeof(text), "pq:d%db4,iters=1", d);
        check(text, (size_t)(d % 2 ? 2 * d : d), true);
        check(text, (size_t)(16 * d), true); /* lanes look together */
    }
    check("pq:d4b8,iters=1", 64, true);
    check("pq:d2b8,sub=shared,iters=1", 32, true);
    check_spec("vecinfer:d4b8r0,iters=1", 128);
    check_spec("vecinfer:d8b12r0,iters=1", 80);
    check_spec("vecinfer:d3b5r0,t=HS,iters=1", 24);
    check_spec("vecinfer:d2b3r0,t=S,iters=1", 18);
    check_spec("million:d2b8r0,iters=1", 64);
    check_spec("million:d4b11r0,iters=1", 64);
    check_spec("evasion:d4b2,iters=1", 36);
    check_spec("pq:d4b6,t=H,books=head,iters=1", 64);
    check_spec("pq:d8b8,books=head,sub=shared,rope=pre,iters=1", 40);
}

/* On a trellis and as levels, from no coefficient at all to every one. */
static void test_bitstreams(void **state)
{
    (void)state;
    check_spec("klt:b2r0", 64);
    check_spec("klt:b1r0,rope=post", 96);
    check_spec("klt:b3r0,rope=post,metric=none", 24);
    check_spec("klt:b8r0,code=scalar", 18);
    check_spec("klt:b4r0,code=scalar", 128);
    check_spec("klt:b0.0625r0", 128);
    check_spec("klt:b0.0625r0", 18);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups), cmocka_unit_test(test_hack),
        cmocka_unit_test(test_codebook), cmocka_unit_test(test_bitstreams)};
    struct kv_err e = {""};

    if (kv_device_cuda(0, &device, &e)) {
        printf("skipped: %s\n", e.msg);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
