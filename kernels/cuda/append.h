/* Packs codes that the device encoded (device_code.h) into the tiles of
 * attention, byte for byte as <family>/cuda_pack.c packs the CPU's tiles. */
#ifndef KV_CUDA_APPEND_H
#define KV_CUDA_APPEND_H

#include "kernels/cuda/families.h"
#include "kernels/device_code.h"

/* The newest tile of codes of each of n sequences, of one side. */
struct kv_gpu_append {
    const struct kv_gpu_side *side;
    const struct kv_gpu_code *code;          /* its block size divides a tile */
    const uint8_t *bytes;                    /* device memory: [n][128 /
                                              * block][block_bytes] */
    const struct kv_gpu_sequence *sequences; /* device memory: [n] */
    size_t n;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Launch the packing for families "integers" (both paths), "hack" and
 * "codebook"; sequences without a tile of codes are skipped. */
int kv_gpu_append_groups(const struct kv_gpu_append *s, struct kv_err *e);
int kv_gpu_append_hack(const struct kv_gpu_append *s, struct kv_err *e);
int kv_gpu_append_codebook(const struct kv_gpu_append *s, struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
