/* Gradients of the loss with respect to keys and values, by a backward pass
 * from the last layer to the first.
 *
 * The loss of a window is the sum over its n - 1 targets of -log p(token t + 1
 * | tokens 0 to t), in nats.  The gradient of a key or a value goes through the
 * attention of its layer and through all later layers.  The last token predicts
 * nothing, so its gradients are 0. */
#ifndef KV_MODEL_BACKWARD_H
#define KV_MODEL_BACKWARD_H

#include "lib/model/model.h"

/* One layer's gradients for a group of windows:
 * [n_windows][n][n_kv_heads][head_dim], d loss / d k_pre (the key immediately
 * before RoPE, after bias and norm) and d loss / d v. */
struct kv_gradient {
    const struct kv_shape *shape;
    size_t layer, n_windows, n;
    const float *k_pre, *v;
};

/* The function that receives the gradients.  It is called once per layer, the
 * last layer first, outside of parallel regions. */
struct kv_gradient_sink {
    int (*run)(void *arg, const struct kv_gradient *g, struct kv_err *e);
    void *arg;
};

/* tokens: [n_windows][n], as in kv_model_forward() at first = 0.  attention:
 * NULL, or a function called in each layer of the forward pass; it must compute
 * the same as kv_attend_exact().  The sink gets the gradients of layers
 * first_layer and later.  The same bits for any number of threads and any
 * grouping of windows.  The model must not be on a device.  Fails where
 * kv_model_forward() does, when the model has no layer first_layer, when the
 * sink fails, and on Ctrl-C. */
int kv_model_backward(struct kv_model *m, const int32_t *tokens,
                      size_t n_windows, size_t n, size_t first_layer,
                      const struct kv_attention *attention,
                      const struct kv_gradient_sink *sink, struct kv_err *e);

/* The number of windows of n tokens, at least 1, whose forward and backward
 * pass fit in `memory` bytes.  Counts the memory that kv_model_windows()
 * counts, and two hidden states per layer. */
size_t kv_backward_windows(const struct kv_model *m, size_t n,
                           size_t first_layer, size_t memory);

#endif
