/* kvdump --from: makes a dump of the keys, values and queries in another
 * program's file or folder (tools/kvdump_arrays.h). */
#ifndef KV_KVDUMP_FROM_H
#define KV_KVDUMP_FROM_H

#include "lib/base/err.h"
#include "lib/dump.h"

struct kvdump_from {
    const char *path, *output;
    const char *config;    /* the model's config.json, a file or its folder; or
                            * NULL */
    const char *layout;    /* "htd", "thd"; NULL: derived from the shape */
    const char *name;      /* the model's name; NULL: config's, else path's */
    const double *theta;   /* RoPE's base if there is no config; NULL: not
                            * given */
    bool have[KV_TENSORS]; /* tensors to write, if they are there */
    enum kv_dtype type;
};

/* Makes the dump.  Fails with one sentence that names everything that is
 * missing. */
int kvdump_from(const struct kvdump_from *f, struct kv_err *e);

#endif
