#include "kernels/scaled/minifloat.h"
#include "lib/base/half.h"

#include <math.h>
#include <string.h>

const struct kv_minifloat kv_e5m2 = {5, 2, 57344}, kv_e4m3 = {4, 3, 448},
                          kv_e3m2 = {3, 2, 28}, kv_e2m3 = {2, 3, 7.5f},
                          kv_e2m1 = {2, 1, 6};

/* 2^k, -126 <= k <= 127. */
static float power(int k)
{
    return kv_bits_f32((uint32_t)(127 + k) << 23);
}

static uint16_t encode(const struct kv_minifloat *f, float x)
{
    const int min = 2 - (1 << (f->e - 1)); /* exponent of the least normal */
    const uint32_t u = kv_f32_bits(fminf(fabsf(x), f->max)),
                   sign = kv_f32_bits(x) >> 31;
    const int own = (int)(u >> 23) - 127;
    const int exponent = own > min ? own : min;
    /* in units of the last place; 2^(m+1), where it rounds up to that, is the
     * carry into the exponent */
    const float units = rintf(kv_bits_f32(u) * power((int)f->m - exponent));
    const uint32_t size =
        ((uint32_t)(exponent - min) << f->m) + (uint32_t)units;

    return (uint16_t)(sign << (f->e + f->m) | size);
}

void kv_minifloat_encode(const struct kv_minifloat *f, const float *x, size_t n,
                         float scale, uint16_t *code)
{
    if (scale == 0) {
        memset(code, 0, n * sizeof(*code));
        return;
    }
    for (size_t i = 0; i < n; i++)
        code[i] = encode(f, x[i] / scale);
}

void kv_minifloat_decode(const struct kv_minifloat *f, const uint16_t *code,
                         size_t n, float scale, float *x)
{
    const unsigned bits = f->e + f->m;
    /* as the exponent and mantissa of a float: off by the biases alone, for
     * denormals too */
    const float rebias = power(128 - (1 << (f->e - 1)));

    for (size_t i = 0; i < n; i++) {
        const uint32_t size = code[i] & ((1u << bits) - 1);
        const uint32_t sign = (uint32_t)(code[i] >> bits & 1) << 31;

        x[i] = kv_bits_f32(sign | size << (23 - f->m)) * rebias * scale;
    }
}
