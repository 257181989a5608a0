/* Shared by policy_cache.c, policy_codes.c and policy_bits.c. */
#ifndef KV_POLICY_CACHE_IMPL_H
#define KV_POLICY_CACHE_IMPL_H

#include "lib/scheme.h"
#include "lib/seq/policy_cache.h"

/* The tokens of a KV head, by position ascending.  They are elements
 * [begin, begin + n) of the first four arrays. */
struct kv_held {
    size_t begin, n, capacity;
    uint32_t *position;
    double *mass;
    float *k, *v;  /* [capacity][head_dim], as a query reads them, after RoPE */
    double *score; /* [n] */
    bool *keep;    /* [n] */
};

struct kv_policy_cache {
    const struct kv_policy_spec *policy;
    const struct kv_shape *shape; /* the layer's */
    size_t group;                 /* query heads of a KV head */
    struct kv_policy_plan plan;
    struct kv_cache *cache;
    struct kv_held *held; /* [n_kv_heads] */
    bool of_prompt;       /* the newest tokens are the prompt's */
};

/* The position of the i-th token that a head holds. */
static inline size_t kv_position_of(const struct kv_held *h, size_t i)
{
    return h->position[h->begin + i];
}

/* The tokens that come in, and the array for their outputs; out NULL: a
 * prompt. */
struct kv_policy_step {
    const struct kv_tokens *in;
    float *out;
};

/* Attention on codes by the scheme's attend(), instead of attention over rows,
 * for a step after the prompt. */
void kv_policy_attend_codes(struct kv_policy_cache *c,
                            const struct kv_policy_step *step);

static inline bool kv_policy_on_codes(const struct kv_policy_cache *c)
{
    return kv_cache_reader(c->cache, KV_K).codec->scheme->attend;
}

#endif
