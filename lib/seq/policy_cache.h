/* The cache of one sequence and one layer that holds the tokens that a policy
 * names (lib/policy.h).
 *
 * Beside the cache proper, which says how many bytes its blocks take, every KV
 * head has the rows of the tokens that it holds, as a query reads them: a
 * workspace that no bytes count.  So a step takes the time, and the whole the
 * memory, of what is held, however many tokens came in.  (Of a scheme that
 * attends on its codes all codes stay, and dropped tokens are hidden.) */
#ifndef KV_POLICY_CACHE_H
#define KV_POLICY_CACHE_H

#include "lib/columns.h"
#include "lib/policy.h"
#include "lib/seq/cache.h"

struct kv_policy_cache;

/* codec: [KV_SIDES], neither layered nor with history, nor attending on codes
 * of keys where the policy gives tokens new positions.  Policy and codecs are
 * kept by pointer.  n: tokens that a budget is a share
 * of. */
int kv_policy_cache_new(struct kv_policy_cache **c,
                        const struct kv_policy_spec *policy,
                        struct kv_codec *const *codec, size_t n, uint64_t seed,
                        struct kv_err *e);
void kv_policy_cache_free(struct kv_policy_cache *c); /* NULL is fine */

/* n >= 1 tokens come in, their queries attend to what is held, then the others
 * are dropped.  t->k_pre is read where the key codec is pre_rope.  out: as
 * t->q; NULL: the prompt, which comes first and whose queries attend elsewhere,
 * to exact keys and values.  Fails as kv_cache_append() does. */
int kv_policy_cache_step(struct kv_policy_cache *c, const struct kv_tokens *t,
                         float *out, struct kv_err *e);
/* Its two halves. */
int kv_policy_cache_enter(struct kv_policy_cache *c, const struct kv_tokens *t,
                          float *out, struct kv_err *e);
void kv_policy_cache_drop(struct kv_policy_cache *c);

/* What the newest query sees of a KV head between the halves, by position
 * ascending. */
struct kv_policy_seen {
    size_t n;
    const uint32_t *position; /* [n], in the text */
    float *k;                 /* [n][head_dim], after RoPE, at the positions
                               * that the policy gives them; the caller's to
                               * free */
    const float *v;           /* [n][head_dim] */
};
struct kv_policy_seen kv_policy_cache_seen(const struct kv_policy_cache *c,
                                           size_t head);

/* Of what is held; added to.  values: of all tokens that came in. */
void kv_policy_cache_bits(const struct kv_policy_cache *c, enum kv_side side,
                          struct kv_bits *bits);

/* Tokens that attention passes over: those that are held, and those that share
 * a block with one; of the side with more, the mean over KV heads, rounded up.
 */
size_t kv_policy_cache_span(const struct kv_policy_cache *c);

#endif
