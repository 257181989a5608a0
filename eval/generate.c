#include "eval/generate_impl.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"

#include <stdlib.h>
#include <string.h>

size_t kv_generate_cache_bytes(const struct kv_shape *shape, size_t n)
{
    return kv_shape_kv_all(shape) * (size_t)kv_shape_sides(shape) * 2 *
               sizeof(float) * n +
           kv_shape_state_bytes(shape);
}

/* ---- specs --------------------------------------------------------------- */

static struct kv_gen_spec *find_spec(const struct kv_generator *r,
                                     const struct kv_spec *spec)
{
    for (size_t i = 0; i < r->n_specs; i++)
        if (r->spec[i]->spec == spec)
            return r->spec[i];
    return NULL;
}

static int open_spec(struct kv_generator *r, const struct kv_spec *spec,
                     struct kv_err *e)
{
    const struct kv_policy_spec *p = &spec->policy;
    const struct kv_device *device = kv_model_backend(r->g.model)->device;
    struct kv_gen_spec *o;

    if (find_spec(r, spec))
        return 0;
    o = kv_alloc(1, sizeof(*o));
    *o = (struct kv_gen_spec){.spec = spec,
                              .exact = !p->policy || !p->policy->patterns};
    if (kv_codecs_new(&o->codecs, spec, &kv_model_info(r->g.model)->shape, 0,
                      r->n_layers, r->g.calib, e)) {
        free(o);
        return -1;
    }
    for (size_t i = 0; i < r->n_layers; i++)
        o->exact =
            o->exact && !kv_codecs_at(o->codecs, i)[KV_K]->prefill_on_codes;
    if (device && !p->policy)
        o->gpu = kv_gpu_layers_new(spec->text, r->n_layers, device);
    r->spec = kv_realloc(r->spec, r->n_specs + 1, sizeof(*r->spec));
    r->spec[r->n_specs++] = o;
    return 0;
}

static void close_spec(struct kv_gen_spec *o)
{
    kv_gpu_layers_free(o->gpu);
    kv_codecs_free(o->codecs);
    free(o);
}

/* ---- sequences ----------------------------------------------------------- */

static void clear(struct kv_gen_sequence *s)
{
    kv_gpu_layers_drop(s->spec->gpu, s->id);
    kv_seq_free(s->seq);
    free(s->ids);
}

void kv_gen_fail(struct kv_gen_sequence *s, const struct kv_err *why)
{
    s->a->finish = KV_FINISH_FAILED;
    s->a->why = kv_strdup(why->msg);
    s->ended = true;
}

static int open_layers(struct kv_seq **s, const struct kv_answer *a,
                       const struct kv_generator *r, struct kv_err *e)
{
    const struct kv_shape *shape = &kv_model_info(r->g.model)->shape;
    const struct kv_gen_spec *spec = find_spec(r, a->spec);

    *s = kv_seq_new(&(struct kv_seq_plan){.n_layers = r->n_layers,
                                          .n_states = shape->n_states,
                                          .state_floats = shape->state_floats,
                                          .policy = &a->spec->policy,
                                          .share_of = a->n_prompt,
                                          .seed = r->g.seed});
    for (size_t i = 0; i < r->n_layers; i++)
        if (kv_seq_open(*s, kv_codecs_at(spec->codecs, i), e))
            return -1;
    return 0;
}

/* Makes a sequence without its cache. */
static struct kv_gen_sequence sequence_of(struct kv_generator *r,
                                          struct kv_answer *a)
{
    struct kv_gen_sequence s = {
        .a = a,
        .id = r->n_begun++,
        .spec = find_spec(r, a->spec),
        .prefill = {.policy = &a->spec->policy, .calib = r->g.calib}};

    s.ids = kv_alloc(a->n_prompt + a->most, sizeof(*s.ids));
    memcpy(s.ids, a->prompt, a->n_prompt * sizeof(*s.ids));
    return s;
}

static void begin(struct kv_gen_sequence *s, struct kv_generator *r,
                  struct kv_answer *a)
{
    struct kv_err e;

    *s = sequence_of(r, a);
    a->made = 0;
    a->encode_seconds = 0;
    a->ids = kv_alloc(a->most, sizeof(*a->ids));
    if (a->n_top) {
        a->log_prob = kv_alloc(a->most, sizeof(*a->log_prob));
        a->top = kv_alloc(a->most, a->n_top * sizeof(*a->top));
    }
    if (open_layers(&s->seq, a, r, &e))
        kv_gen_fail(s, &e);
}

/* Writes the answer's results. */
static int finish(struct kv_gen_sequence *s, const struct kv_generator *r,
                  struct kv_err *e)
{
    struct kv_answer *a = s->a;

    a->seconds = a->made ? kv_seconds() - s->begun : 0;
    a->bits = (struct kv_bits){0};
    for (size_t i = 0;
         a->finish != KV_FINISH_FAILED && i < r->n_layers * KV_SIDES; i++)
        kv_seq_bits(s->seq, i / KV_SIDES, (enum kv_side)(i % KV_SIDES),
                    &a->bits);
    if (r->g.progress)
        kv_progress_step(r->g.progress, a->most - a->made);
    clear(s);
    if (r->g.ended)
        return r->g.ended(r->g.arg, a, e);
    return a->finish == KV_FINISH_FAILED ? kv_fail(e, "%s", a->why) : 0;
}

