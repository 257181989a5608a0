/* kvgen's options and the state of a run, shared by its parts. */
#ifndef KV_TOOL_KVGEN_H
#define KV_TOOL_KVGEN_H

#include "eval/generate.h"
#include "eval/prompts.h"
#include "eval/sweep.h"
#include "eval/transfer/transfer.h"
#include "eval/window_mean.h"
#include "lib/base/file.h"
#include "lib/base/hash.h"
#include "tools/common.h"
#include "tools/kvgen_disaggregate.h"
#include "tools/kvgen_serve.h"

/* The value of --max-tokens if the option is not given. */
#define KVGEN_NOT_SAID SIZE_MAX

struct kvgen_args {
    struct kv_common common;
    struct kvgen_serve serve;
    struct kvgen_disaggregate disaggregate;
    struct kv_strings specs, stops;
    const char *model, *prompts, *score, *calib, *gemm;
    struct kv_shard shard;
    const char *chat_template, *chat_date;
    struct kv_sampling sampling;
    size_t ctx, max_tokens, min_tokens, samples, batch, pool_heads;
    bool parse_special, ignore_eos, allow_leakage, resume, append;
};

struct kvgen_run;

/* A job of kvgen: answers that the model writes, or the likelihood of given
 * continuations. */
struct kvgen_job {
    const char *const *fields;  /* fields of a line of -o, up to NULL */
    const char *const *columns; /* columns of a row, up to NULL */
    /* Writes the fields of an answer; base: the reference's answer, or NULL. */
    int (*put_fields)(const struct kvgen_run *r, const struct kv_out *out,
                      const struct kv_answer *x, const struct kv_answer *base,
                      struct kv_err *e);
    /* Reads the results that put_fields wrote; returns false if some are
     * missing. */
    bool (*take_fields)(const json_t *line, struct kv_answer *x);
    /* Fills the cells of a spec's row. */
    void (*put_cells)(const struct kvgen_run *r, const struct kvgen_args *a,
                      struct kv_results *t, size_t spec);
};

struct kvgen_run {
    struct kv_model *model;
    struct kv_tokenizer *tokenizer;
    struct kv_chat_model chat;
    struct kv_chat_clock clock;
    struct kv_prompts prompts;
    size_t n_messages;         /* prompts that are conversations */
    const char ***stop;        /* [n_mine]: the stop strings of each prompt */
    size_t *mine, n_mine;      /* [n_mine]: the shard's prompts */
    struct kv_spec *spec;      /* [n_specs] */
    size_t n_specs, reference; /* the index of the first spec that is f32 or
                                * f16; n_specs: none */
    struct kv_calib *calib;
    double leak;
    size_t ctx, batch;
    size_t longest;           /* tokens of the longest prompt and answer, if
                               * RoPE depends on the length; else 0 */
    struct kv_answer *answer; /* [n_mine][n_specs][samples] */
    size_t n_answers;
    struct kv_transferred *transferred; /* [n_answers] with --disaggregate */
    bool told;                          /* the user knows what failed */
    const struct kvgen_job *job;
    struct kvgen_journal *journal; /* NULL without --resume and --append */
    struct kv_out out;
    struct kv_conditions conditions;
};

/* Reads everything that the first answer needs. */
int kvgen_prepare(struct kvgen_run *r, const struct kvgen_args *a,
                  struct kv_err *e);
/* Writes the lines of the finished answers and the rows of their specs. */
int kvgen_put_results(struct kvgen_run *r, const struct kvgen_args *a,
                      struct kv_results *t, struct kv_err *e);

/* The first loads the model with its tokenizer and templates; the second lists
 * the specs of -s, or f32 if there are none. */
int kvgen_load_model(struct kvgen_run *r, const struct kvgen_args *a,
                     struct kv_err *e);
int kvgen_list_specs(struct kvgen_run *r, const struct kvgen_args *a,
                     struct kv_err *e);
/* Reads the prompts, their tokens and the limits of their answers: fills
 * r->prompts, r->mine, r->ctx and the conditions about the text. */
int kvgen_read_prompts(struct kvgen_run *r, const struct kvgen_args *a,
                       struct kv_err *e);
/* The most new tokens after this prompt, and the fewest before an end token may
 * come. */
size_t kvgen_most(const struct kvgen_run *r, const struct kvgen_args *a,
                  const struct kv_prompt *p);
size_t kvgen_least(const struct kvgen_args *a, const struct kv_prompt *p);

/* Lists an answer for each prompt, each spec and each sample. */
void kvgen_list_answers(struct kvgen_run *r, const struct kvgen_args *a);
/* Sets r->batch: --batch, or the number of answers that fit --memory, at most
 * as many as share one read of the weights. */
