/* Quantization on append on a GPU, timed: what the block costs that settles
 * beside a step of attention. */
#ifndef KV_APPEND_GPU_H
#define KV_APPEND_GPU_H

#include "kernels/device.h"
#include "lib/codec.h"

struct kv_attn_gpu;

/* Medians, seconds; NaN where the device does not encode these codecs. */
struct kv_append_times {
    double encode;  /* alone */
    double in_line; /* then attention, one after the other in one stream */
    double aside;   /* beside attention, in a stream of its own */
};

struct kv_append_gpu {
    const struct kv_device *device;
    struct kv_codec *const *codec; /* [KV_SIDES] */
    const float *x[KV_SIDES]; /* [n_batch][n][n_kv_heads][head_dim], of which
                               * each sequence's first block is encoded */
    size_t n, n_batch, copies;
    struct kv_attn_gpu *attend; /* what runs beside */
    size_t warmup, reps;
    uint64_t seed;
};

/* A block of keys and one of values (a token, where blocks are tokens) of every
 * sequence and copy, with cold caches; into memory of their own: the caches
 * stay as they are.  Fails without memory, and when the bytes are not
 * encode()'s. */
int kv_append_gpu_time(const struct kv_append_gpu *a,
                       struct kv_append_times *times, struct kv_err *e);

#endif
