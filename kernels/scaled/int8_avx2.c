#include "kernels/simd/unroll.h"

#include <immintrin.h>
#include <stdint.h>

#define NAME(f) f##_avx2
#define FOUR_ROWS

enum { WIDTH = 8 };

typedef __m256i vi;
typedef __m256 vf;
typedef __m256i table;

#define i_load(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define i_shr(x, n) _mm256_srli_epi32(x, (int)(n))
#define i_and(x, bits) _mm256_and_si256(x, _mm256_set1_epi32(bits))
#define i_join(two, one)                    \
    _mm256_or_si256(i_and(two, 0x03030303), \
                    i_and(_mm256_slli_epi32(one, 2), 0x04040404))
#define t_load(near)             \
    _mm256_broadcastsi128_si256( \
        _mm_loadu_si128((const __m128i *)(const void *)(near)))
#define t_look(t, x) _mm256_shuffle_epi8(t, x)
#define i_start(bias) ((void)(bias), _mm256_setzero_si256())
#define i_bias(w) ((void)(w), 0)
#define f_of _mm256_cvtepi32_ps
#define f_all _mm256_set1_ps
#define f_load _mm256_loadu_ps
#define f_store _mm256_storeu_ps
#define f_mul _mm256_mul_ps
#define f_fma _mm256_fmadd_ps

ALWAYS_INLINE vi i_nibbles(vi x, unsigned at)
{
    const vi two = i_and(_mm256_srli_epi32(x, (int)at), 0x0000ffff);
    const vi apart = _mm256_or_si256(two, _mm256_slli_epi32(two, 8));
    const vi bytes = i_and(apart, 0x00ff00ff);

    return _mm256_or_si256(bytes, _mm256_slli_epi32(bytes, 4));
}

/* Signs go to what is looked up, at most 127: pairs of products with what has
 * none left fit 16 bits. */
ALWAYS_INLINE vi i_dot(vi sum, vi x, int32_t four)
{
    const vi by = _mm256_set1_epi32(four);
    const vi pairs =
        _mm256_maddubs_epi16(_mm256_abs_epi8(by), _mm256_sign_epi8(x, by));

    return _mm256_add_epi32(sum,
                            _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

ALWAYS_INLINE void i_order(const int8_t *w, const uint8_t *order, int8_t *quads)
{
    for (size_t i = 0; i < 64; i += 32) {
        const vi x = i_load(w + i), at = i_load(order + i);
        const vi low = _mm256_permute2x128_si256(x, x, 0x00);
        const vi high = _mm256_permute2x128_si256(x, x, 0x11);

        _mm256_storeu_si256(
            (__m256i *)(void *)(quads + i),
            _mm256_blendv_epi8(_mm256_shuffle_epi8(low, at),
                               _mm256_shuffle_epi8(high, at),
                               _mm256_slli_epi16(at, 3))); /* bit 4 */
    }
}

#include "kernels/scaled/int8_loops.h"
