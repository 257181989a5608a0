#include "kernels/simd/avx2.h"

#define SUMS 2
#define CELLS 8
#define SHIFTS() 1

/* Returns byte j, a constant, of each lane. */
ALWAYS_INLINE vi32 byte_of(vi32 x, unsigned j)
{
    const vi32 bytes = _mm256_broadcastsi128_si256(
        _mm_setr_epi32((int)(0x80808000 + j), (int)(0x80808004 + j),
                       (int)(0x80808008 + j), (int)(0x8080800c + j)));

    return j == 3 ? v_shr_i32(x, 24)
           : j    ? v_lookup_i8(x, bytes)
                  : v_and(x, v_set1_i32(255));
}

/* The sum of two neighbouring products of bytes has 16 bits.  With weights up
 * to 255, 16 bits also hold the sum of 8 of these, a whole unit, for codes of
 * at most 3 bits; of 4 for codes of 4 bits; and of 2 for codes of 5 bits, at
 * most 2 * 2 * 255 * 31 = 31620.  Signed weights are half as large, as if a
 * code had one bit less. */
ALWAYS_INLINE void dot(vi32 *s, vi32 *part, vi32 x, vi32 w, unsigned bits,
                       int positive, unsigned e)
{
    const unsigned wide = bits + (positive ? 1 : 0);
    const unsigned some = wide <= 4 ? 8 : wide == 5 ? 4 : 2;
    const vi32 two =
        positive ? _mm256_maddubs_epi16(w, x) : _mm256_maddubs_epi16(x, w);

    *part = e % some ? v_add_i16(*part, two) : two;
    /* or the compiler puts sums off and keeps products on the stack */
    __asm__("" : "+x"(*part));
    if (e % some == some - 1)
        *s = v_add_i32(*s, v_madd_i16(*part, v_set1_i16(1)));
}

#define FINE_SUMS 1
#define fine_sum(s, low) ((void)(low), (s))

/* a has integers 0 and 2 of four, b has 1 and 3. */
ALWAYS_INLINE void store_fine(uint8_t *p, vi32 x)
{
    const vi32 order = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 1, 8, 9, 4, 5, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1));
    const vi32 all = _mm256_permute4x64_epi64(v_lookup_i8(x, order), 0x08);

    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(all));
}

ALWAYS_INLINE void dot_fine(vi32 *s, const vi32 *low, vi32 x, vi32 a, vi32 b)
{
    const vi32 even = v_and(x, v_set1_i32(0x00ff00ff));
    const vi32 odd = _mm256_srli_epi16(x, 8);

    (void)low;
    *s = v_add_i32(*s, v_madd_i16(even, a));
    *s = v_add_i32(*s, v_madd_i16(odd, b));
}

static inline void store64(uint8_t *p, const vi32 x[8], int positive,
                           vi32 codes[2])
{
    for (int i = 0; i < 8; i += 4) {
        v_store_i32(p + 8 * i,
                    positive ? v_pack4_u8(x + i) : v_pack4_i8(x + i));
        codes[0] = v_add_i32(codes[0], v_add_i32(x[i], x[i + 2]));
        codes[1] = v_add_i32(codes[1], v_add_i32(x[i + 1], x[i + 3]));
    }
}

#include "kernels/integers/loops.h"
