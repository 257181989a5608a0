/* KVQuant (arXiv 2401.18079): scalars on a table of levels, outliers apart.
 *
 * Keys are taken before RoPE.  Each of their channels (of one head) has
 * thresholds from the calibration, and each token's values, over all KV heads
 * of the layer, their own: values between them are normalised to [-1, 1] and
 * stored as the nearest of 2^b levels; the rest are outliers and stay fp16.
 *
 * Outliers: o percent, half of them on each side (the quantile
 * t = 1 - (1 - s) / 2 with s = 1 - o / 100).  Of n numbers ceil(n o / 200) are
 * beyond a threshold, which is the next of them: of the n tokens of a channel
 * in the calibration, and of the row of n values of a token, where among equal
 * values the first count as the largest and the last as the smallest.  That the
 * share is rounded up, and that a threshold is one of the numbers, is our
 * reading.  At o = 0 keys are clamped to the calibration's range.
 *
 * How many outliers a token's keys have varies, and is more than o per cent on
 * text unlike the calibration's.  cap says how many it has at most, in per cent
 * of its row, rounded to whole outliers: the values furthest from 0 when
 * normalised stay (first ones on ties), the others are clamped to their
 * thresholds.  100 is no cap, as the published code runs unless told.  (With
 * one, that code keeps 21 at each end, o = 1 of its 4096 values, whatever the
 * cap; and trains its k-means on the clamped values too.  Here the cap changes
 * no table.)
 *
 * A token, row = n_kv_heads * head_dim:
 *
 *   keys    | n: u16 | codes: row x b bits | index: u16[n] | value: f16[n] |
 *           at most round(row cap / 100) outliers
 *   o = 0   | codes: row x b bits |
 *   values  | codes: row x b bits | offset: f16 | half: f16 |
 *           | index: u16[m] | value: f16[m] |       m = 2 ceil(row o / 200)
 *
 * Indices ascend, an outlier's code is 0.  Keys with outliers are a variable
 * codec: the cache's 32-bit size of a block is the paper's pointer per token.
 * An outlier takes 32 bits: 0.32 bits a value at o = 1; beside them keys take
 * 48 and values 32 bits a token.
 *
 * Parameters, each per side:
 *   b, o    bits of a code, percent of outliers
 *   type    levels: nuq, one-dimensional k-means of normalised values, one
 *           table for keys and one for values of a layer, the optimum
 *           (kernels/levels/kmeans1d.h) where the published code takes the
 *           result of Lloyd's iteration; int, evenly spaced from -1 to 1 (the
 *           published code too, but with its --clamp, which moves them by less
 *           than a scale to have a zero, and is not implemented); nf,
 *           NormalFloat, as in the published code
 *   first   tokens of each window of the calibration that the k-means, its
 *           error and Q-Norm leave out, since they stay fp16 (the published
 *           code's first_few_fp16, 1 in its recipes); thresholds have them in.
 *           Massive tokens, the first of a window among them, are left out of
 *           both (lib/massive_tokens.h).
 *           Evaluation keeps the first s.  nuq alone trains: int and nf say 0
 *   w       weights of the k-means: none; fisher, the Fisher information F of
 *           every value, as in the published code; fisher-s2, F s^2, with s
 *           the half-width that it was divided by, as in the paper's equation:
 *           the weighted error is then that of the unnormalised value.  nuq
 *           alone has weights: int and nf say none
 *   qnorm   Q-Norm, for 2 bits: codes are chosen by the levels c and decoded to
 *           (c - m2) d1 / d2 + m1, with m1, d1 the mean and the standard
 *           deviation of all normalised training values and m2, d2 those of
 *           their quantized values: another table, no bits.  Per layer and
 *           without weights, as in the published code
 *
 * Tables in a calibration:
 *   range   [n_kv_heads][head_dim][2], K, per layer: the thresholds
 *   levels  [2][2^b], per side and layer: ascending, and their decoded values;
 *           error: mean squared error per training value
 * Where its sums are taken by bins, KV_KVQUANT_BINS of them cover [-1, 1]. */
#ifndef KV_KVQUANT_H
#define KV_KVQUANT_H

#include "lib/scheme.h"

enum { KV_KVQUANT_BINS = 1 << 13, KV_KVQUANT_MAX_BITS = 8 };

/* How many of n numbers are beyond each threshold. */
size_t kv_kvquant_each_side(const struct kv_spec *s, enum kv_side side,
                            size_t n);

/* How many outliers a token's keys [row] have at most. */
size_t kv_kvquant_cap(const struct kv_spec *s, size_t row);

/* x is offset + half * z, z in [-1, 1]; half 0: x is offset. */
struct kv_kvquant_range {
    float offset, half;
};

/* Of a channel's keys with these thresholds. */
static inline struct kv_kvquant_range kv_kvquant_between(float low, float high)
{
    return (struct kv_kvquant_range){low / 2 + high / 2, high / 2 - low / 2};
}

/* The stored range of a token's values x [row]: head is its pair of fp16.
 * outlier: [row], true for n_side of the largest and of the smallest. */
struct kv_kvquant_range kv_kvquant_row_range(const float *x, size_t row,
                                             size_t n_side, bool *outlier,
                                             uint8_t head[4]);

/* The code of z: how many of the 2^bits - 1 ascending midpoints between levels
 * are below it (the lower level on ties). */
static inline uint16_t kv_kvquant_code(const float *mid, unsigned bits, float z)
{
    unsigned code = 0;

    for (unsigned half = 1u << bits >> 1; half; half >>= 1)
        if (z > mid[code + half - 1])
            code += half;
    return (uint16_t)code;
}

/* level: [2^bits] ascending; mid: [2^bits - 1]. */
void kv_kvquant_midpoints(const float *level, unsigned bits, float *mid);

/* The levels of type int and nf: [2^bits], ascending from -1 to 1. */
void kv_kvquant_int_levels(unsigned bits, float *level);
void kv_kvquant_nf_levels(unsigned bits, float *level);

extern const struct kv_training kv_kvquant_training;

#endif
