/* kernels/weights: every version gives the same bits (weights.h). */
#include "kernels/weights/impl.h"
#include "tests/ops/ops.h"
#include "tests/weights_setup.h"

#include <stdio.h>
#include <stdlib.h>

struct blocks {
    enum kv_stored type;
    size_t n; /* blocks */
    uint8_t *bytes;
    float *x; /* a value for each of theirs */
};

/* For every type: none, one, some, and a row of 4096. */
static void *open_blocks(size_t i, struct check_size *size)
{
    enum { SIZES = 4 };
    const enum kv_stored type = i / SIZES;
    struct blocks *b;

    if (type == KV_STORED_OTHER)
        return NULL;
    b = kv_alloc(1, sizeof(*b));
    b->type = type;
    b->n = i % SIZES < 2    ? i % SIZES
           : i % SIZES == 2 ? 9
                            : 4096 / kv_stored_values(type);
    b->bytes = test_blocks(type, b->n);
    b->x = kv_alloc(b->n * kv_stored_values(type), sizeof(*b->x));
    for (size_t j = 0; j < b->n * kv_stored_values(type); j++)
        b->x[j] = (float)kv_random_normal(1, j);
    snprintf(size->label, sizeof(size->label), "%s n%zu", kv_stored_name(type),
             b->n * kv_stored_values(type));
    size->timed = i % SIZES == 3;
    return b;
}

static void close_blocks(void *in)
{
    struct blocks *b = in;

    free(b->x);
    free(b->bytes);
    free(b);
}

CHECK_RUN(decode, struct blocks,
          r->n *kv_stored_values(r->type) * sizeof(float),
          kv_stored_decode(r->type, r->bytes, r->n *kv_stored_values(r->type),
                           out))

/* A matrix of one row. */
CHECK_RUN(times, struct blocks, sizeof(float),
          kv_stored_times(r->type, r->bytes, 1, r->n *kv_stored_values(r->type),
                          r->x, 1, out, 1))

/* Rows of 256 values times 8 x, or as many as there are rows. */
enum { MANY_ROW = 256, MANY_X = 8 };

static size_t many(const void *in, void *out)
{
    const struct blocks *b = in;
    const size_t rows = b->n * kv_stored_values(b->type) / MANY_ROW;
    const size_t m = rows < MANY_X ? rows : MANY_X;

    if (!rows)
        return CHECK_NONE;
    kv_stored_times(b->type, b->bytes, rows, MANY_ROW, b->x, m, out, rows);
    return m * rows * sizeof(float);
}

/* The types are members of the table. */
#define LOOPS struct kv_weights_loops
#define RUNS_ALL(member) \
    (RUNS(LOOPS, member[KV_STORED_OTHER]) - RUNS(LOOPS, member))

static const struct check_op ops[] = {
    {"decode", RUNS_ALL(decode), 0, decode},
    {"times", RUNS_ALL(times), 0, times},
    {"many", RUNS(LOOPS, many), 0, many},
};

const struct check_family check_weights = {
    "weights", MEMBERS(LOOPS), ops,         COUNT(ops),
    false,     open_blocks,    close_blocks};
