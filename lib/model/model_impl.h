/* The inside of a model; for model.c and the passes alone. */
#ifndef KV_MODEL_IMPL_H
#define KV_MODEL_IMPL_H

#include "lib/model/model.h"
#include "lib/model/tensor_map.h"

struct kv_model {
    struct kv_model_info info;
    struct kv_config config;
    struct kv_weights files;
    struct kv_model_weights weights;
    /* f32 for the model's life: the final norm [hidden], and the head
     * [n_vocab][hidden] unless it is large (then NULL, and kv_model_logits
     * widens it piece by piece). */
    float *norm, *head;
    struct kv_model_gpu *gpu; /* NULL: on the CPU */
};

/* Widens n values from `first` on, in parallel. */
void kv_model_dequantize(const struct kv_weight *w, size_t first, size_t n,
                         float *out);

/* Vocabulary rows of the head that are widened and multiplied at once. */
enum { KV_HEAD_PANEL = 4096 };

/* Rows [first, first + n) of the head in f32, n at most KV_HEAD_PANEL: where
 * they lie, or in panel [n][hidden] when m->head is NULL. */
const float *kv_model_head(const struct kv_model *m, size_t first, size_t n,
                           float *panel);

#endif
