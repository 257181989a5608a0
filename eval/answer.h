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

/* A token and the natural logarithm of its probability, computed from the
 * model's logits before penalty and temperature. */
struct kv_top {
    int32_t id;
    float log_prob;
};

struct kv_answer {
    const struct kv_spec *spec; /* fitted */
    const int32_t *prompt;      /* [n_prompt >= 1] */
    size_t n_prompt, most;      /* most >= 1: new tokens */
    const int32_t *forced;      /* [n_forced <= most]: the first new tokens,
                                 * regardless of the model's choice; they never
                                 * end the answer */
    size_t n_forced;
    size_t n_context; /* the first n_context forced tokens end the prompt: they
                       * are decoded, but are no part of the written answer */
    size_t least;     /* the answer has at least this many tokens behind the
                       * forced ones.  Until then the logits of end tokens and
                       * of single-token stops are -infinity, as in
                       * transformers' MinNewTokensLength, and the text is not
                       * searched for stops */
    const struct kv_sampling *sampling; /* NULL: greedy */
    struct kv_stops stops;
    uint64_t key; /* seed of the answer's random numbers; each token takes
                   * one */
    size_t n_top; /* number of most probable tokens to record at each new token;
                   * 0: none, and no log_prob */

    int32_t *ids; /* out: the new tokens [made], including the one that ends the
                   * answer; for kv_answer_clear() */
    size_t made;
    float *log_prob;    /* out: for each new token [made] */
    struct kv_top *top; /* out: [made][n_top], in descending order; on ties the
                         * lower id first */
    enum kv_finish finish;
    char *why;                      /* out: a sentence if the answer failed */
    double prompt_seconds, seconds; /* out: seconds to the first new token, and
                                     * after it */
    double encode_seconds; /* out: the part of prompt_seconds in which the
                            * prompt was quantized into the cache; 0 if the
                            * prompt attends on codes */
    struct kv_bits bits;   /* out: bits of the cache at the answer's end, after
                            * a policy dropped tokens; without shared_bytes and
                            * nominal */
};

/* Frees the results. */
void kv_answer_clear(struct kv_answer *a);

/* The number of leading tokens that two answers share. */
size_t kv_answer_agrees(const struct kv_answer *a, const struct kv_answer *b);

/* The ids of end tokens, such as EOS. */
struct kv_ends {
    const int32_t *id; /* [n] */
    size_t n;
};

/* Chooses the next token by logits [n_vocab], which change, and adds it to the
 * answer and to ids, which hold the prompt and the new tokens.  t: NULL without
 * stops.  *ended: whether this token is the answer's last.  Fails when a logit
 * is not finite. */
int kv_answer_take(struct kv_answer *a, int32_t *ids, float *logits,
                   size_t n_vocab, const struct kv_ends *ends,
                   const struct kv_tokenizer *t, bool *ended, struct kv_err *e);

#endif