/* Frees the sequences that have ended. */
static int close_ended(struct kv_generator *r, struct kv_err *e)
{
    size_t n = 0;
    int rc = 0;

    for (size_t i = 0; i < r->n_open; i++) {
        if (!r->open[i].ended)
            r->open[n++] = r->open[i];
        else if (finish(&r->open[i], r, e))
            rc = -1;
    }
    r->n_open = n;
    return rc;
}

/* ---- tokens -------------------------------------------------------------- */

/* Takes the next token of a live sequence by its logits [n_vocab], which
 * change. */
static void take(const struct kv_generator *r, struct kv_gen_sequence *s,
                 float *logits)
{
    struct kv_err e;

    if (kv_answer_take(s->a, s->ids, logits, r->n_vocab, &r->g.ends,
                       r->g.tokenizer, &s->ended, &e))
        kv_gen_fail(s, &e);
    if (r->g.progress)
        kv_progress_step(r->g.progress, 1);
}

static void fail_live(struct kv_generator *r, const struct kv_err *why)
{
    for (size_t i = 0; i < r->n_live; i++)
        if (!r->live[i]->ended)
            kv_gen_fail(r->live[i], why);
}

/* Runs the prompt that all live sequences share, and makes their first
 * tokens. */
static void run_prompt(struct kv_generator *r)
{
    const struct kv_attention mine = {
        .run = kv_gen_attend, .arg = r, .state = kv_gen_state};
    const struct kv_answer *a = r->live[0]->a;
    const double start = kv_seconds();
    float *logits = kv_alloc(r->n_vocab, sizeof(*logits));
    struct kv_err e;

    if (a->n_prompt > r->longest) {
        r->longest = a->n_prompt;
        r->hidden =
            kv_realloc(r->hidden, r->longest, r->n_hidden * sizeof(*r->hidden));
    }
    r->prompt = true;
    if (kv_interrupted(&e) ||
        kv_model_forward(r->g.model, a->prompt, 1, a->n_prompt, 0, &mine,
                         r->hidden, &e) ||
        kv_model_logits(r->g.model, r->hidden + (a->n_prompt - 1) * r->n_hidden,
                        1, logits, &e))
        fail_live(r, &e);
    kv_gen_share_state(r);
    r->prompt = false;
    for (size_t i = 0; i < r->n_live; i++) {
        struct kv_gen_sequence *s = r->live[i];

        if (s->ended)
            continue;
        memcpy(r->logits, logits, r->n_vocab * sizeof(*logits));
        s->begun = kv_seconds();
        s->a->prompt_seconds = s->begun - start;
        take(r, s, r->logits);
    }
    free(logits);
}

/* Runs the prompt of the sequences from `first` on.  Sequences whose prompt
 * attends at full precision share one pass; each other sequence has a pass of
 * its own. */
static void run_prompts(struct kv_generator *r, size_t first)
{
    for (size_t i = first; i < r->n_open; i++) {
        if (r->open[i].a->made || r->open[i].ended)
            continue;
        r->n_live = 0;
        for (size_t j = i; j < r->n_open; j++)
            if (j == i || (!r->open[j].ended && r->open[i].spec->exact &&
                           r->open[j].spec->exact))
                r->live[r->n_live++] = &r->open[j];
        run_prompt(r);
    }
}

/* Runs one decode pass: one token of every live sequence. */
static void run_step(struct kv_generator *r)
{
    const struct kv_attention mine = {
        .run = kv_gen_attend, .arg = r, .state = kv_gen_state};
    int32_t *ids = kv_alloc(r->n_live, sizeof(*ids));
    const struct kv_batch batch = {r->n_live, r->span, ids};
    struct kv_err e;

    for (size_t i = 0; i < r->n_live; i++) {
        const struct kv_gen_sequence *s = r->live[i];
        const size_t at = s->a->n_prompt + s->a->made - 1;

        ids[i] = s->ids[at];
        r->span[i] = (struct kv_span){.sequence = i, .first = at, .n = 1};
    }
    if (kv_interrupted(&e) ||
        kv_model_forward_batch(r->g.model, &batch, &mine, r->hidden, &e) ||
        kv_model_logits(r->g.model, r->hidden, r->n_live, r->logits, &e))
        fail_live(r, &e);
    for (size_t i = 0; i < r->n_live; i++)
        if (!r->live[i]->ended)
            take(r, r->live[i], r->logits + i * r->n_vocab);
    free(ids);
}

/* Makes one token for each of the first `batch` sequences, `rows` of them per
 * pass. */
static void run_steps(struct kv_generator *r)
{
    const size_t n = r->n_open < r->g.batch ? r->n_open : r->g.batch;

    for (size_t i = 0; i < n;) {
        for (r->n_live = 0; r->n_live < r->rows && i < n; i++)
            r->live[r->n_live++] = &r->open[i];
        run_step(r);
    }
}

