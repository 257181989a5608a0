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
};

/* Of every type none, one, some, and a row of 4096. */
static void *open_blocks(size_t i, struct check_size *size)
{
    enum { SIZES = 4 };
    const enum kv_stored type = KV_STORED_Q4_0 + i / SIZES;
    struct blocks *b;

    if (type == KV_STORED_OTHER)
        return NULL;
    b = kv_alloc(1, sizeof(*b));
    b->type = type;
    b->n = i % SIZES < 2    ? i % SIZES
           : i % SIZES == 2 ? 9
                            : 4096 / kv_stored_values(type);
    b->bytes = test_blocks(type, b->n);
    snprintf(size->label, sizeof(size->label), "%s n%zu", kv_stored_name(type),
             b->n * kv_stored_values(type));
    size->timed = i % SIZES == 3;
    return b;
}

static void close_blocks(void *in)
{
    struct blocks *b = in;

    free(b->bytes);
    free(b);
}

CHECK_RUN(decode, struct blocks,
          r->n *kv_stored_values(r->type) * sizeof(float),
          kv_stored_decode(r->type, r->bytes, r->n *kv_stored_values(r->type),
                           out))

/* The types are the members of the table. */
static const struct check_op ops[] = {
    {"decode", (RUNS(struct kv_weight_decoders, decode[KV_STORED_OTHER]) - 1),
     0, decode},
};

const struct check_family check_weights = {
    "weights",   MEMBERS(struct kv_weight_decoders),
    ops,         COUNT(ops),
    false,       open_blocks,
    close_blocks};
