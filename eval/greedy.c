#include "eval/greedy.h"
#include "eval/prefill.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/seq/seq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One text under way. */
struct sequence {
    struct kv_greedy *g;
    size_t n_layers;
    struct kv_codecs *codecs;
    struct kv_seq *seq;
    struct kv_prefill prefill;
    bool exact; /* its prompt attends to all at full precision in all layers */
    bool ended;
};

/* Sequences that decode together. */
struct together {
    struct kv_model *m;
    struct sequence *all;
    size_t n;
    struct sequence **live; /* [n_live], in the pass under way: a span of one
                             * token each, or all the same prompt */
    size_t n_live;
    bool prompt;
    struct kv_span *span;   /* [n] */
    int32_t *ids;           /* [n]: the newest of each that is live */
    float *hidden, *logits; /* [longest prompt or n][hidden], [n][n_vocab] */
};

static void clear(struct sequence *s)
{
    kv_seq_free(s->seq);
    kv_codecs_free(s->codecs);
}

static int init(struct sequence *s, const struct kv_shape *shape,
                struct kv_greedy *g, const struct kv_calib *calib,
                uint64_t seed, struct kv_err *e)
{
    const struct kv_policy_spec *p = &g->spec->policy;

    *s = (struct sequence){.g = g,
                           .n_layers = shape->n_layers,
                           .prefill = {.policy = p, .calib = calib},
                           .exact = !p->policy || !p->policy->patterns};
    s->seq = kv_seq_new(&(struct kv_seq_plan){.n_layers = s->n_layers,
                                              .policy = p,
                                              .share_of = g->n_prompt,
                                              .seed = seed});
    if (kv_codecs_new(&s->codecs, g->spec, shape, 0, s->n_layers, calib, e))
        goto fail;
    for (size_t i = 0; i < s->n_layers; i++) {
        struct kv_codec *const *codec = kv_codecs_at(s->codecs, i);

        if (kv_seq_open(s->seq, codec, e))
            goto fail;
        s->exact = s->exact && !codec[KV_K]->prefill_on_codes;
    }
    return 0;
fail:
    clear(s);
    return -1;
}

/* A layer of the sequences that are live, in the host's memory. */
struct layer {
    const struct together *t;
    const struct kv_qkv *x;
};

static bool is_exact(const struct together *t, const struct kv_codec *k)
{
    return t->prompt && !k->prefill_on_codes;
}

/* The i-th live sequence's tokens into its caches, and its attention. */
static int attend_one(const void *arg, size_t i, size_t thread,
                      struct kv_err *e)
{
    const struct layer *l = arg;
    const struct kv_qkv *x = l->x;
    const struct sequence *s = l->t->live[i];
    const size_t at = l->t->prompt ? 0 : i, n = l->t->prompt ? x->n : 1;
    const struct kv_tokens t = kv_qkv_tokens(x, 0, at, n);

    (void)thread;
    if (is_exact(l->t, kv_codecs_at(s->codecs, x->layer)[KV_K]))
        return kv_seq_append(s->seq, x->layer, &t, e);
    return kv_seq_step(s->seq, x->layer, &t,
                       x->out + at * x->shape->n_heads * x->shape->head_dim, e);
}

static int attend(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const struct together *t = arg;
    struct sequence *first = t->live[0];
    struct kv_qkv host;
    const struct layer l = {t, &host};
    const struct kv_attend_job job = kv_qkv_job(x, 0, x->n);

    if (kv_qkv_to_host(x, &host, e) ||
        host.backend->each(t->n_live, attend_one, &l, e))
        return -1;
    return is_exact(t, kv_codecs_at(first->codecs, x->layer)[KV_K])
               ? kv_prefill_attend(&first->prefill, x, &job, e)
               : kv_qkv_from_host(x, &host, e);
}

/* The most probable of n; at: the position that it is for. */
static int choose(const float *logits, size_t n, size_t at, int32_t *id,
                  struct kv_err *e)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(logits[i]))
            return kv_fail(e,
                           "token %zu: the logit of id %zu is not finite (does "
                           "the model overflow?)",
                           at, i);
    *id = (int32_t)kv_row_argmax(logits, n);
    return 0;
}

static bool ends(const struct kv_greedy *g, int32_t id)
{
    for (size_t i = 0; i < g->n_ends; i++)
        if (g->end[i] == id)
            return true;
    return false;
}

/* ids [n] of hidden [n], which follow tokens of these counts. */
static int next_ids(struct together *t, size_t n, const size_t *after,
                    struct kv_err *e)
{
    const size_t n_vocab = kv_model_info(t->m)->n_vocab;

    if (kv_model_logits(t->m, t->hidden, n, t->logits, e))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (choose(t->logits + i * n_vocab, n_vocab, after[i], &t->ids[i], e))
            return -1;
    return 0;
}

static void take(struct sequence *s, int32_t id)
{
    struct kv_greedy *g = s->g;

    g->ids[g->n_prompt + g->made++] = id;
    s->ended = g->made == g->n_new || ends(g, id);
}

static bool same_prompt(const struct sequence *a, const struct sequence *b)
{
    return a->g->n_prompt == b->g->n_prompt &&
           !memcmp(a->g->ids, b->g->ids, a->g->n_prompt * sizeof(*a->g->ids));
}

