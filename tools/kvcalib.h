/* kvcalib's options, shared by its jobs. */
#ifndef KV_TOOL_KVCALIB_H
#define KV_TOOL_KVCALIB_H

#include "eval/ranks.h"
#include "tools/common.h"

#include <stdbool.h>

enum { KVCALIB_QUERIES = 64 }; /* default */

struct kvcalib_args {
    struct kv_common common;
    struct kv_strings specs;
    const char *dump; /* may be NULL */
    const char *factors, *tables, *export;
    size_t iters;
    bool table, ranks;
    /* --allocate */
    const char *allocate, *calib, *model, *text;
    size_t ctx, windows, queries;
    bool allow_leakage, parse_special, bos;
};

struct kv_calib;
struct kv_dump;

/* kv_calib_run() on all ranks: the first rank gets all tables, each other rank
 * only its own. */
int kvcalib_train(struct kv_calib **c, struct kv_ranks *r,
                  const struct kvcalib_args *a, struct kv_dump *dump,
                  const struct kv_spec *specs, size_t n_specs,
                  const struct kv_calib *factors, struct kv_err *e);

/* --columns help of --allocate. */
void kvcalib_about_allocate(void);

/* The value of --export that prints options for an engine in place of a
 * file. */
#define KVCALIB_LLAMA_CPP "llama.cpp"

/* --export: writes scales or tables of a calibration, or prints llama.cpp's
 * options. */
int kvcalib_export(const struct kvcalib_args *a, struct kv_err *e);

/* --allocate: writes a layer file. */
int kvcalib_allocate(const struct kvcalib_args *a, struct kv_err *e);

#endif
