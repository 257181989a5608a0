/* kernels/transform: coefficients and qk on path int8 are the same bits at
 * every level; sums of f32, and keys that are rotated as floats, are in an
 * order of the level's own (impl.h). */
#include "kernels/transform/impl.h"
#include "tests/ops/tile_ops.h"
#include "tests/transform_setup.h"

#include <stdio.h>

struct kept {
    struct made *made;
    struct kv_store store;
    struct kv_tiles_rope *rope;
    struct kv_transform *transform;
};

/* Up to `max` coefficients for each head, with arbitrary means and inverse. */
static struct kept *keep(size_t d, size_t max, bool values, bool rope)
{
    struct kept *k = kv_alloc(1, sizeof(*k));
    float freq[MAX_D / 2];

    const struct kv_rope_pairs halves = {d / 2, 1, d / 2};

    for (size_t i = 0; i < d / 2; i++)
        freq[i] = powf(10000, -2 * (float)i / (float)d);
    k->made = make(d, max);
    for (size_t i = 0; i < MAX_D * MAX_D; i++)
        k->made->unit[i / MAX_D][i % MAX_D] =
            0.16f * (float)kv_random_normal(2, i);
    for (size_t i = 0; i < HEADS * d; i++)
        k->made->mean[i] = (float)kv_random_normal(3, i);
    k->rope = rope ? kv_tiles_rope_new(d, halves, freq) : NULL;
    k->transform = fill(k->made, values, k->rope, &k->store);
    return k;
}

/* Values, keys after RoPE and keys before it. */
static void *open_store(size_t i, struct check_size *size)
{
    static const size_t shape[][2] = {{90, 0},  {90, 30},  {90, 60},  {90, 90},
                                      {64, 64}, {128, 33}, {128, 128}};
    enum { KINDS_OF_STORE = 3 };
    const size_t kind = i % KINDS_OF_STORE,
                 rows = i / KINDS_OF_STORE % ROWS + 1;
    const size_t *of = shape[i / KINDS_OF_STORE / ROWS % COUNT(shape)];
    struct kept *k;

    if (i == KINDS_OF_STORE * ROWS * COUNT(shape))
        return NULL;
    snprintf(size->label, sizeof(size->label), "%zu of %zu %s rows%zu", of[1],
             of[0],
             kind == 0   ? "V"
             : kind == 1 ? "K"
                         : "K before RoPE",
             rows);
    size->timed = of[1] == 128 && rows == 4;
    k = keep(of[0], of[1], kind == 0, kind == 2);
    return tile_input_new(true, &k->store, rows, k);
}

static void close_store(void *input)
{
    struct tile_input *in = input;
    struct kept *k = in->owner;

    kv_store_free(&k->store);
    kv_transform_free(k->transform);
    kv_tiles_rope_free(k->rope);
    free_made(k->made);
    free(k);
    tile_input_free(in);
}

#define OPS struct kv_transform_ops
static const struct check_op ops[] = {
    {"expand", RUNS(OPS, expand), 1e-6, tile_expand},
    {"qk", RUNS(OPS, expand), 1e-6, tile_qk},
    {"pv", RUNS(OPS, pv) | RUNS(OPS, lanes), 1e-6, tile_pv},
    {"qk int8", RUNS(OPS, codes) | RUNS(OPS, qk8) | RUNS(OPS, qk8_rotated),
     1e-5, tile_qk8},
    {"pv int8", RUNS(OPS, pv8) | RUNS(OPS, lanes8), 1e-6, tile_pv8},
};

const struct check_family check_transform = {
    "transform", MEMBERS(OPS), ops, COUNT(ops), false, open_store, close_store};
