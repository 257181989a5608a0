/* kernels/codebook: expand() gives the centroids at every level, bit for bit;
 * path int8 has the same bits, by products and by tables; tables of path exact
 * add up f32 in an order of the level's own. */
#include "tests/codebook_setup.h"
#include "tests/ops/tile_ops.h"

#include <stdio.h>
#include <string.h>

struct store {
    size_t head_dim, d;
    unsigned bits;
    bool own, per_head, timed;
    size_t tiles, as_if; /* as_if: pretends that each centroid has this many
                          * tokens */
};

/* By products: any bits and dimensions; exact by tables: many tiles of 3 to 8
 * bits; int8 by tables: 64 tokens for each centroid, of 5 to 8 bits. */
static bool store_of(size_t i, struct store *s)
{
    static const size_t shape[][2] = {
        {2, 1},    {2, 2},   {6, 3},   {7, 7},   {10, 5},   {20, 10},
        {22, 1},   {24, 12}, {42, 2},  {48, 16}, {64, 4},   {66, 6},
        {80, 16},  {96, 3},  {128, 8}, {128, 1}, {240, 16}, {512, 4},
        {320, 16}, {20, 2},  {40, 8},  {56, 8}};
    static const struct store timed[] = {
        {128, 2, 4, false, false, true, 10, 0},
        {128, 4, 8, false, false, true, 10, 0},
        {128, 4, 8, true, false, true, 10, 0},
        {128, 8, 12, false, false, true, 10, 0},
        {128, 8, 8, true, false, true, 10, 64},
    };
    const size_t kinds = 12 * 2 * 3, n = COUNT(shape) * kinds;
    const size_t *of = shape[i / kinds % COUNT(shape)];

    if (i >= n + COUNT(timed))
        return false;
    *s = (struct store){.head_dim = of[0],
                        .d = of[1],
                        .bits = 1 + i % 12,
                        .own = i / 12 % 2,
                        .per_head = i % 5 == 0,
                        .tiles = i / 24 % 3 == 1 ? MANY + FEW : 2};
    if (i >= n)
        *s = timed[i - n];
    else if (i / 24 % 3 == 2) {
        s->tiles = SOME;
        s->as_if = 64;
    }
    return true;
}

/* Centroids of nothing, or of nearly nothing. */
static void flatten(struct setup *s, unsigned bits, bool values, size_t i)
{
    static const float size[] = {0, 1e-42f, 1e-30f};

    kv_codebook_free(s->book);
    for (size_t c = 0; c < s->head_books * s->sub_books * s->k * s->d; c++)
        s->centers[c] *= size[i % COUNT(size)];
    s->book = kv_codebook_new(s->centers, s->head_books, s->sub_books, s->n_sub,
                              s->d, bits, values, NULL);
    kv_store_codebook(&s->store, s->book);
}

/* Tables for all centroids and tiles would take long without testing more. */
static bool worth(const struct store *s)
{
    const size_t tables = s->own ? s->head_dim / s->d : 1;

    return s->timed || (tables << s->bits) * s->d <= 1 << 15;
}

static void *open_store(size_t i, struct check_size *size)
{
    struct tile_input *in;
    struct setup *c;
    struct store s;

    if (!store_of(i / 2, &s))
        return NULL;
    snprintf(size->label, sizeof(size->label), "d%zu of %zu b%u %s%s%s %c", s.d,
             s.head_dim, s.bits, s.own ? "own" : "shared",
             s.per_head ? " per head" : "", s.as_if ? " tables8" : "",
             "KV"[i % 2]);
    size->timed = s.timed;
    if (!worth(&s))
        return tile_input_new(false, NULL, 0, NULL);
    c = kv_alloc(1, sizeof(*c));
    *c = setup(s.head_dim, s.d, s.bits, s.own, s.per_head, i % 2, s.tiles);
    if (i % 7 == 3 && !s.timed)
        flatten(c, s.bits, i % 2, i / 7);
    in = tile_input_new(true, &c->store, s.timed ? 4 : 1 + i % KV_TILE_ROWS, c);
    if (s.as_if)
        in->s.n = s.as_if * c->k;
    return in;
}

static void close_store(void *input)
{
    struct tile_input *in = input;

    if (in->owner)
        clear(in->owner);
    free(in->owner);
    tile_input_free(in);
}

#define TABLE struct tile_paths
static const struct check_op ops[] = {
    {"expand", 0, 0, tile_expand},
    {"qk", RUNS_QK(TABLE, exact), 1e-6, tile_qk},
    {"pv", RUNS_PV(TABLE, exact), 1e-6, tile_pv},
    {"qk_tiles", RUNS_QK_TILES(TABLE, exact), 1e-6, tile_qk_tiles},
    {"pv_tiles", RUNS(TABLE, exact.pv_tiles), 2e-6, tile_pv_tiles},
    {"qk int8", RUNS_QK(TABLE, int8), 0, tile_qk8},
    {"pv int8", RUNS_PV(TABLE, int8), 0, tile_pv8},
    {"qk_tiles int8", RUNS_QK_TILES(TABLE, int8), 0, tile_qk8_tiles},
    {"pv_tiles int8", RUNS(TABLE, int8.pv_tiles), 0, tile_pv8_tiles},
};

const struct check_family check_codebook = {
    "codebook", 0, ops, COUNT(ops), true, open_store, close_store};
