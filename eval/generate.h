/* Answers to prompts, token by token, with the real cache. */
#ifndef KV_GENERATE_H
#define KV_GENERATE_H

#include "eval/answer.h"
#include "lib/base/progress.h"
#include "lib/calib.h"
#include "lib/columns.h"
#include "lib/model/model.h"
#include "lib/seq/seq.h"

struct kv_generation {
    struct kv_model *model;
    const struct kv_tokenizer *tokenizer; /* NULL if no answer has stops */
    struct kv_ends ends;
    const struct kv_calib *calib;
    uint64_t seed;
    size_t batch;                 /* answers that decode together, >= 1 */
    struct kv_progress *progress; /* NULL, or progress over all answers' `most`
                                   * steps */
    /* NULL, or called at an answer's end, also after a failure; -1 fails the
     * step. */
    int (*ended)(void *arg, struct kv_answer *a, struct kv_err *e);
    /* NULL, or called when a layer holds an answer's prompt, before the layer
     * attends.  For a model with layers without attention it is called once
     * more, with layer n_layers, when the state holds the prompt.  -1 fails the
     * answer. */
    int (*layer)(void *arg, const struct kv_answer *a, const struct kv_seq *s,
                 size_t layer, struct kv_err *e);
    void *arg;
};

/* The bytes that a cache of n tokens is counted with: twice its values as f32,
 * once as they are held and once decoded or in tiles (which have room for 64
 * tokens at least, and for more as they grow).  Caches of up to 2 batch - 1
 * answers exist at a time. */
size_t kv_generate_cache_bytes(const struct kv_shape *shape, size_t n);

/* Makes n answers.  Their specs must pass kv_policy_check() as
 * prefill:n_prompt, or kv_prefill_check() if the policy has patterns.  Answers
 * begin in order.  Answers that decode together read the weights once a step
 * (on the CPU once for up to KV_FEW_ROWS answers), and their seconds are the
 * whole batch's; an answer that ends makes room for the next.  A prompt that
 * attends at full precision runs in one pass, and only once for consecutive
 * answers with the same prompt pointer.  All other tokens run one by one, with
 * products in f32 (kv_model_few_in_f32(), which stays in force).  On the CPU an
 * answer does not depend on the batch or on other answers.  Without `ended` the
 * first failed answer fails the call. */
int kv_generate(const struct kv_generation *g, struct kv_answer *a, size_t n,
                struct kv_err *e);

/* Makes answers as kv_generate() does, but answers may arrive while others are
 * made. */
struct kv_generator;

struct kv_generator *kv_generator_new(const struct kv_generation *g);
void kv_generator_free(struct kv_generator *r); /* NULL is fine */

/* Queues the answer.  a and its prompt must live until the answer has ended or
 * is dropped, its spec until r is freed.  Fails when kv_codecs_new() does. */
int kv_generator_add(struct kv_generator *r, struct kv_answer *a,
                     struct kv_err *e);
/* Opens a sequence for an answer whose prompt has run elsewhere: its layers are
 * empty, for kv_seq_load().  Fails as kv_generator_add() does. */
int kv_generator_open(struct kv_generator *r, const struct kv_answer *a,
                      struct kv_seq **s, struct kv_err *e);
/* Continues an answer after its first token; a->ids has room for `most` tokens,
 * made is 1.  s: the cache of its prompt, which r now owns.  At most 2 batch -
 * 1 such answers exist at a time.  ended: the first token was the answer's
 * last. */
void kv_generator_join(struct kv_generator *r, struct kv_answer *a,
                       struct kv_seq *s, bool ended);
/* Closes the spec's codecs, if any; no answer with this spec may be queued or
 * in progress. */
void kv_generator_forget(struct kv_generator *r, const struct kv_spec *spec);
/* Stops making the answer; it keeps the results that it has. */
void kv_generator_drop(struct kv_generator *r, const struct kv_answer *a);
/* Whether no answer is queued or in progress. */
bool kv_generator_idle(const struct kv_generator *r);

/* Runs the next prompt, if there is room, and makes the first token of its
 * answers; otherwise makes a token for each answer in progress. */
int kv_generator_step(struct kv_generator *r, struct kv_err *e);

#endif
