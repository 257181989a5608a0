/* Massive tokens: attention sinks, as the first token of a window, and their
 * like, whose keys and values are of another size than all others of a layer
 * (Sun et al., "Massive Activations in Large Language Models", 2402.17762; the
 * outlier tokens of OTT, 2505.10938).  Few as they are, they dominate moments.
 *
 * The rule.  The norm of a token's key, or value, is over all KV heads of a
 * layer, the key's without the model's bias (lib/k_bias.h).  A token is massive
 * in a layer when one of both is further from the layer's median than a factor
 * of KV_MASSIVE_FACTOR, and than KV_MASSIVE_DEVIATIONS times the median
 * absolute deviation, both of the norms' logarithms.  (In SmolLM2 and
 * Qwen2.5-Coder sinks have norms of a third to a twentieth of the median, of
 * keys or of values as the layer is.  In some layers of Gemma 3 its BOS has
 * half of the median, and is not found.)
 *
 * Moments, maxima and frequencies of a calibration leave out massive tokens and
 * the first KV_MASSIVE_FIRST of each window; the points of codebooks and
 * klt's moments, where what one token counts is limited, do not. */
#ifndef KV_MASSIVE_TOKENS_H
#define KV_MASSIVE_TOKENS_H

#include "lib/base/err.h"
#include "lib/shape.h"

KV_PUBLIC_BEGIN

struct kv_dump;

enum { KV_MASSIVE_FACTOR = 3, KV_MASSIVE_DEVIATIONS = 8, KV_MASSIVE_FIRST = 1 };

/* The rule in a sentence: an attribute of a calibration. */
extern const char kv_massive_rule[];

/* The norms of one layer and side that are not massive. */
struct kv_norm_range {
    float low, high;
};

/* norm: [n], of a layer's tokens, >= 0; in any order.  n 0: no norm is massive.
 */
struct kv_norm_range kv_norm_range_of(const float *norm, size_t n);

/* Which of n tokens of a layer are massive, the first at position first. shape:
 * the layer's; k, v: [n][n_kv_heads][head_dim], k before RoPE or after it, with
 * its bias; range: [KV_SIDES]. */
void kv_massive_find(const struct kv_shape *shape, bool pre_rope,
                     const struct kv_norm_range *range, size_t first,
                     const float *k, const float *v, size_t n, bool *massive);

/* A layer of a dump.  range: [KV_SIDES]; of a side that it lacks, every norm.
 * counts: [n_windows * ctx], whether the token counts in moments; NULL: not
 * wanted. */
int kv_massive_of_dump(struct kv_dump *d, size_t layer,
                       struct kv_norm_range *range, bool *counts,
                       struct kv_err *e);

KV_PUBLIC_END

#endif
