#include "eval/generate.h"
#include "eval/prefill.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "lib/seq/seq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The codecs of a spec, which its answers share. */
struct opened {
    const struct kv_spec *spec;
    struct kv_codecs *codecs;
    bool exact; /* prompts attend to all at full precision in all layers */
};

/* An answer under way. */
struct sequence {
    struct kv_answer *a;
    const struct opened *spec;
    struct kv_seq *seq;
    struct kv_prefill prefill;
    int32_t *ids; /* [n_prompt + most]: the prompt and the new tokens */
    double begun; /* when the first new token was there */
    bool ended;
};

struct run {
    const struct kv_generation *g;
    size_t n_layers, n_vocab;
    struct opened *spec;
    size_t n_specs;
    struct sequence *open; /* [n_open] in their order; 2 batch - 1 at most */
    size_t n_open;
    struct sequence **live; /* [n_live], in the pass under way: a span of one
                             * token each, or all the same prompt */
    size_t n_live;
    bool prompt;
    struct kv_span *span; /* [rows] */
    size_t rows;          /* of a pass that is no prompt */
    float *hidden,
        *logits; /* [longest prompt or rows][hidden], [rows][vocab] */
};

const char *kv_finish_name(enum kv_finish f)
{
    static const char *const name[] = {"length", "eos", "stop"};

    return name[f];
}

size_t kv_generate_cache_bytes(const struct kv_shape *shape, size_t n)
{
    return shape->n_layers * KV_SIDES * shape->n_kv_heads * shape->head_dim *
           sizeof(float) * n;
}

/* ---- specs --------------------------------------------------------------- */

static int open_spec(struct run *r, const struct kv_spec *spec,
                     struct kv_err *e)
{
    const struct kv_policy_spec *p = &spec->policy;
    struct opened *o = &r->spec[r->n_specs];

    *o = (struct opened){.spec = spec,
                         .exact = !p->policy || !p->policy->patterns};
    if (kv_codecs_new(&o->codecs, spec, &kv_model_info(r->g->model)->shape, 0,
                      r->n_layers, r->g->calib, e))
        return -1;
    r->n_specs++;
    for (size_t i = 0; i < r->n_layers; i++)
        o->exact =
            o->exact && !kv_codecs_at(o->codecs, i)[KV_K]->prefill_on_codes;
    return 0;
}

static const struct opened *find_spec(const struct run *r,
                                      const struct kv_spec *spec)
{
    for (size_t i = 0; i < r->n_specs; i++)
        if (r->spec[i].spec == spec)
            return &r->spec[i];
    return NULL;
}

static int open_specs(struct run *r, const struct kv_answer *a, size_t n,
                      struct kv_err *e)
{
    for (size_t i = 0; i < n; i++) {
        if (find_spec(r, a[i].spec))
            continue;
        r->spec = kv_realloc(r->spec, r->n_specs + 1, sizeof(*r->spec));
        if (open_spec(r, a[i].spec, e))
            return -1;
    }
    return 0;
}

/* ---- sequences ----------------------------------------------------------- */

static void clear(struct sequence *s)
{
    kv_seq_free(s->seq);
    free(s->ids);
}

static int begin(struct sequence *s, const struct run *r, struct kv_answer *a,
                 struct kv_err *e)
{
    const struct kv_policy_spec *p = &a->spec->policy;

    *s = (struct sequence){.a = a,
                           .spec = find_spec(r, a->spec),
                           .prefill = {.policy = p, .calib = r->g->calib}};
    s->seq = kv_seq_new(&(struct kv_seq_plan){.n_layers = r->n_layers,
                                              .policy = p,
                                              .share_of = a->n_prompt,
                                              .seed = r->g->seed});
    for (size_t i = 0; i < r->n_layers; i++)
        if (kv_seq_open(s->seq, kv_codecs_at(s->spec->codecs, i), e)) {
            clear(s);
            return -1;
        }
    s->ids = kv_alloc(a->n_prompt + a->most, sizeof(*s->ids));
    memcpy(s->ids, a->prompt, a->n_prompt * sizeof(*s->ids));
    return 0;
}

/* Writes the answer's results. */
static void finish(struct sequence *s, const struct run *r)
{
    struct kv_answer *a = s->a;

    a->ids = kv_alloc(a->made, sizeof(*a->ids));
    memcpy(a->ids, s->ids + a->n_prompt, a->made * sizeof(*a->ids));
    a->seconds = kv_seconds() - s->begun;
    a->bits = (struct kv_bits){0};
    for (size_t i = 0; i < r->n_layers * KV_SIDES; i++)
        kv_seq_bits(s->seq, i / KV_SIDES, (enum kv_side)(i % KV_SIDES),
                    &a->bits);
    if (r->g->progress)
        kv_progress_step(r->g->progress, a->most - a->made);
    clear(s);
}

