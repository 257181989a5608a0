#include "eval/policy_loop.h"
#include "kernels/tiles/tiles.h"
#include "lib/base/alloc.h"
#include "lib/rope_table.h"

#include <stdlib.h>
#include <string.h>

/* What a KV head holds, by position ascending. */
struct held {
    size_t n;
    uint32_t *position;
    double *mass, *score;
    bool *keep;
};

/* A layer at work; rows of one KV head at a time. */
struct layer {
    const struct kv_policy_window *w;
    const struct kv_shape *shape; /* the layer's */
    size_t group;                 /* query heads of a KV head */
    struct kv_policy_plan plan;
    struct held *held; /* [n_kv_heads] */
    float *k, *v;      /* [n][head_dim] */
    float *q, *out;    /* [queries][group][head_dim] */
    double *mass;      /* [n] */
};

static const struct kv_codec *codec_of(const struct kv_policy_window *w,
                                       enum kv_side side)
{
    return kv_cache_reader(w->cache, side).codec;
}

/* Tokens that a budget is a share of. */
static size_t plan_tokens(const struct kv_protocol *p, size_t n)
{
    return p->kind == KV_PREFILL && p->prefill < n ? p->prefill : n;
}

int kv_policy_check(const struct kv_spec *spec, const struct kv_protocol *p,
                    struct kv_codec *const *codec, size_t n, struct kv_err *e)
{
    const struct kv_policy *policy = spec->policy.policy;
    const struct kv_codec *k = codec[KV_K];
    const size_t sinks = kv_spec_size(&k->spec, KV_K, "s");
    struct kv_policy_plan plan;

    if (!kv_protocol_steps(p))
        return kv_fail(e,
                       "%s: protocol %s has no steps at which tokens are "
                       "dropped: expected stream or prefill:P",
                       spec->text, p->text);
    if (policy->prompt && p->kind != KV_PREFILL)
        return kv_fail(e,
                       "%s: %s drops tokens of a prompt: expected protocol "
                       "prefill:P, not %s",
                       spec->text, policy->name, p->text);
    if (k->scheme->attend || k->history || codec[KV_V]->history || k->layered)
        return kv_fail(e, "%s: no policy can drop tokens of %s, %s", spec->text,
                       k->scheme->name,
                       k->layered ? "which predicts layers from lower ones"
                                  : "which attends on its codes");
    if (k->massive || codec[KV_V]->massive)
        return kv_fail(e,
                       "%s: massive=yes keeps tokens, %s drops them: "
                       "expected one of both",
                       spec->text, policy->name);
    if (k->shape.alibi && !policy->reassigns)
        return kv_fail(e,
                       "%s: the model has ALiBi, whose distances %s does "
                       "not keep",
                       spec->text, policy->name);
    plan = policy->plan(&spec->policy, &k->shape, k->layer, plan_tokens(p, n));
    if (!plan.budget || plan.first + plan.newest > plan.budget)
        return kv_fail(e,
                       "%s: layer %zu keeps %zu tokens, fewer than the %zu "
                       "that it always keeps",
                       spec->text, k->layer, plan.budget,
                       plan.first + plan.newest);
    if (plan.budget < sinks)
        return kv_fail(e,
                       "%s: layer %zu keeps %zu tokens, fewer than its %zu "
                       "sinks",
                       spec->text, k->layer, plan.budget, sinks);
    return 0;
}

/* ---- attention of one KV head -------------------------------------------- */

/* until NULL: no token is quantized. */
static bool is_quantized(const struct kv_attend_side *s, size_t query, size_t j)
{
    return s->until && j >= s->sinks && j < s->until[query];
}

/* Rows of held tokens [from, to), in the form that a query sees. */
static void gather(const struct layer *l, const struct kv_attend_side *s,
                   size_t head, size_t from, size_t to, size_t query,
                   float *rows)
{
    const struct held *h = &l->held[head];
    const size_t d = l->shape->head_dim, heads = l->shape->n_kv_heads;

    for (size_t i = from; i < to; i++) {
        const size_t j = h->position[i];
        const float *form =
            is_quantized(s, query, j) ? s->quantized : s->unquantized;

        memcpy(rows + (i - from) * d, form + (j * heads + head) * d,
               d * sizeof(*rows));
    }
}

