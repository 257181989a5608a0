/* AQUA-KV (arXiv 2501.19392): a token's keys (before RoPE) and values are
 * predicted from decoded values, and the residual is coded by HIGGS.
 *
 *   keys    W k' + b           k': keys of the layer below, decoded
 *   values  W (k', v') + b     k': the layer's own keys, v': values of the
 *                              layer below, decoded
 *
 * W and b come from ridge regression on decoded features, one layer after the
 * other.  The lowest layer is coded without prediction.  HIGGS rotates runs of
 * up to g values of a token, all KV heads together, by the Hadamard transform,
 * and divides each run by its norm (over sqrt of the run's length).  For every
 * d values it stores the nearest of n points, which are optimal centers for a
 * normal distribution in d dimensions.  The lowest layer has 256 points in 2
 * dimensions for any d and n.  A token is
 *
 *   | codes: row / d x log2(n) bits, padded to a byte | norms: f16, a run |
 *
 * As in the published code: d2n16, 4 sinks in fp16, 128 tokens encoded at a
 * time, a ridge of 1e-3 of the mean second moment, training on all tokens.  Our
 * choices: runs have 2^i or 12 2^i values (the code pads them to g, 1,024);
 * k-means on normal numbers, from a fixed seed, gives the points; W and b are
 * fp16.
 *
 * Tables in a calibration:
 *   points     [n][d], points_low [256][2]
 *   predictor  [features + 1][row], the last row is b; per side and layer, none
 *              for the lowest layer
 *
 * The codes are layered (scheme.h), so there is no attention in place. */
#ifndef KV_AQUA_H
#define KV_AQUA_H

#include "kernels/nearest/nearest.h"
#include "lib/scheme.h"

enum { KV_AQUA_LOW_D = 2, KV_AQUA_LOW_N = 256, KV_AQUA_PALEY = 12 };

/* The HIGGS coder of a side's rows. */
struct kv_higgs {
    size_t row, run, d; /* d divides run, run divides row */
    unsigned bits;      /* bits of a code */
    size_t code_bytes, bytes;
    const float *points; /* [2^bits][d], not owned */
    struct kv_centroids centroids;
};

/* The length of a row's runs: the largest 2^i or 12 2^i that is at most g and
 * divides the row. */
size_t kv_higgs_run(size_t row, size_t g);
void kv_higgs_init(struct kv_higgs *h, size_t row, size_t run, size_t d,
                   unsigned bits, const float *points);
void kv_higgs_clear(struct kv_higgs *h);

/* x: [row]. */
void kv_higgs_encode(const struct kv_higgs *h, const float *x, uint8_t *bytes);
void kv_higgs_decode(const struct kv_higgs *h, const uint8_t *bytes, float *x);

/* Bits of a code of n points; 0 where n is not a power of two. */
unsigned kv_aqua_bits(size_t n);

extern const struct kv_training kv_aqua_training;

#endif
