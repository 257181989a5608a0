/* The decoders of kernels/weights/weights.h.  Included by c.c, avx2.c and
 * avx512.c: loops of 16 and 32 values, which the compiler makes vectors of.
 * Every product and sum is rounded to f32 in the order of the formula that
 * stands at the function; d and m are fp16. */
#include "kernels/weights/impl.h"
#include "lib/base/half.h"

#include <string.h>

static inline float f16_at(const uint8_t *b)
{
    uint16_t half;

    memcpy(&half, b, sizeof(half));
    return kv_f16_to_f32(half);
}

/* x = d (q - zero) + m of 32 values: the low four bits of 16 bytes, then the
 * high ones; fifth: a bit of each value, or 0. */
static inline void affine(const uint8_t *restrict q, uint32_t fifth, int zero,
                          float d, float m, float *restrict x)
{
    for (uint32_t i = 0; i < 16; i++)
        x[i] =
            d * (float)((int)((q[i] & 15u) | (fifth >> i & 1) << 4) - zero) + m;
    for (uint32_t i = 0; i < 16; i++)
        x[i + 16] =
            d * (float)((int)((q[i] >> 4) | (fifth >> (i + 16) & 1) << 4) -
                        zero) +
            m;
}

static inline uint32_t word_at(const uint8_t *b)
{
    uint32_t word;

    memcpy(&word, b, sizeof(word));
    return word;
}

static inline void q4_0(const uint8_t *restrict b, float *restrict x)
{
    affine(b + 2, 0, 8, f16_at(b), -0.0f, x);
}

static inline void q4_1(const uint8_t *restrict b, float *restrict x)
{
    affine(b + 4, 0, 0, f16_at(b), f16_at(b + 2), x);
}

static inline void q5_0(const uint8_t *restrict b, float *restrict x)
{
    affine(b + 6, word_at(b + 2), 16, f16_at(b), -0.0f, x);
}

static inline void q5_1(const uint8_t *restrict b, float *restrict x)
{
    affine(b + 8, word_at(b + 4), 0, f16_at(b), f16_at(b + 2), x);
}

static inline void q8_0(const uint8_t *restrict b, float *restrict x)
{
    const float d = f16_at(b);

    for (size_t i = 0; i < 32; i++)
        x[i] = (float)(int8_t)b[2 + i] * d;
}

/* Values through a table of 16. */
static inline void looked_up(const uint8_t *restrict q, const int8_t *table,
                             float d, float *restrict x)
{
    for (size_t i = 0; i < 16; i++) {
        x[i] = d * (float)table[q[i] & 15];
        x[i + 16] = d * (float)table[q[i] >> 4];
    }
}

static const int8_t iq4_table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

static inline void iq4_nl(const uint8_t *restrict b, float *restrict x)
{
    looked_up(b + 2, iq4_table, f16_at(b), x);
}

/* | d | high two bits of 8 scales | their low four | 8 x 32 values | */
static inline void iq4_xs(const uint8_t *restrict b, float *restrict x)
{
    const float d = f16_at(b);

    for (size_t i = 0; i < 8; i++) {
        const int low = b[4 + i / 2] >> 4 * (i % 2) & 15;
        const int high = b[2 + i / 4] >> 2 * (i % 4) & 3;

        looked_up(b + 8 + 16 * i, iq4_table,
                  d * (float)((low | high << 4) - 32), x + 32 * i);
    }
}

/* Twice the values of E2M1, so that a scale is half a power of two. */
static inline void mxfp4(const uint8_t *restrict b, float *restrict x)
{
    static const int8_t table[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                     0, -1, -2, -3, -4, -6, -8, -12};
    const uint32_t bits =
        b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23;
    float d;

    memcpy(&d, &bits, sizeof(d));
    looked_up(b + 1, table, d, x);
}