/* Rotates the keys of held tokens [from, to) to positions without a gap, of
 * which the newest is its own. */
static void reassign(const struct layer *l, const struct held *h, size_t from,
                     size_t to)
{
    const size_t newest = h->position[to - 1];

    for (size_t i = from; i < to; i++) {
        const size_t position = newest - (to - 1 - i);

        if (position != h->position[i])
            kv_rope(l->shape, l->k + (i - from) * l->shape->head_dim, 1, 1,
                    position - h->position[i]);
    }
}

/* The first held token that a query at this position sees: a layer that slides
 * shows it its window. */
static size_t seen_from(const struct layer *l, const struct held *h,
                        size_t position)
{
    const size_t window = l->shape->window;
    size_t i = 0;

    while (window && i < h->n && h->position[i] + window <= position)
        i++;
    return i;
}

/* Queries [first, end) over the held tokens before end, keys in this form.
 * out: whether outputs are wanted; mass: weights are added to it [held], or
 * NULL.  All queries see the first one's tokens, and those up to their own. */
static void attend_held(struct layer *l, size_t head, size_t first, size_t end,
                        const struct kv_attend_side *k, bool out, double *mass)
{
    const struct held *h = &l->held[head];
    const size_t d = l->shape->head_dim, nq = end - first;
    const size_t q_row = l->shape->n_heads * d, own = l->group * d;
    const size_t at = first * q_row + head * own;
    const size_t from = seen_from(l, h, first);
    const size_t to = h->n - (h->position[h->n - 1] + 1 - end);
    struct kv_attend_view view =
        kv_shape_view(l->shape, to - from, to - from - nq, nq);

    gather(l, k, head, from, to, end - 1, l->k);
    if (out)
        gather(l, &l->w->v, head, from, to, end - 1, l->v);
    if (l->w->policy->policy->reassigns)
        reassign(l, h, from, to);
    for (size_t i = 0; i < nq; i++)
        memcpy(l->q + i * own, l->w->q + at + i * q_row, own * sizeof(*l->q));
    view.n_heads = l->group;
    view.n_kv_heads = 1;
    view.window = 0;
    view.slope = view.slope ? view.slope + head * l->group : NULL;
    view.mass = mass ? mass + from : NULL;

    const struct kv_attend_job job = {.view = view,
                                      .q = l->q,
                                      .out = out ? l->out : NULL,
                                      .q_rows = nq,
                                      .k = {.quantized = l->k},
                                      .v = {.quantized = l->v}};

    if (mass)
        kv_attend_c(&job);
    else
        kv_attend(&job);
    for (size_t i = 0; i < nq && out; i++)
        memcpy(l->w->out + at + i * q_row, l->out + i * own,
               own * sizeof(*l->out));
}

/* The same, of which each query sees the window of a layer that slides. */
static void attend_head(struct layer *l, size_t head, size_t first, size_t end,
                        const struct kv_attend_side *k, bool out, double *mass)
{
    const size_t together = l->shape->window ? 1 : end - first;

    for (size_t i = first; i < end; i += together)
        attend_held(l, head, i, i + together, k, out, mass);
}

/* Queries [first, end): of a step, or of the prompt, whose outputs are not
 * wanted and whose keys are exact.  Notes the weights that count. */
static void attend_step(struct layer *l, size_t head, size_t first, size_t end,
                        bool prompt)
{
    const struct kv_policy_spec *p = l->w->policy;
    const enum kv_policy_mass which = p->policy->mass;
    const struct kv_attend_side exact = {.unquantized = l->w->exact_k};
    const struct kv_attend_side *k = prompt ? &exact : &l->w->k;
    struct held *h = &l->held[head];

    if (which == KV_MASS_ALL)
        attend_head(l, head, first, end, k, !prompt, h->mass);
    else if (!prompt)
        attend_head(l, head, first, end, k, true, NULL);
    if (which == KV_MASS_NEWEST) {
        const size_t n = p->policy->queries(p);

        memset(h->mass, 0, h->n * sizeof(*h->mass));
        attend_head(l, head, end - first > n ? end - n : first, end, k, false,
                    h->mass);
    }
}

