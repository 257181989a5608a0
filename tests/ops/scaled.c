/* kernels/scaled: expand() gives the codec's values at every level, bit for
 * bit, and path int8 the same bits; path exact adds up f32 in an order of the
 * level's own. */
#include "kernels/scaled/impl.h"
#include "tests/ops/tile_ops.h"
#include "tests/tile_setup.h"

#include <stdio.h>

/* Cases with 1 to 8 rows, then the cases that are timed. */
static void *open_store(size_t i, struct check_size *size)
{
    static const char *const timed[] = {"nf4", "mxfp4", "turboquant:b2", "fp8"};
    const size_t n = COUNT(scaled_specs) * 2 * KV_TILE_ROWS;
    const size_t at = i / 2 / KV_TILE_ROWS;
    const bool bench = i >= n;
    const enum kv_side side = i % 2;
    const char *text;
    struct held *h;
    size_t d;

    if (i >= n + 2 * COUNT(timed))
        return NULL;
    text = bench ? timed[(i - n) / 2] : scaled_specs[at].text;
    d = bench ? 128 : scaled_specs[at].head_dim;
    snprintf(size->label, sizeof(size->label), "%s d%zu %c", text, d,
             kv_side_name(side));
    size->timed = bench;
    h = kv_alloc(1, sizeof(*h));
    return tile_input_new(hold(h, text, d, side, bench ? 640 : 70, !bench),
                          &h->store, bench ? 4 : 1 + i / 2 % KV_TILE_ROWS, h);
}

static void close_store(void *input)
{
    struct tile_input *in = input;

    let_go(in->owner);
    free(in->owner);
    tile_input_free(in);
}

#define LOOPS struct kv_scaled_loops
static const struct check_op ops[] = {
    {"expand", RUNS(LOOPS, expand) | RUNS(LOOPS, scales), 0, tile_expand},
    {"qk", RUNS(LOOPS, qk), 1e-6, tile_qk},
    {"pv", RUNS(LOOPS, pv), 1e-6, tile_pv},
};

const struct check_family check_scaled = {
    "scaled", MEMBERS(LOOPS), ops, COUNT(ops), false, open_store, close_store};

static const struct check_op int8_ops[] = {
    {"qk", RUNS(struct kv_scaled_int8, qk), 0, tile_qk8},
    {"pv", RUNS(struct kv_scaled_int8, pv), 0, tile_pv8},
};

const struct check_family check_scaled_int8 = {
    "scaled int8", MEMBERS(struct kv_scaled_int8),
    int8_ops,      COUNT(int8_ops),
    false,         open_store,
    close_store};
