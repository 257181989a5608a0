#include "kernels/simd/unroll.h"

#include <immintrin.h>
#include <stdint.h>

#define NAME(f) f##_vnni

enum { WIDTH = 16 };

typedef __m512i vi;
typedef __m512 vf;
typedef __m512i table;

#define i_load _mm512_loadu_si512
#define i_shr(x, n) _mm512_srli_epi32(x, n)
#define i_and(x, bits) _mm512_and_si512(x, _mm512_set1_epi32(bits))
#define i_join(two, one)                                                    \
    _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x03030303), two,           \
                              i_and(_mm512_slli_epi32(one, 2), 0x04040404), \
                              0xea)
#define t_look(t, x) _mm512_shuffle_epi8(t, x)
#define i_start(bias) _mm512_set1_epi32(bias)
#define i_dot(sum, x, four) _mm512_dpbusd_epi32(sum, x, _mm512_set1_epi32(four))
#define f_of _mm512_cvtepi32_ps
#define f_all _mm512_set1_ps
#define f_load _mm512_loadu_ps
#define f_store _mm512_storeu_ps
#define f_mul _mm512_mul_ps
#define f_fma _mm512_fmadd_ps

ALWAYS_INLINE vi i_nibbles(vi x, unsigned at)
{
    const uint64_t low = 0x0c080400u + at * 0x01010101u;

    return _mm512_multishift_epi64_epi8(
        _mm512_set1_epi64((long long)(low | (low + 0x20202020u) << 32)), x);
}

/* Plus 128: what is met is signed. */
ALWAYS_INLINE table t_load(const int8_t near[16])
{
    return _mm512_broadcast_i32x4(_mm_xor_si128(
        _mm_loadu_si128((const __m128i *)near), _mm_set1_epi8((char)128)));
}

static inline int32_t i_bias(const int8_t w[64])
{
    int32_t lane[WIDTH], sum = 0;

    _mm512_storeu_si512(lane, _mm512_dpbusd_epi32(_mm512_setzero_si512(),
                                                  _mm512_set1_epi8((char)128),
                                                  _mm512_loadu_si512(w)));
    for (size_t i = 0; i < WIDTH; i++)
        sum -= lane[i];
    return sum;
}

#define i_order(w, order, quads)                                           \
    _mm512_storeu_si512(quads,                                             \
                        _mm512_permutexvar_epi8(_mm512_loadu_si512(order), \
                                                _mm512_loadu_si512(w)))

#include "kernels/scaled/int8_loops.h"
