#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define NAME(f) f##_avx2
#define ROLLED
#define HALVES(rows) 1u /* of 16 registers, two a vector */
#define FOUR_ROWS

typedef struct {
    __m256i half[2];
} vd;
typedef __m256i vw;
typedef struct {
    __m256 half[2];
} vf;
typedef vf table;
typedef __m256 vp;

#define PIECES 2
#define p_of(x, i) ((x).half[i])
#define p_load _mm256_loadu_ps
#define p_all _mm256_set1_ps
#define p_add _mm256_add_ps
#define p_fma _mm256_fmadd_ps
#define p_store _mm256_storeu_ps

static inline vd d_load(const uint8_t *p)
{
    return (vd){{_mm256_loadu_si256((const __m256i *)(const void *)p),
                 _mm256_loadu_si256((const __m256i *)(const void *)(p + 32))}};
}

#define d_shr(x, n)                                  \
    ((vd){{_mm256_srli_epi32((x).half[0], (int)(n)), \
           _mm256_srli_epi32((x).half[1], (int)(n))}})
#define d_shl(x, n)                                  \
    ((vd){{_mm256_slli_epi32((x).half[0], (int)(n)), \
           _mm256_slli_epi32((x).half[1], (int)(n))}})

static inline __m256i pick(__m256i bits, __m256i x, __m256i y)
{
    return _mm256_or_si256(_mm256_and_si256(bits, x),
                           _mm256_andnot_si256(bits, y));
}

static inline vd d_pick(unsigned bits, vd x, vd y)
{
    const __m256i b = _mm256_set1_epi32((int)bits);

    return (vd){{pick(b, x.half[0], y.half[0]), pick(b, x.half[1], y.half[1])}};
}

#define w_load(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define w_bytes(p) \
    _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define w_shr(x, n) _mm256_srli_epi16(x, (int)(n))
#define w_shl(x, n) _mm256_slli_epi16(x, (int)(n))
#define w_and(x, bits) _mm256_and_si256(x, _mm256_set1_epi16((short)(bits)))
#define w_sar(x, n) _mm256_srai_epi16(x, (int)(n))
#define w_pick(bits, x, y) pick(_mm256_set1_epi16((short)(bits)), x, y)

static inline vf f_load(const float *p)
{
    return (vf){{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}};
}

static inline vf f_all(float x)
{
    return (vf){{_mm256_set1_ps(x), _mm256_set1_ps(x)}};
}

static inline vf f_mul(vf a, vf b)
{
    return (vf){{_mm256_mul_ps(a.half[0], b.half[0]),
                 _mm256_mul_ps(a.half[1], b.half[1])}};
}

static inline vf f_div(vf a, vf b)
{
    return (vf){{_mm256_div_ps(a.half[0], b.half[0]),
                 _mm256_div_ps(a.half[1], b.half[1])}};
}

static inline vf f_fma(vf a, vf b, vf c)
{
    return (vf){{_mm256_fmadd_ps(a.half[0], b.half[0], c.half[0]),
                 _mm256_fmadd_ps(a.half[1], b.half[1], c.half[1])}};
}

static inline void f_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x.half[0]);
    _mm256_storeu_ps(p + 8, x.half[1]);
}

static inline void f_store_some(float *p, vf x, size_t n)
{
    float all[16];

    f_store(all, x);
    for (size_t i = 0; i < 16; i++)
        p[i] = i < n ? all[i] : 0;
}

static inline vf f_half(vw w)
{
    return (vf){{_mm256_cvtph_ps(_mm256_castsi256_si128(w)),
                 _mm256_cvtph_ps(_mm256_extracti128_si256(w, 1))}};
}

static inline __m256 power(__m128i w)
{
    const __m256i p = _mm256_cvtepu16_epi32(w);
    const __m256i zero = _mm256_cmpeq_epi32(p, _mm256_setzero_si256());

    return _mm256_castsi256_ps(_mm256_blendv_epi8(
        _mm256_slli_epi32(p, 23), _mm256_set1_epi32(1 << 22), zero));
}

static inline vf f_e8m0(vw w)
{
    return (vf){{power(_mm256_castsi256_si128(w)),
                 power(_mm256_extracti128_si256(w, 1))}};
}

#define t_load f_load

static inline __m256 look(vf t, __m256i i)
{
    const __m256i high = _mm256_slli_epi32(i, 28); /* bit 3 as the sign */

    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.half[0], i),
                            _mm256_permutevar8x32_ps(t.half[1], i),
                            _mm256_castsi256_ps(high));
}

static inline vf t_look(vf t, vd d)
{
    return (vf){{look(t, d.half[0]), look(t, d.half[1])}};
}

#include "kernels/scaled/loops.h"
