/* A model's weights on the device in use: matrices in their stored type, which
 * is one, vectors in f32.  The embedding stays on the host.  Layers that do not
 * fit follow each other through the room of one. */
#ifndef KV_WEIGHTS_GPU_H
#define KV_WEIGHTS_GPU_H

#include "kernels/cuda/product.h"
#include "lib/model/model_impl.h"

struct kv_weights_gpu;

/* free: bytes of the device's memory that are free now, `beside` those of them
 * that are for other things.  The model must stay.  Fails when matrices are of
 * several types, and without memory for one layer. */
int kv_weights_gpu_new(struct kv_weights_gpu **w, const struct kv_model *m,
                       size_t free, size_t beside, struct kv_err *e);
void kv_weights_gpu_free(struct kv_weights_gpu *w); /* NULL is fine */

enum kv_gpu_type kv_weights_gpu_type(const struct kv_weights_gpu *w);

/* A layer is there once this returns, until it is called for another one. */
int kv_weights_gpu_load(struct kv_weights_gpu *w, size_t layer,
                        struct kv_err *e);

/* The device's: of a layer that is there; NULL when the model has no such part.
 * Of a matrix as stored, of a vector floats. */
const void *kv_weights_gpu_part(const struct kv_weights_gpu *w, size_t layer,
                                enum kv_part part);
const float *kv_weights_gpu_norm(const struct kv_weights_gpu *w); /* final */
const void *kv_weights_gpu_head(const struct kv_weights_gpu *w);

#endif
