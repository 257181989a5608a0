/* Shared by avx512.c and avx512_shared.c alone: AVX-512 with VNNI and VBMI.
 * Codes in a register are looked up in one dimension of a table at a time; four
 * neighbouring bytes of the result add up to one 32-bit sum. */
#ifndef KV_CODEBOOK_AVX512_H
#define KV_CODEBOOK_AVX512_H

#define V_VNNI
#include "kernels/codebook/impl.h"
#include "kernels/simd/avx512.h"
#include "kernels/simd/instructions_avx512.h"
#include "kernels/simd/prefetch.h"

#include <string.h>

enum {
    T = KV_TILE_TOKENS,
    LINE = 64,
    ROWS = KV_CODEBOOK_ROWS,
    MAX_ENTRIES = KV_CODEBOOK_DIM * T * 4 /* bytes: d = 1 padded to 4 */
};

#define EVERY_ROWS(X, Y) X(Y, 1) X(Y, 2) X(Y, 3) X(Y, 4)
_Static_assert(ROWS == 4, "EVERY_ROWS and the unrolling");

/* The output of qk for some rows: score [n][64], rows `stride` floats apart, is
 * scale [n] times (start [n] plus the sum). */
struct qk {
    const float *scale;
    const int32_t *start;
    float *score;
    size_t stride;
};

/* Functions that process n <= ROWS rows over a tile, one for each order of
 * codes.
 *
 * from: the tile; KV_ORDER_WIDE: its entries.
 * qk: q8 of these rows (struct kv_codebook_q8).
 * pv: adds to acc [n][n_acc] scale [n] times the sums with p8 [n][64]. */
typedef void kv_codebook_some_qk_fn(const struct kv_codebook *b, size_t head,
                                    const uint8_t *from, const int8_t *q8,
                                    size_t n, const struct qk *to);
typedef void kv_codebook_some_pv_fn(const struct kv_codebook *b, size_t head,
                                    const uint8_t *from, const int8_t *p8,
                                    const float *scale, size_t n, size_t n_acc,
                                    float *acc);

kv_codebook_some_qk_fn kv_codebook_qk_shared;
kv_codebook_some_pv_fn kv_codebook_pv_shared;

ALWAYS_INLINE vi32 load_ahead(const uint8_t *p)
{
    kv_prefetch_far(p, KV_FAR_CODES, LINE);
    return v_load_i32(p);
}

ALWAYS_INLINE vi32 all4(const void *p)
{
    int32_t x;

    memcpy(&x, p, sizeof(x));
    return v_set1_i32(x);
}

/* Adds to each 32-bit sum the products of four bytes of u, unsigned, and v,
 * signed. */
ALWAYS_INLINE void add_products(vi32 *sum, vi32 u, vi32 v)
{
    KV_DPBUSD(*sum, u, v);
}

/* A register of codes, and masks of the bytes with bit 6, with bit 7, and with
 * both set; low: bytes without bit 7. */
struct codes {
    vi32 code;
    __mmask64 bit6, bit7, both, low;
};

/* For tables with n = 64 or 256 entries.  The test for bit 6 runs on the
 * execution port that also permutes, the other tests on the other port, so that
 * permuting and multiplying by 4 rows take equally long. */
ALWAYS_INLINE struct codes codes(vi32 code, size_t n)
{
    struct codes c = {.code = code};

    if (n > 64) {
        c.bit6 = _mm512_test_epi8_mask(code, v_set1_i8(64));
        c.bit7 = _mm512_movepi8_mask(code);
        c.both = _kand_mask64(c.bit6, c.bit7);
        c.low = ~c.bit7;
    }
    return c;
}

/* One dimension of a table. */
struct table {
    vi32 part[4];
};

ALWAYS_INLINE struct table table(const uint8_t *plane, size_t n)
{
    struct table t;

    UNROLL
    for (size_t i = 0; i < n / 64; i++)
        t.part[i] = v_load_i32(plane + i * 64);
    return t;
}

/* A permutation of 64 bytes takes one turn of its port; a permutation of 128
 * bytes takes two turns and other work. */
ALWAYS_INLINE vi32 look_up(const struct table *t, size_t n, struct codes c)
{
    vi32 x = _mm512_permutexvar_epi8(c.code, t->part[0]);

    if (n > 64) {
        x = _mm512_mask_permutexvar_epi8(x, c.bit6, c.code, t->part[1]);
        x = _mm512_mask_permutexvar_epi8(x, c.bit7, c.code, t->part[2]);
        x = _mm512_mask_permutexvar_epi8(x, c.both, c.code, t->part[3]);
    }
    return x;
}

/* Looks codes up in tables of 256 entries by pairs of registers, in place.
 * Each of the two masked look-ups keeps the other's lanes, which saves an
 * instruction that merges two results. */
ALWAYS_INLINE vi32 look_up_pairs(const struct table *t, struct codes c)
{
    vi32 x = c.code;

    KV_PERMI2B_WHERE_HERE(x, c.low, t->part[0], t->part[1]);
    KV_PERMI2B_WHERE_HERE(x, c.bit7, t->part[2], t->part[3]);
    return x;
}

/* One code of each byte: low_codes() takes the lower half, high_codes() the
 * upper half of bytes with two codes. */
ALWAYS_INLINE vi32 low_codes(vi32 x)
{
    return v_and(x, v_set1_i8(15));
}

ALWAYS_INLINE vi32 high_codes(vi32 x)
{
    return low_codes(v_shr_i16(x, 4));
}

/* Writes the scores of row r and tokens [t, t + 16) from sums that began at
 * to->start[r]. */
ALWAYS_INLINE void put_scores(const struct qk *to, size_t r, size_t t, vi32 sum)
{
    v_store(to->score + r * to->stride + t,
            v_mul(v_set1(to->scale[r]), v_from_i32(sum)));
}

/* put_scores() for sums that began at 0. */
ALWAYS_INLINE void put_sums(const struct qk *to, size_t r, size_t t, vi32 sum)
{
    put_scores(to, r, t, v_add_i32(sum, v_set1_i32(to->start[r])));
}

ALWAYS_INLINE void add_sum(float *acc, float scale, vi32 sum)
{
    v_store(acc, v_fmadd(v_set1(scale), v_from_i32(sum), v_load(acc)));
}

/* Adds up the lanes of x[i] modulo 4 into 128-bit part i of the result. */
ALWAYS_INLINE vi32 sum_lanes(const vi32 x[4])
{
    const vi32 a = v_add_i32(_mm512_shuffle_i32x4(x[0], x[1], 0x44),
                             _mm512_shuffle_i32x4(x[0], x[1], 0xee));
    const vi32 b = v_add_i32(_mm512_shuffle_i32x4(x[2], x[3], 0x44),
                             _mm512_shuffle_i32x4(x[2], x[3], 0xee));

    return v_add_i32(_mm512_shuffle_i32x4(a, b, 0x88),
                     _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* The planes of this head's first sub-space. */
static inline const uint8_t *planes_of(const struct kv_codebook *b, size_t head)
{
    return b->planes + kv_codebook_channel(b, head, 0, 0) * b->plane;
}

#endif
