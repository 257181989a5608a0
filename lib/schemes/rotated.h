/* Shared by the schemes that rotate a token and then quantize it to integers,
 * asymmetrically, in groups of the token's channels, with a range that may be
 * clipped.
 *
 * A group of rotated values from min to max is first clamped to
 * [clip min, clip max] (a flat group stays).  Storage is as in integers.h,
 * token axis.  With the remaining range [low, high] and scale = (high - low) /
 * (2^b - 1), the head of a group is one of
 *
 *   zero=int   | scale: f16 | zero: int16 |   x = scale (code - zero)
 *   zero=min   | scale: f16 | low: f16 |      x = low + scale code
 *   zero=none  | scale: f16 |                 x = scale code
 *
 * with zero = -round(low / scale), so that 0 is a level, and
 * code = clamp(round(x / scale) + zero): as in QuaRot's code.  zero=min is
 * KIVI's form, which represents both ends of the range exactly.  Heads take
 * 32 / g bits a value.
 *
 * zero=none is symmetric, and heads take 16 / g bits a value: values are
 * clamped to clip max|x| at either end, scale = clip max|x| / top, and codes go
 * from -top to top = 2^(b-1) - 1.  (QuaRot's code also has the code -top - 1,
 * which values reach only if the clip is below top / (top + 1/2).  With its
 * clip of 0.95 no 4-bit value does.) */
#ifndef KV_ROTATED_H
#define KV_ROTATED_H

#include "lib/schemes/integers.h"

/* The parameters, with a scheme's defaults; zero is the last. */
enum { KV_ZERO_INT, KV_ZERO_MIN };
/* clang-format off */
#define KV_ROTATED_RANGE(B, G, CLIP)                                           \
    { "b", NULL, B, 1, 8, false, "bits per code" },                            \
    { "g", NULL, G, 0, 4096, false,                                            \
      "group: channels of a token; 0: the whole row" },                        \
    { "clip", NULL, CLIP, 0.01, 1, false,                                      \
      "the range of a group is multiplied by this" }
#define KV_ROTATED_PARAMS(B, G, CLIP, ZERO)                                    \
    KV_ROTATED_RANGE(B, G, CLIP),                                              \
    { "zero", "int|min", ZERO, 0, 0, false,                                    \
      "a group keeps an integer zero point, or its minimum" }
/* clang-format on */

/* all_heads: a row is all KV heads, instead of one. */
int kv_rotated_open(struct kv_codec *c, bool all_heads);

/* x: [n_blocks][n_kv_heads][head_dim], rotated; it is clamped in place.
 * kv_integers_decode() decodes. */
void kv_rotated_encode(const struct kv_codec *c, struct kv_where w, float *x,
                       size_t n_blocks, uint8_t *bytes);

#endif
