/* Shared by the readers of packed matrices: packed_header.c and
 * packed_compressed.c read the description, packed_tensors.c and
 * packed_blocks.c the tensors. */
#ifndef KV_MODEL_PACKED_IMPL_H
#define KV_MODEL_PACKED_IMPL_H

#include "lib/model/config_fields.h"
#include "lib/model/packed_header.h"
#include "lib/model/weights.h"

/* The header that compressed-tensors writes. */
int kv_packed_compressed(struct kv_packed_header *h, const struct kv_fields *f,
                         struct kv_err *e);

enum { KV_PACKED_SHAPE = 200 }; /* letters of a shape in a sentence */
void kv_packed_dims(char text[KV_PACKED_SHAPE], const size_t *dims, size_t n);

/* The tensor whose name is the first n letters of base and then `last`; NULL if
 * there is none. */
const struct kv_weight *kv_packed_part(const struct kv_weights *w,
                                       const char *base, size_t n,
                                       const char *last);

/* Fails unless t has this type; and unless it has this shape, which follows
 * from the header and the tensor `of`. */
int kv_packed_type(const struct kv_weight *t, const char *dtype,
                   struct kv_err *e);
int kv_packed_shape(const struct kv_packed_header *h, const struct kv_weight *t,
                    const struct kv_weight *of, const size_t *want, size_t n,
                    struct kv_err *e);

/* Scales in F32, F16 or BF16. */
int kv_packed_scales(struct kv_packed *p, const struct kv_weight *scale,
                     struct kv_err *e);

/* A matrix of words, nvfp4 or mxfp4, or several matrices (KV_PACKED_WORDS and
 * so on); t: the tensor of its codes, n letters before the last part of its
 * name. */
int kv_packed_blocks(struct kv_packed *p, const struct kv_packed_header *h,
                     const struct kv_weights *w, const struct kv_weight *t,
                     size_t n, struct kv_err *e);

/* A matrix of bitsandbytes, in 4 bits (KV_PACKED_LEVELS) or int8; t and n as
 * above. */
int kv_packed_bitsandbytes(struct kv_packed *p,
                           const struct kv_packed_header *h,
                           const struct kv_weights *w,
                           const struct kv_weight *t, size_t n,
                           struct kv_err *e);

#endif
