/* Functions that the readers of packed matrices share.  packed_header.c and
 * packed_compressed.c read the description; packed_tensors.c, packed_blocks.c
 * and packed_bitsandbytes.c read the tensors. */
#ifndef KV_MODEL_PACKED_IMPL_H
#define KV_MODEL_PACKED_IMPL_H

#include "lib/model/config_fields.h"
#include "lib/model/packed_header.h"
#include "lib/model/weights.h"

/* The header that compressed-tensors writes. */
int kv_packed_compressed(struct kv_packed_header *h, const struct kv_fields *f,
                         struct kv_err *e);

enum { KV_PACKED_SHAPE = 200 }; /* bytes for a shape as text */
void kv_packed_dims(char text[KV_PACKED_SHAPE], const size_t *dims, size_t n);

/* The tensor whose name is the first n letters of base and then `last`; NULL if
 * there is none. */
const struct kv_weight *kv_packed_part(const struct kv_weights *w,
                                       const char *base, size_t n,
                                       const char *last);

/* The first function fails unless t has this type, the second unless t has this
 * shape, which follows from the header and the tensor `of`. */
int kv_packed_type(const struct kv_weight *t, const char *dtype,
                   struct kv_err *e);
int kv_packed_shape(const struct kv_packed_header *h, const struct kv_weight *t,
                    const struct kv_weight *of, const size_t *want, size_t n,
                    struct kv_err *e);

/* Sets p's scales, which are F32, F16 or BF16. */
int kv_packed_scales(struct kv_packed *p, const struct kv_weight *scale,
                     struct kv_err *e);

/* Reads a matrix of KV_PACKED_WORDS, NVFP4 or MXFP4, or several matrices.  t:
 * the tensor of its codes; n: the letters of t's name before its last part. */
int kv_packed_blocks(struct kv_packed *p, const struct kv_packed_header *h,
                     const struct kv_weights *w, const struct kv_weight *t,
                     size_t n, struct kv_err *e);

/* Reads a matrix of bitsandbytes, in 4 bits (KV_PACKED_LEVELS) or int8; t and n
 * as above. */
int kv_packed_bitsandbytes(struct kv_packed *p,
                           const struct kv_packed_header *h,
                           const struct kv_weights *w,
                           const struct kv_weight *t, size_t n,
                           struct kv_err *e);

#endif
