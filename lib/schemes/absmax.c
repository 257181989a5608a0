/* Symmetric integers (lecture): scale = (2^(b-1) - 1) / max|x|,
 * q = round(scale x).
 *
 * A group's head: | step: f16 |, the step 1/scale: the scale itself overflows
 * fp16 on narrow groups.  Codes are stored offset by 2^(b-1) - 1. */
#include "lib/schemes/rtn.h"
#include "lib/schemes/schemes.h"

static void encode_group(const float *x, size_t n, unsigned bits, uint8_t *head,
                         uint16_t *code)
{
    const float top = (float)((1u << (bits - 1)) - 1);
    const float step = kv_group_put_step(head, kv_group_max_abs(x, n), top);

    for (size_t i = 0; i < n; i++) {
        const float q = step > 0 ? x[i] / step : 0;

        code[i] = (uint16_t)(kv_round_even(fminf(fmaxf(q, -top), top)) + top);
    }
}

static void decode_group(const uint16_t *code, size_t n, unsigned bits,
                         const uint8_t *head, float *x)
{
    const float top = (float)((1u << (bits - 1)) - 1);
    const float step = kv_f16_get(head);

    for (size_t i = 0; i < n; i++)
        x[i] = ((float)code[i] - top) * step;
}

static void affine(const uint8_t *head, unsigned bits, uint16_t *step,
                   float *zero)
{
    memcpy(step, head, sizeof(*step));
    *zero = (float)((1u << (bits - 1)) - 1);
}

const struct kv_group_quantizer kv_absmax_quantizer = {
    .head_bytes = 2,
    .encode = encode_group,
    .decode = decode_group,
    .affine = affine,
    .offset = KV_OFFSET_SAME,
    .device = KV_GPU_ABSMAX,
};

static int open_absmax(struct kv_codec *c, const struct kv_calib *calib,
                       struct kv_err *e)
{
    (void)calib;
    (void)e;
    return kv_rtn_open(c, &kv_absmax_quantizer);
}

const struct kv_scheme kv_scheme_absmax = {
    .name = "absmax",
    .brief = "symmetric integers, one scale per group (lecture)",
    .params = kv_rtn_params,
    .check = kv_rtn_check,
    .nominal = kv_rtn_nominal,
    .open = open_absmax,
    .encode = kv_integers_encode,
    .decode = kv_integers_decode,
    .device = kv_integers_device,
    .store = kv_integers_store,
    .tile = kv_integers_tile,
};
