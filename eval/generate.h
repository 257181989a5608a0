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
    const struct kv_tokenizer *tokenizer; /* NULL where no answer has stops */
    struct kv_ends ends;
    const struct kv_calib *calib;
    uint64_t seed;
    size_t batch;                 /* answers that decode together, >= 1 */
    struct kv_progress *progress; /* NULL, or of all answers' `most` steps */
    /* NULL, or called at an answer's end, failed ones included; -1 fails the
     * step. */
    int (*ended)(void *arg, struct kv_answer *a, struct kv_err *e);
    /* NULL, or called when a layer holds an answer's prompt, before the layer
     * attends, and of a model with layers without attention once more, as layer
     * n_layers, when the state does; -1 fails the answer. */
    int (*layer)(void *arg, const struct kv_answer *a, const struct kv_seq *s,
                 size_t layer, struct kv_err *e);
    void *arg;
};

/* Bytes of a cache of n tokens, at most; caches of up to 2 batch - 1 answers
 * are there at a time. */
size_t kv_generate_cache_bytes(const struct kv_shape *shape, size_t n);

/* Makes n answers, whose specs kv_policy_check() takes as prefill:n_prompt, or
 * kv_prefill_check() where the policy has patterns.  They begin in their order.
 * Answers that decode together read the weights once a step (on the CPU once
 * for up to KV_FEW_ROWS answers), and their seconds are the whole batch's; an
 * answer that ends makes room for the next.  A prompt is appended at once
 * (schemes whose prompt attends at full precision do so), once for answers that
 * follow each other and have the same prompt, by pointer; the rest token by
 * token, by products in f32 (kv_model_few_in_f32(), which holds afterwards
 * too).  On the CPU an answer is the same for any batch, whatever is made
 * beside it.  Without `ended` it fails with the first answer. */
int kv_generate(const struct kv_generation *g, struct kv_answer *a, size_t n,
                struct kv_err *e);

/* The same for answers that come while others are made. */
struct kv_generator;

struct kv_generator *kv_generator_new(const struct kv_generation *g);
void kv_generator_free(struct kv_generator *r); /* NULL is fine */

/* The answer waits for its turn.  a, its prompt and its spec live until it has
 * ended or is dropped, the spec until r is freed.  Fails as kv_codecs_new()
 * does. */
int kv_generator_add(struct kv_generator *r, struct kv_answer *a,
                     struct kv_err *e);
/* An answer whose prompt has run elsewhere: opens its sequence, whose layers
 * are empty, for kv_seq_load().  Fails as kv_generator_add() does. */
int kv_generator_open(struct kv_generator *r, const struct kv_answer *a,
                      struct kv_seq **s, struct kv_err *e);
/* The answer goes on after its first token, a->ids [most] with made = 1, with
 * the cache of its prompt, which is r's from here on; at most 2 batch - 1 do.
 * ended: that was its last token. */
void kv_generator_join(struct kv_generator *r, struct kv_answer *a,
                       struct kv_seq *s, bool ended);
/* Closes the spec's codecs, if there are any; no answer with it is waiting or
 * under way. */
void kv_generator_forget(struct kv_generator *r, const struct kv_spec *spec);
/* The answer, with the results that it has, is no longer made. */
void kv_generator_drop(struct kv_generator *r, const struct kv_answer *a);
/* No answer is waiting or under way. */
bool kv_generator_idle(const struct kv_generator *r);

/* The next prompt, if there is room, with the first token of its answers; else
 * a token of each answer under way. */
int kv_generator_step(struct kv_generator *r, struct kv_err *e);

#endif
