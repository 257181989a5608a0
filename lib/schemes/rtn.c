/* The lecture's two quantizers that round to the nearest integer: b bits,
 * groups of g values along tokens or channels, of one head or all heads.
 *
 * absmax: symmetric, scale = (2^(b-1) - 1) / max|x|, q = round(scale x).  A
 * group's head: | step: f16 |, with step = 1/scale, since the scale itself
 * overflows fp16 on narrow groups.  Codes are stored offset by 2^(b-1) - 1.
 *
 * zeropoint: asymmetric, scale = (2^b - 1) / (max - min),
 * zero = -round(scale min) - 2^(b-1), q = round(scale x + zero).  A group's
 * head: | step: f16 | zero: int32 |, step = 1/scale.  Codes are stored offset
 * by 2^(b-1). */
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

/* ---- absmax ------------------------------------------------------------ */

static void encode_absmax(const float *x, size_t n, unsigned bits,
                          uint8_t *head, uint16_t *code)
{
    const float top = (float)((1u << (bits - 1)) - 1);
    const float step = kv_group_put_scale(head, kv_group_max_abs(x, n), top);

    for (size_t i = 0; i < n; i++) {
        const float q = step > 0 ? x[i] / step : 0;

        code[i] = (uint16_t)(kv_round_even(fminf(fmaxf(q, -top), top)) + top);
    }
}

static void decode_absmax(const uint16_t *code, size_t n, unsigned bits,
                          const uint8_t *head, float *x)
{
    const float top = (float)((1u << (bits - 1)) - 1);
    const float step = kv_f16_get(head);

    for (size_t i = 0; i < n; i++)
        x[i] = ((float)code[i] - top) * step;
}

static void affine_absmax(const uint8_t *head, unsigned bits, uint16_t *step,
                          float *zero)
{
    memcpy(step, head, sizeof(*step));
    *zero = (float)((1u << (bits - 1)) - 1);
}

const struct kv_group_quantizer kv_absmax_quantizer = {
    .head_bytes = 2,
    .encode = encode_absmax,
    .decode = decode_absmax,
    .affine = affine_absmax,
    .offset = KV_OFFSET_SAME,
    .device = KV_GPU_ABSMAX,
};

/* ---- zeropoint --------------------------------------------------------- */

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

static void encode_zeropoint(const float *x, size_t n, unsigned bits,
                             uint8_t *head, uint16_t *code)
{
    const double levels = (1u << bits) - 1, half_range = 1u << (bits - 1);
    float min, max;

    kv_group_ends(x, n, &min, &max);
    if (min == max) {
        encode_flat(min, n, bits, head, code);
        return;
    }

    const double step = (double)kv_group_put_scale(
        head, fmaxf(max - min, (float)levels * min_step(fmaxf(-min, max))),
        (float)levels);
    const double zero = -rint((double)min / step) - half_range;

    put_zero(head, (int32_t)fmin(fmax(zero, INT32_MIN), INT32_MAX));
    for (size_t i = 0; i < n; i++) {
        const double q = rint((double)x[i] / step + zero) + half_range;

        code[i] = (uint16_t)fmin(fmax(q, 0), levels);
    }
}

static void decode_zeropoint(const uint16_t *code, size_t n, unsigned bits,
                             const uint8_t *head, float *x)
{
    const double half_range = 1u << (bits - 1);
    const double step = (double)kv_f16_get(head);
    int32_t zero;

    memcpy(&zero, head + 2, sizeof(zero));
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(((double)code[i] - half_range - zero) * step);
}

/* The zero stays below 2^20: halves that are not all equal differ by at least
 * 2^-11 of the largest magnitude, and this difference is at most 2^8 steps. */
static void affine_zeropoint(const uint8_t *head, unsigned bits, uint16_t *step,
                             float *from)
{
    int32_t zero;

    memcpy(step, head, sizeof(*step));
    memcpy(&zero, head + sizeof(*step), sizeof(zero));
    *from = (float)((double)zero + (double)(1u << (bits - 1)));
}

static const struct kv_group_quantizer zeropoint = {
    .head_bytes = 6,
    .encode = encode_zeropoint,
    .decode = decode_zeropoint,
    .affine = affine_zeropoint,
    .offset = KV_OFFSET_ZERO,
    .device = KV_GPU_ZEROPOINT,
};

/* ---- the codec --------------------------------------------------------- */

static const struct kv_param params[] = {
    {"b", NULL, 8, 2, 8, false, "bits per code"},
    {"g", NULL, 0, 0, 4096, false, "values per group; 0: the whole row"},
    {"axis", "token|channel", 0, 0, 0, false,
     "a group lies along one token's channels, or one channel's tokens"},
    {"heads", "one|all", 0, 0, 0, false,
     "token axis: a row is one KV head, or all of them"},
    {0},
};

/* Checks g; g0 is the whole row: head_dim, or all heads' channels. */
static int rtn_check(struct kv_spec *s, const struct kv_shape *shape,
                     struct kv_err *e)
{
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;
        const bool all = kv_spec_is(s, side, "heads", "all");
        const size_t row = shape->head_dim * (all ? shape->n_kv_heads : 1);

        if (kv_spec_is(s, side, "axis", "channel")) {
            if (!kv_spec_size(s, side, "g"))
                return kv_fail(e, "axis=channel wants a group of g tokens, "
                                  "g at least 1");
            if (all)
                return kv_fail(e, "heads=all goes with axis=token only");
            continue;
        }
        if (kv_integers_fit_row(s, side, row, e))
            return -1;
    }
    return 0;
}

/* The lecture counts only the codes. */
static double rtn_nominal(const struct kv_spec *s, enum kv_side side,
                          const struct kv_shape *shape)
{
    (void)shape;
    return kv_spec_get(s, side, "b");
}

static int open_rtn(struct kv_codec *c, const struct kv_calib *calib,
                    struct kv_err *e)
{
    const struct kv_spec *s = &c->spec;

    (void)calib;
    (void)e;
    return kv_integers_open(
        c, c->scheme == &kv_scheme_absmax ? &kv_absmax_quantizer : &zeropoint,
        kv_spec_is(s, c->side, "axis", "channel") ? KV_AXIS_CHANNEL
                                                  : KV_AXIS_TOKEN,
        kv_spec_size(s, c->side, "g"), kv_spec_is(s, c->side, "heads", "all"),
        (unsigned)kv_spec_size(s, c->side, "b"));
}

#define SCHEME(NAME, BRIEF)                     \
    const struct kv_scheme kv_scheme_##NAME = { \
        .name = #NAME,                          \
        .brief = BRIEF,                         \
        .params = params,                       \
        .check = rtn_check,                     \
        .nominal = rtn_nominal,                 \
        .open = open_rtn,                       \
        .encode = kv_integers_encode,           \
        .decode = kv_integers_decode,           \
        .device = kv_integers_device,           \
        .store = kv_integers_store,             \
        .tile = kv_integers_tile,               \
    }

SCHEME(absmax, "symmetric integers, one scale per group (lecture)");
SCHEME(zeropoint, "asymmetric integers with a zero point (lecture)");
