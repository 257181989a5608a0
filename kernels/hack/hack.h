/* Products of quantized vectors, computed on the codes: HACK (Zhang et al.
 * 2025), section 5.2.
 *
 * A partition is n consecutive values held as codes and a range,
 * x_z ~ min + scale * code_z.  For partitions a and b (equation 4)
 *
 *   sum a_z b_z ~ s_a s_b sum(a' b') + m_b s_a sum(a')
 *               + m_a s_b sum(b')    + n m_a m_b
 *
 * where a', b' are codes, s scales and m minima.  sum(a' b') is an integer
 * product; the rest corrects it.  A longer vector is several partitions whose
 * products are added.
 *
 * Sums of codes are exact in 32-bit integers.  Eq. 4 is evaluated in double for
 * each column separately, each operation in the given order and rounded once,
 * so every level gives the same bits. */
#ifndef KV_KERNELS_HACK_H
#define KV_KERNELS_HACK_H

#include "lib/base/rng.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KV_HACK_MAX_BITS = 8,   /* bits of a code */
    KV_HACK_MAX_PART = 1024 /* values of a partition: 2^8 2^8 2^10 < 2^31 */
};

struct kv_hack_range {
    float min, scale; /* scale 0: every value is min */
};

/* Streams of random numbers: stored keys and values, and their left operands,
 * the queries and weights. */
enum kv_hack_stream { KV_HACK_K, KV_HACK_V, KV_HACK_Q, KV_HACK_P };

KV_HOST_DEVICE static inline uint64_t
kv_hack_layer_key(uint64_t seed, enum kv_hack_stream stream, size_t layer)
{
    return kv_mix(kv_mix(seed, stream), layer);
}

/* step: the query's position for Q; tokens in the sequence when an open block
 * is requantized, else 0.  head: KV head for K and V, else query head. */
KV_HOST_DEVICE static inline uint64_t kv_hack_key(uint64_t seed,
                                                  enum kv_hack_stream stream,
                                                  size_t layer, size_t head,
                                                  size_t step)
{
    return kv_mix(kv_mix(kv_hack_layer_key(seed, stream, layer), head), step);
}

/* The counter of one value under that key. */
KV_HOST_DEVICE static inline uint64_t kv_hack_counter(size_t token,
                                                      size_t channel)
{
    return (uint64_t)token << 16 | channel;
}
enum { KV_HACK_NEXT_CHANNEL = 1, KV_HACK_NEXT_TOKEN = 1 << 16 };

/* Four weights of a partition, 8 tokens apart, draw from one word.  The word is
 * hashed once for the four weights in C, and on tensor cores where one lane has
 * all four.  Its counter holds the position, head, group and token in separate
 * bits: up to 2^24, 256, 256 and 2^24 of them, no two words are the same.  key:
 * the layer's. */
KV_HOST_DEVICE static inline uint64_t
kv_hack_weight_key(uint64_t key, size_t head, size_t position)
{
    return key +
           KV_MIX_STEP * ((uint64_t)position << 40 | (uint64_t)head << 32);
}

/* The counter of a partition whose values begin at this token; group: the group
 * of channels where the artifact's axes fold channels together, else 0. */
KV_HOST_DEVICE static inline uint64_t kv_hack_weight_counter(size_t token,
                                                             size_t group)
{
    return (uint64_t)group << 24 | token;
}

/* The word of weight i of a partition, and the weight's random number from this
 * word, an odd multiple of 2^-17 below 1. */
KV_HOST_DEVICE static inline uint64_t
kv_hack_weight_word(uint64_t key, uint64_t counter, size_t i)
{
    return kv_mix(key, counter + i / 32 * 8 + i % 8);
}

KV_HOST_DEVICE static inline float kv_hack_weight_unit(uint64_t word, size_t i)
{
    return (float)(int32_t)(word >> i / 8 % 4 * 16 & 0xffff) * 0x1p-16f +
           0x1p-17f;
}

/* Multiplications and additions, counted as they are executed.  For matrices
 * [M][Z] by [Z][N] in ceil(Z / p) = P partitions:
 *
 *   products    2 M Z N      sum(a' b')
 *   correction  2 M N P      s_a s_b sum(a' b')
 *               M N P + M Z  m_b (s_a sum(a'))
 *               M N P + N Z  m_a (s_b sum(b')); without N Z where sums of
 *                            codes are stored (summation elimination)
 *               2 M N P      n m_a m_b
 *               3 M N P      adding the four terms
 *   other       M N P        adding the partitions' products to the result
 *               N P          s_b sum(b') with a stored sum
 *
 * Sections 5.2 and 5.3 give formulas for correction; they omit the operations
 * under other. */
struct kv_hack_ops {
    uint64_t products, correction, other;
};

/* 9 M N ceil(Z / p) + M Z + N Z, the last term only when sums are not stored.
 * With p = Z it is the paper's formula. */
uint64_t kv_hack_formula(size_t m, size_t n, size_t z, size_t p,
                         bool sums_stored);

/* Adds the cost of a row of n codes times n_columns columns, and of quantizing
 * the row; folded: the columns have neither minimum nor scale. */
void kv_hack_count_product(struct kv_hack_ops *ops, size_t n, size_t n_columns,
                           bool folded);
void kv_hack_count_row(struct kv_hack_ops *ops, size_t n);

/* One partition of one row of the left matrix. */
struct kv_hack_row {
    const uint8_t *code; /* [n] */
    size_t n;            /* <= KV_HACK_MAX_PART */
    struct kv_hack_range range;
    int32_t sum; /* sum of the codes */
};

