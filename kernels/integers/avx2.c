#include "kernels/simd/lanes_avx2.h"
#include "kernels/simd/unroll.h"

#include <immintrin.h>
#include <stdint.h>

#define NAME(f) f##_avx2
#define WIDTH 8
#define GROUPS(rows) \
    ((rows) == 1 ? 4 : (rows) == 2 ? 2 : 1) /* 8 of 16 registers */
#define FLOAT_GROUPS(rows) ((rows) <= 2 ? 4 : 2)

typedef __m256 vf;
typedef __m256i vi;

#define v_load _mm256_loadu_ps
#define v_store _mm256_storeu_ps
#define v_all(x) _mm256_set1_ps(x)
#define v_add _mm256_add_ps
#define v_sub _mm256_sub_ps
#define v_mul _mm256_mul_ps
#define v_fma _mm256_fmadd_ps
#define v_most(m, x) \
    _mm256_max_ps(m, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x))
#define v_half(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define vi_load(p) _mm256_loadu_si256((const __m256i *)(p))
#define vi_store(p, x) _mm256_storeu_si256((__m256i *)(p), x)
#define vi_all _mm256_set1_epi32
#define vi_add _mm256_add_epi32
#define vi_and _mm256_and_si256
#define vi_or _mm256_or_si256
#define vi_shl _mm256_slli_epi32
#define vi_shr _mm256_srli_epi32
#define vi_near _mm256_cvtps_epi32
#define vi_float _mm256_cvtepi32_ps

/* Byte j, a constant, of each lane. */
ALWAYS_INLINE vi vi_byte(vi x, unsigned j)
{
    const vi bytes = _mm256_broadcastsi128_si256(
        _mm_setr_epi32((int)(0x80808000 + j), (int)(0x80808004 + j),
                       (int)(0x80808008 + j), (int)(0x8080800c + j)));

    return j == 3 ? vi_shr(x, 24)
           : j    ? _mm256_shuffle_epi8(x, bytes)
                  : vi_and(x, vi_all(255));
}

static inline void vi_store8(uint8_t *p, vi x)
{
    const vi low = _mm256_and_si256(x, _mm256_set1_epi32(255));
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(low),
                                         _mm256_extracti128_si256(low, 1));

    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(half, half));
}

/* Products of two bytes and their neighbours' are 16 bits.  With weights to 255
 * these hold the sum of 8 such, a whole unit's, of codes of at most 3 bits; of
 * 4 bits, of 4; of 5 bits, of 2, which are at most 2 * 2 * 255 * 31 = 31620.
 * Signed weights are half as large: as if a code had a bit less. */
ALWAYS_INLINE void vi_dot(vi *s, vi *part, vi x, vi w, unsigned bits,
                          int positive, unsigned e)
{
    const unsigned wide = bits + (positive ? 1 : 0);
    const unsigned some = wide <= 4 ? 8 : wide == 5 ? 4 : 2;
    const vi two =
        positive ? _mm256_maddubs_epi16(w, x) : _mm256_maddubs_epi16(x, w);

    *part = e % some ? _mm256_add_epi16(*part, two) : two;
    /* or the compiler puts sums off and keeps products on the stack */
    __asm__("" : "+x"(*part));
    if (e % some == some - 1)
        *s = _mm256_add_epi32(*s,
                              _mm256_madd_epi16(*part, _mm256_set1_epi16(1)));
}

static inline void v_sums(const vf x[4][2], float out[4])
{
    const vf eight[4] = {v_add(x[0][0], x[0][1]), v_add(x[1][0], x[1][1]),
                         v_add(x[2][0], x[2][1]), v_add(x[3][0], x[3][1])};

    kv_lanes_sums(eight, out);
}

static inline void v_mosts(const vf x[4][2], float out[4])
{
    const vf eight[4] = {
        _mm256_max_ps(x[0][0], x[0][1]), _mm256_max_ps(x[1][0], x[1][1]),
        _mm256_max_ps(x[2][0], x[2][1]), _mm256_max_ps(x[3][0], x[3][1])};

    kv_lanes_mosts(eight, out);
}

static inline void vi_store64(uint8_t *p, const vi x[8], int positive,
                              vi codes[2])
{
    for (int i = 0; i < 8; i += 4) {
        vi_store(p + 8 * i, kv_lanes_bytes(x + i, positive));
        codes[0] = vi_add(codes[0], vi_add(x[i], x[i + 2]));
        codes[1] = vi_add(codes[1], vi_add(x[i + 1], x[i + 3]));
    }
}

#define SHIFTS() 1

#include "kernels/integers/loops.h"
