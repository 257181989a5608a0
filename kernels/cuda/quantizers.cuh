/* A group's head and codes, as the schemes' encode() makes them, each operation
 * in the same order and rounded once.  A quantizer is its head as it will be
 * read, at most 8 bytes:
 *
 *   fit(low, high, bits)     from the group's least and largest value
 *   put(heads, i, n)         group i of n, among the unit's heads
 *   code(x, bits, draw)      of a value; draw() is its random number in [0, 1),
 *                            draw.any whether to use it
 *   SUMS                     sums of codes may follow the heads */
#ifndef KV_QUANTIZERS_CUH
#define KV_QUANTIZERS_CUH

#include "kernels/cuda/gpu.cuh"

/* kv_f16_clamp() of lib/base/half.h. */
KV_DEVICE uint16_t kv_clamp_f16(float x)
{
    const uint16_t h = (uint16_t)kv_pack_f16(x, 0);

    return (h & 0x7fff) == 0x7c00 ? (uint16_t)(h - 1) : h;
}

/* kv_group_step() of lib/schemes/grouped.h. */
KV_DEVICE uint16_t kv_step_f16(float range, float top)
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
        half[0] = kv_step_f16(high - low, kv_top(bits));
        half[1] = kv_clamp_f16(low);
    }

    __device__ void put(uint8_t *heads, size_t i, size_t) const
    {
        kv_put(heads + 4 * i, half[0]);
        kv_put(heads + 4 * i + 2, half[1]);
    }

    template <class F> __device__ unsigned code(float x, unsigned bits, F) const
    {
        const float step = kv_low_f16(half[0]), low = kv_low_f16(half[1]);

        return step > 0 ? (unsigned)kv_even(
                              kv_within((x - low) / step, kv_top(bits)))
                        : 0;
    }
};

/* lib/schemes/zeropoint.c.  A flat group needs no case of its own but 0: its
 * value over the step is 1 or -1. */
struct kv_zeropoint {
    enum { SUMS = 0 };
    uint16_t half;
    int32_t zero;

    __device__ void fit(float low, float high, unsigned bits)
    {
        const float levels = kv_top(bits);
        const float most = fmaxf(-low, high);

        if (low == high) {
            half = kv_clamp_f16(fabsf(low));
            zero = low > 0 ? -1 : low < 0 ? 1 : 0;
            return;
        }
        half =
            kv_step_f16(fmaxf(high - low, levels * (most * 0x1p-30f)), levels);
        zero = (int32_t)(-rint((double)low / (double)kv_low_f16(half)) -
                         (double)(1u << (bits - 1)));
    }

    __device__ void put(uint8_t *heads, size_t i, size_t) const
    {
        kv_put(heads + 6 * i, half);
        kv_put(heads + 6 * i + 2, zero);
    }

    template <class F> __device__ unsigned code(float x, unsigned bits, F) const
    {
        const double middle = (double)(1u << (bits - 1));
        const float step = kv_low_f16(half);
        const double q =
            step > 0 ? rint((double)x / (double)step + zero) + middle : middle;

        return (unsigned)fmin(fmax(q, 0.0), (double)kv_top(bits));
    }
};

/* lib/schemes/absmax.c */
struct kv_absmax {
    enum { SUMS = 0 };
    uint16_t half;

    __device__ void fit(float low, float high, unsigned bits)
    {
        half = kv_step_f16(fmaxf(fabsf(low), fabsf(high)), kv_top(bits - 1));
    }

    __device__ void put(uint8_t *heads, size_t i, size_t) const
    {
        kv_put(heads + 2 * i, half);
    }

    template <class F> __device__ unsigned code(float x, unsigned bits, F) const
    {
        const float top = kv_top(bits - 1), step = kv_low_f16(half);
        const float q = step > 0 ? x / step : 0;

        return (unsigned)(kv_even(fminf(fmaxf(q, -top), top)) + top);
    }
};

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

    template <class F>
    __device__ unsigned code(float x, unsigned bits, F draw) const
    {
        const float by = kv_low_f16(scale);

        if (!(by > 0))
            return 0;

        const float y = kv_within((x - kv_low_f16(min)) / by, kv_top(bits));
        const int down = (int)y;

        return draw.any ? (unsigned)(down + (draw() < y - (float)down))
                        : (unsigned)kv_even(y);
    }
};

#endif
