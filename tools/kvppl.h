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

#include <string.h>

#define KVPPL_NOT_OWN SIZE_MAX /* without --own */

struct kvppl_args {
    struct kv_common common;
    struct kv_strings specs;
    struct kv_strings models, texts, calibs, protocols;
    struct kv_sizes ctxs, windows;
    const char *gemm, *kl_base, *base, *split;
    struct kv_shard shard;
    size_t pool_heads;
    size_t jitter; /* repeats of each row */
    size_t own;    /* --own; KVPPL_NOT_OWN if not given, which kvppl_check_own()
                    * makes 0 */
    double own_temperature;
    const char *curve, *records, *places;
    bool parse_special, bos, kl, kl_read, keep_window, allow_leakage, resume,
        append, no_base, ranks;
};

static inline bool kvppl_random_places(const struct kvppl_args *a)
{
    return a->places && !strcmp(a->places, "random");
}

/* A model that settings share; the first setting opens it. */
struct kvppl_model {
    const char *path;
    struct kv_model *model;
    struct kv_tokenizer *tokenizer;
};

/* State shared by all rows of the program. */
struct kvppl_study {
    struct kvppl_model *model; /* [n_models] */
    size_t n_models;
    struct kvppl_run *run; /* [n], one a setting */
    size_t n;
    struct kv_results *table, *curve; /* curve: NULL without --kl-curve */
    struct kv_results_keys keys;
    struct kv_h5 *records; /* NULL without --records */
    size_t n_sets, n_records;
    struct kv_h5 *base_from, *base_to; /* --base, which is read or written */
    size_t n_bases;
    struct kv_ranks ranks; /* one rank without --ranks */
};

/* The requested parameters of a setting. */
struct kvppl_wanted {
    const char *text, *protocol;
    size_t ctx, windows;
};

/* The extent of the scored text; zeros if its tokens cannot be decoded. */
struct kvppl_extent {
    double bytes, words;
    int32_t *window; /* [windows]: bytes */
};

/* A setting: a model, a text, windows and a protocol.  Its specs share a base
 * line. */
struct kvppl_run {
    struct kvppl_study *study;
    struct kvppl_wanted of;
    struct kv_model *model; /* the study's, like the tokenizer */
    struct kv_tokenizer *tokenizer;
    struct kv_windows text;
    size_t n_tokens;       /* tokens of a window, own text included */
    const int32_t *tokens; /* [windows][n_tokens] evaluated tokens */
    struct kvppl_extent extent;
    struct kv_protocol protocol;
    struct kv_calib *calib;
    double leak;
    struct kv_spec *spec; /* [n_all], the other shards' specs follow n_specs */
    size_t n_specs, n_all;
    struct kv_ppl *ppl;
    struct kv_progress progress;   /* over all rows: windows x layers */
    char what[KV_SPEC_CHARS + 64]; /* "row 3 of 18, SPEC" */
    size_t row, n_rows;            /* the current run's row */
    struct kv_klbase *from_file, *to_file;
    struct kv_conditions conditions;
    const char *places; /* of the windows: "first" or "random" */
    uint8_t *there;     /* [n_specs]: rows that need not be measured */
    bool floor; /* --gemm auto chose bf16, so the f16 cache has a row of its
                 * own */
};

/* Lists the settings: models x texts x contexts x windows x protocols.
 * kvppl_study_clear() releases the whole study. */
int kvppl_list_settings(struct kvppl_study *s, const struct kvppl_args *a,
                        struct kv_err *e);
void kvppl_study_clear(struct kvppl_study *s);

/* Loads everything that a setting needs, and opens each spec once, so that a
 * spec that cannot run fails before the first row. */
int kvppl_load_setting(struct kvppl_run *r, const struct kvppl_args *a,
                       struct kvppl_model *m, struct kv_err *e);
/* Measures the setting's rows. */
int kvppl_run_setting(struct kvppl_run *r, const struct kvppl_args *a,
                      struct kv_err *e);

/* --own: checks its options, and sets a->own and a->kl. */
void kvppl_check_own(struct kvppl_args *a);
/* *ctx: the tokens that a window takes from the text; with --own, the model's
 * own text follows them.  Sets the model's context and the protocol. */