/* Frees the sequences that have ended. */
static void close_ended(struct run *r)
{
    size_t n = 0;

    for (size_t i = 0; i < r->n_open; i++) {
        if (r->open[i].ended)
            finish(&r->open[i], r);
        else
            r->open[n++] = r->open[i];
    }
    r->n_open = n;
}

/* ---- attention ----------------------------------------------------------- */

/* A layer of the sequences that are live, in the host's memory. */
struct layer {
    const struct run *r;
    const struct kv_qkv *x;
};

static bool is_exact(const struct run *r, const struct sequence *s,
                     size_t layer)
{
    return r->prompt &&
           !kv_codecs_at(s->spec->codecs, layer)[KV_K]->prefill_on_codes;
}

/* The i-th live sequence's tokens into its caches, and its attention. */
static int attend_one(const void *arg, size_t i, size_t thread,
                      struct kv_err *e)
{
    const struct layer *l = arg;
    const struct kv_qkv *x = l->x;
    const struct sequence *s = l->r->live[i];
    const size_t at = l->r->prompt ? 0 : i, n = l->r->prompt ? x->n : 1;
    const struct kv_tokens t = kv_qkv_tokens(x, 0, at, n);

    (void)thread;
    if (is_exact(l->r, s, x->layer))
        return kv_seq_append(s->seq, x->layer, &t, e);
    return kv_seq_step(s->seq, x->layer, &t,
                       x->out + at * x->shape->n_heads * x->shape->head_dim, e);
}

static int attend(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    const struct run *r = arg;
    struct sequence *first = r->live[0];
    struct kv_qkv host;
    const struct layer l = {r, &host};
    const struct kv_attend_job job = kv_qkv_job(x, 0, x->n);

    if (kv_qkv_to_host(x, &host, e) ||
        host.backend->each(r->n_live, attend_one, &l, e))
        return -1;
    return is_exact(r, first, x->layer)
               ? kv_prefill_attend(&first->prefill, x, &job, e)
               : kv_qkv_from_host(x, &host, e);
}

/* ---- tokens -------------------------------------------------------------- */

static bool is_end(const struct kv_generation *g, int32_t id)
{
    for (size_t i = 0; i < g->n_ends; i++)
        if (g->end[i] == id)
            return true;
    return false;
}

static int check_finite(const float *logits, size_t n, size_t at,
                        struct kv_err *e)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(logits[i]))
            return kv_fail(e,
                           "token %zu: the logit of id %zu is not finite (does "
                           "the model overflow?)",
                           at, i);
    return 0;
}

/* The next token of a sequence, by its logits [n_vocab], which change. */
static int take(const struct run *r, struct sequence *s, float *logits,
                struct kv_err *e)
{
    struct kv_answer *a = s->a;
    const size_t n = a->n_prompt + a->made;
    const double u = (double)(kv_random(a->key, a->made) >> 11) * 0x1p-53;
    bool stopped;

    if (check_finite(logits, r->n_vocab, n, e))
        return -1;
    kv_sampling_penalize(&r->g->sampling, logits, r->n_vocab, s->ids, n);
    s->ids[n] = kv_sampling_choose(&r->g->sampling, logits, r->n_vocab, u);
    a->made++;
    if (r->g->progress)
        kv_progress_step(r->g->progress, 1);
    if (is_end(r->g, s->ids[n])) {
        a->finish = KV_FINISH_EOS;
        s->ended = true;
        return 0;
    }
    if (kv_stops_check(&a->stops, r->g->tokenizer, s->ids + a->n_prompt,
                       a->made, &stopped, e))
        return -1;
    a->finish = stopped ? KV_FINISH_STOP : KV_FINISH_LENGTH;
    s->ended = stopped || a->made == a->most;
    return 0;
}

/* The first token after the prompt that all live ones have. */
static int run_prompt(struct run *r, struct kv_err *e)
{
    const struct kv_attention mine = {.run = attend, .arg = r};
    const struct kv_answer *a = r->live[0]->a;
    const size_t hidden = kv_model_info(r->g->model)->hidden;
    const double start = kv_seconds();
    float *logits = kv_alloc(r->n_vocab, sizeof(*logits));
    int rc;

    r->prompt = true;
    rc = kv_interrupted(e) ||
         kv_model_forward(r->g->model, a->prompt, 1, a->n_prompt, 0, &mine,
                          r->hidden, e) ||
         kv_model_logits(r->g->model, r->hidden + (a->n_prompt - 1) * hidden, 1,
                         logits, e);
    r->prompt = false;
    for (size_t i = 0; i < r->n_live && !rc; i++) {
        struct sequence *s = r->live[i];

        memcpy(r->logits, logits, r->n_vocab * sizeof(*logits));
        s->begun = kv_seconds();
        s->a->prompt_seconds = s->begun - start;
        rc = take(r, s, r->logits, e);
    }
    free(logits);
    return rc ? -1 : 0;
}

/* Runs the prompt of the sequences from `first` on.  Sequences whose prompt
 * attends at full precision share one pass; each other sequence has a pass of
 * its own. */
