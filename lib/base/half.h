/* 16-bit floats: IEEE binary16 and bfloat16, to and from float.
 *
 * To 16 bits: round to nearest, ties to even; kv_f16_clamp() clamps to the
 * finite halves, [-65504, 65504].  NaN stays NaN.  Denormals are exact both
 * ways. */
#ifndef KV_BASE_HALF_H
#define KV_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float kv_bits_f32(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline uint32_t kv_f32_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static inline float kv_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    const uint32_t rest = h & 0x7fff;

    if (rest >= 0x7c00) /* infinity or NaN */
        return kv_bits_f32(sign | 0x7f800000u | (rest & 0x3ff) << 13);
    if (rest >= 0x0400) /* normal: rebias the exponent by 127 - 15 */
        return kv_bits_f32(sign | (rest + (112u << 10)) << 13);
    /* denormal: rest * 2^-24, exact in float */
    return kv_bits_f32(sign | kv_f32_bits((float)rest * 0x1p-24f));
}

static inline uint16_t kv_f32_to_f16(float f)
{
    const uint32_t u = kv_f32_bits(f), a = u & 0x7fffffff;
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000);

    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a >= 0x38800000) { /* normal: add half an ulp, ties to even */
        const uint32_t r = a - (112u << 23) + 0xfff + (a >> 13 & 1);

        return (uint16_t)(sign | r >> 13);
    }
    /* denormal: adding 0.5 leaves the value, rounded to a multiple of 2^-24,
     * in the low bits of the sum */
    return (uint16_t)(sign | (kv_f32_bits(kv_bits_f32(a) + 0.5f) - 0x3f000000));
}

static inline uint16_t kv_f16_clamp(float f)
{
    const uint16_t h = kv_f32_to_f16(f);

    return (h & 0x7fff) == 0x7c00 ? (uint16_t)((h & 0x8000) | 0x7bff) : h;
}

/* An fp16 value at any address, aligned or not; put returns the value as
 * stored. */
static inline float kv_f16_get(const uint8_t *at)
{
    uint16_t h;

    memcpy(&h, at, sizeof(h));
    return kv_f16_to_f32(h);
}

static inline float kv_f16_put(uint8_t *at, float f)
{
    const uint16_t h = kv_f16_clamp(f);

    memcpy(at, &h, sizeof(h));
    return kv_f16_to_f32(h);
}

static inline float kv_bf16_to_f32(uint16_t h)
{
    return kv_bits_f32((uint32_t)h << 16);
}

static inline uint16_t kv_f32_to_bf16(float f)
{
    const uint32_t u = kv_f32_bits(f);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

#endif
