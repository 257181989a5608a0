/* The generic kernel: attention to any tiles of kernels/tiles/tiles.h of the
 * families float, integers, scaled, levels, codebook and rotated, in the CPU's
 * layout, with sizes at run time; and to the tiles of family hack
 * (kernels/hack/cuda_layout.h, cuda_generic.cuh).  For all families but hack
 * this file defines a launch's arguments per side.  generic_tiles.cuh reads the
 * values, generic_rotated.cuh first computes them from rotated rows, generic.cu
 * attends.  A tile:
 *
 *   | the CPU's tile | levels: outliers | keys before RoPE: angles |
 *
 * Outliers replace the CPU's pointer to them in the tile,
 *
 *   | where token t's end: u16 [64] | struct kv_levels_outlier [] |
 *
 * with room for the largest number in any tile of the launch; angles are the
 * first token's, cosine and sine: f32 [head_dim / 2][2]. */
#ifndef KV_CUDA_GENERIC_H
#define KV_CUDA_GENERIC_H

#include "kernels/cuda/families.h"
#include "kernels/scaled/scaled.h"

enum kv_generic_kind {
    KV_GENERIC_HALVES, /* ordered like float/cuda.cuh: sinks and tail */
    KV_GENERIC_ROTATED,
    KV_GENERIC_F32,
    KV_GENERIC_F16,
    KV_GENERIC_BF16,
    KV_GENERIC_INTEGERS,
    KV_GENERIC_SCALED,
    KV_GENERIC_LEVELS,
    KV_GENERIC_CODES,
    KV_GENERIC_HACK /* its values are never read */
};

/* Layout of a tile of families "scaled" and "levels"
 * (kernels/scaled/scaled.h). */
struct kv_generic_scaled {
    unsigned bits, low, high; /* bits of a code, of its planes; high may be 0 */
    unsigned low_vectors, high_vectors; /* bytes of a unit of a plane */
    unsigned lane_bytes, plane_bytes, part_bytes;
    enum kv_scale_kind scale;
    unsigned group, n_groups;
    float divisor;
    unsigned e, m; /* exponent of a small float; 0: the table has the values */
};

/* The additional arrays of family "levels" (kernels/levels/levels.h). */
struct kv_generic_levels {
    const float *channels;      /* device memory: keys' offsets and halves,
                                 * [n_kv_heads][2][head_dim] */
    unsigned offsets, outliers; /* positions of values' offsets; of outliers */
};

enum kv_generic_order { KV_GENERIC_SHARED, KV_GENERIC_OWN, KV_GENERIC_WIDE };

/* Family "codebook" (kernels/codebook/codebook.h). */
struct kv_generic_codes {
    enum kv_generic_order order;
    unsigned d, bits, n_sub;
    unsigned book, books; /* floats from one sub-space's table to the next's,
                           * and from one KV head's tables to the next's; 0:
                           * shared */
};

/* Family "rotated" (kernels/tiles/rotated.h); its row is `integers`. */
struct kv_generic_rotated {
    const uint32_t *place; /* device memory: [n_kv_heads * head_dim] */
    bool after;
    unsigned codes; /* codes that a head needs: a transform's, or the row's */
    unsigned block; /* size of the Hadamard transform */
    float scale;    /* the transform's factor */
};

enum { KV_ROTATED_TOKENS = 8 }; /* tokens transformed back at a time */

/* RoPE, for keys that are stored before RoPE. */
struct kv_generic_rotate {
    const float *within; /* device memory: angles from a tile's first token on,
                          * cosine and sine, [head_dim / 2][64][2]; NULL: no
                          * RoPE */
    unsigned angles;     /* position of the first token's angles */
};

/* One side of a launch.  64 tokens of a KV head take tile_bytes; the first
 * head_bytes of them are a part of a table that `span` tiles share. */
struct kv_gpu_generic {
    enum kv_generic_kind kind;
    unsigned head_dim, tile_bytes, head_bytes, span;
    unsigned workspace; /* bytes behind a tile in shared memory */
    bool together;      /* a tile holds all KV heads */
    const float
        *table; /* device memory: centroids, or a scaled code's values */
    union {
        struct kv_integers integers;
        struct kv_generic_scaled scaled;
        struct kv_generic_codes codes;
    } of;
    struct kv_generic_levels levels;
    struct kv_generic_rotated rotated;
    struct kv_generic_rotate rotate;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Fills in a side whose tiles of 128 tokens are two of the CPU's.  Returns
 * false for keys before RoPE whose head_dim is no multiple of 8, and for other
 * families. */
bool kv_gpu_generic_open(struct kv_gpu_side *side);
struct kv_gpu_generic kv_gpu_generic_of(const struct kv_gpu_side *side);
/* The side of sinks and tail. */
struct kv_gpu_generic kv_gpu_generic_halves(size_t head_dim);

#ifdef __cplusplus
}
#endif

#endif
