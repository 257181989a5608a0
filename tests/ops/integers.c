/* kernels/integers: expand() gives the codec's values at every level, bit for
 * bit; sums of f32 and of integers times f32 scales are in an order of the
 * level's own. */
#include "kernels/integers/impl.h"
#include "tests/ops/tile_ops.h"
#include "tests/tile_setup.h"

#include <stdio.h>

/* All codes are the largest, heads and weights are 1: the largest sums. */
static void set_largest(struct tile_input *in)
{
    const struct kv_integers *g = in->s.params;
    const size_t d = in->s.head_dim, row = in->tiles * KV_TILE_TOKENS;

    for (size_t i = 0; i < in->tiles; i++) {
        uint8_t *tile = kv_store_tile(&in->s, 1, i);

        memset(tile, 0xff, in->s.tile_bytes);
        for (size_t k = 0; k < g->head_bytes / 2; k++)
            ((uint16_t *)(void *)tile)[k] = 0x3c00;
    }
    for (size_t i = 0; i < in->rows * d; i++)
        in->q[i] = i / d % 2 ? -1 : 1;
    for (size_t i = 0; i < in->rows * row; i++)
        in->p[i] = i % row < in->s.n;
}

/* Every spec at every head_dim and side, of a few tokens, of many, and of many
 * that are the largest; then what is timed. */
static void *open_store(size_t i, struct check_size *size)
{
    static const char *const timed[] = {"kivi:b2g32r0", "kivi:b2g64r0",
                                        "kivi:b4g128r0", "absmax:b4g32"};
    const size_t n_dims = COUNT(integers_dims);
    const size_t n = COUNT(integers_specs) * n_dims * 2 * 3;
    const size_t at = i / 6, some = i % 3;
    const bool bench = i >= n;
    const enum kv_side side = bench ? (i - n) % 2 : i / 3 % 2;
    const size_t d = bench ? 128 : integers_dims[at % n_dims];
    struct tile_input *in;
    struct held *h;
    const char *text;
    bool stored;

    if (i >= n + 2 * COUNT(timed))
        return NULL;
    text = bench ? timed[(i - n) / 2] : integers_specs[at / n_dims];
    snprintf(size->label, sizeof(size->label), "%s d%zu %c%s", text, d,
             kv_side_name(side), bench || some < 2 ? "" : " largest");
    size->timed = bench;
    h = kv_alloc(1, sizeof(*h));
    stored = fits(text, d) && hold(h, text, d, side,
                                   bench  ? 640
                                   : some ? 451
                                          : 131,
                                   false);
    in = tile_input_new(stored, &h->store, bench ? 4 : 1 + i % KV_TILE_ROWS, h);
    if (stored && !bench && some == 2)
        set_largest(in);
    return in;
}

static void close_store(void *input)
{
    struct tile_input *in = input;
    struct held *h = in->owner;

    if (h->codec)
        let_go(h);
    free(h);
    tile_input_free(in);
}

#define TABLE struct kv_integers_table
static const struct check_op ops[] = {
    {"expand", RUNS(TABLE, expand), 0, tile_expand},
    {"qk", RUNS_QK(TABLE, exact), 2e-6, tile_qk},
    {"pv", RUNS_PV(TABLE, exact), 2e-6, tile_pv},
    {"qk int8", RUNS_QK(TABLE, int8), 2e-6, tile_qk8},
    {"pv int8", RUNS_PV(TABLE, int8), 2e-6, tile_pv8},
    {"qk_tiles", RUNS_QK_TILES(TABLE, exact), 2e-6, tile_qk_tiles},
    {"pv_tiles", RUNS(TABLE, exact.pv_tiles), 2e-6, tile_pv_tiles},
    {"qk_tiles int8", RUNS_QK_TILES(TABLE, int8), 2e-6, tile_qk8_tiles},
    {"pv_tiles int8", RUNS(TABLE, int8.pv_tiles), 2e-6, tile_pv8_tiles},
};

const struct check_family check_integers = {
    "integers", MEMBERS(TABLE), ops, COUNT(ops), true, open_store, close_store};
