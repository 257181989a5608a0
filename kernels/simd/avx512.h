/* The operations of kernels/simd/c.h in AVX-512 (F, BW, VL, DQ).  A file of
 * vnni_sources (kernels/meson.build), compiled for VNNI, VBMI and GFNI too,
 * defines V_VNNI first. */
#ifndef KV_SIMD_AVX512_H
#define KV_SIMD_AVX512_H

#include "kernels/simd/common.h"

#include <immintrin.h>

#ifdef V_VNNI
#define NAME(f) f##_vnni
#else
#define NAME(f) f##_avx512
#endif
#define V_WIDTH 16
#define V_REGISTERS 32

typedef __m512 vf32;
typedef __m512d vf64;
typedef __m512i vi32;
typedef __m256i vh16;
typedef __mmask16 vmask;

/* ---- floats -------------------------------------------------------------- */

#define v_load _mm512_loadu_ps
#define v_store _mm512_storeu_ps
#define v_set1(x) _mm512_set1_ps(x)
#define v_add _mm512_add_ps
#define v_sub _mm512_sub_ps
#define v_mul _mm512_mul_ps
#define v_div _mm512_div_ps
#define v_min _mm512_min_ps
#define v_max _mm512_max_ps
#define v_abs _mm512_abs_ps
#define v_fmadd _mm512_fmadd_ps
#define v_fnmadd _mm512_fnmadd_ps
#define v_muladd _mm512_fmadd_ps
#define v_to_i32 _mm512_cvtps_epi32
#define v_from_i32 _mm512_cvtepi32_ps
#define v_bits_i32 _mm512_castps_si512
#define v_bits_f32 _mm512_castsi512_ps

#define v_from_f16 _mm512_cvtph_ps
#define v_set1_f16(h) v_from_f16(v_set1_h16(h))
#define v_load_f16(p) v_from_f16(v_load_h16(p))
#define v_load_bf16(p) v_bits_f32(v_shl_i32(v_widen_u16(v_load_h16(p)), 16))

#define v_fraction(x) _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF)
#define v_ldexp _mm512_scalef_ps

/* ---- masks --------------------------------------------------------------- */

/* Masks are in a general register: when gcc 12 spills a mask register of more
 * than 16 bits, it stores 16 bits and reads all. */
ALWAYS_INLINE uint32_t v_mask_bits(vmask mask)
{
    uint32_t bits = mask;

    __asm__("" : "+r"(bits));
    return bits;
}

#define v_le(a, b) _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ)
#define v_select(m, a, b) _mm512_mask_mov_ps(b, m, a)
#define v_select_i32(m, a, b) _mm512_mask_mov_epi32(b, m, a)

/* Masks with a bit for each lane: a == b, a > b, not a >= b. */
#define v_eq_bits(a, b) v_mask_bits(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ))
#define v_gt_bits(a, b) v_mask_bits(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ))
#define v_nge_bits(a, b) v_mask_bits(_mm512_cmp_ps_mask(a, b, _CMP_NGE_UQ))
#define v_gt_bits_i32(a, b) v_mask_bits(_mm512_cmpgt_epi32_mask(a, b))

/* In lanes with x < best: best = x, at = i. */
ALWAYS_INLINE void v_keep_min(vf32 x, vi32 i, vf32 *best, vi32 *at)
{
    const vmask less = _mm512_cmp_ps_mask(x, *best, _CMP_LT_OQ);

    *best = _mm512_min_ps(x, *best);
    *at = v_select_i32(less, i, *at);
}

ALWAYS_INLINE void v_keep_min_i32(vi32 x, vi32 i, vi32 *best, vi32 *at)
{
    const vmask less = _mm512_cmplt_epi32_mask(x, *best);

    *best = _mm512_min_epi32(x, *best);
    *at = v_select_i32(less, i, *at);
}

/* ---- integers ------------------------------------------------------------ */

#define v_load_i32(p) _mm512_loadu_si512(p)
#define v_store_i32(p, x) _mm512_storeu_si512(p, x)
#define v_set1_i32 _mm512_set1_epi32
#define v_zero_i32 _mm512_setzero_si512
#define v_add_i32 _mm512_add_epi32
#define v_sub_i32 _mm512_sub_epi32
#define v_mul_i32 _mm512_mullo_epi32
#define v_min_i32 _mm512_min_epi32
#define v_max_i32 _mm512_max_epi32
#define v_and _mm512_and_si512
#define v_or _mm512_or_si512
#define v_xor _mm512_xor_si512
#define v_pick_i32(bits, a, b) \
    _mm512_ternarylogic_epi32(v_set1_i32((int)(bits)), a, b, 0xca)
