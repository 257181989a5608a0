/* What a decoding step of a model does on the device beside matrix products
 * (product.h) and attention (gpu_attend.h).  Activations are halves, sums f32;
 * everything launches and does not wait. */
#ifndef KV_CUDA_STEP_H
#define KV_CUDA_STEP_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

/* Where the newest token of a sequence goes: halves in the order of float.cuh,
 * place `token` of a run of tiles; k NULL: nowhere, it is codes already. */
struct kv_gpu_slot {
    uint8_t *k, *v;
    size_t head_bytes; /* from one KV head's tiles to the next's */
    unsigned token;    /* of the run */
    unsigned position; /* in the sequence */
};

#ifdef __cplusplus
extern "C" {
#endif

/* x [n]: numbers in [-scale, scale) that depend on seed and place alone. */
int kv_gpu_random(void *x, size_t n, uint64_t seed, float scale,
                  struct kv_err *e);

/* RMSNorm: out [rows][n] = x / sqrt(mean x^2 + eps) * weight [n]. */
int kv_gpu_norm(const void *x, const void *weight, size_t rows, size_t n,
                float eps, void *out, struct kv_err *e);

/* qkv: [rows][n_heads + 2 n_kv_heads][head_dim], a token of each sequence.
 * Queries and keys are turned (RoPE, halves apart, inv_freq [head_dim / 2]);
 * q: [rows][n_heads][head_dim] f32; keys and values go into slot [rows]. */
int kv_gpu_rope(const void *qkv, const struct kv_gpu_slot *slot,
                const float *inv_freq, size_t rows, size_t n_heads,
                size_t n_kv_heads, size_t head_dim, float *q, struct kv_err *e);

/* out [rows][n] = silu(x[.., 0 .. n)) * x[.., n .. 2 n); x: [rows][2 n]. */
int kv_gpu_gate(const void *x, size_t rows, size_t n, void *out,
                struct kv_err *e);

/* x [rows][n], in place: softmax(scale x). */
int kv_gpu_softmax(void *x, size_t rows, size_t n, float scale,
                   struct kv_err *e);

/* f32 to halves. */
int kv_gpu_narrow(const float *x, size_t n, void *out, struct kv_err *e);

#ifdef __cplusplus
}
#endif

#endif
