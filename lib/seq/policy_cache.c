#include "lib/base/alloc.h"
#include "lib/rope_table.h"
#include "lib/seq/policy_cache_impl.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

int kv_policy_cache_new(struct kv_policy_cache **out,
                        const struct kv_policy_spec *policy,
                        struct kv_codec *const *codec, size_t n, uint64_t seed,
                        struct kv_err *e)
{
    const struct kv_shape *s = &codec[KV_K]->shape;
    struct kv_policy_cache *c = kv_alloc(1, sizeof(*c));

    if (kv_cache_new(&c->cache, codec[KV_K], codec[KV_V], seed, e)) {
        free(c);
        return -1;
    }
    c->policy = policy;
    c->shape = s;
    c->group = s->n_heads / s->n_kv_heads;
    c->plan = policy->policy->plan(policy, s, codec[KV_K]->layer, n);
    c->held = kv_alloc(s->n_kv_heads, sizeof(*c->held));
    *out = c;
    return 0;
}

void kv_policy_cache_free(struct kv_policy_cache *c)
{
    if (!c)
        return;
    for (size_t h = 0; h < c->shape->n_kv_heads; h++) {
        free(c->held[h].position);
        free(c->held[h].mass);
        free(c->held[h].k);
        free(c->held[h].v);
        free(c->held[h].score);
        free(c->held[h].keep);
    }
    free(c->held);
    kv_cache_free(c->cache);
    free(c);
}

/* ---- rows ---------------------------------------------------------------- */

/* Moves tokens [from, from + n) of the arrays to index `to`. */
static void move(struct kv_held *h, size_t d, size_t to, size_t from, size_t n)
{
    memmove(h->position + to, h->position + from, n * sizeof(*h->position));
    memmove(h->mass + to, h->mass + from, n * sizeof(*h->mass));
    memmove(h->k + to * d, h->k + from * d, n * d * sizeof(*h->k));
    memmove(h->v + to * d, h->v + from * d, n * d * sizeof(*h->v));
}

/* Makes room for n more tokens. */
static void make_room(struct kv_held *h, size_t d, size_t n)
{
    if (h->begin + h->n + n <= h->capacity)
        return;
    if (2 * (h->n + n) > h->capacity) {
        h->capacity = 2 * (h->n + n);
        h->position = kv_realloc(h->position, h->capacity, sizeof(uint32_t));
        h->mass = kv_realloc(h->mass, h->capacity, sizeof(double));
        h->k = kv_realloc(h->k, h->capacity, d * sizeof(float));
        h->v = kv_realloc(h->v, h->capacity, d * sizeof(float));
        h->score = kv_realloc(h->score, h->capacity, sizeof(double));
        h->keep = kv_realloc(h->keep, h->capacity, sizeof(bool));
    }
    move(h, d, 0, h->begin, h->n);
    h->begin = 0;
}

/* Tokens [first, end) in the form that later queries read, keys after RoPE:
 * [end - first][n_kv_heads][head_dim]. */
struct fresh {
    size_t first, end;
    float *x;
};

static struct fresh read_fresh(const struct kv_policy_cache *c,
                               enum kv_side side, size_t first, size_t end)
{
    const struct kv_codec *codec = kv_cache_reader(c->cache, side).codec;
    struct fresh f = {first, end, NULL};

    if (first >= end)
        return f;
    f.x = kv_alloc(end - first, kv_codec_row(codec) * sizeof(*f.x));
    kv_cache_decode_part(c->cache, side, first, end, f.x);
    if (codec->pre_rope)
        kv_rope(c->shape, f.x, end - first, c->shape->n_kv_heads, first);
    return f;
}

/* Copies the fresh tokens that the head holds into its rows. */
static void put_fresh(const struct kv_policy_cache *c, size_t head,
                      enum kv_side side, const struct fresh *f)
{
    const size_t d = c->shape->head_dim, heads = c->shape->n_kv_heads;
    const struct kv_held *h = &c->held[head];
    float *to = side == KV_K ? h->k : h->v;

    for (size_t i = h->begin + h->n; i-- > h->begin && f->x;) {
        const size_t j = h->position[i];

        if (j < f->first)
            return;
        if (j < f->end)
            memcpy(to + i * d, f->x + ((j - f->first) * heads + head) * d,
                   d * sizeof(*to));
    }
}

