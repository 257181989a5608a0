#define V_VNNI
#include "kernels/simd/avx512.h"
#include "kernels/integers/impl.h"
#include "kernels/level.h"

#define SUMS 1
#define CELLS 4

/* Byte j, a constant, of each lane. */
ALWAYS_INLINE vi32 byte_of(vi32 x, unsigned j)
{
    const vi32 bytes =
        _mm512_set4_epi32((int)(0x8080800c + j), (int)(0x80808008 + j),
                          (int)(0x80808004 + j), (int)(0x80808000 + j));

    return j == 3 ? v_shr_i32(x, 24)
           : j    ? v_lookup_i8(x, bytes)
                  : v_and(x, v_set1_i32(255));
}

/* A bit of a result is the parity of the bits of x that one byte of the matrix
 * selects; the last byte gives the lowest bit. */
ALWAYS_INLINE vi32 affine_bits(vi32 x, unsigned width, unsigned from,
                               unsigned to)
{
    uint64_t matrix = 0;

    for (unsigned i = 0; i < width; i++)
        matrix |= (uint64_t)1 << (8 * (7 - to - i) + from + i);
    return _mm512_gf2p8affine_epi64_epi8(
        x, _mm512_set1_epi64((long long)matrix), 0);
}

/* AMD's CPUs compute affine_bits() in the unit that also multiplies codes and
 * weights.  kv_level_pairs() is true on AMD's CPUs. */
#define bits_of affine_bits
#define SHIFTS() kv_level_pairs()

ALWAYS_INLINE void dot(vi32 *s, const vi32 *part, vi32 x, vi32 w, unsigned bits,
                       int positive, unsigned e)
{
    (void)part;
    (void)bits;
    (void)e;
    *s = positive ? v_dot_i8(*s, w, x) : v_dot_i8(*s, x, w);
}

#define FINE_SUMS 2

ALWAYS_INLINE vi32 fine_sum(vi32 s, vi32 low)
{
    return v_add_i32(v_mul_i32(s, v_set1_i32(KV_FINE_BASE)), low);
}

/* a has four numbers' high digits, b the low ones: x = 127 high + low.  No
 * whole number is halfway between two multiples of 127. */
ALWAYS_INLINE void store_fine(uint8_t *p, vi32 x)
{
    const vi32 high =
        v_to_i32(v_mul(v_from_i32(x), v_set1(1.0f / KV_FINE_BASE)));
    const vi32 low = v_sub_i32(x, v_mul_i32(high, v_set1_i32(KV_FINE_BASE)));
    const __m128i a = _mm512_cvtepi32_epi8(high), b = _mm512_cvtepi32_epi8(low);

    _mm_storeu_si128((__m128i *)p, _mm_unpacklo_epi32(a, b));
    _mm_storeu_si128((__m128i *)p + 1, _mm_unpackhi_epi32(a, b));
}

ALWAYS_INLINE void dot_fine(vi32 *s, vi32 *low, vi32 x, vi32 a, vi32 b)
{
    *s = v_dot_i8(*s, x, a);
    *low = v_dot_i8(*low, x, b);
}

/* Per 128 bits a holds 4 lanes of x[0] and 4 of x[1], in 16 bits each; b, of
 * x[2] and x[3].  The low bytes of the first 4 of x[0] are 0, 2, 4 and 6, .. */
static inline void store64(uint8_t *p, const vi32 x[4], int positive,
                           vi32 *codes)
{
    const vi32 lanes =
        _mm512_setr_epi32(0, 0x10, 0x20, 0x30, 8, 0x18, 0x28, 0x38, 0x40, 0x50,
                          0x60, 0x70, 0x48, 0x58, 0x68, 0x78);
    const vi32 bytes = v_add_i32(v_mul_i32(lanes, v_set1_i32(0x01010101)),
                                 v_set1_i32(0x06040200));
    const vi32 a = _mm512_packs_epi32(x[0], x[1]);
    const vi32 b = _mm512_packs_epi32(x[2], x[3]);
    const vi32 all = _mm512_permutex2var_epi8(a, bytes, b);

    v_store_i32(p, all);
    dot(codes, codes, v_set1_i8(1), all, 1, positive, 0);
}

#include "kernels/integers/loops.h"
