#include "tools/serve/decoder.h"
#include "eval/loop.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/mixed.h"

#include <stdlib.h>
#include <string.h>

enum { SPECS = 64 }; /* open at a time */

struct opened {
    struct kv_spec spec;
    size_t users;  /* jobs */
    uint64_t used; /* when the last one came */
};

struct decoder {
    const struct kv_decoding *d;
    struct kv_queue *q;
    struct kv_generator *generator;
    const struct kv_shape *shape;
    struct opened *opened[SPECS];
    size_t n_opened;
    uint64_t n_seen;
    struct kv_job **job; /* [n_jobs] that are not over, in their order */
    size_t n_jobs;
    size_t n_answers, bytes; /* answers in the generator */
};

static size_t bytes_of(const struct decoder *d, const struct kv_answer *a)
{
    return kv_generate_cache_bytes(d->shape, a->n_prompt + a->most);
}

/* ---- specs --------------------------------------------------------------- */

/* Finds a place for a spec: a new one, or the place of the unused spec used
 * longest ago. */
static struct opened *find_place(struct decoder *d, struct kv_err *e)
{
    struct opened *oldest = NULL;

    if (d->n_opened < SPECS) {
        d->opened[d->n_opened] = kv_alloc(1, sizeof(*oldest));
        return d->opened[d->n_opened++];
    }
    for (size_t i = 0; i < SPECS; i++)
        if (!d->opened[i]->users &&
            (!oldest || d->opened[i]->used < oldest->used))
            oldest = d->opened[i];
    if (!oldest)
        kv_fail(e, "%d specs are in use: try again when one is not", SPECS);
    else
        kv_generator_forget(d->generator, &oldest->spec);
    return oldest;
}

static struct opened *find_spec(struct decoder *d, const struct kv_spec *spec,
                                struct kv_err *e)
{
    struct opened *o;

    for (size_t i = 0; i < d->n_opened; i++)
        if (!strcmp(d->opened[i]->spec.text, spec->text))
            return d->opened[i];
    o = find_place(d, e);
    if (o)
        *o = (struct opened){.spec = *spec};
    return o;
}

/* Fails if a policy's budget does not suffice for the prompt. */
static int check_policy(const struct decoder *d, const struct kv_spec *spec,
                        const struct kv_answer *a, struct kv_err *e)
{
    const struct kv_protocol protocol = {
        .kind = KV_PREFILL, .step = 1, .prefill = a->n_prompt};
    struct kv_loop *loop;
    int rc;

    if (!spec->policy.policy)
        return 0;
    if (kv_loop_new(&loop, spec, d->shape, d->d->generation.calib, &protocol, 0,
                    NULL, e))
        return -1;
    rc = kv_loop_takes(loop, a->n_prompt + a->most, e);
    kv_loop_free(loop);
    return rc;
}

/* ---- jobs ---------------------------------------------------------------- */

static void forget(struct decoder *d, const struct kv_answer *a)
{
    d->n_answers--;
    d->bytes -= bytes_of(d, a);
}

static int on_end(void *arg, struct kv_answer *a, struct kv_err *e)
{
    struct decoder *d = arg;

    (void)e;
    for (size_t i = 0; i < d->n_jobs; i++) {
        struct kv_job *j = d->job[i];

        if (a >= j->answer && a < j->answer + j->n)
            j->mine[a - j->answer].ended = true;
    }
    forget(d, a);
    return 0;
}

/* Ends the i-th job; its unfinished answers are dropped. */
static void end_job(struct decoder *d, size_t i, int status,
                    const struct kv_err *why)
{
    struct kv_job *j = d->job[i];
    struct opened *o = j->opened;

    for (size_t k = 0; k < j->n_added; k++)
        if (!j->mine[k].ended) {
            kv_generator_drop(d->generator, &j->answer[k]);
            forget(d, &j->answer[k]);
        }
    if (o)
        o->users--;
    memmove(d->job + i, d->job + i + 1, (--d->n_jobs - i) * sizeof(*d->job));
    kv_queue_over(d->q, j, status, why);
}

static int open_job(struct decoder *d, struct kv_job *j, struct kv_err *e)
{
    struct opened *o = find_spec(d, &j->spec, e);

    if (!o)
        return -1;
    j->opened = o;
    o->users++;
    o->used = d->n_seen++;
    for (size_t i = 0; i < j->n; i++) {
        j->answer[i].spec = &o->spec;
        if (check_policy(d, &o->spec, &j->answer[i], e))
            return -1;
    }
    return 0;
}

