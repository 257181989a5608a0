#include <immintrin.h>

#define NAME(f) f##_avx512
#define HALVES(rows) ((rows) <= 4 ? 2u : 1u) /* of 32 registers */

typedef __m512i vd;
typedef __m256i vw;
typedef __m512 vf;
typedef __m512 table;

#define d_load(p) _mm512_loadu_si512(p)
#define d_shr(x, n) _mm512_srli_epi32(x, n)
#define d_shl(x, n) _mm512_slli_epi32(x, n)
#define d_pick(bits, x, y) \
    _mm512_ternarylogic_epi32(_mm512_set1_epi32((int)(bits)), x, y, 0xca)
#define w_load(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define w_bytes(p) \
    _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define w_shr(x, n) _mm256_srli_epi16(x, (int)(n))
#define w_shl(x, n) _mm256_slli_epi16(x, (int)(n))
#define w_and(x, bits) _mm256_and_si256(x, _mm256_set1_epi16((short)(bits)))
#define w_sar(x, n) _mm256_srai_epi16(x, (int)(n))
#define w_pick(bits, x, y) \
    _mm256_ternarylogic_epi32(_mm256_set1_epi16((short)(bits)), x, y, 0xca)
#define f_load _mm512_loadu_ps
#define f_all _mm512_set1_ps
#define f_add _mm512_add_ps
#define f_mul _mm512_mul_ps
#define f_div _mm512_div_ps
#define f_fma _mm512_fmadd_ps
#define f_store _mm512_storeu_ps
#define f_store_some(p, x, n) \
    _mm512_storeu_ps(p, _mm512_maskz_mov_ps((__mmask16)((1u << (n)) - 1), x))
#define f_half _mm512_cvtph_ps
#define t_load _mm512_loadu_ps
#define t_look(t, d) _mm512_permutexvar_ps(d, t)

static inline vf f_e8m0(vw w)
{
    const vd p = _mm512_cvtepu16_epi32(w);

    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(
        _mm512_slli_epi32(p, 23), _mm512_testn_epi32_mask(p, p),
        _mm512_set1_epi32(1 << 22)));
}

#include "kernels/scaled/loops.h"