#define v_shl_i32(x, n) _mm512_slli_epi32(x, (unsigned)(n))
#define v_shr_i32(x, n) _mm512_srli_epi32(x, (unsigned)(n))

#define v_load_i32_u8(p) \
    _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define v_load_i32_i8(p) \
    _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define v_spread_i32(bits, x) \
    _mm512_maskz_set1_epi32((__mmask16)((bits)&0xffff), (int)(x))

#define v_set1_i16 _mm512_set1_epi16
#define v_add_i16 _mm512_add_epi16
#define v_sub_i16 _mm512_sub_epi16
#define v_abs_i16 _mm512_abs_epi16
#define v_min_u16 _mm512_min_epu16
#define v_adds_u16 _mm512_adds_epu16 /* saturated */
#define v_subs_i16 _mm512_subs_epi16
#define v_mulhrs_i16 _mm512_mulhrs_epi16 /* (a b + 2^14) >> 15 */
#define v_madd_i16 _mm512_madd_epi16     /* sums of two products, in 32 bits */
#define v_shl_i16(x, n) _mm512_slli_epi16(x, (unsigned)(n))
#define v_shr_i16(x, n) _mm512_srli_epi16(x, (unsigned)(n))

#define v_set1_i8 _mm512_set1_epi8
#define v_lookup_i8 _mm512_shuffle_epi8
#define v_load_t16i8(p) \
    _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)(p)))

#define v_load_h16(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define v_load_h16_u8(p) \
    _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define v_widen_u16 _mm512_cvtepu16_epi32
#define v_set1_h16(x) _mm256_set1_epi16((short)(x))
#define v_add_h16 _mm256_add_epi16
#define v_or_h16 _mm256_or_si256
#define v_and_h16(x, bits) _mm256_and_si256(x, _mm256_set1_epi16((short)(bits)))
#define v_shl_h16(x, n) _mm256_slli_epi16(x, (int)(n))
#define v_shr_h16(x, n) _mm256_srli_epi16(x, (int)(n))
#define v_sar_h16(x, n) _mm256_srai_epi16(x, (int)(n))
#define v_pick_h16(bits, a, b) \
    _mm256_ternarylogic_epi32(_mm256_set1_epi16((short)(bits)), a, b, 0xca)

#ifdef V_VNNI
#define v_dot_i8 _mm512_dpbusd_epi32
#endif

/* ---- doubles ------------------------------------------------------------- */

#define v_load_f64 _mm512_loadu_pd
#define v_store_f64 _mm512_storeu_pd
#define v_set1_f64 _mm512_set1_pd
#define v_mul_f64 _mm512_mul_pd
#define v_fmadd_f64 _mm512_fmadd_pd
/* Converts from floats, and from integers at p; takes the lower or upper half
 * of x. */
