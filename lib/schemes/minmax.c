#include "lib/schemes/minmax.h"

#include <string.h>

static void encode(const float *x, size_t n, unsigned bits, uint8_t *head,
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
    half[1] = kv_f16_clamp(min);
    memcpy(head, half, sizeof(half));

    const float step = kv_f16_to_f32(half[0]); /* as stored */
    const float low = kv_f16_to_f32(half[1]);

    for (size_t i = 0; i < n; i++) /* a flat group is its minimum */
        code[i] = step > 0 ? kv_code((x[i] - low) / step, top) : 0;
}

static void decode(const uint16_t *code, size_t n, unsigned bits,
                   const uint8_t *head, float *x)
{
    uint16_t half[2];

    (void)bits;
    memcpy(half, head, sizeof(half));

    const float step = kv_f16_to_f32(half[0]), low = kv_f16_to_f32(half[1]);

    for (size_t i = 0; i < n; i++)
        x[i] = low + step * (float)code[i];
}

const struct kv_group_quantizer kv_minmax_quantizer = {
    .head_bytes = 4,
    .encode = encode,
    .decode = decode,
};
