/* kvdump --ranks: the ranks of mpirun share windows or layers.  Each rank
 * writes a dump of its own windows or layers, dump-2-of-3.h5; the first rank
 * also writes dump.h5, an index that readers open as one whole dump.  A single
 * rank writes only dump.h5. */
#ifndef KVDUMP_RANKS_H
#define KVDUMP_RANKS_H

#include "eval/ranks.h"
#include "lib/dump.h"
#include "lib/model/model.h"
#include "lib/windows.h"

struct kvdump_out {
    struct kv_ranks *ranks;
    struct kv_dump_info whole;
    struct kv_dump_info info;              /* the rank's windows and layers */
    struct kv_windows windows;             /* the rank's, within the caller's */
    struct kv_dump_writer *writer, *index; /* index: NULL except on the first of
                                            * several ranks */
    char *path, **part;                    /* part: [ranks->n] */
    bool renaming; /* parts may already have their final names, without an
                    * index */
};

/* Lets the ranks meet and opens the files.  path, info: the whole dump's; m:
 * the model, if ranks share layers (after kv_ranks_by_layers()).  The caller
 * ends it with kvdump_out_commit() or _discard(), also after a failure. */
int kvdump_out_open(struct kvdump_out *o, struct kv_ranks *r,
                    const struct kv_model *m, const char *path,
                    const struct kv_dump_info *info, const struct kv_windows *w,
                    struct kv_err *e);

/* The dump that receives what belongs to no single rank: the tokens of all
 * windows, and on the first rank the Gram matrices. */
struct kv_dump_writer *kvdump_out_whole(const struct kvdump_out *o);

/* Makes all files appear, the index last, or none. */
int kvdump_out_commit(struct kvdump_out *o, const struct kv_windows *w,
                      struct kv_err *e);

/* Removes all files that this run has written, also those of killed ranks. */
void kvdump_out_discard(struct kvdump_out *o);

#endif