int kvppl_own_context(struct kvppl_run *r, const struct kvppl_args *a,
                      size_t *ctx, struct kv_err *e);
/* Lets the model write the own text.  tokens: [windows][ctx + own], which the
 * caller frees. */
int kvppl_write_own(struct kvppl_run *r, const struct kvppl_args *a,
                    int32_t **tokens, struct kv_err *e);

/* Open, close or discard the table of perplexities, and with --kl-curve the
 * table of divergence by position. */
int kvppl_open_tables(struct kvppl_study *s, const struct kvppl_args *a,
                      struct kv_err *e);
int kvppl_close_tables(struct kvppl_study *s, struct kv_err *e);
void kvppl_discard_tables(struct kvppl_study *s);
/* The columns that tell under which conditions a row was measured. */
void kvppl_put_conditions(const struct kvppl_run *r, struct kv_results *t,
                          const struct kv_spec *spec);
/* row: the spec's scores; the scores of each repeat of --jitter follow, except
 * for the base line. */
int kvppl_put_row(struct kvppl_run *r, const struct kvppl_args *a,
                  const struct kv_spec *spec, const struct kv_ppl_row *row,
                  struct kv_err *e);
/* --jitter: refuses options that do not go with it. */
int kvppl_check_jitter(const struct kvppl_args *a, struct kv_err *e);
/* The standard deviation of kl_mean over a row and its n repeats; NaN: not
 * measured. */
double kvppl_kl_jitter(const struct kv_ppl_row *row, size_t n);
/* Describe a row on stderr.  floor: the f16 row, which --gemm auto adds when it
 * chooses bf16; it shows how far bf16 products alone move a row. */
void kvppl_say_floor(const struct kv_score_summary *s);
void kvppl_say_row(const struct kvppl_run *r, const struct kv_spec *spec,
                   const struct kv_score_summary *s);

/* Opens the table of perplexities, with these columns and the parameters of n
 * specs. */
int kvppl_open_table(struct kvppl_study *s, const struct kvppl_args *a,
                     const char *const *columns, const struct kv_spec *specs,
                     size_t n, struct kv_err *e);
/* --resume, --append: whether an earlier run measured the spec's row; that row
 * then becomes the table's current row.  base: the base line, or NULL. */
bool kvppl_find_row(struct kvppl_run *r, const struct kv_spec *spec,
                    const struct kv_spec *base);

/* Sets r->extent, for bits per byte and perplexity per word. */
void kvppl_measure_text(struct kvppl_run *r);

/* --columns help. */
void kvppl_about_columns(void);

/* --records: open the file; write what the following rows share; write a row;
 * close the file.  Without the option they do nothing. */
int kvppl_records_open(struct kvppl_study *s, const struct kvppl_args *a,
                       struct kv_err *e);
int kvppl_records_set(struct kvppl_run *r, struct kv_err *e);
int kvppl_records_row(struct kvppl_run *r, const struct kvppl_args *a,
                      const struct kv_spec *spec, const struct kv_ppl_row *row,
                      struct kv_err *e);
int kvppl_records_close(struct kvppl_study *s, struct kv_err *e);

/* --base: open the file, for reading if it exists; read the base line instead
 * of running it; save the base line after its run; close a file that was
 * written.  Without the option the last two do nothing. */
int kvppl_open_base(struct kvppl_study *s, const struct kvppl_args *a,
                    struct kv_err *e);
int kvppl_load_base(struct kvppl_run *r, struct kv_ppl_row *row,
                    struct kv_err *e);
int kvppl_save_base(struct kvppl_run *r, const struct kv_ppl_row *row,
                    struct kv_err *e);
int kvppl_close_base(struct kvppl_study *s, struct kv_err *e);

bool kvppl_by_layers(const struct kvppl_args *a); /* --split */
/* --ranks: refuses options that do not go with it. */
int kvppl_check_ranks(const struct kvppl_args *a, struct kv_err *e);
/* Fails unless all ranks have the same model, text and other settings.  All
 * ranks then use the first rank's r->there. */
int kvppl_meet_ranks(struct kvppl_run *r, const struct kvppl_args *a,
                     struct kv_err *e);

#endif
