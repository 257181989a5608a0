/* Lengths of the pieces into which attention on a device is cut: a block takes
 * a piece of one run of tokens of one KV head. */
#ifndef KV_CUDA_GPU_PIECES_H
#define KV_CUDA_GPU_PIECES_H

#include <stddef.h>

struct kv_gpu_places {
    size_t places;    /* blocks that the device runs at once, at least 1 */
    size_t heads;     /* blocks of a piece: KV heads times groups of rows */
    size_t min_tiles; /* tiles with which all warps of a block have work, at
                       * least 1 */
};

/* The time that a block takes beside its tiles (start, tables, merging), in
 * units of a tile's time.  This is an estimate from times of H200 at batch 1;
 * no run has measured it. */
enum { KV_GPU_PIECE_OVERHEAD = 6 };

/* The number of equal pieces of a run, none longer than max tiles. */
static inline size_t kv_gpu_n_pieces(size_t tiles, size_t max)
{
    return (tiles + max - 1) / max;
}

/* Returns the largest number of tiles that a piece may have.  tiles: [n], the
 * tiles of each run of all sequences.  A device runs blocks in waves that fill
 * its places, and the last wave may leave places idle.  Of the lengths that cut
 * the longest run into equal pieces, none shorter than min_tiles, the function
 * picks the one with the smallest product of waves and (length + overhead). */
size_t kv_gpu_piece_tiles(const struct kv_gpu_places *p, const size_t *tiles,
                          size_t n);

#endif
