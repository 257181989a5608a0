/* exllamav3's quantized cache: runs of 32 channels of a head, each rotated by
 * the Hadamard transform and quantized to b bits over [-s, s], where s is its
 * largest magnitude.  A run is
 *
 *   | codes: 32 x b bits | s: f16 |       b + 0.5 bits a value
 *
 * with values s ((2 code + 1) / 2^b - 1), the middles of 2^b equal parts of the
 * range.  exllamav3's cubic companding (a > 0) is off by default and is not
 * implemented.  Codes are chosen with s before it is rounded.  exllamav3 stores
 * codes in bit planes; here they are packed one after another. */
#include "kernels/hadamard.h"
#include "lib/base/alloc.h"
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

#include <stdlib.h>

enum { RUN = 32 };

static const struct kv_param params[] = {
    {"b", NULL, 4, 2, 8, false, "bits per code"},
    {0},
};

static void exl3_encode_group(const float *x, size_t n, unsigned bits,
                              uint8_t *head, uint16_t *code)
{
    const float half = (float)(1u << (bits - 1)), top = 2 * half - 1;
    const float size = kv_group_max_abs(x, n) + 1e-10f, inverse = 1 / size;

    for (size_t i = 0; i < n; i++)
        code[i] = (uint16_t)fminf(
            fmaxf(floorf(fmaf(x[i] * inverse, half, half)), 0), top);
    kv_f16_put(head, size);
}

static void exl3_decode_group(const uint16_t *code, size_t n, unsigned bits,
                              const uint8_t *head, float *x)
{
    const float half = (float)(1u << (bits - 1));
    const float step = kv_f16_get(head) / half;

    for (size_t i = 0; i < n; i++)
        x[i] = ((float)code[i] - half + 0.5f) * step;
}

static const struct kv_group_quantizer quantizer = {
    .head_bytes = 2,
    .encode = exl3_encode_group,
    .decode = exl3_decode_group,
};

static int exl3_check(struct kv_spec *s, const struct kv_shape *shape,
                      struct kv_err *e)
{
    (void)s;
    if (shape->head_dim % RUN)
        return kv_fail(e,
                       "exl3 has runs of %d channels, which must divide "
                       "head_dim %zu",
                       RUN, shape->head_dim);
    return 0;
}

static double exl3_nominal(const struct kv_spec *s, enum kv_side side,
                           const struct kv_shape *shape)
{
    (void)shape;
    return kv_spec_get(s, side, "b") + 16.0 / RUN;
}

static size_t exl3_hadamard(const struct kv_spec *s,
                            const struct kv_shape *shape)
{
    (void)s;
    (void)shape;
    return RUN;
}

static int open_exl3(struct kv_codec *c, const struct kv_calib *calib,
                     struct kv_err *e)
{
    (void)calib;
    (void)e;
    return kv_integers_open(c, &quantizer, KV_AXIS_TOKEN, RUN, false,
                            (unsigned)kv_spec_size(&c->spec, c->side, "b"));
}

static void exl3_encode(const struct kv_codec *c, struct kv_where w,
                        const float *x, size_t n_blocks, uint8_t *bytes)
{
    const size_t values = n_blocks * kv_codec_block_values(c);
    float *y = kv_alloc(values, sizeof(*y));

    memcpy(y, x, values * sizeof(*y));
    kv_hadamard(y, values / RUN, RUN);
    kv_integers_encode(c, w, y, n_blocks, bytes);
    free(y);
}

static void exl3_decode(const struct kv_codec *c, const uint8_t *bytes,
                        size_t n_blocks, float *x)
{
    kv_integers_decode(c, bytes, n_blocks, x);
    kv_hadamard(x, n_blocks * kv_codec_block_values(c) / RUN, RUN);
}

const struct kv_scheme kv_scheme_exl3 = {
    .name = "exl3",
    .brief = "exllamav3's cache: 32 rotated channels, 2 to 8 bits, a size",
    .params = params,
    .coarse = true, /* no code is 0, and a flat run is rotated to one spike */
    .check = exl3_check,
    .nominal = exl3_nominal,
    .hadamard = exl3_hadamard,
    .open = open_exl3,
    .encode = exl3_encode,
    .decode = exl3_decode,
};
