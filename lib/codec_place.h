/* Codecs whose encode() and decode() run on a device. */
#ifndef KV_CODEC_PLACE_H
#define KV_CODEC_PLACE_H

#include "lib/codec.h"

struct kv_backend;
struct kv_gpu_code;

/* Whether CUDA kernels support the codec; fills in their arguments. */
bool kv_codec_code(const struct kv_codec *c, struct kv_gpu_code *code);

/* After this call encode() and decode() run on b, which has coders and must
 * outlive c.  Tokens whose values are fp16 (kv_codec_input()) get the same
 * bytes, and decode to the same floats, as on the CPU.  Fails, naming the spec,
 * where b has no kernel for it, and when memory runs out. */
int kv_codec_place(struct kv_codec *c, const struct kv_backend *b,
                   struct kv_err *e);

#endif