static int run_prompts(struct run *r, size_t first, struct kv_err *e)
{
    for (size_t i = first; i < r->n_open; i++) {
        struct sequence *s = &r->open[i];

        if (s->a->made)
            continue;
        r->n_live = 0;
        for (size_t j = i; j < r->n_open; j++)
            if (j == i || (s->spec->exact && r->open[j].spec->exact))
                r->live[r->n_live++] = &r->open[j];
        if (run_prompt(r, e))
            return -1;
    }
    return 0;
}

/* One token of every live sequence. */
static int run_step(struct run *r, struct kv_err *e)
{
    const struct kv_attention mine = {.run = attend, .arg = r};
    int32_t *ids = kv_alloc(r->n_live, sizeof(*ids));
    const struct kv_batch batch = {r->n_live, r->span, ids};
    int rc;

    for (size_t i = 0; i < r->n_live; i++) {
        const struct sequence *s = r->live[i];
        const size_t at = s->a->n_prompt + s->a->made - 1;

        ids[i] = s->ids[at];
        r->span[i] = (struct kv_span){.sequence = i, .first = at, .n = 1};
    }
    rc = kv_interrupted(e) ||
         kv_model_forward_batch(r->g->model, &batch, &mine, r->hidden, e) ||
         kv_model_logits(r->g->model, r->hidden, r->n_live, r->logits, e);
    for (size_t i = 0; i < r->n_live && !rc; i++)
        rc = take(r, r->live[i], r->logits + i * r->n_vocab, e);
    free(ids);
    return rc ? -1 : 0;
}

/* One token of the first `batch` sequences, some at a time. */
static int run_steps(struct run *r, struct kv_err *e)
{
    const size_t n = r->n_open < r->g->batch ? r->n_open : r->g->batch;

    for (size_t i = 0; i < n;) {
        for (r->n_live = 0; r->n_live < r->rows && i < n; i++)
            r->live[r->n_live++] = &r->open[i];
        if (run_step(r, e))
            return -1;
    }
    return 0;
}

/* Opens the next answers, of one prompt, and runs it.  *next is behind them. */
static int open_next(struct run *r, struct kv_answer *a, size_t n, size_t *next,
                     struct kv_err *e)
{
    const size_t first = r->n_open;
    const int32_t *prompt = a[*next].prompt;

    while (*next < n && r->n_open - first < r->g->batch &&
           a[*next].prompt == prompt) {
        struct kv_answer *one = &a[*next];

        one->made = 0;
        if (begin(&r->open[r->n_open], r, one, e))
            return -1;
        r->n_open++;
        ++*next;
    }
    return run_prompts(r, first, e);
}

static int run_all(struct run *r, struct kv_answer *a, size_t n,
                   struct kv_err *e)
{
    size_t next = 0;

    while (next < n || r->n_open) {
        if (next < n && r->n_open < r->g->batch ? open_next(r, a, n, &next, e)
                                                : run_steps(r, e))
            return -1;
        close_ended(r);
    }
    return 0;
}

int kv_generate(const struct kv_generation *g, struct kv_answer *a, size_t n,
                struct kv_err *e)
{
    const struct kv_model_info *info = kv_model_info(g->model);
    const bool few = kv_model_backend(g->model)->on_host;
    struct run r = {.g = g,
                    .n_layers = info->shape.n_layers,
                    .n_vocab = info->n_vocab,
                    .open = kv_alloc(2 * g->batch, sizeof(*r.open)),
                    .live = kv_alloc(2 * g->batch, sizeof(*r.live)),
                    .rows =
                        few && g->batch > KV_FEW_ROWS ? KV_FEW_ROWS : g->batch};
    size_t longest = r.rows;
    int rc;

    for (size_t i = 0; i < n; i++)
        longest = a[i].n_prompt > longest ? a[i].n_prompt : longest;
    r.span = kv_alloc(r.rows, sizeof(*r.span));
    r.logits = kv_alloc(r.rows, info->n_vocab * sizeof(*r.logits));
    r.hidden = kv_alloc(longest, info->hidden * sizeof(*r.hidden));
    kv_model_few_in_f32(g->model);
    rc = open_specs(&r, a, n, e) || run_all(&r, a, n, e);
    if (g->progress)
        kv_progress_clear(g->progress);
    for (size_t i = 0; i < r.n_open; i++)
        clear(&r.open[i]);
    for (size_t i = 0; i < r.n_specs; i++)
        kv_codecs_free(r.spec[i].codecs);
    free(r.hidden);
    free(r.logits);
    free(r.span);
    free(r.live);
    free(r.open);
    free(r.spec);
    return rc ? -1 : 0;
}

void kv_answer_clear(struct kv_answer *a)
{
    free(a->ids);
    a->ids = NULL;
}

size_t kv_answer_agrees(const struct kv_answer *a, const struct kv_answer *b)
{
    size_t i = 0;

    while (i < a->made && i < b->made && a->ids[i] == b->ids[i])
        i++;
    return i;
}
