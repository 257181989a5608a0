/* Shared by codec.c and codec_place.c. */
#ifndef KV_CODEC_IMPL_H
#define KV_CODEC_IMPL_H

#include "lib/codec.h"

void kv_codec_place_free(struct kv_codec_place *p); /* NULL is fine */

/* encode() and decode() on the device; c->place must be set. */
int kv_codec_place_encode(const struct kv_codec *c, struct kv_where w,
                          const float *x, size_t n_blocks, uint8_t *bytes,
                          struct kv_err *e);
int kv_codec_place_decode(const struct kv_codec *c, const uint8_t *bytes,
                          size_t n_blocks, float *x, struct kv_err *e);

#endif
