/* kvgen's options and the state of a run, shared by its parts. */
#ifndef KV_TOOL_KVGEN_H
#define KV_TOOL_KVGEN_H

#include "eval/generate.h"
#include "eval/prompts.h"
#include "eval/sweep.h"
#include "lib/base/file.h"
#include "tools/common.h"

struct kvgen_args {
    struct kv_common common;
    struct kv_strings specs, stops;
    const char *model, *prompts, *calib, *gemm, *shard;
    const char *chat_template, *chat_date;
    struct kv_sampling sampling;
    size_t ctx, max_tokens, samples, batch, pool_heads;
    bool parse_special, ignore_eos, allow_leakage;
};

struct kvgen_run {
    struct kv_model *model;
    struct kv_tokenizer *tokenizer;
    struct kv_chat_model chat;
    struct kv_chat_clock clock;
    struct kv_prompts prompts;
    size_t n_messages;  /* prompts that are conversations */
    const char ***stop; /* [n_mine]: the stop strings of each prompt */
    struct kv_shard shard;
    size_t *mine, n_mine;      /* [n_mine]: the shard's prompts */
    struct kv_spec *spec;      /* [n_specs] */
    size_t n_specs, reference; /* the index of the first that is f32 or f16;
                                * n_specs: none */
    struct kv_calib *calib;
    double leak;
    size_t ctx, batch;
    struct kv_answer *answer; /* [n_mine][n_specs][samples] */
    size_t n_answers;
    struct kv_out out;
    struct kv_conditions conditions;
};

/* The prompts, their tokens and the limits of their answers: fills r->prompts,
 * r->mine, r->ctx and what rows say of the text. */
int kvgen_read_prompts(struct kvgen_run *r, const struct kvgen_args *a,
                       struct kv_err *e);
/* New tokens at most after this prompt. */
size_t kvgen_most(const struct kvgen_run *r, const struct kvgen_args *a,
                  const struct kv_prompt *p);

/* The names of the fields of an answer, up to a NULL. */
extern const char *const kvgen_fields[];
/* A line for each answer, in their order. */
int kvgen_put_answers(struct kvgen_run *r, const struct kvgen_args *a,
                      struct kv_err *e);

extern const char *const kvgen_columns[];
/* A row for each spec. */
int kvgen_put_rows(struct kvgen_run *r, const struct kvgen_args *a,
                   struct kv_results *t, struct kv_err *e);

#endif
