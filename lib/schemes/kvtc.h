/* KVTC (arXiv 2511.01815): transform coding for caches that are stored and
 * sent.  Per layer and side, all KV heads together, keys before RoPE:
 *
 *   y = (x - mean) V      x' = y' V^T + mean
 *
 * V are the eigenvectors of the covariance, largest variance first (PCA),
 * trained once for all prompts.  Successive components form groups of 1, 16,
 * 64, 256 or 1024 values; a group is not coded, or has 2- or 4-bit integers or
 * 8-bit floats (e4m3), and each token has a 16-bit shift and a 16-bit scale for
 * it.  Dynamic programming chooses sizes and types that give the least squared
 * error on the training text within the budget, including shifts and scales.
 * The bytes of a chunk of n tokens are compressed by DEFLATE.
 *
 * One chunk before DEFLATE, each coded group in turn:
 *
 *   | scale: f16 x n | shift: f16 x n | codes, token by token | 0 to 7 bits |
 *
 * which is stored unchanged with entropy=none, else as
 *
 *   | crc: u32 | DEFLATE stream |      crc: CRC-32 of the stream
 *
 * Parameters:
 *   b        bits per value before DEFLATE, fractions too: 2 is the paper's
 *            ratio of 8, 1 its ratio of 16
 *   n        tokens of a chunk
 *   span     the transform and the budget span a layer, or all layers together,
 *            as in the paper
 *   entropy  deflate, or none
 *
 * In the paper V and its budget span all layers of the model (or of one GPU);
 * it finds that spanning fewer layers is worse, and one layer much worse at
 * high ratios.  This is span=all: no layer decodes without the others, so
 * span=all is for storage and transfer (scheme.h, spans).  With span=layer V
 * spans a layer's heads, and every layer has b to itself.  Unlike the paper,
 * which samples 160 thousand tokens, training uses all tokens except the first
 * 4 of each window, the sinks; mean and V leave out massive tokens too.
 *
 * Our reading: a group has a shift and a scale for each token.  The shift of
 * integers is the least value; the shift of floats is the middle of the range,
 * and their scale is stored as the largest distance from it.  The order of
 * bytes before DEFLATE and the length of a chunk are ours.
 *
 * Tables in a calibration, per side and layer, or with span=all per side; they
 * depend on no other parameter.  row: KV heads x head_dim, summed over all
 * layers with span=all.
 *
 *   mean    [row]
 *   basis   [row][row], fp16: V
 *   none    [row]            mean square of each component over sampled tokens
 *   coded   [3][5][row]      squared error, a mean over these tokens, of a
 *                            group of this type and size that begins at this
 *                            component; 0 where the group does not fit or may
 *                            not begin: with span=all and rows above 1024,
 *                            groups begin at multiples of 16
 */
#ifndef KV_KVTC_H
#define KV_KVTC_H

#include "lib/scheme.h"
#include "lib/schemes/integers.h"

enum {
    KV_KVTC_TYPES = 3,
    KV_KVTC_SIZES = 5,
    KV_KVTC_HEAD_BITS = 32, /* shift and scale */
    KV_KVTC_SINKS = 4,
    KV_KVTC_MAX_SIZE = 1024
};

extern const struct kv_kvtc_type {
    unsigned bits;
    const struct kv_group_quantizer *quantizer; /* head: | scale | shift | */
} kv_kvtc_types[KV_KVTC_TYPES];

extern const size_t kv_kvtc_sizes[KV_KVTC_SIZES];

/* A coded group: components [first, first + size). */
struct kv_kvtc_group {
    size_t first, size;
    unsigned type;
};

static inline size_t kv_kvtc_bits(size_t size, unsigned type)
{
    return KV_KVTC_HEAD_BITS + size * kv_kvtc_types[type].bits;
}

/* The tables none and coded; groups begin at multiples of step. */
struct kv_kvtc_errors {
    size_t row, step;
    const float *none, *coded;
};

static inline float kv_kvtc_error(const struct kv_kvtc_errors *e, size_t first,
                                  size_t size, unsigned type)
{
    return e->coded[(type * KV_KVTC_SIZES + size) * e->row + first];
}

/* Chooses the coded groups with the least total error that take at most
 * `budget` bits of a token, ordered by component.  group: [row]; returns their
 * number. */
size_t kv_kvtc_plan(const struct kv_kvtc_errors *e, size_t budget,
                    struct kv_kvtc_group *group);

bool kv_kvtc_spans(const struct kv_spec *s);

/* The step between possible beginnings of groups: 1, or 16 for a long row of
 * all layers, since trying all choices would take hours. */
static inline size_t kv_kvtc_step(const struct kv_spec *s, size_t row)
{
    return kv_kvtc_spans(s) && row > KV_KVTC_MAX_SIZE && row % 16 == 0 ? 16 : 1;
}

extern const struct kv_training kv_kvtc_training;

#endif
