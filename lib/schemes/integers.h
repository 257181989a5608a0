/* Storage family: integers in groups that share a scale (and an offset).
 *
 * A block x[block][n_kv_heads][head_dim] is cut into units (one KV head, or
 * all of them together), a unit into groups of len values:
 *   token axis:   block = 1 token; len consecutive channels
 *   channel axis: block = len tokens; one channel of all of them
 *
 * One block is its units in order; one unit is
 *
 *   | codes: n_groups * len x bits, group by group | heads: n_groups |
 *
 * codes bit-packed (kernels/bitpack.h) and padded to a whole byte; a head holds
 * the quantizer's parameters of a group (scale, minimum, ...). */
#ifndef KV_INTEGERS_H
#define KV_INTEGERS_H

#include "kernels/device_code.h"
#include "kernels/scaled/scaled.h"
#include "kernels/tiles/tiles.h"
#include "lib/base/half.h"
#include "lib/scheme.h"

#include <math.h>
#include <string.h>

enum kv_axis { KV_AXIS_TOKEN, KV_AXIS_CHANNEL };

/* How one group of n values becomes a head and codes, and back. */
struct kv_group_quantizer {
    size_t head_bytes;
    /* Codes are chosen with the stored (rounded) head. */
    void (*encode)(const float *x, size_t n, unsigned bits, uint8_t *head,
                   uint16_t *code);
    void (*decode)(const uint16_t *code, size_t n, unsigned bits,
                   const uint8_t *head, float *x);
    /* Reads a head as a scale and an offset of this kind; with KV_OFFSET_SAME
     * all heads have one offset.  NULL: the quantizer is not affine. */
    void (*affine)(const uint8_t *head, unsigned bits, uint16_t *scale,
                   float *offset);
    enum kv_offset offset;
    /* Reads a head as a scale of the family "scaled"; NULL: heads are no such
     * scales. */
    bool (*scaled)(struct kv_scaled *to, unsigned bits, size_t head_dim,
                   size_t group);
    /* The form of encode() on a CUDA device. */
    enum kv_gpu_quantizer device;
};

/* For a scheme's check(), with groups along the channels of a head: clamps this
 * side's parameter g to head_dim; fails unless g then divides head_dim. */
int kv_integers_fit(struct kv_spec *s, enum kv_side side,
                    const struct kv_shape *shape, struct kv_err *e);

/* For a scheme's check(), with groups along a row of channels: a g of 0 or more
 * than the row becomes the row; fails if g does not divide the row. */
int kv_integers_fit_row(struct kv_spec *s, enum kv_side side, size_t row,
                        struct kv_err *e);

/* all_heads: token axis only, groups run over all KV heads. */
int kv_integers_open(struct kv_codec *c, const struct kv_group_quantizer *q,
                     enum kv_axis axis, size_t len, bool all_heads,
                     unsigned bits);
void kv_integers_encode(const struct kv_codec *c, struct kv_where w,
                        const float *x, size_t n_blocks, uint8_t *bytes);
void kv_integers_decode(const struct kv_codec *c, const uint8_t *bytes,
                        size_t n_blocks, float *x);

/* Implements the scheme's function device(). */
bool kv_integers_device(const struct kv_codec *c, struct kv_gpu_code *to);

/* Implement the scheme's functions store() and tile(); false if the quantizer
 * or the groups fit neither the family "integers" (kernels/tiles/tiles.h) nor
 * "scaled". */
bool kv_integers_store(const struct kv_codec *c, struct kv_store *s);
void kv_integers_tile(const struct kv_codec *c, const struct kv_store *s,
                      const uint8_t *blocks, size_t first, size_t n,
                      size_t head, uint8_t *tile);

/* Quantizers: KIVI's (kivi.c), with minimum and scale; the symmetric one
 * (rtn.c), for 2 bits or more; floats e4m3 without a scale in 8 bits, and e2m1
 * with a scale e4m3 in 4 bits (smallfloat.c). */
extern const struct kv_group_quantizer kv_kivi_quantizer, kv_absmax_quantizer;
extern const struct kv_group_quantizer *const kv_e4m3_quantizer;
extern const struct kv_group_quantizer *const kv_nvfp4_quantizer;

/* The minimum and maximum of n >= 1 values. */
static inline void kv_group_ends(const float *x, size_t n, float *min,
                                 float *max)
{
    *min = *max = x[0];
    for (size_t i = 1; i < n; i++) {
        *min = x[i] < *min ? x[i] : *min;
        *max = x[i] > *max ? x[i] : *max;
    }
}

static inline float kv_group_max_abs(const float *x, size_t n)
{
    float max = 0;

    for (size_t i = 0; i < n; i++)
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    return max;
}

/* The scale range / top as fp16: the nearest half, but a denormal is rounded up
 * if top * scale would fall short of the range. */
static inline uint16_t kv_group_scale(float range, float top)
{
    const uint16_t half = kv_f16_clamp(range / top);
    const bool small = half < 0x0400; /* below the least normal half */

    return small && kv_f16_to_f32(half) * top < range ? (uint16_t)(half + 1)
                                                      : half;
}

/* Stores the scale range / top and returns its rounded value. */
static inline float kv_group_put_scale(uint8_t *head, float range, float top)
{
    return kv_f16_put(head, kv_f16_to_f32(kv_group_scale(range, top)));
}

/* Rounds half to even for |x| < 2^22; larger values are returned unrounded or
 * nearly so. */
static inline float kv_round_even(float x)
{
    return x + 12582912.0f - 12582912.0f;
}

/* round(x) as a code in [0, top]. */
static inline uint16_t kv_code(float x, float top)
{
    const float low = x > 0 ? x : 0;

    return (uint16_t)kv_round_even(low < top ? low : top);
}

#endif