static void append(struct held *h, size_t first, size_t end)
{
    for (size_t j = first; j < end; j++, h->n++) {
        h->position[h->n] = (uint32_t)j;
        h->mass[h->n] = 0;
    }
}

/* ---- what is kept -------------------------------------------------------- */

static void score_head(struct layer *l, size_t head, size_t query)
{
    struct held *h = &l->held[head];
    const struct kv_policy_spec *p = l->w->policy;

    memset(h->score, 0, h->n * sizeof(*h->score));
    if (!p->policy->score)
        return;
    gather(l, &l->w->k, head, 0, h->n, query, l->k);
    p->policy->score(p,
                     &(struct kv_policy_held){.n = h->n,
                                              .head_dim = l->shape->head_dim,
                                              .position = h->position,
                                              .key = l->k,
                                              .mass = h->mass},
                     h->score);
}

/* A layer's KV heads hold the same tokens: each takes the sum of the scores. */
static void share_scores(struct layer *l)
{
    struct held *first = &l->held[0];

    for (size_t h = 1; h < l->shape->n_kv_heads; h++)
        for (size_t i = 0; i < first->n; i++)
            first->score[i] += l->held[h].score[i];
    for (size_t h = 1; h < l->shape->n_kv_heads; h++)
        memcpy(l->held[h].score, first->score,
               first->n * sizeof(*first->score));
}

/* Also drops what the newest query does not see in a layer that slides. */
static void drop(struct layer *l, struct held *h, size_t query)
{
    const size_t unseen = seen_from(l, h, query);
    size_t n = 0;

    kv_policy_choose(&l->plan, h->score, h->n, h->keep);
    for (size_t i = 0; i < h->n; i++)
        if (h->keep[i] && i >= unseen) {
            h->position[n] = h->position[i];
            h->mass[n++] = h->mass[i];
        }
    h->n = n;
}

/* After the step that query ends. */
static void drop_all(struct layer *l, size_t query)
{
    const size_t heads = l->shape->n_kv_heads;
    bool full = false;

    for (size_t h = 0; h < heads; h++)
        full |= l->held[h].n > l->plan.budget;
    for (size_t h = 0; h < heads && full; h++)
        score_head(l, h, query);
    if (full && l->w->policy->policy->by_layer)
        share_scores(l);
    for (size_t h = 0; h < heads; h++)
        drop(l, &l->held[h], query);
}

/* ---- what it takes ------------------------------------------------------- */

/* Whether the tokens of a block can be dropped for one KV head alone. */
static bool heads_apart(const struct kv_codec *c)
{
    struct kv_store s = {.values = c->side == KV_V,
                         .n_heads = c->shape.n_kv_heads,
                         .head_dim = c->shape.head_dim};

    return !c->variable && c->scheme->store && c->scheme->store(c, &s) &&
           !s.together;
}

/* Bytes of a side: fp16 rows, and blocks that hold a token. */
static void add_bits(const struct layer *l, enum kv_side side,
                     struct kv_bits *bits)
{
    const struct kv_reader r = kv_cache_reader(l->w->cache, side);
    const struct kv_codec *c = r.codec;
    const size_t heads = l->shape->n_kv_heads, d = l->shape->head_dim;
    const size_t quantized = r.sinks + r.n_blocks * c->block;
    size_t *in = kv_alloc(r.n_blocks * heads, sizeof(*in));
    const bool apart = heads_apart(c);
    size_t kept = 0, unquantized = 0;
    double bytes = 0, values = 0;