/* Opens the next answers that share a prompt, and runs the prompt. */
static void open_next(struct kv_generator *r)
{
    const size_t first = r->n_open;
    const int32_t *prompt = r->waiting[r->next]->prompt;

    while (r->next < r->n_waiting && r->n_open - first < r->g.batch &&
           r->waiting[r->next]->prompt == prompt)
        begin(&r->open[r->n_open++], r, r->waiting[r->next++]);
    run_prompts(r, first);
}

/* ---- the generator ------------------------------------------------------- */

struct kv_generator *kv_generator_new(const struct kv_generation *g)
{
    const struct kv_model_info *info = kv_model_info(g->model);
    const bool few = kv_model_backend(g->model)->on_host;
    struct kv_generator *r = kv_alloc(1, sizeof(*r));

    *r = (struct kv_generator){
        .g = *g,
        .n_layers = info->shape.n_layers,
        .n_vocab = info->n_vocab,
        .n_hidden = info->hidden,
        .open = kv_alloc(2 * g->batch, sizeof(*r->open)),
        .live = kv_alloc(2 * g->batch, sizeof(*r->live)),
        .rows = few && g->batch > KV_FEW_ROWS ? KV_FEW_ROWS : g->batch};
    r->longest = r->rows;
    r->span = kv_alloc(r->rows, sizeof(*r->span));
    r->logits = kv_alloc(r->rows, r->n_vocab * sizeof(*r->logits));
    r->hidden = kv_alloc(r->longest, r->n_hidden * sizeof(*r->hidden));
    kv_model_few_in_f32(g->model);
    return r;
}

void kv_generator_free(struct kv_generator *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n_open; i++)
        clear(&r->open[i]);
    for (size_t i = 0; i < r->n_specs; i++)
        close_spec(r->spec[i]);
    free(r->hidden);
    free(r->logits);
    free(r->span);
    free(r->live);
    free(r->open);
    free(r->waiting);
    free(r->spec);
    free(r);
}

int kv_generator_add(struct kv_generator *r, struct kv_answer *a,
                     struct kv_err *e)
{
    if (open_spec(r, a->spec, e))
        return -1;
    r->n_waiting -= r->next;
    if (r->next)
        memmove(r->waiting, r->waiting + r->next,
                r->n_waiting * sizeof(*r->waiting));
    r->next = 0;
    r->waiting = kv_realloc(r->waiting, r->n_waiting + 1, sizeof(*r->waiting));
    r->waiting[r->n_waiting++] = a;
    return 0;
}

int kv_generator_open(struct kv_generator *r, const struct kv_answer *a,
                      struct kv_seq **s, struct kv_err *e)
{
    *s = NULL;
    if (!open_spec(r, a->spec, e) && !open_layers(s, a, r, e))
        return 0;
    kv_seq_free(*s);
    *s = NULL;
    return -1;
}

void kv_generator_join(struct kv_generator *r, struct kv_answer *a,
                       struct kv_seq *seq, bool ended)
{
    struct kv_gen_sequence *s = &r->open[r->n_open++];

    *s = sequence_of(r, a);
    s->ids[a->n_prompt] = a->ids[0];
    s->seq = seq;
    s->begun = kv_seconds();
    s->ended = ended;
}

void kv_generator_forget(struct kv_generator *r, const struct kv_spec *spec)
{
    size_t n = 0;

    for (size_t i = 0; i < r->n_specs; i++)
        if (r->spec[i]->spec == spec)
            close_spec(r->spec[i]);
        else
            r->spec[n++] = r->spec[i];
    r->n_specs = n;
}

void kv_generator_drop(struct kv_generator *r, const struct kv_answer *a)
{
    size_t n = r->next;

    for (size_t i = r->next; i < r->n_waiting; i++)
        if (r->waiting[i] != a)
            r->waiting[n++] = r->waiting[i];
    r->n_waiting = n;
    n = 0;
    for (size_t i = 0; i < r->n_open; i++)
        if (r->open[i].a == a)
            clear(&r->open[i]);
        else
            r->open[n++] = r->open[i];
    r->n_open = n;
}

bool kv_generator_idle(const struct kv_generator *r)
{
    return r->next == r->n_waiting && !r->n_open;
}

int kv_generator_step(struct kv_generator *r, struct kv_err *e)
{
    if (close_ended(r, e)) /* sequences may join with all of their tokens */
        return -1;
    if (r->next < r->n_waiting && r->n_open < r->g.batch)
        open_next(r);
    else
        run_steps(r);
    return close_ended(r, e);
}

int kv_generate(const struct kv_generation *g, struct kv_answer *a, size_t n,
                struct kv_err *e)
{
    struct kv_generator *r = kv_generator_new(g);
    int rc = 0;

    for (size_t i = 0; i < n && !rc; i++)
        rc = kv_generator_add(r, &a[i], e);
    while (!rc && !kv_generator_idle(r))
        rc = kv_generator_step(r, e);
    if (g->progress)
        kv_progress_clear(g->progress);
    kv_generator_free(r);
    return rc;
}
