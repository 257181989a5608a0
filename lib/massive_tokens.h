/* Massive tokens: attention sinks, such as the first token of a window, and
 * other tokens whose keys or values differ in magnitude from the layer's other
 * tokens (Sun et al., "Massive Activations in Large Language Models",
 * 2402.17762; the outlier tokens of OTT, 2505.10938).  They are few, but
 * dominate moments.
 *
 * The rule.  A token has two norms in a layer, its key's and its value's, each
 * over all KV heads; the key's is without the model's bias (lib/k_bias.h).  The
 * token is massive when the logarithm of one norm is further from the layer's
 * median than log KV_MASSIVE_FACTOR, and further than KV_MASSIVE_DEVIATIONS
 * times the median absolute deviation of the logarithms.  (In SmolLM2 and
 * Qwen2.5-Coder sinks have norms of a third to a twentieth of the median, in
 * keys or in values, which depends on the layer.)  The first KV_MASSIVE_FIRST
 * tokens of a sequence are massive in every layer, by this rule.  (By its norms
 * alone, the first token is massive in 23 of SmolLM2's 30 layers, and the BOS
 * in 11 of Gemma 3's 18.)
 *
 * Moments, maxima and frequencies of a calibration leave out massive tokens and
 * the first KV_MASSIVE_FIRST tokens of each window.  Points of codebooks and
 * klt's moments include them, since there the weight of one token is limited.
 */
#ifndef KV_MASSIVE_TOKENS_H
#define KV_MASSIVE_TOKENS_H

#include "lib/base/err.h"
#include "lib/shape.h"

KV_PUBLIC_BEGIN

struct kv_dump;

enum { KV_MASSIVE_FACTOR = 3, KV_MASSIVE_DEVIATIONS = 8, KV_MASSIVE_FIRST = 1 };

/* The rule in a sentence: an attribute of a calibration. */
extern const char kv_massive_rule[];

/* The range of norms, of one layer and side, that are not massive. */
struct kv_norm_range {
    float low, high;
};

/* norm: [n], the norms of a layer's tokens, >= 0, in any order.  n 0: no norm
 * is massive. */
struct kv_norm_range kv_norm_range_of(const float *norm, size_t n);

/* Which of n tokens of a layer are massive, the first at position first.  The
 * token at position 0 always is.  shape: the layer's; k, v:
 * [n][n_kv_heads][head_dim], k before RoPE if pre_rope, with its bias; range:
 * [KV_SIDES]. */
void kv_massive_find(const struct kv_shape *shape, bool pre_rope,
                     const struct kv_norm_range *range, size_t first,
                     const float *k, const float *v, size_t n, bool *massive);

/* The ranges of a dump's layer.  range: [KV_SIDES]; a side that the dump lacks
 * has the range of all norms.  counts: [n_windows * ctx], whether the token
 * counts in moments; NULL: not wanted. */
int kv_massive_of_dump(struct kv_dump *d, size_t layer,
                       struct kv_norm_range *range, bool *counts,
                       struct kv_err *e);

KV_PUBLIC_END

#endif
