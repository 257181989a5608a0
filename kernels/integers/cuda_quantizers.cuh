/* A group's head and codes, computed as in the schemes' encode() and decode(),
 * each operation in the same order and rounded once.  A quantizer is the
 * group's head in stored form, at most 8 bytes:
 *
 *   fit(low, high, bits)     from the group's smallest and largest value
 *   put(heads, i, n)         group i of n, among the unit's heads
 *   take(heads, i, n)        the same back
 *   code(x, bits, draw)      of a value; draw() is its random number in [0, 1),
 *                            draw.any whether to use it
 *   value(code, bits)        of a code
 *   scale(), low(bits)       value() is about low + scale * code (not of hack)
 *   SUMS                     sums of codes may follow the heads */
#ifndef KV_INTEGERS_CUDA_QUANTIZERS_CUH
#define KV_INTEGERS_CUDA_QUANTIZERS_CUH

#include "kernels/cuda/gpu.cuh"
#include "kernels/device_code.h"

/* kv_f16_clamp() of lib/base/half.h. */
KV_DEVICE uint16_t kv_clamp_f16(float x)
{
    const uint16_t h = (uint16_t)kv_pack_f16(x, 0);

    return (h & 0x7fff) == 0x7c00 ? (uint16_t)(h - 1) : h;
}

/* kv_group_scale() of lib/schemes/integers.h. */
KV_DEVICE uint16_t kv_scale_f16(float range, float top)
{
    const uint16_t half = kv_clamp_f16(range / top);

    return half < 0x0400 && kv_low_f16(half) * top < range
               ? (uint16_t)(half + 1)
               : half;
}

/* Little-endian, at any address. */
template <class T> KV_DEVICE void kv_put(uint8_t *to, T x)
{
    for (unsigned i = 0; i < sizeof(x); i++)
        to[i] = (uint8_t)(x >> 8 * i);
}

template <class T> KV_DEVICE T kv_take(const uint8_t *from)
{
    uint32_t x = 0;

    for (unsigned i = 0; i < sizeof(T); i++)
        x |= (uint32_t)from[i] << 8 * i;
    return (T)x;
}

KV_DEVICE float kv_top(unsigned bits)
{
    return (float)((1u << bits) - 1);
}

/* Half to even; adding 1.5 * 2^23 leaves no room for a fraction. */
KV_DEVICE float kv_even(float x)
{
    return x + 12582912.0f - 12582912.0f;
}

KV_DEVICE float kv_within(float x, float top)
{
    const float low = x > 0 ? x : 0;

    return low < top ? low : top;
}

/* lib/schemes/kivi.c */
struct kv_kivi {
    enum { SUMS = 0 };
    uint16_t half[2];

    __device__ void fit(float low, float high, unsigned bits)
    {
        half[0] = kv_scale_f16(high - low, kv_top(bits));
        half[1] = kv_clamp_f16(low);
    }

    __device__ void put(uint8_t *heads, size_t i, size_t) const
    {
        kv_put(heads + 4 * i, half[0]);
        kv_put(heads + 4 * i + 2, half[1]);
    }

    __device__ void take(const uint8_t *heads, size_t i, size_t)
    {
        half[0] = kv_take<uint16_t>(heads + 4 * i);
        half[1] = kv_take<uint16_t>(heads + 4 * i + 2);
    }

    template <class F> __device__ unsigned code(float x, unsigned bits, F) const
    {
        const float scale = kv_low_f16(half[0]), low = kv_low_f16(half[1]);

        return scale > 0 ? (unsigned)kv_even(
                               kv_within((x - low) / scale, kv_top(bits)))
                         : 0;
    }

    __device__ float value(unsigned code, unsigned) const
    {
        return kv_low_f16(half[1]) + kv_low_f16(half[0]) * (float)code;
    }

    __device__ float scale(void) const
    {
        return kv_low_f16(half[0]);
    }
    __device__ float low(unsigned) const
    {
        return kv_low_f16(half[1]);
    }
};

/* zeropoint of lib/schemes/rtn.c.  A flat group needs a special case only for
 * 0; otherwise its value over the scale is 1 or -1. */
struct kv_zeropoint {
    enum { SUMS = 0 };
    uint16_t half;
    int32_t zero;

    __device__ void fit(float low, float high, unsigned bits)
    {
        const float levels = kv_top(bits);
        const float max = fmaxf(-low, high);

        if (low == high) {
            half = kv_clamp_f16(fabsf(low));
            zero = low > 0 ? -1 : low < 0 ? 1 : 0;
            return;
        }
        half =
            kv_scale_f16(fmaxf(high - low, levels * (max * 0x1p-30f)), levels);
        zero = (int32_t)(-rint((double)low / (double)kv_low_f16(half)) -
                         (double)(1u << (bits - 1)));
    }

    __device__ void put(uint8_t *heads, size_t i, size_t) const
    {
        kv_put(heads + 6 * i, half);
        kv_put(heads + 6 * i + 2, zero);
    }

