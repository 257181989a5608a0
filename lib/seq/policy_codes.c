/* Attention on codes under a policy that drops tokens: the cache has the codes
 * of all tokens, and a head's dropped tokens are hidden from its queries. */
#include "lib/base/alloc.h"
#include "lib/seq/policy_cache_impl.h"

#include <stdlib.h>
#include <string.h>

/* A bit for each token that a head holds, [n_kv_heads][kv_attend_words(n)]. */
static uint64_t *alive_of(const struct kv_policy_cache *c, size_t n)
{
    const size_t heads = c->shape->n_kv_heads, words = kv_attend_words(n);
    uint64_t *alive = kv_alloc(heads * words, sizeof(*alive));

    for (size_t h = 0; h < heads; h++)
        for (size_t i = 0; i < c->held[h].n; i++) {
            const size_t j = kv_position_of(&c->held[h], i);

            alive[h * words + j / 64] |= (uint64_t)1 << j % 64;
        }
    return alive;
}

/* Adds mass [n_kv_heads][n], by position, to the held tokens. */
static void add_mass(struct kv_policy_cache *c, const double *mass, size_t n)
{
    for (size_t h = 0; h < c->shape->n_kv_heads; h++) {
        struct kv_held *held = &c->held[h];

        for (size_t i = 0; i < held->n; i++)
            held->mass[held->begin + i] +=
                mass[h * n + kv_position_of(held, i)];
    }
}

/* Attends with the newest nq queries.  counts: whether their weights are added
 * to the held tokens. */
static void attend(struct kv_policy_cache *c, const uint64_t *alive, size_t nq,
                   const float *q, float *out, bool counts)
{
    const size_t n = kv_cache_tokens(c->cache);
    double *mass =
        counts ? kv_alloc(c->shape->n_kv_heads * n, sizeof(*mass)) : NULL;
    struct kv_attend_view view = kv_cache_view(c->cache, nq);

    view.alive = alive;
    view.mass = mass;
    kv_cache_attend(c->cache, view, q, out);
    if (counts)
        add_mass(c, mass, n);
    free(mass);
}

void kv_policy_attend_codes(struct kv_policy_cache *c,
                            const struct kv_policy_step *step)
{
    const struct kv_policy_spec *p = c->policy;
    const enum kv_policy_mass which = p->policy->mass;
    const size_t row = c->shape->n_heads * c->shape->head_dim;
    uint64_t *alive = alive_of(c, kv_cache_tokens(c->cache));

    attend(c, alive, step->in->n, step->in->q, step->out, which == KV_MASS_ALL);
    if (which == KV_MASS_NEWEST) {
        const size_t most = p->policy->queries(p);
        const size_t nq = step->in->n < most ? step->in->n : most;
        float *again = kv_alloc(nq, row * sizeof(*again));

        for (size_t h = 0; h < c->shape->n_kv_heads; h++)
            memset(c->held[h].mass + c->held[h].begin, 0,
                   c->held[h].n * sizeof(double));
        attend(c, alive, nq, step->in->q + (step->in->n - nq) * row, again,
               true);
        free(again);
    }
    free(alive);
}
