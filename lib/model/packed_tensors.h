/* Quantized matrices of a folder (kernels/weights/packed.h).  Safetensors hold
 * several tensors for each:
 *
 *   fp8    X.weight, X.weight_scale_inv or X.weight_scale
 *   gptq   X.qweight, X.qzeros, X.scales, X.g_idx (may be left out)
 *   awq    X.qweight, X.qzeros, X.scales
 *   mxfp4  X_blocks, X_scales: of several matrices, those of experts
 *   compressed-tensors
 *          X.weight and X.weight_scale of floats or integers of 8 bits; else
 *          X.weight_packed, X.weight_scale, and X.weight_shape, of zeros
 *          X.weight_zero_point, of act order X.weight_g_idx; or
 *          X.weight_global_scale of nvfp4
 *   bitsandbytes
 *          X.weight of int8 and X.SCB; else X.weight of 4 bits with .absmax,
 *          .quant_map, .quant_state.bitsandbytes__nf4 (or __fp4), of double
 *          quantization also .nested_absmax and .nested_quant_map behind its
 *          name
 *   ModelOpt's nvfp4
 *          X.weight, X.weight_scale, X.weight_scale_2
 *
 * Each becomes one tensor X.weight, or X for mxfp4.  Activations are not
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
 *   words  weight_packed [rows][columns * bits / 32], rounded up, weight_shape
 *          I64 [2], weight_scale [rows][groups], weight_zero_point
 *          [rows * bits / 32][groups], rounded up, weight_g_idx [columns]
 *   nvfp4  codes U8 [rows][columns / 2], scales F8_E4M3 [rows][columns / 16],
 *          the scale of all F32, one number; mxfp4 of one matrix: scales U8
 *          [rows][columns / 32]
 *   nf4    codes U8, two a byte; what the quant_state says, a JSON object, of
 *          blocksize values a scale; its dtype, to which others round values,
 * is not applied; int8: codes I8 [rows][columns], SCB F32 [rows] mxfp4  blocks
 * [matrices][rows][columns / 32][16] and scales [matrices][rows][columns / 32],
 * both U8
 *
 * Words are I32, other scales F32, F16 or BF16.  Fails on other types and
 * shapes, naming both tensors, and if the files declare packed matrices and
 * there are none, or the reverse. */
int kv_weights_unpack(struct kv_weights *w, const char *dir, struct kv_err *e);

#endif
