#include "kernels/level.h"
#include "kernels/simd/lanes_avx512.h"
#include "kernels/simd/unroll.h"

#include <stdint.h>

#define NAME(f) f##_vnni
#define WIDTH 16
#define GROUPS(rows) 4 /* 16 of 32 registers at most */
#define FLOAT_GROUPS(rows) 4

typedef __m512 vf;
typedef __m512i vi;

#define v_load _mm512_loadu_ps
#define v_store _mm512_storeu_ps
#define v_all(x) _mm512_set1_ps(x)
#define v_add _mm512_add_ps
#define v_sub _mm512_sub_ps
#define v_mul _mm512_mul_ps
#define v_fma _mm512_fmadd_ps
#define v_most(m, x) _mm512_range_ps(m, x, 0xb) /* the larger magnitude */
#define v_half(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
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

/* Byte j, a constant, of each lane. */
ALWAYS_INLINE vi vi_byte(vi x, unsigned j)
{
    const vi bytes =
        _mm512_set4_epi32((int)(0x8080800c + j), (int)(0x80808008 + j),
                          (int)(0x80808004 + j), (int)(0x80808000 + j));

    return j == 3 ? _mm512_srli_epi32(x, 24)
           : j    ? _mm512_shuffle_epi8(x, bytes)
                  : _mm512_and_si512(x, _mm512_set1_epi32(255));
}

/* A bit of a result is the parity of the bits of x that a byte of the matrix
 * has, of which the last is the lowest bit's. */
ALWAYS_INLINE vi affine_bits(vi x, unsigned width, unsigned from, unsigned to)
{
    uint64_t matrix = 0;

    for (unsigned i = 0; i < width; i++)
        matrix |= (uint64_t)1 << (8 * (7 - to - i) + from + i);
    return _mm512_gf2p8affine_epi64_epi8(
        x, _mm512_set1_epi64((long long)matrix), 0);
}

/* AMD's CPUs make its products where those of codes and weights are; they are
 * the ones with pairs. */
#define vi_bits affine_bits
#define SHIFTS() kv_level_pairs()

static inline void v_sums(const vf x[4][1], float out[4])
{
    kv_lanes_sums(*x, out);
}

static inline void v_mosts(const vf x[4][1], float out[4])
{
    kv_lanes_mosts(*x, out);
}

ALWAYS_INLINE void vi_dot(vi *s, const vi *part, vi x, vi w, unsigned bits,
                          int positive, unsigned e)
{
    (void)part;
    (void)bits;
    (void)e;
    *s = positive ? _mm512_dpbusd_epi32(*s, w, x)
                  : _mm512_dpbusd_epi32(*s, x, w);
}

/* Per 128 bits a holds 4 lanes of x[0] and 4 of x[1], in 16 bits each; b, of
 * x[2] and x[3].  The low bytes of the first 4 of x[0] are 0, 2, 4 and 6, .. */
static inline void vi_store64(uint8_t *p, const vi x[4], int positive,
                              vi *codes)
{
    const vi lanes =
        _mm512_setr_epi32(0, 0x10, 0x20, 0x30, 8, 0x18, 0x28, 0x38, 0x40, 0x50,
                          0x60, 0x70, 0x48, 0x58, 0x68, 0x78);
    const vi bytes = _mm512_add_epi32(
        _mm512_mullo_epi32(lanes, _mm512_set1_epi32(0x01010101)),
        _mm512_set1_epi32(0x06040200));
    const vi a = _mm512_packs_epi32(x[0], x[1]);
    const vi b = _mm512_packs_epi32(x[2], x[3]);

    const vi ones = _mm512_set1_epi8(1);
    const vi all = _mm512_permutex2var_epi8(a, bytes, b);

    _mm512_storeu_si512(p, all);
    vi_dot(codes, codes, ones, all, 1, positive, 0);
}

#include "kernels/integers/loops.h"
