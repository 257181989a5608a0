/* KIVI (arXiv 2402.02750): asymmetric integers, keys per channel in groups of
 * g tokens, values per token in groups of g channels.
 *
 * A group's head: | step: f16 | minimum: f16 |, 32/g bits a value. */
#include "lib/base/half.h"
#include "lib/schemes/grouped.h"
#include "lib/schemes/schemes.h"

#include <math.h>
#include <string.h>

static void encode_group(const float *x, size_t n, unsigned bits, uint8_t *head,
                         uint16_t *code)
{
    const float top = (float)((1u << bits) - 1);
    float min = x[0], max = x[0];
    uint16_t half[2];

    for (size_t i = 1; i < n; i++) {
        min = x[i] < min ? x[i] : min;
        max = x[i] > max ? x[i] : max;
    }
    half[0] = kv_group_step(max - min, top);
    half[1] = kv_f16_clamp(min + 0.0f); /* of the two zeros always +0 */
    memcpy(head, half, sizeof(half));

    const float step = kv_f16_to_f32(half[0]); /* as stored */
    const float low = kv_f16_to_f32(half[1]);

    for (size_t i = 0; i < n; i++) /* a flat group is its minimum */
        code[i] = step > 0 ? kv_code((x[i] - low) / step, top) : 0;
}

static void decode_group(const uint16_t *code, size_t n, unsigned bits,
                         const uint8_t *head, float *x)
{
    uint16_t half[2];

    (void)bits;
    memcpy(half, head, sizeof(half));

    const float step = kv_f16_to_f32(half[0]), low = kv_f16_to_f32(half[1]);

    for (size_t i = 0; i < n; i++)
        x[i] = low + step * (float)code[i];
}

static void affine(const uint8_t *head, unsigned bits, uint16_t *step,
                   float *low)
{
    uint16_t half[2];

    (void)bits;
    memcpy(half, head, sizeof(half));
    *step = half[0];
    *low = kv_f16_to_f32(half[1]);
}

const struct kv_group_quantizer kv_kivi_quantizer = {
    .head_bytes = 4,
    .encode = encode_group,
    .decode = decode_group,
    .affine = affine,
    .offset = KV_OFFSET_LOW,
    .device = KV_GPU_KIVI,
};

static const struct kv_param params[] = {
    {"b", NULL, 2, 1, 8, false, "bits per code"},
    {"g", NULL, 32, 1, 4096, false,
     "group: tokens for keys, channels for values"},
    {0},
};

static int check(struct kv_spec *s, const struct kv_shape *shape,
                 struct kv_err *e)
{
    const size_t g = kv_spec_size(s, KV_K, "g"), r = kv_spec_size(s, KV_K, "r");

    if (kv_grouped_fit(s, KV_V, shape, e))
        return -1;
    if (r % g)
        return kv_fail(e, "g=%zu must divide r=%zu: keys settle r at a time", g,
                       r);
    return 0;
}

static double nominal(const struct kv_spec *s, enum kv_side side,
                      const struct kv_shape *shape)
{
    (void)shape;
    return kv_spec_get(s, side, "b") + 32 / kv_spec_get(s, side, "g");
}

static int open_kivi(struct kv_codec *c, const struct kv_calib *calib,
                     struct kv_err *e)
{
    (void)calib;
    (void)e;
    return kv_grouped_open(c, &kv_kivi_quantizer,
                           c->side == KV_K ? KV_AXIS_CHANNEL : KV_AXIS_TOKEN,
                           kv_spec_size(&c->spec, c->side, "g"), false,
                           (unsigned)kv_spec_size(&c->spec, c->side, "b"));
}

const struct kv_scheme kv_scheme_kivi = {
    .name = "kivi",
    .brief = "KIVI: keys per channel, values per token, min/max integers",
    .params = params,
    .residual = 128,
    .settle = {KV_FLUSH, KV_LAG},
    .check = check,
    .nominal = nominal,
    .open = open_kivi,
    .encode = kv_grouped_encode,
    .decode = kv_grouped_decode,
    .device = kv_grouped_device,
    .store = kv_grouped_store,
    .tile = kv_grouped_tile,
};
