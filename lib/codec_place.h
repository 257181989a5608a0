/* Codecs on a device. */
#ifndef KV_CODEC_PLACE_H
#define KV_CODEC_PLACE_H

#include "lib/codec.h"

struct kv_backend;
struct kv_gpu_code;

/* Whether CUDA kernels support the codec; fills in their arguments. */
bool kv_codec_code(const struct kv_codec *c, struct kv_gpu_code *code);

/* From here on encode() and decode() run on b, which has coders and must stay:
 * to the same bytes of tokens that are halves (kv_codec_input()), and the same
 * floats.  Fails, naming the spec, where b has no kernel for it, and without
 * memory. */
int kv_codec_place(struct kv_codec *c, const struct kv_backend *b,
                   struct kv_err *e);

#endif
