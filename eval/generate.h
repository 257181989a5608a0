/* Answers to prompts, token by token, with the real cache. */
#ifndef KV_GENERATE_H
#define KV_GENERATE_H

#include "eval/answer_text.h"
#include "eval/sampler.h"
#include "lib/base/progress.h"
#include "lib/calib.h"
#include "lib/columns.h"
#include "lib/model/model.h"
#include "lib/seq/bits.h"

enum kv_finish { KV_FINISH_LENGTH, KV_FINISH_EOS, KV_FINISH_STOP };
const char *kv_finish_name(enum kv_finish f); /* "length", "eos", "stop" */

/* An answer: its inputs, then its results. */
struct kv_answer {
    const struct kv_spec *spec; /* fitted */
    const int32_t *prompt;      /* [n_prompt >= 1] */
    size_t n_prompt, most;      /* most >= 1: new tokens */
    struct kv_stops stops;
    uint64_t key; /* of its random numbers, one for each token */

    int32_t *ids; /* out: the new tokens [made], with the token that ends it;
                   * for kv_answer_clear() */
    size_t made;
    enum kv_finish finish;
    double prompt_seconds, seconds; /* out: to the first new token; after it */
    struct kv_bits bits; /* out: of the cache at its end, without shared_bytes
                          * and nominal; a policy drops tokens after the prompt
                          * or every token */
};

struct kv_generation {
    struct kv_model *model;
    const struct kv_tokenizer *tokenizer; /* NULL where no answer has stops */
    const int32_t *end;                   /* ids that end an answer, [n_ends] */
    size_t n_ends;
    struct kv_sampling sampling;
    const struct kv_calib *calib;
    uint64_t seed;
    size_t batch;                 /* answers that decode together, >= 1 */
    struct kv_progress *progress; /* NULL, or of all answers' `most` steps */
};

/* Bytes of a cache of n tokens, at most; kv_generate() has caches of up to
 * 2 batch - 1 answers at a time. */
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
 * beside it.  Fails when a logit is not finite. */
int kv_generate(const struct kv_generation *g, struct kv_answer *a, size_t n,
                struct kv_err *e);
void kv_answer_clear(struct kv_answer *a);

/* Leading tokens that two answers share. */
size_t kv_answer_agrees(const struct kv_answer *a, const struct kv_answer *b);

#endif
