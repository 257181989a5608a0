/* A codec's encode() and decode() on a CUDA device. */
#ifndef KV_CODEC_GPU_H
#define KV_CODEC_GPU_H

#include "kernels/device.h"
#include "lib/codec.h"

struct kv_codec_gpu;

/* Whether the codec has them (kernels/cuda/coder.h), and what its kernels are
 * to do. */
bool kv_codec_gpu_code(const struct kv_codec *c, struct kv_gpu_code *code);

/* The codec must stay.  Fails, naming the spec, where it has none, and without
 * memory on the device. */
int kv_codec_gpu_new(struct kv_codec_gpu **g, const struct kv_codec *c,
                     const struct kv_device *device, struct kv_err *e);
void kv_codec_gpu_free(struct kv_codec_gpu *g); /* NULL is fine */

/* encode(), its arrays on the host; every x is a half (kv_codec_input()).  The
 * same bytes.  Thread-safe, one thread at a time. */
int kv_codec_gpu_encode(struct kv_codec_gpu *g, struct kv_where w,
                        const float *x, size_t n_blocks, uint8_t *bytes,
                        struct kv_err *e);

/* decode(), likewise; the same floats. */
int kv_codec_gpu_decode(struct kv_codec_gpu *g, const uint8_t *bytes,
                        size_t n_blocks, float *x, struct kv_err *e);

#endif
