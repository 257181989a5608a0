/* kvgen --disaggregate: from the options to the ranks, and the results. */
#include "tools/kvgen_disaggregate.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/policy.h"
#include "tools/kvgen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Parses "P:D"; each is at least 1. */
static int parse_ranks(const char *text, size_t *p, size_t *d, struct kv_err *e)
{
    char *colon, *end;

    *p = strtoul(text, &colon, 10);
    *d = *colon == ':' ? strtoul(colon + 1, &end, 10) : 0;
    if (!*p || !*d || *end || strchr(text, '-') || *p > INT16_MAX ||
        *d > INT16_MAX)
        return kv_fail(e,
                       "--disaggregate %s: expected P:D, ranks that run "
                       "prompts and ranks that decode, at least one of each",
                       text);
    return 0;
}

int kvgen_disaggregate_check(const struct kvgen_args *a, struct kv_err *e)
{
    const struct kvgen_disaggregate usual = KVGEN_DISAGGREGATE_DEFAULT,
                                    *d = &a->disaggregate;
    const char *other = a->serve.address ? "--serve"
                        : a->score       ? "--score"
                        : a->resume      ? "--resume"
                        : a->append      ? "--append"
                                         : NULL;
    struct kv_transfer_fault f;
    size_t p, q;

    if (!d->ranks)
        return d->fault || d->apart
                   ? kv_fail(e, "--disaggregate-%s goes with --disaggregate",
                             d->fault ? "fault" : "apart")
               : d->silence != usual.silence
                   ? kv_fail(e, "--disaggregate-silence goes with "
                                "--disaggregate")
                   : 0;
    if (other)
        return kv_fail(e, "%s does not go with --disaggregate", other);
    if (!(d->silence > 1))
        return kv_fail(e,
                       "--disaggregate-silence %g: expected more than 1 "
                       "second, as ranks speak each second",
                       d->silence);
    return parse_ranks(d->ranks, &p, &q, e) ||
                   kv_transfer_fault_parse(&f, d->fault, e)
               ? -1
               : 0;
}

/* ---- preparing ----------------------------------------------------------- */

static int check_places(const struct kvgen_run *r, const struct kvgen_args *a,
                        struct kv_err *e)
{
    if (a->common.on_gpu)
        return kv_fail(e,
                       "--disaggregate runs on the CPU alone, not with "
                       "--device %s",
                       a->common.device);
    for (size_t i = 0; i < r->n_specs; i++)
        if (kv_policy_drops(&r->spec[i].policy))
            return kv_fail(e,
                           "%s: what %s keeps of a sequence is not sent, so "
                           "it does not go with --disaggregate",
                           r->spec[i].text, r->spec[i].policy.policy->name);
    return 0;
}

/* Reads a prompt's timestamp, in milliseconds; 0 if it has none. */
static int read_arrival(const struct kvgen_run *r, const struct kv_prompt *p,
                        double before, double *seconds, struct kv_err *e)
{
    const json_t *at = json_object_get(p->fields, "timestamp");

    *seconds = 0;
    if (!at)
        return 0;
    *seconds = json_number_value(at) * 1e-3;
    if (!json_is_number(at) || *seconds < 0)
        return kv_fail(e,
                       "%s: line %zu: timestamp: expected milliseconds from 0 "
                       "on",
                       kv_input_name(r->prompts.path), p->line);
    if (*seconds < before)
        return kv_fail(e,
                       "%s: line %zu: timestamp %g is before the line above, "
                       "%g: expected prompts in the order in which they arrive",
                       kv_input_name(r->prompts.path), p->line, *seconds * 1e3,
                       before * 1e3);
    return 0;
}

/* Lists the jobs spec by spec; each spec's jobs are in the order of arrival. */
static int list_jobs(struct kvgen_run *r, const struct kvgen_args *a,
                     struct kv_transfer_job *job, struct kv_err *e)
{
    double before = 0;

    for (size_t i = 0; i < r->n_mine; i++) {
        double at;

        if (read_arrival(r, &r->prompts.at[r->mine[i]], before, &at, e))
            return -1;
        for (size_t s = 0; s < r->n_specs; s++)
            for (size_t j = 0; j < a->samples; j++)
                job[(s * r->n_mine + i) * a->samples + j] =
                    (struct kv_transfer_job){.answer =
                                                 kvgen_answer(r, a, i, s, j),
                                             .group = s,
                                             .arrival = at};
        before = at;
    }
    for (size_t i = 0; a->disaggregate.apart && i < r->n_answers; i++) {
        job[i].group = i;
        job[i].arrival = 0;
    }
    return 0;
}

