/* Family "transform" on the device (kernels/transform/transform.h): arguments
 * of kernels per side.  A token has one bitstream for all KV heads.  64 tokens'
 * bitstreams are stored as words whose highest bit comes first in the
 * bitstream,
 *
 *   | word 0 of 64 tokens | word 1 of 64 tokens | .. | angles |
 *
 * where angles, for keys before RoPE, are the first token's cosines and sines,
 * f32 [head_dim / 2][2].  A block has a tile of K and one of V in shared
 * memory, which bounds n_kv_heads * head_dim * bits. */
#ifndef KV_TRANSFORM_CUDA_H
#define KV_TRANSFORM_CUDA_H

#include "kernels/cuda/families.h"

#define KV_TRANSFORM_DIMS(X) X(64) X(96) X(128) X(256)

/* A coefficient's place is word << 13 | table << 5 | shift: the last bit of its
 * state is `shift` bits above the lowest bit of that word. */
enum { KV_PLACE_SHIFT = 5, KV_PLACE_TABLE = 8 };

/* Arrays are device memory; slots: the head's coefficients in any order. */
struct kv_gpu_transform_side {
    unsigned n_words, n_tables;
    bool rotated;           /* keys before RoPE */
    const uint16_t *tables; /* [n_tables][states] halves */
    const uint32_t *place;  /* [n_kv_heads][head_dim slots] */
    const uint32_t *n;      /* [n_kv_heads], slots in use */
    const float *mean;      /* [n_kv_heads][head_dim] */
    /* [n_kv_heads][from][to], keys: channels to slots, values: slots to
     * channels.  Not for keys before RoPE. */
    const float *matrix;
    /* Only for keys before RoPE.  within: angles of tokens 0 to 7 of a tile and
     * of each eighth token, [2][8][head_dim / 2][2]; fragment: slots to
     * channels, halves in the order of cuda.cu. */
    const float *within;
    const uint32_t *fragment;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Only for the head dimensions KV_TRANSFORM_DIMS, and only if the matrix from
 * coefficients to keys fits the range of halves. */
bool kv_gpu_transform_open(struct kv_gpu_side *side);
struct kv_gpu_transform_side
kv_gpu_transform_side_of(const struct kv_gpu_side *side);

#ifdef __cplusplus
}
#endif

#endif
