/* The loop's codecs where the model is on a device: keys and values of a layer
 * are encoded and decoded there, or attended to as codes, and never leave it.
 */
#ifndef KV_LOOP_GPU_H
#define KV_LOOP_GPU_H

#include "kernels/device.h"
#include "lib/codec.h"
#include "lib/model/model.h"

struct kv_loop_gpu;

/* codecs of n_layers layers, which must stay; seed: as of a cache.  Fails
 * without memory. */
int kv_loop_gpu_new(struct kv_loop_gpu **g, const struct kv_codecs *codecs,
                    size_t n_layers, uint64_t seed, const struct kv_device *d,
                    struct kv_err *e);
void kv_loop_gpu_free(struct kv_loop_gpu *g); /* NULL is fine */

/* Whether both codecs of the layer run on a device. */
bool kv_loop_gpu_has(const struct kv_loop_gpu *g, size_t layer);

/* Whether attention of the layer is computed on its codes. */
bool kv_loop_gpu_on_codes(const struct kv_loop_gpu *g, size_t layer);

/* Quantized forms of x's layer, and unquantized ones of sides with f->until:
 * what a cache gives back that held these keys and values; or codes and
 * unquantized forms, where f->until of both sides is there.  Launches.  f is
 * good until the next call.  window: the number of x's first, for the sentence
 * with which the last layer fails where one of them met a NaN or an infinity.
 */
int kv_loop_gpu_fill(struct kv_loop_gpu *g, const struct kv_qkv *x,
                     size_t window, struct kv_forms *f, struct kv_err *e);

#endif
