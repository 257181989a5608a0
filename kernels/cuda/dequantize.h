/* Dequantizes a whole cache to halves before attention reads it: the baseline
 * of fused kernels. */
#ifndef KV_CUDA_DEQUANTIZE_H
#define KV_CUDA_DEQUANTIZE_H

#include "kernels/cuda/generic.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Launches the conversion of all runs of codes of `from` [n_sequences] to the
 * runs of `to`.  Tiles of `from` have the layout that kv_gpu_generic_open()
 * gives k and v; tiles of `to` are halves in the order of float/cuda.cuh.  Both
 * are device memory; no run of codes has more than n_tiles tiles of 128 tokens.
 */
int kv_gpu_dequantize(const struct kv_gpu_side *k, const struct kv_gpu_side *v,
                      const struct kv_gpu_sequence *from,
                      const struct kv_gpu_sequence *to, size_t n_sequences,
                      size_t n_kv_heads, size_t n_tiles, struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