/* Scale and minimum i of 8, six bits each, of 12 bytes. */
static inline void scale_min(const uint8_t *s, size_t i, int *scale, int *min)
{
    if (i < 4) {
        *scale = s[i] & 63;
        *min = s[i + 4] & 63;
    } else {
        *scale = (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
        *min = s[i + 4] >> 4 | s[i] >> 6 << 4;
    }
}

/* x = (d scale) q - (dmin min), 32 values with a scale and a minimum; 64 values
 * are the low, then the high four bits of 32 bytes. */
static inline void q4_k(const uint8_t *restrict b, float *restrict x)
{
    const float d = f16_at(b), dmin = f16_at(b + 2);

    for (size_t i = 0; i < 8; i++) {
        const uint8_t *q = b + 16 + 32 * (i / 2);
        const unsigned shift = 4 * (i % 2);
        int scale, min;

        scale_min(b + 4, i, &scale, &min);

        const float ds = d * (float)scale, m = dmin * (float)min;

        for (size_t j = 0; j < 32; j++)
            x[32 * i + j] = ds * (float)(q[j] >> shift & 15) - m;
    }
}

/* The same, the fifth bit of value j of part i is bit i of byte j. */
static inline void q5_k(const uint8_t *restrict b, float *restrict x)
{
    const float d = f16_at(b), dmin = f16_at(b + 2);

    for (size_t i = 0; i < 8; i++) {
        const uint8_t *q = b + 48 + 32 * (i / 2), *fifth = b + 16;
        const unsigned shift = 4 * (i % 2);
        int scale, min;

        scale_min(b + 4, i, &scale, &min);

        const float ds = d * (float)scale, m = dmin * (float)min;

        for (size_t j = 0; j < 32; j++)
            x[32 * i + j] =
                ds * (float)((q[j] >> shift & 15) | (fifth[j] >> i & 1) << 4) -
                m;
    }
}

/* x = (d scale) q, 16 values with a scale.  Halves of 128 values: four bits of
 * 64 bytes, two bits of 32. */
static inline void q6_k(const uint8_t *restrict b, float *restrict x)
{
    const float d = f16_at(b + 208);

    for (size_t i = 0; i < 16; i++) {
        const size_t half = i / 8, part = i % 8 / 2, at = i % 2 * 16;
        const uint8_t *low = b + 64 * half + 32 * (part % 2) + at;
        const uint8_t *high = b + 128 + 32 * half + at;
        const unsigned shift = 4 * (unsigned)(part / 2);
        const float ds = d * (float)(int8_t)b[192 + i];

        for (size_t j = 0; j < 16; j++)
            x[16 * i + j] = ds * (float)(((low[j] >> shift & 15) |
                                          (high[j] >> 2 * part & 3) << 4) -
                                         32);
    }
}

/* x = (d scale) q, 16 values with a scale of six bits; q of two bits, less 4
 * where the bit of the mask is clear. */
static inline void q3_k(const uint8_t *restrict b, float *restrict x)
{
    const uint8_t *s = b + 96;
    const float d = f16_at(b + 108);

    for (size_t i = 0; i < 16; i++) {
        const size_t half = i / 8, part = i % 8 / 2, at = i % 2 * 16;
        const uint8_t *q = b + 32 + 32 * half + at, *mask = b + at;
        const int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
        const int high = s[8 + i % 4] >> 2 * (i / 4) & 3;
        const float ds = d * (float)((low | high << 4) - 32);

        for (size_t j = 0; j < 16; j++)
            x[16 * i + j] =
                ds * (float)((q[j] >> 2 * part & 3) -
                             4 * (1 - (mask[j] >> (4 * half + part) & 1)));
    }
}

/* x = (d scale) q - (dmin min), 16 values with four bits of each. */
static inline void q2_k(const uint8_t *restrict b, float *restrict x)
{
    const float d = f16_at(b + 80), dmin = f16_at(b + 82);

    for (size_t i = 0; i < 16; i++) {
        const size_t half = i / 8, part = i % 8 / 2, at = i % 2 * 16;
        const uint8_t *q = b + 16 + 32 * half + at;
        const float ds = d * (float)(b[i] & 15), m = dmin * (float)(b[i] >> 4);

        for (size_t j = 0; j < 16; j++)
            x[16 * i + j] = ds * (float)(q[j] >> 2 * part & 3) - m;
    }
}

#define BLOCKS(name, values, bytes)                                 \
    static void name##_blocks(const uint8_t *b, size_t n, float *x) \
    {                                                               \
        for (size_t i = 0; i < n; i++)                              \
            name(b + i * (bytes), x + i * (values));                \
    }

BLOCKS(q4_0, 32, 18)
BLOCKS(q4_1, 32, 20)
BLOCKS(q5_0, 32, 22)
BLOCKS(q5_1, 32, 24)
BLOCKS(q8_0, 32, 34)
BLOCKS(q2_k, 256, 84)
BLOCKS(q3_k, 256, 110)
BLOCKS(q4_k, 256, 144)
BLOCKS(q5_k, 256, 176)
BLOCKS(q6_k, 256, 210)
BLOCKS(iq4_nl, 32, 18)
BLOCKS(iq4_xs, 256, 136)
BLOCKS(mxfp4, 32, 17)

const struct kv_weight_decoders NAME(kv_weight_decoders) = {{
    [KV_STORED_Q4_0] = q4_0_blocks,
    [KV_STORED_Q4_1] = q4_1_blocks,
    [KV_STORED_Q5_0] = q5_0_blocks,
    [KV_STORED_Q5_1] = q5_1_blocks,
    [KV_STORED_Q8_0] = q8_0_blocks,
    [KV_STORED_Q2_K] = q2_k_blocks,
    [KV_STORED_Q3_K] = q3_k_blocks,
    [KV_STORED_Q4_K] = q4_k_blocks,
    [KV_STORED_Q5_K] = q5_k_blocks,
    [KV_STORED_Q6_K] = q6_k_blocks,
    [KV_STORED_IQ4_NL] = iq4_nl_blocks,
    [KV_STORED_IQ4_XS] = iq4_xs_blocks,
    [KV_STORED_MXFP4] = mxfp4_blocks,
}};
