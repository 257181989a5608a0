/* Quantized matrices of a folder, of which safetensors hold several tensors
 * (kernels/weights/packed.h), as the one tensor that each stands for:
 *
 *   fp8    X.weight, X.weight_scale_inv or X.weight_scale
 *   gptq   X.qweight, X.qzeros, X.scales, X.g_idx (may be left out)
 *   awq    X.qweight, X.qzeros, X.scales
 *
 * all become X.weight.  Activations stay as they are, whatever
 * activation_scheme says; tensors with scales of theirs have no place. */
#ifndef KV_MODEL_PACKED_TENSORS_H
#define KV_MODEL_PACKED_TENSORS_H

#include "lib/model/weights.h"

#include <jansson.h>

/* quantization: config.json's quantization_config, NULL or null: nothing is to
 * be done; path: of config.json.  Fails on another method or format than these,
 * and on tensors that are missing or do not fit each other. */
int kv_weights_unpack(struct kv_weights *w, const json_t *quantization,
                      const char *path, struct kv_err *e);

#endif
