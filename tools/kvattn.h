/* kvattn's options and the state of a run, shared by its files. */
#ifndef KV_TOOL_KVATTN_H
#define KV_TOOL_KVATTN_H

#include "eval/attn_bench.h"
#include "lib/base/progress.h"
#include "tools/common.h"

enum { KV_ATTN_PATHS = KV_ATTN_DEQUANT + 1 };

struct kvattn_args {
    struct kv_common common;
    struct kv_strings specs, shapes, models, paths;
    struct kv_sizes ctxs, batches;
    const char *dump, *calib;
    size_t layer, windows, queries, reps, warmup, repeats;
    bool allow_leakage, warm;
};

struct kvattn_run {
    const char *shape;    /* the current value of --shape, or NULL */
    struct kv_dump *dump; /* NULL with --shape and -m */
    struct kv_attn_inputs inputs;
    struct kv_calib *calib;
    bool random_calib; /* the tables are random, so no error is reported */
    double leak;
    struct kv_spec *spec;
    size_t n_specs;
    char model[64], protocol[32];
    struct kv_conditions conditions;
    struct kv_results *table;
    struct kv_bench *bench;
    struct kv_attn_bench how;
    enum kv_attn_path path[KV_ATTN_PATHS]; /* in --path's order */
    size_t n_paths;
    struct kv_attn_step *base;
    double bandwidth;
    struct kv_progress progress; /* runs */
    size_t left_out; /* specs for which the GPU has no kernel or no room */
    size_t rows, noisy;
};

/* kvattn_open_table() opens the table; kvattn_run_all() writes a row for every
 * spec on every path. */
int kvattn_open_table(struct kvattn_run *r, const struct kvattn_args *a,
                      struct kv_err *e);
int kvattn_run_all(struct kvattn_run *r, const struct kvattn_args *a,
                   struct kv_err *e);

/* Adds the specs as fitted to one shape, for a table of several shapes. */
int kvattn_add_specs(const struct kvattn_args *a, const struct kv_shape *shape,
                     struct kv_spec **all, size_t *n, struct kv_err *e);

/* Clears the parts of a run that the next shape or model sets anew. */
void kvattn_next(struct kvattn_run *r);

/* --columns help: for all tables, and for -m's table. */
void kvattn_about_columns(void);
void kvattn_about_step(void);

/* -m: a decoding step of each model's shape, context and batch.  The caller
 * still releases the run. */
int kvattn_step(struct kvattn_run *r, const struct kvattn_args *a,
                struct kv_err *e);

#endif