/* A hash of all settings that must be the same on all ranks. */
static void key_of(const struct kvgen_run *r, const struct kvgen_args *a,
                   char key[KV_HASH_CHARS])
{
    struct kv_hash *h = kv_hash_new();

    for (size_t i = 0; i < r->n_answers; i++) {
        kvgen_key(r, a, &r->answer[i], key);
        kv_hash_add(h, key, strlen(key));
    }
    kv_hash_add(h, a->disaggregate.ranks, strlen(a->disaggregate.ranks));
    kv_hash_end(h, key);
}

/* Prepares everything that a rank needs before it meets the others. */
static int prepare(struct kvgen_run *r, const struct kvgen_args *a, bool first,
                   struct kv_transfer_job **job, struct kv_err *e)
{
    if (kvgen_prepare(r, a, e) || check_places(r, a, e) ||
        (first && kv_out_open(&r->out, a->common.output, true, e)))
        return -1;
    *job = kv_alloc(r->n_answers, sizeof(**job));
    return list_jobs(r, a, *job, e);
}

/* ---- the run ------------------------------------------------------------- */

static int put_results(struct kvgen_run *r, const struct kvgen_args *a,
                       const struct kv_transfer_job *job, struct kv_results *t,
                       struct kv_err *e)
{
    r->transferred = kv_alloc(r->n_answers, sizeof(*r->transferred));
    for (size_t i = 0; i < r->n_answers; i++)
        r->transferred[job[i].answer - r->answer] = job[i].done;
    return kv_inputs_unchanged(e) ? -1 : kvgen_put_results(r, a, t, e);
}

/* Rank 0 opens the table before the first answer. */
static int run(struct kvgen_run *r, const struct kvgen_args *a,
               struct kv_transfer *t, struct kv_transfer_job *job, bool *lost,
               struct kv_err *e)
{
    const bool first = !kv_transport_self(t->transport);
    struct kv_results *table = NULL;
    struct kv_progress progress;
    size_t steps = 0;
    int rc;

    if (first && kv_common_table(&table, &a->common, NULL, r->job->columns,
                                 r->spec, r->n_specs, e))
        return -1;
    for (size_t i = 0; i < r->n_answers; i++)
        steps += r->answer[i].most;
    kv_progress_init(&progress, "tokens", steps);
    t->generation = kvgen_generation(r, a, first ? &progress : NULL);
    rc = kv_transfer_run(t, job, r->n_answers, lost, e);
    kv_progress_clear(&progress);
    if (first && (rc || put_results(r, a, job, table, e))) {
        kv_results_discard(table);
        return -1;
    }
    return first ? kv_results_close(table, e) : rc;
}

static int meet_and_run(struct kvgen_run *r, const struct kvgen_args *a,
                        struct kv_transfer *t, bool *lost, struct kv_err *e)
{
    const size_t self = kv_transport_self(t->transport);
    struct kv_transfer_job *job = NULL;
    struct kv_err why = {""};
    char key[KV_HASH_CHARS] = "";
    const bool ready = !prepare(r, a, !self, &job, &why);
    int rc;

    *lost = true;
    if (ready)
        key_of(r, a, key);
    rc = kv_transfer_meet(t, key, ready ? NULL : &why, e);
    if (!rc)
        rc = run(r, a, t, job, lost, e);
    free(job);
    if (!self && rc) { /* printed before the other ranks end, since mpirun then
                        * ends all */
        kv_warn("%s", e->msg);
        kv_out_discard(&r->out);
    }
    if (!self)
        kv_transfer_end(t, *lost || rc, rc ? e->msg : NULL);
    r->told = !self || rc > 0;
    return rc ? -1 : 0;
}

int kvgen_disaggregate(struct kvgen_run *r, const struct kvgen_args *a,
                       struct kv_err *e)
{
    struct kv_transfer t = {.memory = a->common.memory,
                            .silence = a->disaggregate.silence};
    size_t n;
    bool lost;
    int rc;

    if (parse_ranks(a->disaggregate.ranks, &t.n_prefill, &t.n_decode, e) ||
        kv_transfer_fault_parse(&t.fault, a->disaggregate.fault, e) ||
        (kv_transport_start(&t.transport, e) &&
         kv_fail_in(e, "--disaggregate")))
        return -1;
    n = kv_transport_ranks(t.transport);
    r->told = kv_transport_self(t.transport);
    if (r->told)
        kv_verbosity_set(0);
    if (t.n_prefill + t.n_decode != n) {
        rc = kv_fail(e,
                     "--disaggregate %s: expected %zu ranks (mpirun -n %zu), "
                     "there %s %zu",
                     a->disaggregate.ranks, t.n_prefill + t.n_decode,
                     t.n_prefill + t.n_decode, n == 1 ? "is" : "are", n);
        if (!r->told)
            kv_warn("%s", e->msg);
        r->told = true;
        kv_transport_stop(t.transport, true);
        return rc;
    }
    rc = meet_and_run(r, a, &t, &lost, e);
    kv_transport_stop(t.transport, !lost && !rc);
    return rc;
}
