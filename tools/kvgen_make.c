/* Lists kvgen's answers and makes them. */
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/base/rng.h"
#include "tools/kvgen.h"

#include <stdlib.h>
#include <string.h>

/* The stop strings of --stop, then the prompt's own. */
static struct kv_stops stops_of(struct kvgen_run *r, const struct kvgen_args *a,
                                size_t i)
{
    const struct kv_prompt *p = &r->prompts.at[r->mine[i]];
    const char **list = kv_alloc(a->stops.n + p->n_stops, sizeof(*list));

    for (size_t j = 0; j < a->stops.n + p->n_stops; j++)
        list[j] = j < a->stops.n ? a->stops.item[j] : p->stop[j - a->stops.n];
    r->stop[i] = list;
    return (struct kv_stops){list, a->stops.n + p->n_stops};
}

/* The last token of a context is decoded, so that all of its continuation sees
 * the cache. */
static size_t decoded_of(const struct kv_prompt *p)
{
    return p->continuation && p->n > 1;
}

/* The tokens of the i-th prompt, or the previous prompt's pointer if they are
 * equal, so that both share a pass. */
static const int32_t *tokens_of(const struct kvgen_run *r, size_t i,
                                const int32_t *before)
{
    const struct kv_prompt *p = &r->prompts.at[r->mine[i]];
    const struct kv_prompt *last = i ? &r->prompts.at[r->mine[i - 1]] : NULL;

    return last && last->n == p->n &&
                   !memcmp(p->ids, before, p->n * sizeof(*p->ids))
               ? before
               : p->ids;
}

void kvgen_list_answers(struct kvgen_run *r, const struct kvgen_args *a)
{
    const int32_t *tokens = NULL;
    struct kv_answer *x;

    r->stop = kv_alloc(r->n_mine, sizeof(*r->stop));
    r->answer =
        kv_alloc(r->n_mine, r->n_specs * a->samples * sizeof(*r->answer));
    x = r->answer;
    for (size_t i = 0; i < r->n_mine; i++) {
        const struct kv_prompt *p = &r->prompts.at[r->mine[i]];
        const struct kv_stops stops = stops_of(r, a, i);
        const uint64_t key = kv_mix(kv_mix(0, a->common.seed), r->mine[i]);
        const size_t n = p->n - decoded_of(p);

        tokens = tokens_of(r, i, tokens);
        for (size_t j = 0; j < r->n_specs * a->samples; j++)
            *x++ = (struct kv_answer){.spec = &r->spec[j / a->samples],
                                      .prompt = tokens,
                                      .n_prompt = n,
                                      .most = kvgen_most(r, a, p) + p->n - n,
                                      .forced = p->ids + n,
                                      .n_forced = p->n_continuation + p->n - n,
                                      .n_context = p->n - n,
                                      .least = kvgen_least(a, p),
                                      .n_top = a->score ? 1 : 0,
                                      .sampling = &a->sampling,
                                      .stops = stops,
                                      .key = kv_mix(key, j % a->samples)};
    }
    r->n_answers = (size_t)(x - r->answer);
}

int kvgen_choose_batch(struct kvgen_run *r, const struct kvgen_args *a,
                       struct kv_err *e)
{
    const struct kv_shape *shape = &kv_model_info(r->model)->shape;
    size_t longest = 0, bytes, fit;

    for (size_t i = 0; i < r->n_answers; i++) {
        const size_t n = r->answer[i].n_prompt + r->answer[i].most;

        longest = n > longest ? n : longest;
    }
    bytes = kv_generate_cache_bytes(shape, longest);
    if (a->batch && a->batch > (a->common.memory / bytes + 1) / 2)
        return kv_fail(e,
                       "--batch %zu: caches of %zu tokens take up to %.3g MB "
                       "each, of which --memory has room for %zu (--batch B "
                       "wants 2 B - 1)",
                       a->batch, longest, (double)bytes * 1e-6,
                       a->common.memory / bytes);
    fit = kv_memory_fit(a->common.memory, bytes, 2 * KV_FEW_ROWS - 1,
                        "answer's cache");
    r->batch = a->batch ? a->batch : (fit + 1) / 2;
    if (!a->batch && r->batch < KV_FEW_ROWS && r->batch < r->n_answers)
        kv_note("%zu answers at a time: caches of %zu tokens take up to %.3g "
                "MB each (--memory)",
                r->batch, longest, (double)bytes * 1e-6);
    return 0;
}

/* The argument of note_end(). */
struct end {
    struct kvgen_run *r;
    const struct kvgen_args *a;
};

static int note_end(void *arg, struct kv_answer *x, struct kv_err *e)
{
    const struct end *end = arg;

    if (x->finish == KV_FINISH_FAILED)
        return kv_fail(e, "%s", x->why);
    return end->r->journal ? kvgen_journal_add(end->r, end->a, x, e) : 0;
}

struct kv_generation kvgen_generation(const struct kvgen_run *r,
                                      const struct kvgen_args *a,
                                      struct kv_progress *progress)
{
    return (struct kv_generation){
        .model = r->model,
        .tokenizer = r->tokenizer,
        .ends = {r->chat.end, a->ignore_eos ? 0 : r->chat.n_ends},
        .calib = r->calib,
        .seed = a->common.seed,
        .batch = r->batch,
        .progress = progress};
}

/* Makes the answers that no earlier run has made. */
static int make_answers(struct kvgen_run *r, const struct kvgen_args *a,
                        struct kv_progress *progress, struct kv_err *e)
{
    struct end end = {r, a};
    struct kv_generation generation = kvgen_generation(r, a, progress);
    struct kv_generator *g;
    int rc = 0;

    generation.ended = note_end;
    generation.arg = &end;
    g = kv_generator_new(&generation);

    for (size_t i = 0; i < r->n_answers && !rc; i++)
        if (!r->answer[i].made)
            rc = kv_generator_add(g, &r->answer[i], e);
    while (!rc && !kv_generator_idle(g))
        rc = kv_generator_step(g, e);
    kv_generator_free(g);
    return rc;
}

int kvgen_make_answers(struct kvgen_run *r, const struct kvgen_args *a,
                       struct kv_err *e)
{
    const size_t known = r->journal ? kvgen_journal_take(r, a) : 0;
    const double start = kv_seconds();
    struct kv_progress progress;
    size_t steps = 0, before = 0, made = 0;
    double seconds;
    int rc;

    if (known)
        kv_note("%zu of %zu answers are there", known, r->n_answers);
    for (size_t i = 0; i < r->n_answers; i++) {
        before += r->answer[i].made;
        steps += r->answer[i].made ? 0 : r->answer[i].most;
    }
    kv_progress_init(&progress, "tokens", steps);
    rc = make_answers(r, a, &progress, e);
    kv_progress_clear(&progress);
    if (rc || kv_inputs_unchanged(e))
        return -1;
    seconds = kv_seconds() - start;
    for (size_t i = 0; i < r->n_answers; i++)
        made += r->answer[i].made;
    if (known < r->n_answers)
        kv_note("%zu tokens of %zu answers in %.1f s, %.1f a second",
                made - before, r->n_answers - known, seconds,
                (double)(made - before) / seconds);
    return 0;
}