#define v_load_f64_f32(p) _mm512_cvtps_pd(_mm256_loadu_ps(p))
#define v_load_f64_i32(p) \
    _mm512_cvtepi32_pd(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define v_low_f64_i32(x) _mm512_cvtepi32_pd(_mm512_castsi512_si256(x))
#define v_high_f64_i32(x) _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(x, 1))

/* ---- tables -------------------------------------------------------------- */

typedef vf32 vtable16;

#define v_load16 _mm512_loadu_ps
#define v_scale16 _mm512_mul_ps
#define v_lookup16(t, i) _mm512_permutexvar_ps(i, t)

/* ---- four registers at a time -------------------------------------------- */

/* Within each 128 bits: word j of x[i] = word i of y[j], words of 32 bits; x
 * may be y. */
ALWAYS_INLINE void v_transpose4x4(const vi32 y[4], vi32 x[4])
{
    const vi32 low01 = _mm512_unpacklo_epi32(y[0], y[1]);
    const vi32 high01 = _mm512_unpackhi_epi32(y[0], y[1]);
    const vi32 low23 = _mm512_unpacklo_epi32(y[2], y[3]);
    const vi32 high23 = _mm512_unpackhi_epi32(y[2], y[3]);

    x[0] = _mm512_unpacklo_epi64(low01, low23);
    x[1] = _mm512_unpackhi_epi64(low01, low23);
    x[2] = _mm512_unpacklo_epi64(high01, high23);
    x[3] = _mm512_unpackhi_epi64(high01, high23);
}

/* Within each 128 bits: byte i of y[0] to y[3] side by side; each of x in turn
 * takes the next four i. */
ALWAYS_INLINE void v_interleave4_i8(const vi32 y[4], vi32 x[4])
{
    const vi32 low01 = _mm512_unpacklo_epi8(y[0], y[1]);
    const vi32 high01 = _mm512_unpackhi_epi8(y[0], y[1]);
    const vi32 low23 = _mm512_unpacklo_epi8(y[2], y[3]);
    const vi32 high23 = _mm512_unpackhi_epi8(y[2], y[3]);

    x[0] = _mm512_unpacklo_epi16(low01, low23);
    x[1] = _mm512_unpackhi_epi16(low01, low23);
    x[2] = _mm512_unpacklo_epi16(high01, high23);
    x[3] = _mm512_unpackhi_epi16(high01, high23);
}

/* Lanes of x[4] as 64 signed bytes in their order, saturated. */
ALWAYS_INLINE vi32 v_pack4_i8(const vi32 x[4])
{
    const vi32 order =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);

    return _mm512_permutexvar_epi32(
        order, _mm512_packs_epi16(_mm512_packs_epi32(x[0], x[1]),
                                  _mm512_packs_epi32(x[2], x[3])));
}

#define v_store_low_i8(p, x) \
    _mm_storeu_si128((__m128i *)(void *)(p), _mm512_cvtepi32_epi8(x))
#define v_store_i8(p, x) v_store_low_i8(p, v_to_i32(x))

ALWAYS_INLINE void v_store_i8x4(int8_t *p, const vf32 x[4])
{
    const vi32 i[4] = {v_to_i32(x[0]), v_to_i32(x[1]), v_to_i32(x[2]),
                       v_to_i32(x[3])};

    v_store_i32(p, v_pack4_i8(i));
}

/* Moves the lower halves of a and b to a, the upper halves to b. */
ALWAYS_INLINE void v_pair_halves(vf32 *a, vf32 *b)
{
    const vf32 low = _mm512_shuffle_f32x4(*a, *b, 0x44);

    *b = _mm512_shuffle_f32x4(*a, *b, 0xee);
    *a = low;
}

/* out[i] = f of the lanes of x[i]: lane j with j + 8, then j + 4, j + 2,
 * j + 1. */
#define V_REDUCE4(f, x, out)                                                   \
    do {                                                                       \
        const vi32 at_ = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0,   \
                                           0, 0, 0, 0, 0);                     \
        vf32 a_ = (x)[0], b_ = (x)[1], c_ = (x)[2], d_ = (x)[3], odd_;         \
                                                                               \
        v_pair_halves(&a_, &b_);                                               \
        v_pair_halves(&c_, &d_);                                               \
        a_ = f(a_, b_);                                                        \
        c_ = f(c_, d_);                                                        \
        odd_ = _mm512_shuffle_f32x4(a_, c_, 0xdd);                             \
        a_ = f(_mm512_shuffle_f32x4(a_, c_, 0x88), odd_);                      \
        a_ = f(a_, _mm512_permute_ps(a_, 0x4e));                               \
        a_ = f(a_, _mm512_permute_ps(a_, 0xb1));                               \
        _mm_storeu_ps(out,                                                     \
                      _mm512_castps512_ps128(_mm512_permutexvar_ps(at_, a_))); \
    } while (0)

ALWAYS_INLINE void v_sum4(const vf32 x[4], float out[4])
{
    V_REDUCE4(_mm512_add_ps, x, out);
}

ALWAYS_INLINE void v_max4(const vf32 x[4], float out[4])
{
    V_REDUCE4(_mm512_max_ps, x, out);
}

ALWAYS_INLINE void v_min4(const vf32 x[4], float out[4])
{
    V_REDUCE4(_mm512_min_ps, x, out);
}

#endif
