/* Family "codebook" on the device: which codes have kernels, for the kernels
 * and the packing of their tiles. */
#ifndef KV_CODEBOOK_CUDA_H
#define KV_CODEBOOK_CUDA_H

#include "kernels/cuda/families.h"

/* Head dimension; values and bits of a code; whether each sub-space has a table
 * of its own; tokens of a step, stages of the ring and warps of a block at most,
 * on path exact and on int8.  Steps and stages are the largest with which two
 * blocks of 8 warps share a multiprocessor (113 KiB, 128 registers a thread)
 * where the tables leave room for that; warps, of 8, 10, 12 and 16, are the most
 * for which no register spills. */
/* clang-format off */
#define KV_CODEBOOKS(X) \
    X(64, 2, 8, false, 32, 2, 10, 32, 2, 10) \
    X(64, 4, 8, false, 64, 2, 8, 64, 2, 10) \
    X(64, 8, 8, false, 64, 3, 8, 64, 3, 8) \
    X(64, 4, 12, false, 32, 3, 10, 64, 3, 10) \
    X(64, 8, 12, false, 64, 3, 16, 64, 3, 10) \
    X(64, 2, 8, true, 32, 2, 10, 32, 3, 10) \
    X(64, 4, 8, true, 64, 2, 8, 64, 3, 10) \
    X(128, 2, 8, false, 16, 2, 10, 32, 3, 8) \
    X(128, 4, 8, false, 16, 4, 8, 32, 2, 10) \
    X(128, 8, 8, false, 16, 8, 8, 32, 4, 8) \
    X(128, 4, 12, false, 16, 3, 8, 32, 3, 8) \
    X(128, 8, 12, false, 64, 3, 12, 32, 2, 16) \
    X(128, 2, 8, true, 32, 2, 16, 32, 2, 16) \
    X(128, 4, 8, true, 32, 3, 12, 32, 2, 10)
/* clang-format on */

/* The bytes of a centroid in halves or bytes; shared centroids in bytes are
 * padded to whole words. */
#define KV_CODEBOOK_ENTRY(int8, own, d) \
    ((int8) ? ((own) || (d) >= 4 ? (d) : 4) : 2 * (d))

/* Codes in the kernels' form: two neighbouring 4-bit codes are one 8-bit code,
 * with a table of all pairs. */
struct kv_gpu_codes {
    size_t d;
    unsigned bits;
    bool own;
    size_t step; /* tokens; 0: no kernel */
};

#ifdef __cplusplus
extern "C" {
#endif

bool kv_gpu_codebook_open(struct kv_gpu_side *side);
struct kv_gpu_codes kv_gpu_codebook_codes(const struct kv_gpu_side *side);
/* Fails, naming the codes, if there is no kernel for the side's codes. */
int kv_gpu_codebook_check(const struct kv_gpu_side *side, struct kv_err *e);

/* Launches path int8 (cuda_int8.cu); codes: the form of both sides. */
int kv_gpu_codebook_int8(struct kv_gpu_launch *l, struct kv_gpu_codes codes,
                         struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
