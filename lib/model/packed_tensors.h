/* Quantized matrices of a folder (kernels/weights/packed.h).  Safetensors hold
 * several tensors for each:
 *
 *   fp8    X.weight, X.weight_scale_inv or X.weight_scale
 *   gptq   X.qweight, X.qzeros, X.scales, X.g_idx (may be left out)
 *   awq    X.qweight, X.qzeros, X.scales
 *   mxfp4  X_blocks, X_scales: of several matrices, those of experts
 *
 * Each becomes one tensor X.weight, or X of mxfp4.  Activations are not
 * quantized, whatever activation_scheme says; tensors with scales of
 * activations are not used. */
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
 *   mxfp4  blocks [matrices][rows][columns / 32][16] and scales
 *          [matrices][rows][columns / 32], both U8
 *
 * Words are I32, other scales F32, F16 or BF16.  Fails on other types and
 * shapes, naming both tensors, and where the files declare packed matrices and
 * there are none, or the reverse. */
int kv_weights_unpack(struct kv_weights *w, const char *dir, struct kv_err *e);

#endif
