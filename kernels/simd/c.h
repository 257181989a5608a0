/* SIMD operations in plain C: kernels/simd/{c,avx2,avx512}.h define the same
 * names for V_WIDTH lanes of 32 bits, and a file of a level includes one of
 * them.  Loops shared by levels are written once over these names, in a loops.h
 * that a file of each level includes.  Code that only one level needs is
 * written in intrinsics in this level's file.
 *
 *   NAME(f)          f with the level's suffix: _c, _avx2, _avx512, _vnni
 *   V_WIDTH          lanes of 32 bits; in c.h 1, or 8 if the file says so
 *   V_REGISTERS      of the processor; 0 in c.h
 *   V_VNNI           defined by a file that may use VNNI, VBMI and GFNI
 *
 *   vf32 vi32        a register of floats; of integers of any width
 *   vh16             V_WIDTH integers of 16 bits
 *   vf64             V_WIDTH / 2 doubles (avx2, avx512)
 *   vmask            a yes or no for each lane
 *
 * Names end in the lanes' type (v_add_i32, v_min_u16); f32 has no suffix.
 *
 *   v_load v_store   at any address
 *   v_set1(x)        every lane x
 *   v_max(a, b)      a > b ? a : b, v_min likewise: b where one is a NaN
 *   v_fmadd(a, b, c) a b + c, rounded once; v_fnmadd: c - a b
 *   v_muladd         v_fmadd with two roundings in c.h, where fmaf() is slow
 *   v_ldexp(x, n)    x 2^floor(n), -126 <= n < 128 or NaN
 *   v_sum4 v_max4 v_min4(x, out)   out[i]: of the lanes of x[i], i < 4
 *   v_to_i32 v_from_i32            to the nearest, half to even
 *   v_store_i8 v_store_i8x4(p, x)  1, 4 registers of floats as signed bytes
 *   v_store_low_i8(p, x)           the low byte of each lane
 *   v_set1_f16(h)    every lane this half
 *   v_lookup16(t, i)               t[i % 16], t: v_load16() of 16 floats
 *   v_scale16(t, x)                t, every float times x
 *   v_pick_i32 v_pick_h16(bits, a, b)   these bits of a, the others of b
 *   v_widen_u16(h)                 to 32 bits
 *   v_load_i32_u8 v_load_i32_i8(p)  V_WIDTH bytes, to 32 bits
 *   v_spread_i32(bits, x)          lane j: x where bit j is set, else 0
 *   v_lookup_i8(t, i)              bytes of t, v_load_t16i8() of 16 bytes
 *   v_dot_i8(sum, u, s)            sum of each lane += its four products of
 *                    bytes, u unsigned, s signed; avx2: two sums of products
 *                    must fit 16 bits */
#ifndef KV_SIMD_C_H
#define KV_SIMD_C_H

#include "kernels/simd/common.h"
#include "lib/base/half.h"

#include <math.h>

#define NAME(f) f##_c
#define V_REGISTERS 0
#ifndef V_WIDTH
#define V_WIDTH 1
#endif

#if V_WIDTH == 1
typedef float vf32;
typedef int32_t vi32;
#else
typedef float vf32 __attribute__((vector_size(4 * V_WIDTH)));
typedef int32_t vi32 __attribute__((vector_size(4 * V_WIDTH)));
#endif

ALWAYS_INLINE vf32 v_load(const float *p)
{
    vf32 x;

    memcpy(&x, p, sizeof(x));
    return x;
}

ALWAYS_INLINE void v_store(float *p, vf32 x)
{
    memcpy(p, &x, sizeof(x));
}

ALWAYS_INLINE vf32 v_set1(float x)
{
    return x - (vf32){0};
}

#define v_add(a, b) ((a) + (b))
#define v_sub(a, b) ((a) - (b))
#define v_mul(a, b) ((a) * (b))
#define v_div(a, b) ((a) / (b))
#define v_muladd(a, b, c) ((a) * (b) + (c))

#if V_WIDTH > 1

ALWAYS_INLINE vf32 v_max(vf32 a, vf32 b)
{
    const vi32 more = a > b;

    return (vf32)((more & (vi32)a) | (~more & (vi32)b));
}

ALWAYS_INLINE vf32 v_fmadd(vf32 a, vf32 b, vf32 c)
{
    for (size_t j = 0; j < V_WIDTH; j++)
        c[j] = fmaf(a[j], b[j], c[j]);
    return c;
}

#else

typedef uint16_t vh16;

