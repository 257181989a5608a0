/* Quantized matrices of a folder (kernels/weights/packed.h).  Safetensors hold
 * several tensors for each:
 *
 *   fp8    X.weight, X.weight_scale_inv or X.weight_scale
 *   gptq   X.qweight, X.qzeros, X.scales, X.g_idx (may be left out)
 *   awq    X.qweight, X.qzeros, X.scales
 *   mxfp4  X_blocks, X_scales: one pair holds the matrices of all experts
 *   compressed-tensors
 *          8 bits: X.weight of floats or integers, and X.weight_scale
 *          words: X.weight_packed, X.weight_scale and X.weight_shape; with
 *          zeros also X.weight_zero_point, with act order X.weight_g_idx
 *          nvfp4, mxfp4: X.weight_packed and X.weight_scale; with nvfp4 also
 *          X.weight_global_scale
 *   bitsandbytes
 *          int8: X.weight and X.SCB
 *          4 bits: X.weight, and after that name .absmax, .quant_map,
 *          .quant_state.bitsandbytes__nf4 (or __fp4); with double quantization
 *          also .nested_absmax and .nested_quant_map
 *   ModelOpt's nvfp4
 *          X.weight, X.weight_scale, X.weight_scale_2
 *
 * Each becomes one tensor X.weight, or X for mxfp4.  Activations are not
 * quantized, whatever activation_scheme says; tensors with scales of
 * activations are not used. */
#ifndef KV_MODEL_PACKED_TENSORS_H
#define KV_MODEL_PACKED_TENSORS_H

#include "lib/model/weights.h"

/* dir: the model's folder.  Its files say what is packed (packed_header.h), and
 * every type and shape follows from them:
 *
 *   fp8    weight [rows][columns] F8; scale [] or [1] for the whole matrix,
 *          [rows] or [rows, 1], or, where weight_block_size is given,
 *          [rows / block, columns / block], rounded up
 *   gptq   qweight [inputs * bits / 32][outputs],
 *          qzeros [groups][outputs * bits / 32], scales [groups][outputs],
 *          g_idx [inputs]; a group has group_size inputs, the last may have
 *          fewer
 *   awq    qweight [inputs][outputs * bits / 32], the rest as gptq's
 *   words  weight_packed [rows][columns * bits / 32], rounded up, weight_shape
 *          I64 [2], weight_scale [rows][groups], weight_zero_point
 *          [rows * bits / 32][groups], rounded up, weight_g_idx [columns]
 *   nvfp4  codes U8 [rows][columns / 2], scales F8_E4M3 [rows][columns / 16],
 *          and one F32 that scales the scales
 *   mxfp4  one matrix: codes as nvfp4's, scales U8 [rows][columns / 32]
 *          several: blocks U8 [matrices][rows][columns / 32][16], scales U8
 *          [matrices][rows][columns / 32]
 *   nf4    (or fp4) codes U8, two a byte; the JSON object quant_state says the
 *          rest: blocksize values share a scale.  Its dtype, to which other
 *          programs round the values, is not applied.
 *   int8   codes I8 [rows][columns], SCB F32 [rows]
 *
 * Words are I32, other scales F32, F16 or BF16.  Fails on other types and
 * shapes, naming both tensors.  Also fails if the files declare packed matrices
 * and there are none, or the reverse. */
int kv_weights_unpack(struct kv_weights *w, const char *dir, struct kv_err *e);

#endif
