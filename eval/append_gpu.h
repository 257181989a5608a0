/* Quantization on append on a GPU, timed: the time of a block that quantizes
 * during a step of attention, and of writing a tile of attention. */
#ifndef KV_APPEND_GPU_H
#define KV_APPEND_GPU_H

#include "kernels/device.h"
#include "lib/codec.h"

struct kv_attn_gpu;

/* Medians in seconds; NaN if the device does not encode these codecs. */
struct kv_append_times {
    double encode;   /* encoding alone */
    double in_line;  /* encoding, then attention, in one stream */
    double aside;    /* encoding beside attention, in a stream of its own */
    double quantize; /* encoding a tile's tokens and writing them into the tile;
                      * also NaN if there is no kernel for it */
    double decode;   /* decoding a tile's tokens to f32 */
};

struct kv_append_gpu {
    const struct kv_device *device;
    struct kv_codec *const *codec; /* [KV_SIDES] */
    /* [n_batch][n][n_kv_heads][head_dim]; encodes each sequence's first block
     * and newest tile of codes */
    const float *x[KV_SIDES];
    size_t n, n_batch, copies;
    struct kv_attn_gpu *attend; /* the attention that runs beside */
    const float *out;           /* its outputs, from kv_attn_gpu_time() */
    size_t warmup, reps;
    uint64_t seed;
};

/* Times two tasks with cold caches.  The first encodes a block of keys and a
 * block of values (or a token, if blocks are tokens) of every sequence and copy
 * into separate memory.  The second encodes the newest tile of each over the
 * old tile; its time is NaN if a side has no tiles.  Fails without memory, when
 * bytes are not encode()'s or values not decode()'s, and when attention over
 * the new tiles has other outputs. */
int kv_append_gpu_time(const struct kv_append_gpu *a,
                       struct kv_append_times *times, struct kv_err *e);

#endif