/* One partition of the columns of the right matrix, n codes each.  Arrays by
 * column have room for KV_HACK_COLUMNS(n_columns) of them; entries past the
 * last column are read but do not affect results. */
struct kv_hack_columns {
    const uint8_t *code; /* arranged */
    size_t n_columns, n;
    unsigned bits;            /* every code is below 2^bits */
    const float *min, *scale; /* NULL: minima 0 and scales 1 (the left side
                               * includes the scales) */
    const int32_t *sum;       /* sum of each column's codes */
};

/* n_columns rounded up to whole registers. */
#define KV_HACK_COLUMNS(n_columns) (((n_columns) + 15) / 16 * 16)

/* Bytes of n_columns columns of n codes, arranged: KV_HACK_COLUMNS(n_columns)
 * times n rounded up to a multiple of 4. */
static inline size_t kv_hack_arranged_bytes(size_t n_columns, size_t n)
{
    return KV_HACK_COLUMNS(n_columns) * ((n + 3) / 4 * 4);
}

/* The operations; c.c is the definition: all versions give the same bits,
 * except for arranged codes, whose order is the version's own. */
struct kv_hack_table {
    /* The range of x [n], n >= 1: its minimum and (max - min) / (2^bits - 1),
     * in f32; infinite where that overflows. */
    struct kv_hack_range (*range)(const float *x, size_t n, unsigned bits);

    /* code[i] = round((x[i] - min) / scale), clamped to [0, 2^bits - 1]; 0
     * where scale is.  With u [n], uniform in [0, 1), y is rounded down with
     * probability ceil(y) - y; u NULL: to nearest, half to even.  Returns the
     * sum of the codes. */
    int32_t (*round)(const float *x, size_t n, struct kv_hack_range r,
                     unsigned bits, const float *u, uint8_t *code);

    /* Sets u[i] = kv_random_unit(key, first + i * step). */
    void (*uniform)(uint64_t key, uint64_t first, uint64_t step, size_t n,
                    float *u);

    /* u[i] = kv_hack_weight_unit(kv_hack_weight_word(key, counter, i), i). */
    void (*weight_uniform)(uint64_t key, uint64_t counter, size_t n, float *u);

    /* Quantizes n_rows rows of n values, each to `bits` bits with its own
     * range.  Rows of x are x_stride apart, rows of u (as for round())
     * u_stride, rows of code code_stride.  row[i] points to the codes, which
     * the caller keeps. */
    void (*quantize)(const float *x, size_t x_stride, size_t n_rows, size_t n,
                     unsigned bits, const float *u, size_t u_stride,
                     uint8_t *code, size_t code_stride,
                     struct kv_hack_row *row);

    /* Unpacks columns into the order that multiply() reads.  The codes of
     * column j, n of them, are packed (bitpack.h) from packed + j * stride on.
     * code: kv_hack_arranged_bytes(n_columns, n) bytes; columns from a multiple
     * j of 16 on begin at kv_hack_arranged_bytes(j, n). */
    void (*arrange)(const uint8_t *packed, size_t stride, unsigned bits,
                    size_t n_columns, size_t n, uint8_t *code);

    /* Computes sum [n_columns], the sum of each column's codes. */
    void (*sums)(const uint8_t *arranged, size_t n_columns, size_t n,
                 int32_t *sum);

    /* out[i * stride + j] += eq. 4 of row i and column j, every row of c->n
     * codes:
     *
     *   fma(s_a s_b, sum(a' b'), fma(m_a, s_b sum(b'), fma(m_b, c, out)))
     *
     * with c = s_a sum(a') + n m_a, or fma(s_a, sum(a' b'), fma(m_a, sum(b'),
     * out)) where min and scale are NULL. */
    void (*multiply)(const struct kv_hack_row *row, size_t n_rows,
                     const struct kv_hack_columns *c, double *out,
                     size_t stride);

    /* Turns rows of bytes, `stride` apart, into columns of little-endian words:
     * word[i * KV_HACK_COLUMNS(n_rows) + j] is bytes [4 i, 4 i + 4) of row j,
     * for i < ceil(n / 4); bytes past the row's n are 0. */
    void (*transpose)(const uint8_t *bytes, size_t stride, size_t n_rows,
                      size_t n, uint32_t *word);

    /* Products with unquantized values, in double; m: rows of n floats, stride
     * apart.
     *
     *   dots: out[i] = sum x_c m_ic over c < n, in eight lanes, c mod 8, that
     *         are added in halves: ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7))
     *   add:  out[c] += x_i m_ic, row after row */
    void (*dots)(const float *x, const float *m, size_t stride, size_t n_rows,
                 size_t n, double *out);
    void (*add)(const float *x, const float *m, size_t stride, size_t n_rows,
                size_t n, double *out);

    /* Rows of n values: out[i][c] = x[i][c] * by[c]. */
    void (*scale)(const float *x, size_t x_stride, size_t n_rows, size_t n,
                  const float *by, float *out, size_t out_stride);

    /* out[i] = (float)(x[i] * by). */
    void (*narrow)(const double *x, size_t n, double by, float *out);
};

/* The operations of the level in use. */
const struct kv_hack_table *kv_hack_table(void);

extern const struct kv_hack_table kv_hack_table_c;
/* x86-64 only.  vnni needs kv_level_vnni(); without it level avx512 runs the
 * AVX2 version. */
extern const struct kv_hack_table kv_hack_table_avx2, kv_hack_table_vnni;

#endif