/* The first id after the prompt that all live ones have. */
static int run_prompt(struct together *t, struct kv_err *e)
{
    const struct kv_attention mine = {.run = attend, .arg = t};
    const struct kv_greedy *g = t->live[0]->g;
    const size_t hidden = kv_model_info(t->m)->hidden;

    if (kv_interrupted(e) ||
        kv_model_forward(t->m, g->ids, 1, g->n_prompt, 0, &mine, t->hidden, e))
        return -1;
    memmove(t->hidden, t->hidden + (g->n_prompt - 1) * hidden,
            hidden * sizeof(*t->hidden));
    if (next_ids(t, 1, &g->n_prompt, e))
        return -1;
    for (size_t i = 0; i < t->n_live; i++)
        take(t->live[i], t->ids[0]);
    return 0;
}

/* Each prompt: the sequences that attend to all of it at full precision in one
 * pass, each of the others alone. */
static int run_prompts(struct together *t, struct kv_err *e)
{
    t->prompt = true;
    for (size_t i = 0; i < t->n; i++) {
        struct sequence *s = &t->all[i];

        if (s->g->made)
            continue;
        t->n_live = 0;
        for (size_t j = i; j < t->n; j++)
            if (j == i ||
                (s->exact && t->all[j].exact && same_prompt(s, &t->all[j])))
                t->live[t->n_live++] = &t->all[j];
        if (run_prompt(t, e))
            return -1;
    }
    t->prompt = false;
    return 0;
}

/* One token of every sequence that has not ended. */
static int run_step(struct together *t, struct kv_err *e)
{
    const struct kv_attention mine = {.run = attend, .arg = t};
    const struct kv_batch batch = {t->n_live, t->span, t->ids};
    size_t *after = kv_alloc(t->n_live, sizeof(*after));
    int rc;

    for (size_t i = 0; i < t->n_live; i++) {
        const struct kv_greedy *g = t->live[i]->g;

        after[i] = g->n_prompt + g->made;
        t->ids[i] = g->ids[after[i] - 1];
        t->span[i] =
            (struct kv_span){.sequence = i, .first = after[i] - 1, .n = 1};
    }
    rc = kv_interrupted(e) ||
         kv_model_forward_batch(t->m, &batch, &mine, t->hidden, e) ||
         next_ids(t, t->n_live, after, e);
    for (size_t i = 0; i < t->n_live && !rc; i++)
        take(t->live[i], t->ids[i]);
    free(after);
    return rc ? -1 : 0;
}

static void find_live(struct together *t)
{
    t->n_live = 0;
    for (size_t i = 0; i < t->n; i++)
        if (!t->all[i].ended)
            t->live[t->n_live++] = &t->all[i];
}

/* Of the caches of all layers. */
static struct kv_bits bits_of(const struct sequence *s)
{
    struct kv_bits bits = {0};

    for (size_t i = 0; i < s->n_layers * KV_SIDES; i++)
        kv_seq_bits(s->seq, i / KV_SIDES, (enum kv_side)(i % KV_SIDES), &bits);
    return bits;
}

static int run(struct together *t, struct kv_progress *progress,
               struct kv_err *e)
{
    double start = kv_seconds(), now;

    if (run_prompts(t, e))
        return -1;
    now = kv_seconds();
    for (size_t i = 0; i < t->n; i++)
        t->all[i].g->prompt_seconds = now - start;
    start = now;
    for (find_live(t);; find_live(t)) {
        if (progress)
            kv_progress_step(progress, 1);
        if (!t->n_live)
            break;
        if (run_step(t, e))
            return -1;
        now = kv_seconds();
        for (size_t i = 0; i < t->n_live; i++)
            t->live[i]->g->seconds = now - start;
    }
    for (size_t i = 0; i < t->n; i++)
        t->all[i].g->bits = bits_of(&t->all[i]);
    return 0;
}

int kv_greedy(struct kv_model *m, struct kv_greedy *g, size_t n,
              const struct kv_calib *calib, uint64_t seed,
              struct kv_progress *progress, struct kv_err *e)
{
    const struct kv_model_info *info = kv_model_info(m);
    struct together t = {
        .m = m,
        .all = kv_alloc(n, sizeof(*t.all)),
        .live = kv_alloc(n, sizeof(struct sequence *)),
        .span = kv_alloc(n, sizeof(*t.span)),
        .ids = kv_alloc(n, sizeof(*t.ids)),
        .logits = kv_alloc(n, info->n_vocab * sizeof(*t.logits)),
    };
    size_t rows = n;
    int rc = 0;

    for (size_t i = 0; i < n; i++)
        rows = g[i].n_prompt > rows ? g[i].n_prompt : rows;
    t.hidden = kv_alloc(rows, info->hidden * sizeof(*t.hidden));
    kv_model_few_in_f32(m);
    for (; t.n < n && !rc; t.n += !rc) {
        g[t.n].made = 0;
        g[t.n].prompt_seconds = g[t.n].seconds = 0;
        rc = init(&t.all[t.n], &info->shape, &g[t.n], calib, seed, e);
    }
    rc = rc || run(&t, progress, e);
    if (progress)
        kv_progress_clear(progress);
    for (size_t i = 0; i < t.n; i++)
        clear(&t.all[i]);
    free(t.logits);
    free(t.hidden);
    free(t.ids);
    free(t.span);
    free(t.live);
    free(t.all);
    return rc ? -1 : 0;
}