/* The number of tokens of a side whose stored form no longer changes. */
static size_t settled(const struct kv_policy_cache *c, enum kv_side side)
{
    const struct kv_reader r = kv_cache_reader(c->cache, side);

    return r.sinks + r.n_blocks * r.codec->block;
}

/* ---- attention of one KV head -------------------------------------------- */

/* The number of first tokens among the held tokens [from, to) whose position
 * changes if positions have no gaps and the newest token keeps its own. */
static size_t n_moved(const struct kv_held *h, size_t from, size_t to)
{
    const size_t newest = kv_position_of(h, to - 1);
    size_t n = 0;

    while (kv_position_of(h, from + n) != newest - (to - 1 - from - n))
        n++;
    return n;
}

/* Rotates the keys of these n tokens to their new positions. */
static void reassign(const struct kv_policy_cache *c, const struct kv_held *h,
                     size_t from, size_t to, size_t n, float *k)
{
    const size_t newest = kv_position_of(h, to - 1);

    for (size_t i = 0; i < n; i++)
        kv_rope(c->shape, k + i * c->shape->head_dim, 1, 1,
                newest - (to - 1 - from - i) - kv_position_of(h, from + i));
}

/* The first held token that a query at this position sees; in a sliding layer
 * it is in the query's window. */
static size_t seen_from(const struct kv_policy_cache *c,
                        const struct kv_held *h, size_t position)
{
    const size_t window = c->shape->window;
    size_t i = 0;

    while (window && i < h->n && kv_position_of(h, i) + window <= position)
        i++;
    return i;
}

/* Attends with the step's queries [first, end) over the held tokens before end.
 * out: whether outputs are wanted; mass: weights are added to it [held], or
 * NULL.  All queries see the tokens that the first query sees, and later tokens
 * up to their own.
 */
static void attend_held(const struct kv_policy_cache *c, size_t head,
                        const struct kv_policy_step *step, size_t first,
                        size_t end, bool out, double *mass)
{
    const struct kv_held *h = &c->held[head];
    const size_t d = c->shape->head_dim, nq = end - first;
    const size_t q_row = c->shape->n_heads * d, own = c->group * d;
    const size_t n_before = kv_position_of(h, h->n - 1) + 1 - step->in->n;
    const size_t at = (first - n_before) * q_row + head * own;
    const size_t from = seen_from(c, h, first);
    const size_t to = h->n - (kv_position_of(h, h->n - 1) + 1 - end);
    const size_t moved =
        c->policy->policy->reassigns ? n_moved(h, from, to) : 0;
    float *k = h->k + (h->begin + from) * d;
    float *q = kv_alloc(2 * nq, own * sizeof(*q)), *o = q + nq * own;
    float *stood = kv_alloc(moved, d * sizeof(*stood));
    struct kv_attend_view view =
        kv_shape_view(c->shape, to - from, to - from - nq, nq);

    memcpy(stood, k, moved * d * sizeof(*stood));
    reassign(c, h, from, to, moved, k);
    for (size_t i = 0; i < nq; i++)
        memcpy(q + i * own, step->in->q + at + i * q_row, own * sizeof(*q));
    view.n_heads = c->group;
    view.n_kv_heads = 1;
    view.window = 0;
    view.slope = view.slope ? view.slope + head * c->group : NULL;
    if (view.sink_logit)
        view.sink_logit += head * c->group;
    view.mass = mass ? mass + from : NULL;

    const struct kv_attend_job job = {
        .view = view,
        .q = q,
        .out = out ? o : NULL,
        .q_rows = nq,
        .k = {.quantized = k},
        .v = {.quantized = h->v + (h->begin + from) * d}};

    if (mass)
        kv_attend_c(&job);
    else
        kv_attend(&job);
    for (size_t i = 0; i < nq && out; i++)
        memcpy(step->out + at + i * q_row, o + i * own, own * sizeof(*o));
    memcpy(k, stood, moved * d * sizeof(*stood));
    free(stood);
    free(q);
}

/* attend_held() for any layer.  In a sliding layer each query sees its own
 * window, so queries attend one by one. */
