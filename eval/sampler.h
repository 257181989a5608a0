/* The choice of the next token, as transformers' generate() makes it. */
#ifndef KV_SAMPLER_H
#define KV_SAMPLER_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

/* The sampling options, in the order in which they act:
 *
 * repetition_penalty  logits of ids that occur before: divided by it where
 *                     they are positive, else multiplied
 * temperature         divides logits; 0: the most probable id, of ties the
 *                     lowest, and nothing after this acts
 * top_k               the k largest logits, and ties with the last; 0: all
 * top_p               the fewest most probable ids whose probabilities sum to
 *                     top_p, at least one; 1: all */
struct kv_sampling {
    double repetition_penalty, temperature, top_p;
    size_t top_k;
};

#define KV_SAMPLING_GREEDY                       \
    {                                            \
        .repetition_penalty = 1.0, .top_p = 1.0, \
    }

/* Fails, naming the option, where a number is out of range. */
int kv_sampling_check(const struct kv_sampling *s, struct kv_err *e);

/* Applies the penalty once to each id of ids [n_ids], all below n. */
void kv_sampling_penalize(const struct kv_sampling *s, float *logits, size_t n,
                          const int32_t *ids, size_t n_ids);

/* Chooses an id by logits [n], which change.  They are finite, or -infinity for
 * ids that may not be chosen; at least one is finite.  u: uniform in [0, 1);
 * the id is a function of logits and u alone. */
int32_t kv_sampling_choose(const struct kv_sampling *s, float *logits, size_t n,
                           double u);

#endif
