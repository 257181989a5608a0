/* The registers of nearest_decide.h and nearest_simd.h in AVX2. */
#include <immintrin.h>

#define WIDTH 8

typedef __m256 vf;
typedef __m256i vi;

#define v_load _mm256_loadu_ps
#define v_store _mm256_storeu_ps
#define v_all _mm256_set1_ps
#define v_add _mm256_add_ps
#define v_sub _mm256_sub_ps
#define v_mul _mm256_mul_ps
#define v_fma _mm256_fmadd_ps
#define v_fnma _mm256_fnmadd_ps
#define v_min _mm256_min_ps
#define v_max _mm256_max_ps
#define i_all _mm256_set1_epi32
#define i_store(p, v) _mm256_storeu_si256((__m256i *)(p), v)

static inline unsigned v_equal(vf a, vf b)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}

static inline unsigned v_above(vf a, vf b)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}

static inline unsigned v_below(vf a, vf b)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NGE_UQ));
}

static inline void v_least_four(vf a, vf b, vf c, vf d, float *to)
{
    const vf ab =
        _mm256_min_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const vf cd =
        _mm256_min_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    const vf m = _mm256_min_ps(_mm256_shuffle_ps(ab, cd, 0x44),
                               _mm256_shuffle_ps(ab, cd, 0xee));

    _mm_storeu_ps(
        to, _mm_min_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1)));
}

static inline void v_keep(vf s, vi c, vf *best, vi *at)
{
    const vf less = _mm256_cmp_ps(s, *best, _CMP_LT_OQ);

    *best = _mm256_min_ps(s, *best);
    *at = _mm256_blendv_epi8(*at, c, _mm256_castps_si256(less));
}
