/* A model's weights and forward pass on the device in use.  For forward.c and
 * model.c; others put a model there by kv_model_to_device().
 *
 * Weights are as weights_gpu.h says.  Sums, the residual stream and all that
 * passes between products are f32; what goes into a product is rounded to the
 * weights' type. */
#ifndef KV_MODEL_GPU_H
#define KV_MODEL_GPU_H

#include "kernels/device.h"
#include "lib/model/model_impl.h"

struct kv_model_gpu;

/* As kv_model_to_device(). */
int kv_model_gpu_new(struct kv_model_gpu **g, const struct kv_model *m,
                     const struct kv_device *d, size_t memory,
                     struct kv_err *e);
void kv_model_gpu_free(struct kv_model_gpu *g); /* NULL is fine */
const struct kv_device *kv_model_gpu_device(const struct kv_model_gpu *g);

/* Tokens are checked already.  hidden: holds their embeddings, and takes what
 * kv_model_forward() gives. */
int kv_model_gpu_forward(struct kv_model_gpu *g, size_t n_windows, size_t n,
                         size_t first, const struct kv_attention *attention,
                         float *hidden, struct kv_err *e);

int kv_model_gpu_logits(struct kv_model_gpu *g, const float *hidden, size_t n,
                        float *logits, struct kv_err *e);

int kv_model_gpu_losses(struct kv_model_gpu *g, const float *hidden,
                        const float *base, size_t n, const int32_t *target,
                        struct kv_gpu_loss *loss, struct kv_err *e);

/* Attention of x's layer to its keys and values as they are, or
 * (kv_attend_forms) to others; the result stays on the device. */
int kv_model_gpu_attend(const struct kv_qkv *x, const struct kv_forms *f,
                        struct kv_err *e);

/* kv_forms_room() and kv_forms_turn(). */
int kv_model_gpu_room(const struct kv_qkv *x, enum kv_side side, bool quantized,
                      float **room, struct kv_err *e);
int kv_model_gpu_turn(const struct kv_qkv *x, float *k, struct kv_err *e);

#endif
