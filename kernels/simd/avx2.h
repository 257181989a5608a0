/* The operations of kernels/simd/c.h in AVX2 (with FMA and F16C). */
#ifndef KV_SIMD_AVX2_H
#define KV_SIMD_AVX2_H

#include "kernels/simd/common.h"

#include <immintrin.h>

#define NAME(f) f##_avx2
#define V_WIDTH 8
#define V_REGISTERS 16

typedef __m256 vf32, vmask;
typedef __m256d vf64;
typedef __m256i vi32;
typedef __m128i vh16;

/* ---- floats -------------------------------------------------------------- */

#define v_load _mm256_loadu_ps
#define v_store _mm256_storeu_ps
#define v_set1(x) _mm256_set1_ps(x)
#define v_add _mm256_add_ps
#define v_sub _mm256_sub_ps
#define v_mul _mm256_mul_ps
#define v_div _mm256_div_ps
#define v_min _mm256_min_ps
#define v_max _mm256_max_ps
#define v_abs(x) _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x)
#define v_fmadd _mm256_fmadd_ps
#define v_fnmadd _mm256_fnmadd_ps
#define v_muladd _mm256_fmadd_ps
#define v_to_i32 _mm256_cvtps_epi32
#define v_from_i32 _mm256_cvtepi32_ps
#define v_bits_i32 _mm256_castps_si256
#define v_bits_f32 _mm256_castsi256_ps

#define v_from_f16 _mm256_cvtph_ps
#define v_set1_f16(h) v_from_f16(v_set1_h16(h))
#define v_load_f16(p) v_from_f16(v_load_h16(p))
#define v_load_bf16(p) v_bits_f32(v_shl_i32(v_widen_u16(v_load_h16(p)), 16))

#define v_fraction(x) _mm256_sub_ps(x, _mm256_floor_ps(x))

ALWAYS_INLINE vf32 v_ldexp(vf32 x, vf32 n)
{
    const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_floor_ps(n)),
                                       _mm256_set1_epi32(127));

    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(e, 23)));
}

/* ---- masks --------------------------------------------------------------- */

#define v_le(a, b) _mm256_cmp_ps(a, b, _CMP_LE_OQ)
#define v_select(m, a, b) _mm256_blendv_ps(b, a, m)
#define v_select_i32(m, a, b) _mm256_blendv_epi8(b, a, _mm256_castps_si256(m))

/* Masks with a bit for each lane: a == b, a > b, not a >= b. */
#define v_eq_bits(a, b) \
    ((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)))
#define v_gt_bits(a, b) \
    ((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)))
#define v_nge_bits(a, b) \
    ((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NGE_UQ)))
#define v_gt_bits_i32(a, b) \
    ((unsigned)_mm256_movemask_ps(v_bits_f32(_mm256_cmpgt_epi32(a, b))))

/* In lanes with x < best: best = x, at = i. */
ALWAYS_INLINE void v_keep_min(vf32 x, vi32 i, vf32 *best, vi32 *at)
{
    const vmask less = _mm256_cmp_ps(x, *best, _CMP_LT_OQ);

    *best = _mm256_min_ps(x, *best);
    *at = v_select_i32(less, i, *at);
}

ALWAYS_INLINE void v_keep_min_i32(vi32 x, vi32 i, vi32 *best, vi32 *at)
{
    const vi32 less = _mm256_cmpgt_epi32(*best, x);

    *best = _mm256_min_epi32(x, *best);
    *at = _mm256_blendv_epi8(*at, i, less);
}

/* ---- integers ------------------------------------------------------------ */

#define v_load_i32(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define v_store_i32(p, x) _mm256_storeu_si256((__m256i *)(void *)(p), x)
#define v_set1_i32 _mm256_set1_epi32
#define v_zero_i32 _mm256_setzero_si256
#define v_add_i32 _mm256_add_epi32
#define v_sub_i32 _mm256_sub_epi32
#define v_mul_i32 _mm256_mullo_epi32
#define v_min_i32 _mm256_min_epi32
#define v_max_i32 _mm256_max_epi32
#define v_and _mm256_and_si256
#define v_or _mm256_or_si256
#define v_xor _mm256_xor_si256
#define v_pick_i32(bits, a, b)                         \
    _mm256_or_si256(v_and(a, v_set1_i32((int)(bits))), \
                    _mm256_andnot_si256(v_set1_i32((int)(bits)), b))
#define v_shl_i32(x, n) _mm256_slli_epi32(x, (int)(n))
#define v_shr_i32(x, n) _mm256_srli_epi32(x, (int)(n))

#define v_load_i32_u8(p) \
    _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p)))
