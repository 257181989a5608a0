#include "eval/policy_error.h"
#include "eval/policy_check.h"
#include "lib/base/alloc.h"
#include "lib/seq/bits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct kv_protocol kv_policy_protocol(const struct kv_policy *p, size_t n)
{
    struct kv_protocol of;
    struct kv_err e;
    char text[48] = "stream";

    if (p->prompt)
        snprintf(text, sizeof(text), "prefill:%zu", n > 1 ? n / 2 : 1);
    if (kv_protocol_parse(&of, text, false, &e))
        abort(); /* both texts are valid */
    return of;
}

/* One query head of the query at `position`, and the kept tokens that it
 * sees. */
struct query {
    const struct kv_policy_window *w;
    size_t position, head, kv_head;
    struct kv_policy_seen seen;
    const float *own; /* the scheme's output [n_heads][head_dim], or NULL */
    float *exact;     /* [position + 1] logits */
    float *stored;    /* [seen.n] */
};

static double dot(const float *a, const float *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* The row of token t in the query's KV head. */
static const float *row_of(const struct query *x, const float *all, size_t t)
{
    const struct kv_shape *s = &x->w->codec[KV_K]->shape;

    return all + (t * s->n_kv_heads + x->kv_head) * s->head_dim;
}

static void make_logits(const struct query *x)
{
    const struct kv_shape *s = &x->w->codec[KV_K]->shape;
    const size_t d = s->head_dim, n = x->position + 1, m = x->seen.n;
    const float *q = x->w->tokens.q + (x->position * s->n_heads + x->head) * d;
    const struct kv_attend_view all = kv_shape_view(s, n, n - 1, 1);
    struct kv_attend_view held = kv_shape_view(s, m, m - 1, 1);

    held.window = 0; /* it sees all of them */
    for (size_t j = 0; j < n; j++)
        x->exact[j] =
            s->attn_scale * (float)dot(q, row_of(x, x->w->tokens.k, j), d);
    for (size_t i = 0; i < m; i++)
        x->stored[i] = s->attn_scale * (float)dot(q, x->seen.k + i * d, d);
    kv_attend_logits(&all, 0, x->head, 0, 0, n, x->exact);
    kv_attend_logits(&held, 0, x->head, 0, 0, m, x->stored);
}

/* The sink logit; -infinity: none. */
static double sink_of(const struct query *x)
{
    const float *sink = x->w->codec[KV_K]->shape.sink_logit;

    return sink ? (double)sink[x->head] : -HUGE_VAL;
}

/* ln of the sum of e^logit and e^sink; at: the indices of the logits, NULL for
 * the first n. */
static double log_sum(const float *logit, const uint32_t *at, size_t n,
                      double sink)
{
    double max = sink, sum;

    for (size_t i = 0; i < n; i++)
        max = fmax(max, (double)logit[at ? at[i] : i]);
    sum = exp(sink - max);
    for (size_t i = 0; i < n; i++)
        sum += exp((double)logit[at ? at[i] : i] - max);
    return max + log(sum);
}

/* Adds the output errors.  out: [1 + KV_ATTN_CASES][head_dim], zeros; takes the
 * exact output, then each case's. */
static void add_outputs(struct kv_attn_error *sum, const struct query *x,
                        double *out)
{
    const size_t d = x->w->codec[KV_K]->shape.head_dim;
    const double sink = sink_of(x);
    const double z = log_sum(x->exact, NULL, x->position + 1, sink);
    const double z_held = log_sum(x->exact, x->seen.position, x->seen.n, sink);
    const double z_stored = log_sum(x->stored, NULL, x->seen.n, sink);
    double kl = z - z_held + exp(sink - z_held) * (z_stored - z_held);

    for (size_t j = 0; j <= x->position; j++)
        for (size_t c = 0; c < d; c++)
            out[c] += exp((double)x->exact[j] - z) *
                      (double)row_of(x, x->w->tokens.v, j)[c];
    for (size_t i = 0; i < x->seen.n; i++) {
        const size_t t = x->seen.position[i];
        const double log_p = (double)x->exact[t] - z_held;
        const double log_q = (double)x->stored[i] - z_stored;
        const double p = exp(log_p), q = exp(log_q);
        const double e = (double)x->stored[i] - (double)x->exact[t];
        const float *v = row_of(x, x->w->tokens.v, t),
                    *v_stored = x->seen.v + i * d;

        kl += p * (log_p - log_q);
        sum->logit_e2 += e * e;
        for (size_t c = 0; c < d; c++) {
            out[(1 + KV_ATTN_K) * d + c] += q * (double)v[c];
            out[(1 + KV_ATTN_V) * d + c] += p * (double)v_stored[c];
            out[(1 + KV_ATTN_BOTH) * d + c] += q * (double)v_stored[c];
        }
    }
    sum->n_logits += (double)x->seen.n;
    sum->kl += kl < 0 ? 0 : kl; /* rounding may leave a hair below */
    sum->n_rows++;
}

static void add_query(struct kv_attn_error *sum, const struct query *x)
{
    const size_t d = x->w->codec[KV_K]->shape.head_dim;
    double *out = kv_alloc(1 + KV_ATTN_CASES, d * sizeof(*out));

    make_logits(x);
    add_outputs(sum, x, out);
    for (size_t i = 0; i < d && x->own; i++)
        out[(1 + KV_ATTN_BOTH) * d + i] = (double)x->own[x->head * d + i];
    for (size_t i = 0; i < d; i++) {
        sum->out_x2 += out[i] * out[i];
        for (size_t c = 0; c < KV_ATTN_CASES; c++)
            sum->out_e2[c] += pow(out[(1 + c) * d + i] - out[i], 2);
    }
    free(out);
}

static void add_position(struct kv_attn_error *sum,
                         const struct kv_policy_window *w,
                         const struct kv_policy_cache *cache, size_t position,
                         const float *out)
{
    const struct kv_codec *k = w->codec[KV_K];
    const struct kv_shape *s = &k->shape;
    const size_t group = s->n_heads / s->n_kv_heads;
    struct query x = {
        .w = w, .position = position, .own = kv_codec_attends(k) ? out : NULL};

    for (x.kv_head = 0; x.kv_head < s->n_kv_heads; x.kv_head++) {
        x.seen = kv_policy_cache_seen(cache, x.kv_head);
        x.exact = kv_alloc(position + 1, sizeof(*x.exact));
        x.stored = kv_alloc(x.seen.n, sizeof(*x.stored));
        for (size_t g = 0; g < group; g++) {
            x.head = x.kv_head * group + g;
            add_query(sum, &x);
        }
        free(x.stored);
        free(x.exact);
        free(x.seen.k);
    }
}

static int run_window(struct kv_attn_error *sum,
                      const struct kv_policy_window *w, size_t prompt,
                      struct kv_policy_cache *cache, float *out,
                      struct kv_err *e)
{
    const struct kv_shape *s = &w->codec[KV_K]->shape;
    const struct kv_tokens all = kv_tokens_part(&w->tokens, s, 0, prompt);
    size_t next = 0;

    if (prompt && kv_policy_cache_step(cache, &all, NULL, e))
        return -1;
    while (next < w->n_at && w->at[next] < prompt)
        next++;
    for (size_t t = prompt; t < w->tokens.n; t++) {
        const struct kv_tokens one = kv_tokens_part(&w->tokens, s, t, 1);

        if (kv_policy_cache_enter(cache, &one, out, e))
            return -1;
        if (next < w->n_at && w->at[next] == t) {
            add_position(sum, w, cache, t, out);
            next++;
        }
        kv_policy_cache_drop(cache);
    }
    return 0;
}

int kv_policy_error_add(struct kv_attn_error *sum, struct kv_bits *bits,
                        const struct kv_policy_window *w, struct kv_err *e)
{
    const struct kv_policy_spec *policy = &w->spec->policy;
    const struct kv_protocol p =
        kv_policy_protocol(policy->policy, w->tokens.n);
    const struct kv_shape *s = &w->codec[KV_K]->shape;
    struct kv_policy_cache *cache;
    float *out;
    int rc;

    if (kv_policy_cache_new(&cache, policy, w->codec,
                            kv_policy_share_of(&p, w->tokens.n), w->seed, e))
        return -1;
    out = kv_alloc(s->n_heads, s->head_dim * sizeof(*out));
    rc =
        run_window(sum, w, p.kind == KV_PREFILL ? p.prefill : 0, cache, out, e);
    for (int side = 0; side < KV_SIDES && !rc; side++)
        kv_policy_cache_bits(cache, (enum kv_side)side, &bits[side]);
    free(out);
    kv_policy_cache_free(cache);
    return rc;
}
