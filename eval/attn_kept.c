#include "eval/attn_kept.h"
#include "eval/policy_check.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/rope_table.h"
#include "lib/seq/policy_cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct kv_protocol protocol_of(const struct kv_attn_inputs *in)
{
    return (struct kv_protocol){
        .kind = KV_PREFILL, .prefill = in->n - in->nq, .step = 1};
}

/* Whether two layers of a model keep different numbers of tokens. */
static bool layers_differ(const struct kv_spec *spec,
                          const struct kv_attn_inputs *in)
{
    enum { LAYERS = 32 };
    const struct kv_policy_spec *p = &spec->policy;
    struct kv_shape s = in->shape;

    s.n_layers = LAYERS;
    return p->policy->plan(p, &s, 0, in->n).budget !=
           p->policy->plan(p, &s, LAYERS - 1, in->n).budget;
}

int kv_attn_kept_check(const struct kv_attn_inputs *in,
                       const struct kv_spec *spec, const struct kv_calib *calib,
                       bool no_layer, struct kv_err *e)
{
    const struct kv_protocol p = protocol_of(in);
    struct kv_codecs *cs;
    int rc;

    if (no_layer && layers_differ(spec, in))
        return kv_fail(e,
                       "%s: layers keep different numbers of tokens: expected "
                       "a layer of a --dump",
                       spec->text);
    if (kv_codecs_new(&cs, spec, &in->shape, in->layer, 1, calib, e))
        return -1;
    rc = kv_policy_check(spec, &p, kv_codecs_at(cs, in->layer), in->n, e);
    kv_codecs_free(cs);
    return rc;
}

/* The workspace, which serves one sequence after the other. */
struct work {
    const struct kv_attn_inputs *in;
    struct kv_attn_kept *to;
    struct kv_policy_cache *cache;
    float *out; /* laid out like in->exact */
};

static size_t row_of(const struct kv_attn_inputs *in)
{
    return in->shape.n_kv_heads * in->shape.head_dim;
}

static size_t q_row_of(const struct kv_attn_inputs *in)
{
    return in->shape.n_heads * in->shape.head_dim;
}

static int run_sequence(const struct work *w, size_t b, struct kv_err *e)
{
    const struct kv_attn_inputs *in = w->in;
    const size_t prompt = in->n - in->nq, q = b * in->nq * q_row_of(in);
    const struct kv_tokens all = kv_attn_inputs_tokens(in, b, 0, prompt);
    struct kv_tokens newest = kv_attn_inputs_tokens(in, b, prompt, in->nq);

    newest.q = in->q + q;
    if (prompt && kv_policy_cache_step(w->cache, &all, NULL, e))
        return -1;
    return kv_policy_cache_enter(w->cache, &newest, w->out + q, e);
}

/* Allocates the inputs for n tokens of every sequence. */
static void make_room(struct kv_attn_kept *k, const struct kv_attn_inputs *in,
                      size_t n)
{
    const size_t all = in->n_batch * n;

    k->inputs = *in;
    k->inputs.n = n;
    k->inputs.q = kv_alloc(in->n_batch * in->nq, q_row_of(in) * sizeof(float));
    memcpy(k->inputs.q, in->q,
           in->n_batch * in->nq * q_row_of(in) * sizeof(float));
    k->inputs.all_q =
        in->all_q ? kv_alloc(all, q_row_of(in) * sizeof(float)) : NULL;
    k->inputs.k = kv_alloc(all, row_of(in) * sizeof(float));
    k->inputs.k_pre =
        in->k_pre ? kv_alloc(all, row_of(in) * sizeof(float)) : NULL;
    k->inputs.v = kv_alloc(all, row_of(in) * sizeof(float));
    k->inputs.exact = NULL;
}

/* Copies the rows of one KV head, `width` values each, for the tokens in
 * `from`. */
