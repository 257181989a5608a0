/* How integers of 8 bits in groups lie on the device for path int8, for those
 * who read tiles (grouped_int8.cuh) and who write them (grouped_int8_pack.c).
 *
 * A tile of 128 tokens is 4 steps of 32:
 *
 *   | [heads] |                            of the tile
 *   | codes, 32 bytes a channel | [heads] |    of a step
 *
 * A code is a signed byte: less 128, or, where one zero is for all, less that.
 * Codes of a step are a matrix, of tokens x channels (keys) or channels x
 * tokens (values), in fragments a of gpu.cuh, 16 bytes of a lane each:
 *
 *   keys    [token / 16][channel / 32][lane][16]: a lane's columns 4c .. and
 *           4c + 16 .. are the 8 channels from 8c on
 *   values  [channel / 16][lane][16]: columns 4c .. 4c + 3 are tokens 2c,
 *           2c + 8, 2c + 1, 2c + 9, columns 16 + 4c .. those 16 later
 *
 * Heads are, group by group, | steps | lows | rests |: vectors of halves, over
 * the channels of a group of tokens, or over the step's tokens of a group of
 * channels: [token % 8][token / 8].  Lows are what code 0 stands for, rests
 * what halves leave of them where they are products, of zeros and steps; one
 * zero for all leaves no lows.  Heads are the tile's where groups of tokens
 * outlast a step. */
#ifndef KV_INTEGERS_CUDA_INT8_H
#define KV_INTEGERS_CUDA_INT8_H

#include "kernels/cuda/families.h"

enum { KV_BYTES_STEP = 32, KV_BYTES_MIDDLE = 128 };

/* What kernels are given of a side, by value. */
struct kv_gpu_bytes {
    unsigned shift;    /* a group is 2^shift tokens (folded keys) or channels */
    unsigned n_groups; /* whose heads lie in one place */
    unsigned heads;    /* bytes of the heads of one */
    unsigned lows;     /* where lows begin in these; 0: there are none */
    unsigned rests;    /* where rests begin; 0: there are none */
    int in_head;       /* heads are the tile's */
    unsigned head_bytes, step_bytes;
};

#ifdef __cplusplus
extern "C" {
#endif

bool kv_gpu_bytes_open(struct kv_gpu_side *side);
struct kv_gpu_bytes kv_gpu_bytes_of(const struct kv_store *s);
/* What codes are less. */
int kv_gpu_bytes_zero(const struct kv_integers *g);

#ifdef __cplusplus
}
#endif

#endif
