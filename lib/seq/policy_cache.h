/* The cache of one sequence and one layer under a token policy (lib/policy.h).
 * It holds the tokens that the policy keeps.
 *
 * The bytes are counted on a kv_cache.  Beside it every KV head has a
 * workspace, not counted, with the rows of the tokens that it holds, as a query
 * reads them.  So the time of a step and the memory depend on the tokens held,
 * not on the tokens that came in.  (A scheme that attends on its codes keeps
 * all codes, and hides dropped tokens.) */
#ifndef KV_POLICY_CACHE_H
#define KV_POLICY_CACHE_H

#include "lib/columns.h"
#include "lib/policy.h"
#include "lib/seq/cache.h"

struct kv_policy_cache;

/* Whether the policy of a spec can run on a layer's codecs [KV_SIDES].  n: the
 * number of tokens that a budget is a share of.  Fails with the reason. */
int kv_policy_cache_takes(const struct kv_spec *spec,
                          struct kv_codec *const *codec, size_t n,
                          struct kv_err *e);

/* codec: [KV_SIDES], accepted by kv_policy_cache_takes().  Policy and codecs
 * are kept by pointer.  n: the number of tokens that a budget is a share of. */
int kv_policy_cache_new(struct kv_policy_cache **c,
                        const struct kv_policy_spec *policy,
                        struct kv_codec *const *codec, size_t n, uint64_t seed,
                        struct kv_err *e);
void kv_policy_cache_free(struct kv_policy_cache *c); /* NULL is fine */

/* Enters n >= 1 tokens, whose queries attend to the tokens held; then the
 * policy drops tokens.  Reads t->k_pre if the key codec is pre_rope.  out: the
 * attention outputs, shaped as t->q.  out NULL: the tokens are the prompt,
 * which comes first; the caller computes its attention, to exact keys and
 * values.  Fails as kv_cache_append() does. */
int kv_policy_cache_step(struct kv_policy_cache *c, const struct kv_tokens *t,
                         float *out, struct kv_err *e);
/* The two halves of kv_policy_cache_step(): tokens enter and attend; drop. */
int kv_policy_cache_enter(struct kv_policy_cache *c, const struct kv_tokens *t,
                          float *out, struct kv_err *e);
void kv_policy_cache_drop(struct kv_policy_cache *c);

/* The tokens of a KV head that the newest query sees, by position ascending.
 * To be called between the two halves above. */
struct kv_policy_seen {
    size_t n;
    const uint32_t *position; /* [n], in the text */
    float *k;                 /* [n][head_dim], after RoPE at the policy's
                               * positions; the caller frees it */
    const float *v;           /* [n][head_dim] */
};
struct kv_policy_seen kv_policy_cache_seen(const struct kv_policy_cache *c,
                                           size_t head);

/* Adds to bits the counts of the tokens held.  values counts all tokens that
 * came in. */
void kv_policy_cache_bits(const struct kv_policy_cache *c, enum kv_side side,
                          struct kv_bits *bits);

/* The number of tokens that attention reads: held tokens, and the other tokens
 * of their blocks.  It is the mean over KV heads, rounded up, of the side with
 * more. */
size_t kv_policy_cache_span(const struct kv_policy_cache *c);

#endif
