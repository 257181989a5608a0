/* An answer to a prompt: its inputs, then its results. */
#ifndef KV_ANSWER_H
#define KV_ANSWER_H

#include "eval/answer_text.h"
#include "eval/sampler.h"
#include "lib/seq/bits.h"

enum kv_finish {
    KV_FINISH_LENGTH,
    KV_FINISH_EOS,
    KV_FINISH_STOP,
    KV_FINISH_FAILED
};
/* "length", "eos", "stop", "failed" */
const char *kv_finish_name(enum kv_finish f);

/* A token and the natural logarithm of its probability, by the model's logits
 * before penalty and temperature. */
struct kv_top {
    int32_t id;
    float log_prob;
};

struct kv_answer {
    const struct kv_spec *spec; /* fitted */
    const int32_t *prompt;      /* [n_prompt >= 1] */
    size_t n_prompt, most;      /* most >= 1: new tokens */
    const int32_t *forced;      /* [n_forced <= most]: the first new tokens,
                                 * whatever the model would choose; they end
                                 * nothing */
    size_t n_forced;
    size_t n_context; /* of these, the first that end the prompt: decoded, and
                       * no part of the answer for those who write it */
    const struct kv_sampling *sampling; /* NULL: greedy */
    struct kv_stops stops;
    uint64_t key; /* of its random numbers, one for each token */
    size_t n_top; /* most probable tokens to note at each new one; 0: none, and
                   * no log_prob */

    int32_t *ids; /* out: the new tokens [made], with the token that ends it;
                   * for kv_answer_clear() */
    size_t made;
    float *log_prob;    /* out: of each new token [made] */
    struct kv_top *top; /* out: [made][n_top], falling; of ties the lower id
                         * first */
    enum kv_finish finish;
    char *why;                      /* out: a sentence, where it failed */
    double prompt_seconds, seconds; /* out: to the first new token; after it */
    double encode_seconds; /* out: of prompt_seconds, in which its tokens
                            * entered the cache; 0 where they attend on codes */
    struct kv_bits bits;   /* out: of the cache at the answer's end, without
                            * shared_bytes and nominal; a policy drops tokens
                            * once, after the prompt, or after every token */
};

/* Frees the results. */
void kv_answer_clear(struct kv_answer *a);

/* Leading tokens that two answers share. */
size_t kv_answer_agrees(const struct kv_answer *a, const struct kv_answer *b);

/* Ids that end an answer. */
struct kv_ends {
    const int32_t *id; /* [n] */
    size_t n;
};

/* Adds the next token to the answer and to ids, which hold the prompt and the
 * new tokens, by logits [n_vocab], which change.  t: NULL without stops.
 * *ended: whether it is the last.  Fails when a logit is not finite. */
int kv_answer_take(struct kv_answer *a, int32_t *ids, float *logits,
                   size_t n_vocab, const struct kv_ends *ends,
                   const struct kv_tokenizer *t, bool *ended, struct kv_err *e);

#endif
