#include "kernels/lanes_avx512.h"

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define NAME(f) f##_avx512
#define LANE_BITS 4

typedef __m512 vf;
typedef __m512i vi;

#define v_load _mm512_loadu_ps
#define v_load_first(p, n) \
    _mm512_maskz_loadu_ps((__mmask16)((1u << (n)) - 1), p)
#define v_store _mm512_storeu_ps
#define v_all _mm512_set1_ps
#define v_fma _mm512_fmadd_ps
#define v_fnma _mm512_fnmadd_ps
#define v_min _mm512_min_ps
#define v_nearer(a, b) _mm512_range_ps(a, b, 2)
#define v_pick(v, at) _mm512_permutexvar_ps(at, v)
#define v_equal(a, b) kv_lanes_bits(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ))
#define i_load _mm512_loadu_si512
#define i_shift(v, by, and)                                \
    _mm512_add_epi32(_mm512_srli_epi32(v, (unsigned)(by)), \
                     _mm512_set1_epi32((int)(and)))

static inline vf v_again(const float *p, size_t bits)
{
    double two;

    switch (bits) {
    case 1:
        return _mm512_broadcast_f32x8(_mm256_loadu_ps(p));
    case 2:
        return _mm512_broadcast_f32x4(_mm_loadu_ps(p));
    case 3:
        memcpy(&two, p, sizeof(two));
        return _mm512_castpd_ps(_mm512_set1_pd(two));
    default:
        return _mm512_set1_ps(*p);
    }
}

static inline __m128 four(const float *p, size_t by)
{
    return _mm_setr_ps(p[0], p[by], p[2 * by], p[3 * by]);
}

static inline vf v_every(const float *p, size_t by, size_t n)
{
    switch (n) {
    case 2:
        return _mm512_zextps128_ps512(_mm_setr_ps(p[0], p[by], 0, 0));
    case 4:
        return _mm512_zextps128_ps512(four(p, by));
    case 8:
        return _mm512_zextps256_ps512(
            _mm256_setr_m128(four(p, by), four(p + 4 * by, by)));
    default: /* by 2 */
        return _mm512_permutex2var_ps(v_load(p),
                                      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12,
                                                        14, 16, 18, 20, 22, 24,
                                                        26, 28, 30),
                                      v_load(p + 16));
    }
}

#include "kernels/trellis_simd.h"
