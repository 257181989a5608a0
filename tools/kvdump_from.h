/* kvdump --from: a dump of keys, values and queries that a file or folder of
 * another program holds (tools/kvdump_arrays.h). */
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

/* Names everything that is missing in one sentence. */
int kvdump_from(const struct kvdump_from *f, struct kv_err *e);

#endif