int kvgen_choose_batch(struct kvgen_run *r, const struct kvgen_args *a,
                       struct kv_err *e);
/* State shared by a run's answers; progress (or NULL) takes their tokens. */
struct kv_generation kvgen_generation(const struct kvgen_run *r,
                                      const struct kvgen_args *a,
                                      struct kv_progress *progress);
/* Fills all answers: takes some from the journal, and lets the model make the
 * rest. */
int kvgen_make_answers(struct kvgen_run *r, const struct kvgen_args *a,
                       struct kv_err *e);

struct kv_answer *kvgen_answer(const struct kvgen_run *r,
                               const struct kvgen_args *a, size_t prompt,
                               size_t spec, size_t sample);
/* The reference's answer; NULL without a reference. */
const struct kv_answer *kvgen_reference(const struct kvgen_run *r,
                                        const struct kvgen_args *a,
                                        size_t prompt, size_t sample);
/* Tokens per second after the first token; NaN if there is only one. */
double kvgen_speed(const struct kv_answer *x);

extern const struct kvgen_job kvgen_answers, kvgen_scores, kvgen_transfers;

/* Names in the lines (FIELDS) and rows (COLUMNS) of answers; a job may add
 * more. */
#define KVGEN_ANSWER_FIELDS                                                 \
    "spec", "sample", "text", "tokens", "finish_reason", "bits", "kept",    \
        "prompt_seconds", "seconds", "tokens_s", "agrees", "prompt_tokens", \
        "ids", "key", "cache"
#define KVGEN_ANSWER_COLUMNS                                                   \
    KV_CONDITION_COLUMNS, KV_BITS_COLUMNS, "kept", "chat_template",            \
        "chat_date", "max_tokens", "stops", "temperature", "top_k", "top_p",   \
        "repetition_penalty", "min_tokens", "shard", "batch", "prompts",       \
        "samples", "answers", "prompt_tokens", "tokens", "tokens_se", "agree", \
        "agree_se", "same", "same_se", "by_eos", "by_stop", "by_length",       \
        "prompt_seconds", "seconds", "tokens_s", "tokens_s_se"

/* Writes the line of the i-th answer; base: also the fields that compare it
 * with the reference's answer. */
int kvgen_put_line(const struct kvgen_run *r, const struct kvgen_args *a,
                   const struct kv_out *out, size_t i, bool base,
                   struct kv_err *e);
/* Writes a line for each answer, in order. */
int kvgen_put_lines(struct kvgen_run *r, const struct kvgen_args *a,
                    struct kv_err *e);
/* Writes a row for each spec. */
int kvgen_put_rows(struct kvgen_run *r, const struct kvgen_args *a,
                   struct kv_results *t, struct kv_err *e);

/* Write a field of a line, after other fields.  The first frees value; the
 * second writes NaN as null. */
void kvgen_put_json(const struct kv_out *out, const char *name, json_t *value);
void kvgen_put_real(const struct kv_out *out, const char *name, double x);

/* Adds x to the mean; NaN is left out. */
void kvgen_mean_add(struct kv_window_mean *m, double x);

/* Hashes everything that an answer depends on. */
void kvgen_key(const struct kvgen_run *r, const struct kvgen_args *a,
               const struct kv_answer *x, char key[KV_HASH_CHARS]);

/* Reads the lines of file and of its journal, file.partial; both may be
 * missing.  From here on the journal belongs to this run.  keeps: lines of both
 * that this run does not make stay, in file.  Fails on a line that is not JSON,
 * and while another run has the journal. */
int kvgen_journal_open(struct kvgen_journal **j, const char *file, bool keeps,
                       struct kv_err *e);
void kvgen_journal_free(struct kvgen_journal *j); /* NULL is fine */
/* Fills the answers that earlier runs made; returns their number. */
size_t kvgen_journal_take(struct kvgen_run *r, const struct kvgen_args *a);
int kvgen_journal_add(struct kvgen_run *r, const struct kvgen_args *a,
                      const struct kv_answer *x, struct kv_err *e);
/* Writes the lines that stay to the file. */
void kvgen_journal_keep(const struct kvgen_journal *j, FILE *to);
/* Empties the journal, except for answers that this run neither has nor keeps.
 * kvgen_journal_free() removes an empty journal. */
void kvgen_journal_end(struct kvgen_journal *j);

/* --columns help, of each job. */
void kvgen_about_answers(void);
void kvgen_about_scores(void);
void kvgen_about_transfers(void);

#endif