    for (size_t h = 0; h < heads; h++)
        for (size_t i = 0; i < l->held[h].n; i++, kept++) {
            const size_t j = l->held[h].position[i];

            if (j < r.sinks || j >= quantized)
                unquantized++;
            else
                in[(j - r.sinks) / c->block * heads + h]++;
        }
    for (size_t b = 0; b < r.n_blocks; b++) {
        size_t with = 0, whole = 0; /* KV heads that hold any, all of it */

        for (size_t h = 0; h < heads; h++) {
            with += in[b * heads + h] > 0;
            whole += in[b * heads + h] == c->block;
        }
        if (with && !apart)
            with = heads;
        bytes +=
            (double)(r.size ? r.size[b] + sizeof(*r.size) : c->block_bytes) *
            (double)with / (double)heads;
        values += (double)(with * c->block * d);
        /* A bit a token says which are dropped. */
        bytes += (double)((with - whole) * ((c->block + 7) / 8));
    }
    free(in);
    bits->bytes += bytes + (double)(unquantized * d * sizeof(uint16_t));
    bits->bytes +=
        (double)(r.n_queries * l->shape->n_heads * d * sizeof(uint16_t));
    bits->values += (double)(kv_shape_seen(l->shape, l->w->n) * heads * d);
    bits->quantized_bytes += bytes;
    bits->quantized_values += values;
    bits->kept_values += (double)(kept * d);
}

/* ---- a window ------------------------------------------------------------ */

static void make_room(struct layer *l)
{
    const size_t d = l->shape->head_dim, n = l->w->n;
    const size_t nq = l->w->prompt > l->w->step ? l->w->prompt : l->w->step;

    l->k = kv_alloc(n, d * sizeof(*l->k));
    l->v = kv_alloc(n, d * sizeof(*l->v));
    l->q = kv_alloc(nq, l->group * d * sizeof(*l->q));
    l->out = kv_alloc(nq, l->group * d * sizeof(*l->out));
    l->held = kv_alloc(l->shape->n_kv_heads, sizeof(*l->held));
    for (size_t h = 0; h < l->shape->n_kv_heads; h++) {
        l->held[h].position = kv_alloc(n, sizeof(*l->held[h].position));
        l->held[h].mass = kv_alloc(n, sizeof(*l->held[h].mass));
        l->held[h].score = kv_alloc(n, sizeof(*l->held[h].score));
        l->held[h].keep = kv_alloc(n, sizeof(*l->held[h].keep));
    }
}

static void free_room(struct layer *l)
{
    for (size_t h = 0; h < l->shape->n_kv_heads; h++) {
        free(l->held[h].position);
        free(l->held[h].mass);
        free(l->held[h].score);
        free(l->held[h].keep);
    }
    free(l->held);
    free(l->out);
    free(l->q);
    free(l->v);
    free(l->k);
}

/* Tokens [first, end) come in, and their queries attend. */
static void run_step(struct layer *l, size_t first, size_t end, bool prompt)
{
    for (size_t h = 0; h < l->shape->n_kv_heads; h++) {
        append(&l->held[h], first, end);
        attend_step(l, h, first, end, prompt);
    }
    if (prompt || !l->w->policy->policy->prompt)
        drop_all(l, end - 1);
}

void kv_policy_attend(const struct kv_policy_window *w, struct kv_bits *bits)
{
    const struct kv_codec *c = codec_of(w, KV_K);
    struct layer l = {
        .w = w,
        .shape = &c->shape,
        .group = c->shape.n_heads / c->shape.n_kv_heads,
        .plan = w->policy->policy->plan(w->policy, &c->shape, c->layer,
                                        plan_tokens(w->protocol, w->n))};

    make_room(&l);
    if (w->prompt)
        run_step(&l, 0, w->prompt, true);
    for (size_t i = w->prompt; i < w->n; i += w->step)
        run_step(&l, i, i + w->step < w->n ? i + w->step : w->n, false);
    for (int side = 0; side < KV_SIDES; side++)
        add_bits(&l, (enum kv_side)side, bits);
    free_room(&l);
}