static void gather(const struct kv_attn_inputs *to, size_t b, size_t head,
                   const struct kv_policy_seen *seen, const float *x,
                   size_t width, size_t n_from, float *out)
{
    const size_t row = to->shape.n_kv_heads * width;

    for (size_t i = 0; i < to->n && x; i++) {
        const size_t again = to->n > seen->n ? to->n - seen->n : 0;
        const size_t j = i < again ? i % seen->n : i - again;

        memcpy(out + (b * to->n + i) * row + head * width,
               x + (b * n_from + seen->position[j]) * row + head * width,
               width * sizeof(*out));
    }
}

static void gather_sequence(const struct work *w, size_t b)
{
    const struct kv_attn_inputs *in = w->in;
    const size_t d = in->shape.head_dim;
    const size_t group = in->shape.n_heads / in->shape.n_kv_heads;
    struct kv_attn_inputs *to = &w->to->inputs;

    for (size_t h = 0; h < in->shape.n_kv_heads; h++) {
        const struct kv_policy_seen seen = kv_policy_cache_seen(w->cache, h);

        gather(to, b, h, &seen, in->k, d, in->n, to->k);
        gather(to, b, h, &seen, in->k_pre, d, in->n, to->k_pre);
        gather(to, b, h, &seen, in->v, d, in->n, to->v);
        gather(to, b, h, &seen, in->all_q, group * d, in->n, to->all_q);
        free(seen.k);
    }
    /* rotates the keys to their positions among the kept tokens */
    if (to->k_pre)
        memcpy(to->k + b * to->n * row_of(to),
               to->k_pre + b * to->n * row_of(to),
               to->n * row_of(to) * sizeof(*to->k));
    if (to->k_pre)
        kv_rope(&to->shape, to->k + b * to->n * row_of(to), to->n,
                to->shape.n_kv_heads, 0);
}

static int run_all(struct work *w, const struct kv_spec *spec,
                   struct kv_codec *const *codec, uint64_t seed,
                   struct kv_err *e)
{
    const struct kv_attn_inputs *in = w->in;
    const struct kv_protocol p = protocol_of(in);

    for (size_t b = 0; b < in->n_batch; b++) {
        if (kv_interrupted(e) ||
            kv_policy_cache_new(&w->cache, &spec->policy, codec,
                                kv_policy_share_of(&p, in->n), seed, e))
            return -1;
        if (run_sequence(w, b, e))
            return -1;
        if (!b)
            make_room(w->to, in, kv_policy_cache_span(w->cache));
        gather_sequence(w, b);
        for (int side = 0; side < KV_SIDES; side++)
            kv_policy_cache_bits(w->cache, (enum kv_side)side, &w->to->bits);
        kv_policy_cache_free(w->cache);
        w->cache = NULL;
    }
    return 0;
}

int kv_attn_kept_new(struct kv_attn_kept *k, const struct kv_attn_inputs *in,
                     const struct kv_spec *spec, const struct kv_calib *calib,
                     uint64_t seed, struct kv_err *e)
{
    const size_t outputs = in->n_batch * in->nq * q_row_of(in);
    struct work w = {.in = in, .to = k};
    struct kv_codecs *cs;
    int rc;

    *k = (struct kv_attn_kept){.rel_err = NAN};
    if (kv_codecs_new(&cs, spec, &in->shape, in->layer, 1, calib, e))
        return -1;
    w.out = kv_alloc(outputs, sizeof(*w.out));
    rc = run_all(&w, spec, kv_codecs_at(cs, in->layer), seed, e);
    if (!rc) {
        kv_attn_inputs_exact(&k->inputs);
        k->rel_err = kv_attn_inputs_error(in, w.out, in->exact);
    }
    kv_policy_cache_free(w.cache);
    kv_codecs_free(cs);
    free(w.out);
    return rc;
}

void kv_attn_kept_clear(struct kv_attn_kept *k)
{
    kv_attn_inputs_clear(&k->inputs);
}
