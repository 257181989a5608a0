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

/* dir: of the model; its files say what is packed (packed_header.h), and every
 * type and shape follows from them:
 *
 *   fp8    weight [rows][columns] F8; a scale [] or [1] for all, [rows] or
 *          [rows, 1], or [rows / block, columns / block], rounded up, where
 *          weight_block_size is given
 *   gptq   qweight [inputs * bits / 32][outputs], qzeros [groups][outputs *
 *          bits / 32], scales [groups][outputs], g_idx [inputs], whose groups
 *          have group_size inputs each, but the last
 *   awq    qweight [inputs][outputs * bits / 32], the rest as gptq's
 *
 * Words are I32, scales F32, F16 or BF16.  Fails, with both of what do not fit
 * each other, on anything else, and where the files say that something is
 * packed and nothing is, or the other way round. */
int kv_weights_unpack(struct kv_weights *w, const char *dir, struct kv_err *e);

#endif
