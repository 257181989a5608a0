/* Matrices that a checkpoint holds as several tensors: codes, and scales beside
 * them.  W [rows][columns] = [outputs][inputs]; words are uint32, code k of a
 * word stands at its bits k * bits.
 *
 *   scaled   code [rows][columns] floats of 8 bits; or int8, where code_type is
 *            KV_STORED_OTHER
 *            scale [rows / block_rows][columns / block_columns], rounded up
 *            W = code * scale, times `times` where that is not 0
 *   gptq     code [columns / per][rows] words of `per` = 32 / bits columns
 *            zero [groups][rows / per] words, scale [groups][rows]
 *            group [columns] int32: of each column; NULL: by block_columns
 *            W = scale * (code - zero)
 *            of 3 bits 32 columns, or rows, share 3 words: code k stands at
 *            their bits 3 k; all_middle: every zero is 4
 *   awq      code [columns][rows / 8], zero [groups][rows / 8] words, whose
 *            codes stand for rows 0, 2, 4, 6, 1, 3, 5, 7 of eight
 *            scale [groups][rows]; bits is 4
 *            W = scale * (code - zero)
 *   words    code [rows][columns / per] words of `per` columns, rounded up
 *            zero [rows / per][groups] words, rounded up; NULL: 2^(bits - 1)
 *            scale [rows][groups], group [columns] as gptq's
 *            W = scale * (code - zero)
 *            where padded is not 0: zero [rows][padded] words of `per` groups,
 *            scale [rows][padded * per]
 *   nvfp4    code as mxfp4's
 *            scale [rows][columns / 16] floats e4m3; block_columns is 16
 *            W = e2m1 * (scale / over * times)
 *   mxfp4    code [rows][columns / 2] bytes, column 2 i at the low half
 *            scale [rows][columns / 32] bytes; block_columns is 32
 *            W = 2^(scale - 127) * e2m1, not finite where scale is 255
 *   levels   of all values in turn, rows one behind the other:
 *            code two a byte, value 2 i at the high half; level [16]
 *            scale f32, of block_columns values each; or, where nest is not 0,
 *            bytes: nest_level[byte] * nest_scale[..] + nest_offset, nest bytes
 *            sharing one of nest_scale
 *            W = level[code] * scale
 *
 * In gptq files each code of a word of zeros is stored less 1 (zero_less),
 * unless the files call their format gptq_v2.  The 1s are subtracted from the
 * word as one number: for a zero of 0, the 1 is borrowed from the code above
 * it. */
#ifndef KV_PACKED_H
#define KV_PACKED_H

#include "kernels/type.h"
#include "kernels/weights/weights.h"
#include "lib/base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum kv_packing {
    KV_PACKED_SCALED,
    KV_PACKED_GPTQ,
    KV_PACKED_AWQ,
    KV_PACKED_WORDS,
    KV_PACKED_NVFP4,
    KV_PACKED_MXFP4,
    KV_PACKED_LEVELS
};

/* Arrays are at any address and stay the caller's. */
struct kv_packed {
    enum kv_packing packing;
    size_t rows, columns;
    size_t block_rows, block_columns; /* sizes that share a scale; rows: for
                                       * scaled */
    enum kv_stored code_type;         /* for scaled */
    enum kv_type scale_type;
    unsigned bits; /* for gptq, awq and words; n_groups too */
    size_t n_groups;
    size_t padded;              /* for words */
    bool zero_less, all_middle; /* for gptq */
    float over, times;          /* for nvfp4; times also for scaled */
    size_t nest; /* for levels, like the four below; f32 at any address */
    const void *level, *nest_level, *nest_scale;
    float nest_offset;
    const void *code, *scale;
    const void *zero, *group; /* as in the diagrams; awq has no group */
};

/* Fails when sizes do not fit each other and when a group is not below
 * n_groups; the arrays must be as long as drawn.  kv_packed_decode() takes only
 * checked matrices. */
int kv_packed_check(const struct kv_packed *p, struct kv_err *e);

/* x [n][columns]: rows first to first + n - 1.  KV_PACKED_ROWS rows at once
 * share the words that run across them. */
enum { KV_PACKED_ROWS = 16 };
void kv_packed_decode(const struct kv_packed *p, size_t first, size_t n,
                      float *x);

#endif
