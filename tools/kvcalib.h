/* kvcalib's options, shared by its two jobs. */
#ifndef KV_TOOL_KVCALIB_H
#define KV_TOOL_KVCALIB_H

#include "tools/common.h"

#include <stdbool.h>

enum { KVCALIB_QUERIES = 64 }; /* unless told */

struct kvcalib_args {
    struct kv_common common;
    struct kv_strings specs;
    const char *dump; /* or NULL */
    const char *factors;
    size_t iters;
    bool table;
    /* --allocate */
    const char *allocate, *calib, *model, *text;
    size_t ctx, windows, queries;
    bool allow_leakage, parse_special, bos;
};

/* --allocate: writes a layer file. */
int kvcalib_allocate(const struct kvcalib_args *a, struct kv_err *e);

#endif
