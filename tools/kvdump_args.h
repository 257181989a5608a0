/* kvdump's options, and which of them go together. */
#ifndef KV_KVDUMP_ARGS_H
#define KV_KVDUMP_ARGS_H

#include "lib/dump.h"
#include "tools/common.h"

enum { KVDUMP_BATCH = 1 }; /* sequences, where none are asked for */

struct kvdump_args {
    struct kv_common common;
    const char *model, *text, *what, *rope, *layers, *dtype, *gemm;
    size_t ctx, windows, batch, pool_heads;
    const char *shape; /* a config.json alone */
    /* --from */
    const char *from, *config, *layout, *name;
    const char *split; /* --ranks */
    double theta;      /* NaN: not given */
    bool tokens, about, operations, fisher, parse_special, bos, ranks;
    bool have[KV_TENSORS]; /* --what, --rope and --fisher */
    enum kv_dtype type;    /* --dtype */
};

/* The tensors that --what, --rope and --fisher name.  Ends the program where
 * they name none. */
void kvdump_parse_tensors(const struct kvdump_args *a, bool have[KV_TENSORS]);

/* The operand: a shape, in place of a model.  Ends the program where there are
 * others. */
void kvdump_parse_shape(struct kvdump_args *a, char *const *operand, int n);

/* Ends the program where options contradict each other or miss one. */
void kvdump_check_args(const struct kvdump_args *a);

/* The option that replaces a dump; NULL: none. */
const char *kvdump_instead(const struct kvdump_args *a);

/* Whether ranks have layers, not windows. */
bool kvdump_by_layers(const struct kvdump_args *a);

#endif
