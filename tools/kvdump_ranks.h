/* kvdump --ranks: windows by the ranks of mpirun, or layers.  Each rank writes
 * a dump of its own windows or layers, dump-2-of-3.h5; the first writes
 * dump.h5, an index that is read as one dump of all.  One rank writes dump.h5
 * alone. */
#ifndef KVDUMP_RANKS_H
#define KVDUMP_RANKS_H

#include "eval/ranks.h"
#include "lib/dump.h"
#include "lib/model/model.h"
#include "lib/windows.h"

struct kvdump_out {
    struct kv_ranks *ranks;
    struct kv_dump_info whole;
    struct kv_dump_info info;  /* of the rank's windows and layers */
    struct kv_windows windows; /* the rank's, within the caller's */
    struct kv_dump_writer *writer, *index; /* index: NULL but on the first of
                                            * several */
    char *path, **part;                    /* part: [ranks->n] */
    bool renaming; /* parts may have their final names, and no index yet */
};

/* Ranks meet, and files are opened.  path: the dump's, of info and windows of
 * all ranks; m: where they share layers, kv_ranks_by_layers() of it.  After a
 * failure too, end it with one of the next two. */
int kvdump_out_open(struct kvdump_out *o, struct kv_ranks *r,
                    const struct kv_model *m, const char *path,
                    const struct kv_dump_info *info, const struct kv_windows *w,
                    struct kv_err *e);

/* Where tokens of all windows and Gram matrices go on the first rank. */
struct kv_dump_writer *kvdump_out_whole(const struct kvdump_out *o);

/* All files appear, the index last; or none. */
int kvdump_out_commit(struct kvdump_out *o, const struct kv_windows *w,
                      struct kv_err *e);

/* Removes all that this run has written, also other ranks' that were killed. */
void kvdump_out_discard(struct kvdump_out *o);

#endif