static void take_jobs(struct decoder *d)
{
    struct kv_job *j;
    struct kv_err e;

    while ((j = kv_queue_take(d->q))) {
        d->job = kv_realloc(d->job, d->n_jobs + 1, sizeof(*d->job));
        d->job[d->n_jobs++] = j;
        if (open_job(d, j, &e))
            end_job(d, d->n_jobs - 1, j->opened ? 400 : 503, &e);
    }
}

/* Whether the generator has room for one more answer. */
static bool has_room(const struct decoder *d, const struct kv_answer *a)
{
    return !d->n_answers || (d->n_answers < d->d->generation.batch &&
                             d->bytes + bytes_of(d, a) <= d->d->memory);
}

/* Adds answers to the generator, in order, while there is room. */
static void add_answers(struct decoder *d)
{
    for (size_t i = 0; i < d->n_jobs;) {
        struct kv_job *j = d->job[i];
        struct kv_err e;
        int rc = 0;

        while (!rc && j->n_added < j->n) {
            struct kv_answer *a = &j->answer[j->n_added];

            if (!has_room(d, a))
                return;
            rc = kv_generator_add(d->generator, a, &e);
            if (!rc) {
                j->n_added++;
                d->n_answers++;
                d->bytes += bytes_of(d, a);
            }
        }
        if (rc)
            end_job(d, i, 400, &e);
        else
            i++;
    }
}

/* Publishes the step's results of a job. */
static void look_at(struct decoder *d, size_t i)
{
    struct kv_job *j = d->job[i];
    const struct kv_answer *failed = NULL;
    size_t n_ended = 0;
    struct kv_err e;

    for (size_t k = 0; k < j->n_added; k++) {
        j->mine[k].tokens = j->answer[k].made;
        n_ended += j->mine[k].ended;
        if (j->mine[k].ended && j->answer[k].finish == KV_FINISH_FAILED)
            failed = &j->answer[k];
    }
    if (failed) {
        kv_fail(&e, "%s", failed->why);
        end_job(d, i, 500, &e);
    } else if (n_ended == j->n) {
        end_job(d, i, 200, NULL);
    } else {
        kv_queue_publish(d->q, j);
    }
}

static void end_those_left(struct decoder *d)
{
    for (size_t i = d->n_jobs; i-- > 0;)
        if (kv_queue_left(d->q, d->job[i]))
            end_job(d, i, 503, NULL);
}

static void note_counts(const struct decoder *d)
{
    size_t waiting = 0;

    for (size_t i = 0; i < d->n_jobs; i++)
        waiting += d->job[i]->n - d->job[i]->n_added;
    kv_queue_note(d->q, waiting, d->n_answers);
}

static void end_all(struct decoder *d)
{
    struct kv_err e;

    kv_fail(&e, "the server ends");
    kv_queue_end(d->q, 0);
    take_jobs(d);
    while (d->n_jobs)
        end_job(d, d->n_jobs - 1, 503, &e);
}

static bool is_through(struct kv_queue *q)
{
    const struct kv_queue_counts c = kv_queue_counts(q);

    return c.ending && !c.jobs;
}

void kv_decode_queue(const struct kv_decoding *how, struct kv_queue *q)
{
    struct kv_generation g = how->generation;
    struct decoder d = {
        .d = how, .q = q, .shape = &kv_model_info(g.model)->shape};

    g.ended = on_end;
    g.arg = &d;
    d.generator = kv_generator_new(&g);
    while (kv_queue_rest(q) > 0 && !kv_interrupted(NULL)) {
        take_jobs(&d);
        end_those_left(&d);
        add_answers(&d);
        note_counts(&d);
        if (!kv_generator_idle(d.generator)) {
            kv_generator_step(d.generator, NULL);
            for (size_t i = d.n_jobs; i-- > 0;)
                look_at(&d, i);
        } else if (is_through(q)) {
            break;
        } else {
            kv_queue_sleep(q);
        }
    }
    end_all(&d);
    kv_generator_free(d.generator);
    for (size_t i = 0; i < d.n_opened; i++)
        free(d.opened[i]);
    free(d.job);
}
