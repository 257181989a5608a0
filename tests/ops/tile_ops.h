/* The operations of a family of tiles (kernels/tiles/tiles.h) at the level in
 * use.  The family's file in tests/ops fills the stores. */
#ifndef KV_TESTS_TILE_OPS_H
#define KV_TESTS_TILE_OPS_H

#include "kernels/tiles/tiles.h"
#include "tests/ops/ops.h"

/* The input of an operation: queries or weights for head 1 of a store. */
struct tile_input {
    struct kv_store s; /* its tiles are the owner's */
    size_t rows, tiles;
    float *q, *p; /* [rows][head_dim], [rows][64 tiles] */
    void *owner;
};

/* stored: false if such tiles do not exist; no operation then takes the
 * input. */
struct tile_input *tile_input_new(bool stored, const struct kv_store *s,
                                  size_t rows, void *owner);
void tile_input_free(struct tile_input *in);

/* The table of a family that has kv_tile_ops for both paths. */
struct tile_paths {
    struct kv_tile_ops exact, int8;
};

/* tile_qk writes the results of prepare() and qk() for all tiles, tile by tile,
 * tile_pv those of pv() and finish().  _tiles: several tiles together, if a
 * version supports it; 8: path int8. */
check_run_fn tile_expand, tile_qk, tile_pv, tile_qk_tiles, tile_pv_tiles,
    tile_qk8, tile_pv8, tile_qk8_tiles, tile_pv8_tiles;

/* The bits of members of kv_tile_ops, which is the member `path` of a table. */
#define RUNS_QK(table, path)                                   \
    (RUNS(table, path.notes) | RUNS(table, path.query_bytes) | \
     RUNS(table, path.prepare) | RUNS(table, path.qk))
#define RUNS_PV(table, path)                               \
    (RUNS(table, path.acc_floats) | RUNS(table, path.pv) | \
     RUNS(table, path.finish))
#define RUNS_QK_TILES(table, path) \
    (RUNS(table, path.qk_tiles) | RUNS(table, path.by_chunks))

#endif
