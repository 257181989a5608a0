/* kvppl's options and the state of a run, shared by its jobs. */
#ifndef KV_TOOL_KVPPL_H
#define KV_TOOL_KVPPL_H

#include "eval/klbase.h"
#include "eval/ppl.h"
#include "eval/ranks.h"
#include "lib/base/progress.h"
#include "lib/base/shard.h"
#include "lib/h5.h"
#include "lib/results.h"
#include "lib/windows.h"
#include "tools/common.h"

#define KVPPL_NOT_OWN SIZE_MAX /* without --own */

struct kvppl_args {
    struct kv_common common;
    struct kv_strings specs;
    const char *gemm, *model, *text, *calib, *protocol, *kl_base;
    struct kv_shard shard;
    size_t ctx, windows, pool_heads;
    size_t jitter; /* repeats of each row */
    size_t own;    /* KVPPL_NOT_OWN; 0 after kvppl_check_own() */
    double own_temperature;
    const char *curve, *records;
    bool parse_special, bos, kl, kl_read, keep_window, allow_leakage, resume,
        append, no_base, ranks;
};

/* What all rows of the program share. */
struct kvppl_study {
    struct kv_results *table, *curve; /* curve: NULL without --kl-curve */
    struct kv_results_keys keys;
    struct kv_h5 *records; /* NULL without --records */
    size_t n_sets, n_records;
    struct kv_ranks ranks; /* without --ranks one */
};

/* The text that is scored; zeros where its tokens cannot be decoded. */
struct kvppl_extent {
    double bytes, words;
    int32_t *window; /* [windows]: bytes */
};

struct kvppl_run {
    struct kvppl_study *study;
    struct kv_model *model;
    struct kv_tokenizer *tokenizer;
    struct kv_windows text;
    size_t n_tokens; /* of a window, own text included */
    struct kvppl_extent extent;
    struct kv_protocol protocol;
    struct kv_calib *calib;
    double leak;
    struct kv_spec *spec; /* [n_all], of other shards behind n_specs */
    size_t n_specs, n_all;
    struct kv_ppl *ppl;
    struct kv_progress progress;   /* over all rows: windows x layers */
    char what[KV_SPEC_CHARS + 64]; /* "row 3 of 18, SPEC" */
    size_t row, n_rows;            /* that run */
    struct kv_klbase *from_file, *to_file;
    struct kv_conditions conditions;
    uint8_t *there; /* [n_specs]: rows that need not be measured */
};

/* Loads -C and checks it against the n tokens to be evaluated. */
int kvppl_load_calibration(struct kvppl_run *r, const struct kvppl_args *a,
                           const int32_t *tokens, size_t n, struct kv_err *e);

/* The specs of -s, as the protocol runs them. */
int kvppl_list_specs(struct kvppl_run *r, const struct kvppl_args *a,
                     struct kv_err *e);
/* Opens each once, for n tokens, so that a spec that cannot run fails before
 * the first row. */
int kvppl_try_specs(const struct kvppl_run *r, size_t n, struct kv_err *e);

/* --own: checks its options, and sets a->own and a->kl. */
void kvppl_check_own(struct kvppl_args *a);
/* Tokens of the text in a window, before which with --own there is room for
 * more; sets the model's context and the protocol. */
int kvppl_own_context(struct kvppl_run *r, const struct kvppl_args *a,
                      size_t *ctx, struct kv_err *e);
/* tokens: [windows][ctx + own], the caller's to free. */
int kvppl_write_own(struct kvppl_run *r, const struct kvppl_args *a,
                    int32_t **tokens, struct kv_err *e);

/* The table of perplexities, and with --kl-curve the other. */
int kvppl_open_tables(struct kvppl_run *r, const struct kvppl_args *a,
                      struct kv_err *e);
int kvppl_close_tables(struct kvppl_run *r, struct kv_err *e);
void kvppl_discard_tables(struct kvppl_run *r);
/* row: the spec's, and behind it a row for each repeat of --jitter, but for the
 * base line. */
int kvppl_put_row(struct kvppl_run *r, const struct kvppl_args *a,
                  const struct kv_spec *spec, const struct kv_ppl_row *row,
                  struct kv_err *e);
/* --jitter: what it goes without. */
int kvppl_check_jitter(const struct kvppl_args *a, struct kv_err *e);
/* The spread of kl_mean over a row and its n repeats, their standard deviation;
 * NaN: not measured. */
double kvppl_kl_jitter(const struct kv_ppl_row *row, size_t n);
/* On stderr. */
void kvppl_say_row(const struct kvppl_run *r, const struct kv_spec *spec,
                   const struct kv_score_summary *s);

/* The first table, of these columns. */
int kvppl_open_table(struct kvppl_run *r, const struct kvppl_args *a,
                     const char *const *columns, struct kv_err *e);
/* --resume, --append: whether an earlier run measured the spec's row, which
 * then is the row being made.  base: NULL, or what rows are compared with. */
bool kvppl_find_row(struct kvppl_run *r, const struct kv_spec *spec,
                    const struct kv_spec *base);

/* Sets r->extent, for bits per byte and the like, of the tokens that are
 * evaluated. */
void kvppl_measure_text(struct kvppl_run *r, const int32_t *tokens);

/* --records: the file; what the rows that follow share; a row; its end.
 * Without the option they do nothing. */
int kvppl_records_open(struct kvppl_study *s, const struct kvppl_args *a,
                       struct kv_err *e);
int kvppl_records_set(struct kvppl_run *r, const int32_t *tokens,
                      struct kv_err *e);
int kvppl_records_row(struct kvppl_run *r, const struct kvppl_args *a,
                      const struct kv_spec *spec, const struct kv_ppl_row *row,
                      struct kv_err *e);
int kvppl_records_close(struct kvppl_study *s, struct kv_err *e);

/* --ranks: the options that it goes without. */
int kvppl_check_ranks(const struct kvppl_args *a, struct kv_err *e);
/* Whether all ranks have the same model, text and so on; they then go on with
 * the first one's r->there. */
int kvppl_meet_ranks(struct kvppl_run *r, const struct kvppl_args *a,
                     struct kv_err *e);

#endif