static void attend_head(const struct kv_policy_cache *c, size_t head,
                        const struct kv_policy_step *step, size_t first,
                        size_t end, bool out, double *mass)
{
    const size_t together = c->shape->window ? 1 : end - first;

    for (size_t i = first; i < end; i += together)
        attend_held(c, head, step, i, i + together, out, mass);
}

/* Attends with the step's queries.  In a prompt this only computes the weights
 * that the policy needs. */
static void attend_step(struct kv_policy_cache *c, size_t head,
                        const struct kv_policy_step *step)
{
    const struct kv_policy_spec *p = c->policy;
    const enum kv_policy_mass which = p->policy->mass;
    const size_t end = kv_cache_tokens(c->cache), first = end - step->in->n;
    struct kv_held *h = &c->held[head];
    double *mass = h->mass + h->begin;

    if (which == KV_MASS_ALL)
        attend_head(c, head, step, first, end, step->out, mass);
    else if (step->out)
        attend_head(c, head, step, first, end, true, NULL);
    if (which == KV_MASS_NEWEST) {
        const size_t n = p->policy->queries(p);

        memset(mass, 0, h->n * sizeof(*mass));
        attend_head(c, head, step, step->in->n > n ? end - n : first, end,
                    false, mass);
    }
}

/* ---- tokens come in ------------------------------------------------------ */

/* Appends the new tokens' rows.  The keys are exact, since a prompt's own
 * queries see exact keys. */
static void append(struct kv_policy_cache *c, size_t head,
                   const struct kv_policy_step *step)
{
    const size_t d = c->shape->head_dim, heads = c->shape->n_kv_heads;
    const size_t first = kv_cache_tokens(c->cache) - step->in->n;
    struct kv_held *h = &c->held[head];

    make_room(h, d, step->in->n);
    for (size_t t = 0; t < step->in->n; t++, h->n++) {
        const size_t i = h->begin + h->n;

        h->position[i] = (uint32_t)(first + t);
        h->mass[i] = 0;
        memcpy(h->k + i * d, step->in->k + (t * heads + head) * d,
               d * sizeof(*h->k));
    }
}

/* A policy's step, with the tokens whose stored form is new. */
struct step {
    struct kv_policy_cache *c;
    const struct kv_policy_step *of;
    struct fresh fresh[KV_SIDES][2]; /* coded tokens, and tokens not coded
                                      * yet */
};

static void run_head(const struct step *s, size_t head)
{
    append(s->c, head, s->of);
    if (!s->of->out)
        attend_step(s->c, head, s->of);
    for (int side = 0; side < KV_SIDES; side++)
        for (int i = 0; i < 2; i++)
            put_fresh(s->c, head, (enum kv_side)side, &s->fresh[side][i]);
    if (s->of->out && !kv_policy_on_codes(s->c))
        attend_step(s->c, head, s->of);
}

/* Runs heads in parallel, outside of parallel regions. */
static void run_heads(const struct step *s)
{
    const struct kv_shape *shape = s->c->shape;
    const size_t heads = shape->n_kv_heads;
    const size_t values = shape->n_heads * shape->head_dim * s->of->in->n *
                          (s->c->held[0].n + s->of->in->n);

    if (heads == 1 || values < KV_ATTEND_WORTH_THREADS || omp_in_parallel()) {
        for (size_t h = 0; h < heads; h++)
            run_head(s, h);
        return;
    }
#pragma omp parallel for schedule(dynamic)
    for (size_t h = 0; h < heads; h++)
        run_head(s, h);
}

/* ---- tokens are dropped -------------------------------------------------- */

static void score_head(const struct kv_policy_cache *c, struct kv_held *h)
{
    const struct kv_policy_held held = {.n = h->n,
                                        .head_dim = c->shape->head_dim,
                                        .position = h->position + h->begin,
                                        .key = h->k +
                                               h->begin * c->shape->head_dim,
                                        .mass = h->mass + h->begin};

    memset(h->score, 0, h->n * sizeof(*h->score));
    if (c->policy->policy->score)
        c->policy->policy->score(c->policy, &held, h->score);
}

/* Gives every KV head of the layer the sum of the scores, so that all hold the
 * same tokens. */
static void share_scores(struct kv_policy_cache *c)
{
    struct kv_held *first = &c->held[0];

    for (size_t h = 1; h < c->shape->n_kv_heads; h++)
        for (size_t i = 0; i < first->n; i++)
            first->score[i] += c->held[h].score[i];
    for (size_t h = 1; h < c->shape->n_kv_heads; h++)
        memcpy(c->held[h].score, first->score,
               first->n * sizeof(*first->score));
}

