/* kvdump's options, and which of them may be combined. */
#ifndef KV_KVDUMP_ARGS_H
#define KV_KVDUMP_ARGS_H

#include "lib/dump.h"
#include "tools/common.h"

enum { KVDUMP_BATCH = 1 }; /* default number of sequences */

struct kvdump_args {
    struct kv_common common;
    const char *model, *text, *what, *rope, *layers, *dtype, *gemm;
    size_t ctx, windows, batch, pool_heads;
    const char *shape; /* the operand: a config.json, without weights */
    /* --from */
    const char *from, *config, *layout, *name;
    const char *split; /* --ranks */
    double theta;      /* NaN: not given */
    bool tokens, about, operations, fisher, parse_special, bos, ranks;
    bool have[KV_TENSORS]; /* --what, --rope and --fisher */
    enum kv_dtype type;    /* --dtype */
};

/* The tensors that --what, --rope and --fisher name.  Ends the program if they
 * name none. */
void kvdump_parse_tensors(const struct kvdump_args *a, bool have[KV_TENSORS]);

/* Takes the operand as a shape, given instead of a model.  Ends the program if
 * there are other operands. */
void kvdump_parse_shape(struct kvdump_args *a, char *const *operand, int n);

/* Ends the program if options contradict each other or need another option. */
void kvdump_check_args(const struct kvdump_args *a);

/* The option that replaces a dump; NULL: none. */
const char *kvdump_instead(const struct kvdump_args *a);

/* Whether ranks share layers, not windows. */
bool kvdump_by_layers(const struct kvdump_args *a);

#endif
