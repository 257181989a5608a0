/* The transform of keys of lib/schemes/codebook.h and its inverse, with each
 * operation in the same order and rounded once. */
#ifndef KV_CUDA_HADAMARD_CUH
#define KV_CUDA_HADAMARD_CUH

#include "kernels/cuda/gpu.cuh"
#include "kernels/device_code.h"
#include "kernels/hadamard.h"

#include <math.h>

struct kv_rotate {
    unsigned head_dim, n_heads, size; // size: of a Hadamard block, 1 for none
    float scale;
    const float *smooth;
    bool hadamard_first;
};

static kv_rotate kv_rotate_of(const struct kv_gpu_code *c)
{
    const struct kv_gpu_centroids *v = &c->codebook;
    const size_t size = v->hadamard ? kv_hadamard_size(c->head_dim) : 1;

    return {(unsigned)c->head_dim,
            (unsigned)c->n_heads,
            (unsigned)size,
            (float)(1 / sqrt((double)size)),
            v->smooth,
            v->hadamard_first};
}

// A warp transforms a row in shared memory, with passes from the widest to the
// narrowest.
KV_DEVICE void kv_hadamard_row(const kv_rotate &t, float *row)
{
    for (unsigned half = t.size / 2; half > 0; half /= 2) {
        for (unsigned i = kv_lane(); i < t.head_dim / 2; i += 32) {
            const unsigned j = i / half * 2 * half + i % half;
            const float a = row[j], b = row[j + half];

            row[j] = a + b;
            row[j + half] = a - b;
        }
        kv_sync_warp();
    }
    for (unsigned i = kv_lane(); t.size > 1 && i < t.head_dim; i += 32)
        row[i] *= t.scale;
    kv_sync_warp();
}

// Transforms a row of one head into the codes' space.
KV_DEVICE void kv_rotate_row(const kv_rotate &t, unsigned head, float *row)
{
    if (t.hadamard_first)
        kv_hadamard_row(t, row);
    for (unsigned i = kv_lane(); t.smooth && i < t.head_dim; i += 32)
        row[i] /= t.smooth[head * t.head_dim + i];
    kv_sync_warp();
    if (!t.hadamard_first)
        kv_hadamard_row(t, row);
}

// Transforms a row of one head back to the model's space.
KV_DEVICE void kv_rotate_back(const kv_rotate &t, unsigned head, float *row)
{
    if (!t.hadamard_first)
        kv_hadamard_row(t, row);
    for (unsigned i = kv_lane(); t.smooth && i < t.head_dim; i += 32)
        row[i] *= t.smooth[head * t.head_dim + i];
    kv_sync_warp();
    if (t.hadamard_first)
        kv_hadamard_row(t, row);
}

#endif
