/* Attention of decode steps on a GPU, for kv_generate().  Caches stay in host
 * memory, where tokens are encoded and bits are counted; each layer's codes are
 * copied to the device as they come (kernels/cuda/gpu_attend.h). */
#ifndef KV_GENERATE_GPU_H
#define KV_GENERATE_GPU_H

#include "kernels/device.h"
#include "lib/codec.h"
#include "lib/seq/seq.h"

/* The layers of all sequences with one spec. */
struct kv_gpu_layers;

/* name: of the spec, for notes; name and device are kept by pointer.  The
 * codecs of the sequences must live until the layers are freed. */
struct kv_gpu_layers *kv_gpu_layers_new(const char *name, size_t n_layers,
                                        const struct kv_device *device);
void kv_gpu_layers_free(struct kv_gpu_layers *g); /* NULL is fine */

/* Frees the copies of a sequence; g NULL is fine. */
void kv_gpu_layers_drop(struct kv_gpu_layers *g, uint64_t id);

/* Whether the device attends in the layer; false once it is known to have no
 * kernel, or no room. */
bool kv_gpu_layers_has(const struct kv_gpu_layers *g, size_t layer);

/* A sequence whose newest token is in the layer.  id: its number, which no
 * other sequence ever has.  q, out: [n_heads][head_dim]. */
struct kv_gpu_query {
    struct kv_seq *seq;
    const struct kv_tile_cache *tiles; /* kv_seq_tiles() of the layer */
    uint64_t id;
    const float *q;
    float *out;
};

/* Attention of the newest token of each of n sequences, which are all with this
 * spec; row = n_heads * head_dim.  Only where kv_gpu_layers_has().  Where the
 * device has no kernel or no memory is left, the CPU attends from here on, and
 * a note says so once.  Fails if the device does. */
int kv_gpu_layers_attend(struct kv_gpu_layers *g, size_t layer,
                         const struct kv_gpu_query *query, size_t n, size_t row,
                         struct kv_err *e);

#endif
