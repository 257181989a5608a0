#include <immintrin.h>

#define NAME(f) f##_vnni
#define WIDTH 16
#define GROUPS(rows) 4 /* 16 of 32 registers at most */

typedef __m512 vf;
typedef __m512i vi;

#define v_load _mm512_loadu_ps
#define v_store _mm512_storeu_ps
#define v_all(x) _mm512_set1_ps(x)
#define v_add _mm512_add_ps
#define v_sub _mm512_sub_ps
#define v_mul _mm512_mul_ps
#define v_fma _mm512_fmadd_ps
#define v_max _mm512_max_ps
#define v_abs _mm512_abs_ps
#define v_half(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define v_sum(x) _mm512_reduce_add_ps(*(x))
#define v_most(x) _mm512_reduce_max_ps(*(x))
#define vi_load(p) _mm512_loadu_si512(p)
#define vi_store(p, x) _mm512_storeu_si512(p, x)
#define vi_all _mm512_set1_epi32
#define vi_add _mm512_add_epi32
#define vi_and _mm512_and_si512
#define vi_or _mm512_or_si512
#define vi_shl _mm512_slli_epi32
#define vi_shr _mm512_srli_epi32
#define vi_near _mm512_cvtps_epi32
#define vi_float _mm512_cvtepi32_ps
#define vi_store8(p, x) \
    _mm_storeu_si128((__m128i *)(p), _mm512_cvtepi32_epi8(x))
#define vi_dot _mm512_dpbusd_epi32
#define vi_dot_u(s, x, w) _mm512_dpbusd_epi32(s, w, x)

#include "kernels/tiles_grouped_loops.h"