/* Closes the gaps that dropped tokens leave, from the end at which fewer kept
 * tokens must move. */
static void close_gaps(struct kv_held *h, size_t d)
{
    size_t first = 0, last = h->n, n = 0;

    while (first < h->n && h->keep[first])
        first++;
    while (last > first && h->keep[last - 1])
        last--;
    if (first == last)
        return;
    for (size_t i = 0; i < h->n; i++)
        n += h->keep[i];
    if (last < h->n - first) {
        size_t to = h->begin + last;

        for (size_t i = last; i-- > 0;)
            if (h->keep[i])
                move(h, d, --to, h->begin + i, 1);
        h->begin = to;
    } else {
        size_t to = h->begin + first;

        for (size_t i = first; i < h->n; i++)
            if (h->keep[i])
                move(h, d, to++, h->begin + i, 1);
    }
    h->n = n;
}

/* Drops the tokens that the policy does not keep, and the tokens that the
 * newest query of a sliding layer does not see. */
static void drop(const struct kv_policy_cache *c, struct kv_held *h)
{
    const size_t unseen = seen_from(c, h, kv_cache_tokens(c->cache) - 1);

    kv_policy_choose(&c->plan, h->score, h->n, h->keep);
    for (size_t i = 0; i < unseen; i++)
        h->keep[i] = false;
    close_gaps(h, c->shape->head_dim);
}

int kv_policy_cache_enter(struct kv_policy_cache *c, const struct kv_tokens *t,
                          float *out, struct kv_err *e)
{
    const size_t before[] = {settled(c, KV_K), settled(c, KV_V)};
    const size_t first = kv_cache_tokens(c->cache);
    const struct kv_policy_step of = {t, out};
    struct step s = {.c = c, .of = &of};

    if (kv_cache_append(c->cache, t, e))
        return -1;
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;
        const size_t now = settled(c, side);

        s.fresh[i][0] = read_fresh(c, side, before[i], now);
        s.fresh[i][1] =
            read_fresh(c, side, now > first ? now : first, first + t->n);
    }
    if (!kv_policy_on_codes(c))
        kv_cache_forget(c->cache);
    run_heads(&s);
    if (kv_policy_on_codes(c) && out)
        kv_policy_attend_codes(c, &of);
    for (int i = 0; i < KV_SIDES; i++)
        for (int j = 0; j < 2; j++)
            free(s.fresh[i][j].x);
    c->of_prompt = !out;
    return 0;
}

void kv_policy_cache_drop(struct kv_policy_cache *c)
{
    const size_t heads = c->shape->n_kv_heads;
    bool full = false;

    if (c->policy->policy->prompt && !c->of_prompt)
        return;
    for (size_t h = 0; h < heads; h++)
        full |= c->held[h].n > c->plan.budget;
    for (size_t h = 0; h < heads && full; h++)
        score_head(c, &c->held[h]);
    if (full && c->policy->policy->by_layer)
        share_scores(c);
    for (size_t h = 0; h < heads; h++)
        drop(c, &c->held[h]);
}

int kv_policy_cache_step(struct kv_policy_cache *c, const struct kv_tokens *t,
                         float *out, struct kv_err *e)
{
    if (kv_policy_cache_enter(c, t, out, e))
        return -1;
    kv_policy_cache_drop(c);
    return 0;
}

struct kv_policy_seen kv_policy_cache_seen(const struct kv_policy_cache *c,
                                           size_t head)
{
    const struct kv_held *h = &c->held[head];
    const size_t d = c->shape->head_dim;
    const size_t from = seen_from(c, h, kv_cache_tokens(c->cache) - 1);
    struct kv_policy_seen s = {.n = h->n - from,
                               .position = h->position + h->begin + from,
                               .v = h->v + (h->begin + from) * d};

    s.k = kv_alloc(s.n, d * sizeof(*s.k));
    memcpy(s.k, h->k + (h->begin + from) * d, s.n * d * sizeof(*s.k));
    if (c->policy->policy->reassigns)
        reassign(c, h, from, h->n, n_moved(h, from, h->n), s.k);
    return s;
}