#define v_load_i32_i8(p) \
    _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p)))

ALWAYS_INLINE vi32 v_spread_i32(uint32_t bits, int32_t x)
{
    const vi32 lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const vi32 own = v_and(v_set1_i32((int)bits), lane);

    return v_and(_mm256_cmpeq_epi32(own, lane), v_set1_i32(x));
}

#define v_set1_i16 _mm256_set1_epi16
#define v_add_i16 _mm256_add_epi16
#define v_sub_i16 _mm256_sub_epi16
#define v_abs_i16 _mm256_abs_epi16
#define v_min_u16 _mm256_min_epu16
#define v_adds_u16 _mm256_adds_epu16 /* saturated */
#define v_subs_i16 _mm256_subs_epi16
#define v_mulhrs_i16 _mm256_mulhrs_epi16 /* (a b + 2^14) >> 15 */
#define v_madd_i16 _mm256_madd_epi16     /* sums of two products, in 32 bits */
#define v_shl_i16(x, n) _mm256_slli_epi16(x, (int)(n))
#define v_shr_i16(x, n) _mm256_srli_epi16(x, (int)(n))
#define v_sar_i16(x, n) _mm256_srai_epi16(x, (int)(n))

#define v_set1_i8 _mm256_set1_epi8
#define v_lookup_i8 _mm256_shuffle_epi8
#define v_load_t16i8(p)          \
    _mm256_broadcastsi128_si256( \
        _mm_loadu_si128((const __m128i *)(const void *)(p)))

#define v_load_h16(p) _mm_loadu_si128((const __m128i *)(const void *)(p))
#define v_load_h16_u8(p) \
    _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)(p)))
#define v_widen_u16 _mm256_cvtepu16_epi32
#define v_set1_h16(x) _mm_set1_epi16((short)(x))
#define v_add_h16 _mm_add_epi16
#define v_or_h16 _mm_or_si128
#define v_and_h16(x, bits) _mm_and_si128(x, _mm_set1_epi16((short)(bits)))
#define v_shl_h16(x, n) _mm_slli_epi16(x, (int)(n))
#define v_shr_h16(x, n) _mm_srli_epi16(x, (int)(n))
#define v_sar_h16(x, n) _mm_srai_epi16(x, (int)(n))
#define v_pick_h16(bits, a, b)       \
    _mm_or_si128(v_and_h16(a, bits), \
                 _mm_andnot_si128(_mm_set1_epi16((short)(bits)), b))

ALWAYS_INLINE vi32 v_dot_i8(vi32 sum, vi32 u, vi32 s)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s),
                                                   _mm256_set1_epi16(1)));
}

/* ---- doubles ------------------------------------------------------------- */

#define v_load_f64 _mm256_loadu_pd
#define v_store_f64 _mm256_storeu_pd
#define v_set1_f64 _mm256_set1_pd
#define v_mul_f64 _mm256_mul_pd
#define v_fmadd_f64 _mm256_fmadd_pd
/* Converts from floats, and from integers at p; takes the lower or upper half
 * of x. */
#define v_load_f64_f32(p) _mm256_cvtps_pd(_mm_loadu_ps(p))
#define v_load_f64_i32(p) \
    _mm256_cvtepi32_pd(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define v_low_f64_i32(x) _mm256_cvtepi32_pd(_mm256_castsi256_si128(x))
#define v_high_f64_i32(x) _mm256_cvtepi32_pd(_mm256_extracti128_si256(x, 1))

/* ---- tables -------------------------------------------------------------- */

typedef struct {
    vf32 low, high;
} vtable16;

#define v_load16(p) ((vtable16){v_load(p), v_load((p) + 8)})
#define v_scale16(t, x) ((vtable16){v_mul((t).low, x), v_mul((t).high, x)})

ALWAYS_INLINE vf32 v_lookup16(vtable16 t, vi32 i)
{
    const vi32 high = _mm256_slli_epi32(i, 28); /* bit 3 as the sign */

    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.low, i),
                            _mm256_permutevar8x32_ps(t.high, i),
                            _mm256_castsi256_ps(high));
}

/* ---- four registers at a time -------------------------------------------- */

/* Within each 128 bits: word j of x[i] = word i of y[j], words of 32 bits; x
 * may be y. */
