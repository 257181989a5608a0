/* Storage families on the device: the layout of a side's codes and the kernels
 * that attend to them.  A family is kernels/<name>/cuda.cuh (its policies,
 * which define the layout), cuda_pack.c (the order of its bytes) and cuda.cu
 * (its instances).  The generic kernel (generic.h) takes all other codes. */
#ifndef KV_CUDA_FAMILIES_H
#define KV_CUDA_FAMILIES_H

#include "kernels/cuda/decode.h"
#include "kernels/tiles/tiles.h"
#include "lib/base/err.h"

#include <stdbool.h>

/* One side of a cache in a family's layout on the device. */
struct kv_gpu_side {
    const struct kv_store *store; /* bits of the codes */
    enum kv_path path;            /* the path in use */
    bool bf16;                    /* family "float": bf16; else fp16 */
    size_t tile_bytes;            /* bytes of 128 tokens of one KV head */
    size_t whole;  /* tokens that become codes together; 0: a tile */
    bool together; /* a tile, and tile_bytes, cover all KV heads; packed as head
                    * 0 */
    /* Packs tile i of a KV head into `to`, tile_bytes of zeros; all the tile's
     * tokens are in the store. */
    void (*pack)(const struct kv_gpu_side *side, size_t head, size_t i,
                 uint8_t *to);
    /* Returns the number of bytes after all n tiles of a KV head and, unless
     * tiles is NULL, writes them after the packed tiles.  NULL: none. */
    size_t (*behind)(const struct kv_gpu_side *side, size_t head, size_t n,
                     uint8_t *tiles);
    /* The kernel's tables, [n_tables][table_bytes]: one for each KV head or one
     * for all; NULL: none.  Freed by the side's owner. */
    void *table;
    size_t n_tables, table_bytes;
    void *device_table; /* the table in device memory */
    size_t owned; /* the maximum bytes that a job's tile owns outside itself */
};

/* A launch has n_work pieces of work for each KV head, each for all rows. */
struct kv_gpu_launch {
    struct kv_decode p;
    bool prefill; /* many queries: by prefill.cuh, without work */
    size_t n_work, n_sequences, n_kv_heads, head_dim;
    uint64_t seed; /* seed of stochastic rounding */
    const struct kv_gpu_side *k, *v;
    size_t max_shared; /* bytes of shared memory that a block can have */
    bool measure;      /* only fill in the fields below */
    unsigned warps;    /* warps of a block of decoding */
    size_t shared;     /* shared memory that a block takes */
    size_t blocks;     /* blocks that a multiprocessor holds, at least 1 */
    size_t row_groups; /* groups of rows; each group's blocks read the cache */
    size_t min_tiles;  /* tiles with which all warps of a block have work */
};

#ifdef __cplusplus
extern "C" {
#endif

struct kv_gpu_family {
    const char *name;
    /* Whether the family supports this side; fills in the side, whose store and
     * path are set. */
    bool (*open)(struct kv_gpu_side *side);
    /* Launches; fails naming the code or shape that has no kernel. */
    int (*launch)(struct kv_gpu_launch *l, struct kv_err *e);
};

extern const struct kv_gpu_family kv_gpu_float, kv_gpu_integers_int8,
    kv_gpu_integers, kv_gpu_hack, kv_gpu_codebook, kv_gpu_scaled_codes,
    kv_gpu_levels, kv_gpu_transform, kv_gpu_generic_tiles;

enum { KV_GPU_MAX_DIM = 256 };

/* Writes tokens [first, first + n) of a KV head, decoded, to x [n][head_dim],
 * in the codes' space.  s: any store; first: a multiple of 32. */
void kv_gpu_rows(const struct kv_store *s, size_t head, size_t first, size_t n,
                 float *x);

/* All families, then NULL.  The first family with kernels for both sides is
 * used; the generic one is last. */
extern const struct kv_gpu_family *const kv_gpu_families[];

bool kv_gpu_float_open(struct kv_gpu_side *side);
/* Packs a tile of halves for any side: x [128][head_dim]; the first n tokens
 * exist. */
void kv_gpu_float_pack(bool values, size_t head_dim, const float *x, size_t n,
                       uint8_t *to);

#ifdef __cplusplus
}
#endif

#endif
