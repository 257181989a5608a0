/* Weights as files store them: plain floats, and blocks of values that share
 * their scales, by llama.cpp's definitions and named as GGUF names them.  A
 * block is the least that can be decoded.
 *
 * d, m: f16.  Of a block of 32, byte j of nibble holds code j (low half) and
 * code 16 + j (high half), bit j of fifth the fifth bit of code j:
 *
 *   q8_0    | d | code[32]: int8          |    d code
 *   q5_1    | d | m | fifth | nibble[16]  |    d code + m
 *   q5_0    | d |     fifth | nibble[16]  |    d (code - 16)
 *   q4_1    | d | m |         nibble[16]  |    d code + m
 *   q4_0    | d |             nibble[16]  |    d (code - 8)
 *   iq4_nl  | d |             nibble[16]  |    d level[code]
 *   mxfp4   | e: 2^(e-127) |  nibble[16]  |    2^e e2m1
 *
 * A block of 256 holds groups of 16 (q2_k, q3_k, q6_k) or 32, whose own scales
 * s and minima t are small integers; low, high: bits of the codes:
 *
 *   q2_k    | t, s: 4 bits[16] | low[64] | d | m |               d s code - m t
 *   q3_k    | high[32] | low[64] | s: 6 bits[16] | d |           d s code
 *   q4_k    | d | m | s, t: 6 bits[8] | low[128] |               d s code - m t
 *   q5_k    | d | m | s, t: 6 bits[8] | high[32] | low[128] |    d s code - m t
 *   q6_k    | low[128] | high[64] | s: int8[16] | d |            d s code
 *   iq4_xs  | d | s: 6 bits[8] | nibble[128] |              d s level[code]
 *   tq2_0   | low[64] | d |                                  d (code - 1)
 *   tq1_0   | five codes of 3 in a byte[52] | d |            d (code - 1)
 *
 * A block of 256 of iq1, iq2 or iq3 holds scales and entries of a grid; an
 * entry has the codes of eight or four values, with their signs or the
 * direction in which they move (kernels/weights/grid_blocks.c).  A block of
 * nvfp4 has 64 values, and 16 of them share an e4m3 scale without sign: | s[4]
 * | nibble[32] |.
 *
 * kernels/weights/loops.h says where each bit stands. */
#ifndef KV_WEIGHTS_H
#define KV_WEIGHTS_H

#include <stddef.h>

enum kv_stored {
    KV_STORED_F32,
    KV_STORED_F16,
    KV_STORED_BF16,
    KV_STORED_Q4_0,
    KV_STORED_Q4_1,
    KV_STORED_Q5_0,
    KV_STORED_Q5_1,
    KV_STORED_Q8_0,
    KV_STORED_Q2_K,
    KV_STORED_Q3_K,
    KV_STORED_Q4_K,
    KV_STORED_Q5_K,
    KV_STORED_Q6_K,
    KV_STORED_IQ4_NL,
    KV_STORED_IQ4_XS,
    KV_STORED_MXFP4,
    KV_STORED_TQ1_0,
    KV_STORED_TQ2_0,
    KV_STORED_IQ1_S,
    KV_STORED_IQ1_M,
    KV_STORED_IQ2_XXS,
    KV_STORED_IQ2_XS,
    KV_STORED_IQ2_S,
    KV_STORED_IQ3_XXS,
    KV_STORED_IQ3_S,
    KV_STORED_NVFP4,
    KV_STORED_F8_E4M3, /* no infinity; 0x7f and 0xff are NaN */
    KV_STORED_F8_E5M2,
    KV_STORED_OTHER /* integers and the like: no weights */
};

/* No function below accepts KV_STORED_OTHER. */
const char *kv_stored_name(enum kv_stored type); /* "q4_k" */
size_t kv_stored_values(enum kv_stored type);    /* values in a block */
size_t kv_stored_bytes(enum kv_stored type);     /* bytes of a block */

extern const float kv_stored_iq4[16]; /* the levels of iq4_nl and iq4_xs */

/* n values, whole blocks, from any address.  Every version gives the bits of
 * Python's gguf package, except for the payload of a NaN.  A scale that is not
 * finite gives values that are not. */
void kv_stored_decode(enum kv_stored type, const void *blocks, size_t n,
                      float *x);

/* y [m][rows], its rows y_row apart, = x [m][n] times the transpose of w
 * [rows][n], whose rows follow each other; m is at least 1.  Each row of w and
 * row of x have 32 sums: sum j adds the products of values j, 32 + j, .. in
 * turn, each product and its sum rounded once (fmaf); then sum j += sum j + 16,
 * likewise 8, 4, 2, 1.  Every level and every m give the same bits. */
void kv_stored_times(enum kv_stored type, const void *w, size_t rows, size_t n,
                     const float *x, size_t m, float *y, size_t y_row);

#endif
