#include "kernels/cuda/gpu_pieces.h"

#include <stdint.h>

/* The time of a launch whose pieces are at most max tiles long, in tiles. */
static size_t time_of(const struct kv_gpu_places *p, const size_t *tiles,
                      size_t n, size_t max)
{
    size_t pieces = 0;

    for (size_t i = 0; i < n; i++)
        pieces += kv_gpu_n_pieces(tiles[i], max);

    const size_t waves = (pieces * p->heads + p->places - 1) / p->places;

    return waves * (max + KV_GPU_PIECE_OVERHEAD);
}

size_t kv_gpu_piece_tiles(const struct kv_gpu_places *p, const size_t *tiles,
                          size_t n)
{
    size_t longest = 0, best = p->min_tiles, least = SIZE_MAX;

    for (size_t i = 0; i < n; i++)
        longest = tiles[i] > longest ? tiles[i] : longest;
    for (size_t pieces = 1; pieces <= p->places; pieces++) {
        const size_t max = (longest + pieces - 1) / pieces;

        if (max < p->min_tiles)
            break;

        const size_t time = time_of(p, tiles, n, max);

        if (time < least) {
            least = time;
            best = max;
        }
    }
    return best;
}