    __device__ void take(const uint8_t *heads, size_t i, size_t)
    {
        half = kv_take<uint16_t>(heads + 6 * i);
        zero = kv_take<int32_t>(heads + 6 * i + 2);
    }

    template <class F> __device__ unsigned code(float x, unsigned bits, F) const
    {
        const double middle = (double)(1u << (bits - 1));
        const float scale = kv_low_f16(half);
        const double q = scale > 0
                             ? rint((double)x / (double)scale + zero) + middle
                             : middle;

        return (unsigned)fmin(fmax(q, 0.0), (double)kv_top(bits));
    }

    __device__ float value(unsigned code, unsigned bits) const
    {
        const double middle = (double)(1u << (bits - 1));

        return (float)(((double)code - middle - zero) *
                       (double)kv_low_f16(half));
    }

    __device__ float scale(void) const
    {
        return kv_low_f16(half);
    }
    __device__ float low(unsigned bits) const
    {
        return -(float)(zero + (1 << (bits - 1))) * kv_low_f16(half);
    }
};

/* absmax of lib/schemes/rtn.c */
struct kv_absmax {
    enum { SUMS = 0 };
    uint16_t half;

    __device__ void fit(float low, float high, unsigned bits)
    {
        half = kv_scale_f16(fmaxf(fabsf(low), fabsf(high)), kv_top(bits - 1));
    }

    __device__ void put(uint8_t *heads, size_t i, size_t) const
    {
        kv_put(heads + 2 * i, half);
    }

    __device__ void take(const uint8_t *heads, size_t i, size_t)
    {
        half = kv_take<uint16_t>(heads + 2 * i);
    }

    template <class F> __device__ unsigned code(float x, unsigned bits, F) const
    {
        const float top = kv_top(bits - 1), scale = kv_low_f16(half);
        const float q = scale > 0 ? x / scale : 0;

        return (unsigned)(kv_even(fminf(fmaxf(q, -top), top)) + top);
    }

    __device__ float value(unsigned code, unsigned bits) const
    {
        return ((float)code - kv_top(bits - 1)) * kv_low_f16(half);
    }

    __device__ float scale(void) const
    {
        return kv_low_f16(half);
    }
    __device__ float low(unsigned bits) const
    {
        return -kv_top(bits - 1) * kv_low_f16(half);
    }
};

/* round() of kernels/hack/hack.h, of one value; scale > 0. */
template <class F>
KV_DEVICE unsigned kv_hack_rounded(float x, float min, float scale, float top,
                                   F draw)
{
    const float y = kv_within((x - min) / scale, top);
    const int down = (int)y;

    return draw.any ? (unsigned)(down + (draw() < y - (float)down))
                    : (unsigned)kv_even(y);
}

/* lib/schemes/hack.c: scales of all groups, then minima. */
struct kv_hack {
    enum { SUMS = 1, BYTES = 4 }; /* BYTES: scale and minimum */
    uint16_t scale, min;

    __device__ void fit(float low, float high, unsigned bits)
    {
        scale = kv_clamp_f16((high - low) / kv_top(bits));
        min = kv_clamp_f16(low);
    }

    __device__ void put(uint8_t *heads, size_t i, size_t n) const
    {
        kv_put(heads + 2 * i, scale);
        kv_put(heads + 2 * (n + i), min);
    }

    __device__ void take(const uint8_t *heads, size_t i, size_t n)
    {
        scale = kv_take<uint16_t>(heads + 2 * i);
        min = kv_take<uint16_t>(heads + 2 * (n + i));
    }

    template <class F>
    __device__ unsigned code(float x, unsigned bits, F draw) const
    {
        const float by = kv_low_f16(scale);

        return by > 0
                   ? kv_hack_rounded(x, kv_low_f16(min), by, kv_top(bits), draw)
                   : 0;
    }

    __device__ float value(unsigned code, unsigned) const
    {
        return kv_low_f16(min) + kv_low_f16(scale) * (float)code;
    }
};

/* Calls f.run<Q>() with the quantizer Q; false if the quantizer is HACK's or
 * unknown. */
template <class F>
static bool kv_with_quantizer(enum kv_gpu_quantizer quantizer, F &f)
{
    switch (quantizer) {
    case KV_GPU_KIVI:
        f.template run<kv_kivi>();
        return true;
    case KV_GPU_ZEROPOINT:
        f.template run<kv_zeropoint>();
        return true;
    case KV_GPU_ABSMAX:
        f.template run<kv_absmax>();
        return true;
    case KV_GPU_NO_QUANTIZER:
    case KV_GPU_HACK:
        break;
    }
    return false;
}

/* Like kv_with_quantizer(), but HACK's quantizer is allowed too. */
template <class F>
static bool kv_with_any_quantizer(enum kv_gpu_quantizer quantizer, F &f)
{
    if (quantizer != KV_GPU_HACK)
        return kv_with_quantizer(quantizer, f);
    f.template run<kv_hack>();
    return true;
}

#endif
