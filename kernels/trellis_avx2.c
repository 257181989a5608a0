#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define NAME(f) f##_avx2
#define LANE_BITS 3

typedef __m256 vf;
typedef __m256i vi;

#define v_load _mm256_loadu_ps
#define v_store _mm256_storeu_ps
#define v_all _mm256_set1_ps
#define v_fma _mm256_fmadd_ps
#define v_fnma _mm256_fnmadd_ps
#define v_min _mm256_min_ps
#define v_pick _mm256_permutevar8x32_ps
#define v_equal(a, b) \
    ((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)))
#define i_load(p) _mm256_loadu_si256((const __m256i *)(p))
#define i_shift(v, by, and)                           \
    _mm256_add_epi32(_mm256_srli_epi32(v, (int)(by)), \
                     _mm256_set1_epi32((int)(and)))

static inline vf v_load_first(const float *p, size_t n)
{
    const __m128i two = _mm_setr_epi32(-1, -1, 0, 0);

    switch (n) {
    case 2:
        return _mm256_zextps128_ps256(_mm_maskload_ps(p, two));
    case 4:
        return _mm256_zextps128_ps256(_mm_loadu_ps(p));
    default:
        return _mm256_loadu_ps(p);
    }
}

static inline vf v_again(const float *p, size_t bits)
{
    double two;

    switch (bits) {
    case 1:
        return _mm256_set_m128(_mm_loadu_ps(p), _mm_loadu_ps(p));
    case 2:
        memcpy(&two, p, sizeof(two));
        return _mm256_castpd_ps(_mm256_set1_pd(two));
    default:
        return _mm256_set1_ps(*p);
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
        return _mm256_zextps128_ps256(_mm_setr_ps(p[0], p[by], 0, 0));
    case 4:
        return _mm256_zextps128_ps256(four(p, by));
    default:
        return _mm256_setr_m128(four(p, by), four(p + 4 * by, by));
    }
}

#include "kernels/trellis_simd.h"
