/* Times quantization on append on a GPU: encoding a block beside a step of
 * attention, and writing a tile that attention reads. */
#ifndef KV_APPEND_GPU_H
#define KV_APPEND_GPU_H

#include "kernels/device.h"
#include "lib/codec.h"

struct kv_attn_gpu;

/* Medians in seconds; NaN if the device does not encode these codecs. */
struct kv_append_times {
    double encode;   /* time of encoding without attention */
    double in_line;  /* encoding, then attention, in one stream */
    double aside;    /* encoding beside attention, in a stream of its own */
    double quantize; /* encoding a tile's tokens and writing them into the tile;
                      * also NaN if no kernel does both */
    double decode;   /* decoding a tile's tokens to f32 */
};

struct kv_append_gpu {
    const struct kv_device *device;
    struct kv_codec *const *codec; /* [KV_SIDES] */
    /* [n_batch][n][n_kv_heads][head_dim]; the first block and the newest tile
     * of each sequence are encoded */
    const float *x[KV_SIDES];
    size_t n, n_batch, copies;
    struct kv_attn_gpu *attend; /* the attention that runs beside */
    const float *out;           /* its outputs, from kv_attn_gpu_time() */
    size_t warmup, reps;
    uint64_t seed;
};

/* Times two tasks with cold caches.  The first encodes a block of keys and a
 * block of values (or a token, if blocks are tokens) of every sequence and copy
 * into separate memory.  The second encodes the newest tile of each sequence
 * and copy over the old tile; its time is NaN if a side has no tiles.  Fails
 * without memory, when the device's bytes differ from encode()'s or its values
 * from decode()'s, and when attention over the new tiles has other outputs. */
int kv_append_gpu_time(const struct kv_append_gpu *a,
                       struct kv_append_times *times, struct kv_err *e);

#endif
