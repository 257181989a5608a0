/* Asymmetric integers (lecture): scale = (2^b - 1) / (max - min),
 * zero = -round(scale min) - 2^(b-1), q = round(scale x + zero).
 *
 * A group's head: | step: f16 | zero: int32 |, step = 1/scale.  Codes are
 * stored offset by 2^(b-1). */
#include "lib/schemes/rtn.h"
#include "lib/schemes/schemes.h"

/* The least step for which zero fits: |x| / step stays below 2^30. */
static float min_step(float max_abs)
{
    return max_abs * 0x1p-30f;
}

static void put_zero(uint8_t *head, int32_t zero)
{
    memcpy(head + 2, &zero, sizeof(zero));
}

/* A flat group c has no scale; step |c| with zero -1 or 1 and all codes in the
 * middle decodes to c. */
static void encode_flat(float c, size_t n, unsigned bits, uint8_t *head,
                        uint16_t *code)
{
    kv_f16_put(head, fabsf(c));
    put_zero(head, c > 0 ? -1 : c < 0 ? 1 : 0);
    for (size_t i = 0; i < n; i++)
        code[i] = (uint16_t)(1u << (bits - 1));
}

static void encode_group(const float *x, size_t n, unsigned bits, uint8_t *head,
                         uint16_t *code)
{
    const double levels = (1u << bits) - 1, half_range = 1u << (bits - 1);
    float min, max;

    kv_group_ends(x, n, &min, &max);
    if (min == max) {
        encode_flat(min, n, bits, head, code);
        return;
    }

    const double step = (double)kv_group_put_step(
        head, fmaxf(max - min, (float)levels * min_step(fmaxf(-min, max))),
        (float)levels);
    const double zero = -rint((double)min / step) - half_range;

    put_zero(head, (int32_t)fmin(fmax(zero, INT32_MIN), INT32_MAX));
    for (size_t i = 0; i < n; i++) {
        const double q = rint((double)x[i] / step + zero) + half_range;

        code[i] = (uint16_t)fmin(fmax(q, 0), levels);
    }
}

static void decode_group(const uint16_t *code, size_t n, unsigned bits,
                         const uint8_t *head, float *x)
{
    const double half_range = 1u << (bits - 1);
    const double step = (double)kv_f16_get(head);
    int32_t zero;

    memcpy(&zero, head + 2, sizeof(zero));
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(((double)code[i] - half_range - zero) * step);
}

/* Halves that are not all equal are at least 2^-11 of the largest apart, which
 * is 2^8 steps at most: zero stays below 2^20. */
static void affine(const uint8_t *head, unsigned bits, uint16_t *step,
                   float *from)
{
    int32_t zero;

    memcpy(step, head, sizeof(*step));
    memcpy(&zero, head + sizeof(*step), sizeof(zero));
    *from = (float)((double)zero + (double)(1u << (bits - 1)));
}

static const struct kv_group_quantizer quantizer = {
    .head_bytes = 6,
    .encode = encode_group,
    .decode = decode_group,
    .affine = affine,
    .offset = KV_OFFSET_ZERO,
    .device = KV_GPU_ZEROPOINT,
};

static int open_zeropoint(struct kv_codec *c, const struct kv_calib *calib,
                          struct kv_err *e)
{
    (void)calib;
    (void)e;
    return kv_rtn_open(c, &quantizer);
}

const struct kv_scheme kv_scheme_zeropoint = {
    .name = "zeropoint",
    .brief = "asymmetric integers with a zero point (lecture)",
    .params = kv_rtn_params,
    .check = kv_rtn_check,
    .nominal = kv_rtn_nominal,
    .open = open_zeropoint,
    .encode = kv_integers_encode,
    .decode = kv_integers_decode,
    .device = kv_integers_device,
    .store = kv_integers_store,
    .tile = kv_integers_tile,
};