ALWAYS_INLINE void v_transpose4x4(const vi32 y[4], vi32 x[4])
{
    const vi32 low01 = _mm256_unpacklo_epi32(y[0], y[1]);
    const vi32 high01 = _mm256_unpackhi_epi32(y[0], y[1]);
    const vi32 low23 = _mm256_unpacklo_epi32(y[2], y[3]);
    const vi32 high23 = _mm256_unpackhi_epi32(y[2], y[3]);

    x[0] = _mm256_unpacklo_epi64(low01, low23);
    x[1] = _mm256_unpackhi_epi64(low01, low23);
    x[2] = _mm256_unpacklo_epi64(high01, high23);
    x[3] = _mm256_unpackhi_epi64(high01, high23);
}

/* Within each 128 bits: byte i of y[0] to y[3] side by side; each of x in turn
 * takes the next four i. */
ALWAYS_INLINE void v_interleave4_i8(const vi32 y[4], vi32 x[4])
{
    const vi32 low01 = _mm256_unpacklo_epi8(y[0], y[1]);
    const vi32 high01 = _mm256_unpackhi_epi8(y[0], y[1]);
    const vi32 low23 = _mm256_unpacklo_epi8(y[2], y[3]);
    const vi32 high23 = _mm256_unpackhi_epi8(y[2], y[3]);

    x[0] = _mm256_unpacklo_epi16(low01, low23);
    x[1] = _mm256_unpackhi_epi16(low01, low23);
    x[2] = _mm256_unpacklo_epi16(high01, high23);
    x[3] = _mm256_unpackhi_epi16(high01, high23);
}

/* Lanes of x[4] as 32 bytes in their order, saturated: signed, unsigned. */
ALWAYS_INLINE vi32 v_pack4_i8(const vi32 x[4])
{
    const vi32 order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);

    return _mm256_permutevar8x32_epi32(
        _mm256_packs_epi16(_mm256_packs_epi32(x[0], x[1]),
                           _mm256_packs_epi32(x[2], x[3])),
        order);
}

ALWAYS_INLINE vi32 v_pack4_u8(const vi32 x[4])
{
    const vi32 order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);

    return _mm256_permutevar8x32_epi32(
        _mm256_packus_epi16(_mm256_packs_epi32(x[0], x[1]),
                            _mm256_packs_epi32(x[2], x[3])),
        order);
}

ALWAYS_INLINE void v_store_low_i8(void *p, vi32 x)
{
    const vi32 low = _mm256_and_si256(x, _mm256_set1_epi32(255));
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(low),
                                         _mm256_extracti128_si256(low, 1));

    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(half, half));
}

ALWAYS_INLINE void v_store_i8(int8_t *p, vf32 x)
{
    const vi32 i = _mm256_cvtps_epi32(x);
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(i),
                                         _mm256_extracti128_si256(i, 1));

    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(half, half));
}

ALWAYS_INLINE void v_store_i8x4(int8_t *p, const vf32 x[4])
{
    const vi32 i[4] = {v_to_i32(x[0]), v_to_i32(x[1]), v_to_i32(x[2]),
                       v_to_i32(x[3])};

    v_store_i32(p, v_pack4_i8(i));
}

/* Moves lanes 0, 1 of a and of b to a, and lanes 2, 3 to b. */
ALWAYS_INLINE void v_pair_halves(__m128 *a, __m128 *b)
{
    const __m128 low = _mm_movelh_ps(*a, *b);

    *b = _mm_movehl_ps(*b, *a);
    *a = low;
}

/* out[i] = f of the lanes of x[i]: lane j with j + 4, then j + 2, j + 1. */
#define V_REDUCE4(f, x, out)                                             \
    do {                                                                 \
        __m128 q_[4], odd_;                                              \
                                                                         \
        UNROLL                                                           \
        for (int i_ = 0; i_ < 4; i_++)                                   \
            q_[i_] = f(_mm256_castps256_ps128((x)[i_]),                  \
                       _mm256_extractf128_ps((x)[i_], 1));               \
        v_pair_halves(&q_[0], &q_[1]);                                   \
        v_pair_halves(&q_[2], &q_[3]);                                   \
        q_[0] = f(q_[0], q_[1]);                                         \
        q_[2] = f(q_[2], q_[3]);                                         \
        odd_ = _mm_shuffle_ps(q_[0], q_[2], 0xdd);                       \
        _mm_storeu_ps(out, f(_mm_shuffle_ps(q_[0], q_[2], 0x88), odd_)); \
    } while (0)

ALWAYS_INLINE void v_sum4(const vf32 x[4], float out[4])
{
    V_REDUCE4(_mm_add_ps, x, out);
}

ALWAYS_INLINE void v_max4(const vf32 x[4], float out[4])
{
    V_REDUCE4(_mm_max_ps, x, out);
}

ALWAYS_INLINE void v_min4(const vf32 x[4], float out[4])
{
    V_REDUCE4(_mm_min_ps, x, out);
}

#endif
