/* KVQuant (arXiv 2401.18079): scalar quantization to a table of levels, with
 * outliers kept apart.
 *
 * Keys are taken before RoPE.  Each key channel (of one head) has two
 * thresholds from the calibration; the values of each token, over all KV heads
 * of the layer, have two thresholds of their own.  Values between the
 * thresholds are normalised to [-1, 1] and stored as the nearest of 2^b levels;
 * the others are outliers and stay fp16.
 *
 * Outliers: o percent, half of them on each side (the quantile
 * t = 1 - (1 - s) / 2 with s = 1 - o / 100).  Among n numbers, ceil(n o / 200)
 * lie beyond each threshold, and the threshold is the next number.  For keys
 * the n numbers are a channel's tokens in the calibration; for values they are
 * a token's row, where among equal values the first count as the largest and
 * the last as the smallest.  It is our reading that the share is rounded up and
 * that the threshold is one of the numbers.  At o = 0 keys are clamped to the
 * calibration's range.
 *
 * The number of outliers in a token's keys varies, and exceeds o per cent on
 * text unlike the calibration's text.  cap is the maximum number of outliers,
 * in per cent of the token's row, rounded to whole outliers.  The values
 * furthest from 0 after normalisation stay outliers (the first ones on ties),
 * the others are clamped to their thresholds.  100 means no cap, the published
 * code's default.  (With a cap, that code keeps 21 outliers at each end, o = 1
 * of its 4096 values, for any cap, and also trains its k-means on the clamped
 * values.  Here the cap changes no table.)
 *
 * A token, row = n_kv_heads * head_dim:
 *
 *   keys    | n: u16 | codes: row x b bits | index: u16[n] | value: f16[n] |
 *           at most round(row cap / 100) outliers
 *   o = 0   | codes: row x b bits |
 *   values  | codes: row x b bits | offset: f16 | half: f16 |
 *           | index: u16[m] | value: f16[m] |       m = 2 ceil(row o / 200)
 *
 * Indices ascend; an outlier's code is 0.  Keys with outliers are a variable
 * codec: the cache's 32-bit size of a block is the paper's pointer per token.
 * An outlier takes 32 bits, which is 0.32 bits a value at o = 1; in addition
 * keys take 48 and values 32 bits a token.
 *
 * Parameters, each per side:
 *   b, o    bits of a code, percent of outliers
 *   type    levels: nuq, one-dimensional k-means of normalised values, one
 *           table for keys and one for values of a layer, the optimum
 *           (kernels/levels/kmeans1d.h) where the published code takes the
 *           result of Lloyd's iteration; int, evenly spaced from -1 to 1 (as in
 *           the published code; its --clamp, which shifts the levels by less
 *           than a step so that one is zero, is not implemented); nf,
 *           NormalFloat, as in the published code
 *   first   tokens of each window of the calibration that the k-means, its
 *           error and Q-Norm leave out, since they stay fp16 (the published
 *           code's first_few_fp16, 1 in its recipes); thresholds include them.
 *           Massive tokens, such as the first of a window, are left out of both
 *           (lib/massive_tokens.h).  Evaluation keeps the first s.  nuq alone
 *           trains: int and nf say 0
 *   w       weights of the k-means: none; fisher, the Fisher information F of
 *           every value, as in the published code; fisher-s2, F s^2, with s the
 *           half-width that the value was divided by, as in the paper's
 *           equation: the weighted error is then the error of the unnormalised
 *           value.  nuq alone has weights: int and nf say none
 *   qnorm   Q-Norm, for 2 bits: codes are chosen by the levels c and decoded to
 *           (c - m2) d1 / d2 + m1, with m1, d1 the mean and the standard
 *           deviation of all normalised training values and m2, d2 those of
 *           their quantized values: this changes the table and adds no bits.
 *           Per layer and without weights, as in the published code
 *
 * Tables in a calibration:
 *   range   [n_kv_heads][head_dim][2], K, per layer: the thresholds
 *   levels  [2][2^b], per side and layer: ascending, and their decoded values;
 *           error: mean squared error per training value
 * K-means works on sums in KV_KVQUANT_BINS bins, which cover [-1, 1]. */
#ifndef KV_KVQUANT_H
#define KV_KVQUANT_H

#include "lib/scheme.h"

enum { KV_KVQUANT_BINS = 1 << 13, KV_KVQUANT_MAX_BITS = 8 };

/* The number, of n numbers, that lies beyond each threshold. */
size_t kv_kvquant_each_side(const struct kv_spec *s, enum kv_side side,
                            size_t n);

/* The maximum number of outliers among a token's keys [row]. */
size_t kv_kvquant_cap(const struct kv_spec *s, size_t row);

/* x is offset + half * z, z in [-1, 1]; half 0: x is offset. */
struct kv_kvquant_range {
    float offset, half;
};

/* The offset and half-width of a channel's keys with these thresholds. */
static inline struct kv_kvquant_range kv_kvquant_between(float low, float high)
{
    return (struct kv_kvquant_range){low / 2 + high / 2, high / 2 - low / 2};
}

/* The range of a token's values x [row], as stored: head gets its two fp16
 * numbers.  outlier: [row], true for n_side of the largest and of the
 * smallest. */
struct kv_kvquant_range kv_kvquant_row_range(const float *x, size_t row,
                                             size_t n_side, bool *outlier,
                                             uint8_t head[4]);

/* The code of z: the number of midpoints between levels, of 2^bits - 1
 * ascending ones, that are below z (the lower level on ties). */
static inline uint16_t kv_kvquant_code(const float *mid, unsigned bits, float z)
{
    unsigned code = 0;

    for (unsigned half = 1u << bits >> 1; half; half >>= 1)
        if (z > mid[code + half - 1])
            code += half;
    return (uint16_t)code;
}

/* Computes the midpoints mid [2^bits - 1] between level [2^bits], ascending. */
void kv_kvquant_midpoints(const float *level, unsigned bits, float *mid);

/* The levels of type int and nf: [2^bits], ascending from -1 to 1. */
void kv_kvquant_int_levels(unsigned bits, float *level);
void kv_kvquant_nf_levels(unsigned bits, float *level);

extern const struct kv_training kv_kvquant_training;

#endif
