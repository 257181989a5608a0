#include "lib/schemes/rotated.h"

/* ---- integers with a zero point ---------------------------------------- */

/* The smallest scale for which zero < 2^14, so that zero < 2^15 after the scale
 * is rounded to fp16. */
static float min_scale(float low, float high)
{
    return fmaxf(fabsf(low), fabsf(high)) * 0x1p-14f;
}

static void put_zero(uint8_t *head, float zero)
{
    const int16_t whole = (int16_t)zero;

    memcpy(head + 2, &whole, sizeof(whole));
}

static void rotated_encode_group(const float *x, size_t n, unsigned bits,
                                 uint8_t *head, uint16_t *code)
{
    const float top = (float)((1u << bits) - 1);
    float low, high;

    kv_group_ends(x, n, &low, &high);
    memset(code, 0, n * sizeof(*code));
    if (low == high) { /* scale |low|, zero -1 or 1 and codes of 0 decode to
                        * low */
        kv_f16_put(head, fabsf(low));
        put_zero(head, low > 0 ? -1 : low < 0 ? 1 : 0);
        return;
    }

    const float range = fmaxf(high - low, top * min_scale(low, high));
    const float scale = kv_group_put_scale(head, range, top);
    const float zero = -kv_round_even(low / scale);

    put_zero(head, zero);
    for (size_t i = 0; i < n; i++)
        code[i] = kv_code(kv_round_even(x[i] / scale) + zero, top);
}

static void rotated_decode_group(const uint16_t *code, size_t n, unsigned bits,
                                 const uint8_t *head, float *x)
{
    const float scale = kv_f16_get(head);
    int16_t zero;

    (void)bits;
    memcpy(&zero, head + 2, sizeof(zero));
    for (size_t i = 0; i < n; i++)
        x[i] = scale * (float)(code[i] - zero);
}

static void affine(const uint8_t *head, unsigned bits, uint16_t *scale,
                   float *from)
{
    int16_t zero;

    (void)bits;
    memcpy(scale, head, sizeof(*scale));
    memcpy(&zero, head + sizeof(*scale), sizeof(zero));
    *from = zero;
}

static const struct kv_group_quantizer with_zero = {
    .head_bytes = 4,
    .encode = rotated_encode_group,
    .decode = rotated_decode_group,
    .affine = affine,
    .offset = KV_OFFSET_ZERO,
};

/* ---- the codec --------------------------------------------------------- */

static const struct kv_group_quantizer *quantizer_of(const struct kv_codec *c)
{
    if (kv_spec_is(&c->spec, c->side, "zero", "int"))
        return &with_zero;
    return kv_spec_is(&c->spec, c->side, "zero", "min") ? &kv_kivi_quantizer
                                                        : &kv_absmax_quantizer;
}

int kv_rotated_open(struct kv_codec *c, bool all_heads)
{
    return kv_integers_open(c, quantizer_of(c), KV_AXIS_TOKEN,
                            kv_spec_size(&c->spec, c->side, "g"), all_heads,
                            (unsigned)kv_spec_size(&c->spec, c->side, "b"));
}

static void clamp_group(float *x, size_t n, bool symmetric, float clip)
{
    float low, high;

    kv_group_ends(x, n, &low, &high);
    if (symmetric) {
        high = fmaxf(fabsf(low), fabsf(high));
        low = -high;
    }
    for (size_t i = 0; i < n && low < high; i++)
        x[i] = fminf(fmaxf(x[i], clip * low), clip * high);
}

void kv_rotated_encode(const struct kv_codec *c, struct kv_where w, float *x,
                       size_t n_blocks, uint8_t *bytes)
{
    const bool symmetric = quantizer_of(c) == &kv_absmax_quantizer;
    const float clip = (float)kv_spec_get(&c->spec, c->side, "clip");
    const size_t g = kv_spec_size(&c->spec, c->side, "g");
    const size_t values = n_blocks * kv_codec_block_values(c);

    for (size_t i = 0; i < values; i += g)
        clamp_group(x + i, g, symmetric, clip);
    kv_integers_encode(c, w, x, n_blocks, bytes);
}