#define v_max(a, b) ((a) > (b) ? (a) : (b))
#define v_min(a, b) ((a) < (b) ? (a) : (b))
#define v_abs(x) fabsf(x)
#define v_fmadd(a, b, c) fmaf(a, b, c)
#define v_to_i32(x) ((int32_t)((x) + 0x1.8p23f - 0x1.8p23f)) /* |x| < 2^22 */
#define v_from_i32(x) ((float)(x))
#define v_sum4(x, out) memcpy(out, x, 4 * sizeof(float))
#define v_max4 v_sum4

#define v_load_f16(p) kv_f16_to_f32(v_load_h16(p))
#define v_load_bf16(p) kv_bf16_to_f32(v_load_h16(p))
#define v_bits_f32(x) kv_bits_f32((uint32_t)(x))
#define v_from_f16(h) kv_f16_to_f32(h)
#define v_set1_f16(h) kv_f16_to_f32(h)

#define v_set1_i32(x) ((int32_t)(x))
#define v_store_i32(p, x) (*(p) = (x))
#define v_add_i32(a, b) ((a) + (b))
#define v_sub_i32(a, b) ((a) - (b))
#define v_and(a, b) ((a) & (b))
#define v_or(a, b) ((a) | (b))
#define v_max_i32(a, b) ((a) > (b) ? (a) : (b))
#define v_pick_i32(bits, a, b) (((a) & (bits)) | ((b) & ~(bits)))
#define v_shl_i32(x, n) ((int32_t)((uint32_t)(x) << (n)))
#define v_shr_i32(x, n) ((int32_t)((uint32_t)(x) >> (n)))

#define v_load_i32_u8(p) ((int32_t) * (const uint8_t *)(p))
#define v_load_i32_i8(p) ((int32_t) * (const int8_t *)(p))
#define v_spread_i32(bits, x) ((bits)&1 ? (x) : 0)
#define v_load_h16_u8(p) ((uint16_t) * (const uint8_t *)(p))
#define v_widen_u16(h) ((vi32)(h))
#define v_or_h16(x, y) ((uint16_t)((x) | (y)))
#define v_add_h16(x, y) ((uint16_t)((x) + (y)))
#define v_set1_h16(x) ((uint16_t)(x))
#define v_and_h16(x, bits) ((uint16_t)((x) & (bits)))
#define v_shl_h16(x, n) ((uint16_t)((x) << (n)))
#define v_shr_h16(x, n) ((uint16_t)((x) >> (n)))
#define v_sar_h16(x, n) ((uint16_t)((int16_t)(x) >> (n)))
#define v_pick_h16(bits, a, b) ((uint16_t)(((a) & (bits)) | ((b) & ~(bits))))

ALWAYS_INLINE vh16 v_load_h16(const void *p)
{
    vh16 x;

    memcpy(&x, p, sizeof(x));
    return x;
}

ALWAYS_INLINE vi32 v_load_i32(const void *p)
{
    vi32 x;

    memcpy(&x, p, sizeof(x));
    return x;
}

/* floorf(), which is slow, of |x| below 2^22. */
ALWAYS_INLINE float v_floor(float x)
{
    const float near = x + 0x1.8p23f - 0x1.8p23f;

    return near > x ? near - 1 : near;
}

ALWAYS_INLINE float v_ldexp(float x, float n)
{
    if (!(n < 128)) /* no number */
        return n;
    return x * kv_bits_f32((uint32_t)((int32_t)v_floor(n) + 127) << 23);
}

#define v_fraction(x) ((x)-v_floor(x))

#define v_store_i8(p, x) (*(p) = (int8_t)v_to_i32(x))
#define v_store_low_i8(p, x) (*(uint8_t *)(p) = (uint8_t)(x))

ALWAYS_INLINE void v_store_i8x4(int8_t *p, const float x[4])
{
    for (int i = 0; i < 4; i++)
        v_store_i8(p + i, x[i]);
}

typedef struct {
    float x[16];
} vtable16;

ALWAYS_INLINE vtable16 v_load16(const float *p)
{
    vtable16 t;

    memcpy(&t, p, sizeof(t));
    return t;
}

ALWAYS_INLINE vtable16 v_scale16(vtable16 t, float x)
{
    for (int i = 0; i < 16; i++)
        t.x[i] *= x;
    return t;
}

#define v_lookup16(t, i) ((t).x[(i)&15])

ALWAYS_INLINE vi32 v_dot_i8(vi32 sum, vi32 u, vi32 s)
{
    for (int j = 0; j < 4; j++)
        sum += (uint8_t)(u >> 8 * j) * (int8_t)(s >> 8 * j);
    return sum;
}

#endif
#endif
