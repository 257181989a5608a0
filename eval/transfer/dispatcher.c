#include "eval/transfer/transfer_impl.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ATTEMPTS_MAX = 3 };

enum state { WAITS, PROMPT_RUNS, DECODES, DONE };

struct item {
    enum state state;
    size_t prefill, decode; /* ranks */
    size_t attempt;         /* counted from 1 */
    bool *refused;          /* [n_decode] ranks that could not take the
                             * answer */
    double arrived;
    struct kv_msg_prefilled prompt; /* attempt 0: has not arrived */
    struct kv_msg_done result;      /* attempt 0: has not arrived */
};

struct kv_dispatcher {
    const struct kv_transfer *t;
    struct kv_transfer_job *job;
    struct item *item; /* [n] */
    size_t n, n_done;
    const double *offset;
    bool *lost;   /* [ranks] */
    size_t *load; /* [ranks] tokens */
    size_t next, group;
    double begun; /* the group; 0: none */
};

static size_t n_ranks(const struct kv_dispatcher *d)
{
    return d->t->n_prefill + d->t->n_decode;
}

static int fail_answer(const struct kv_dispatcher *d, size_t i, const char *why,
                       struct kv_err *e)
{
    return kv_fail(e, "answer %zu of %zu, %s: %s", i + 1, d->n,
                   d->job[i].answer->spec->text, why);
}

/* ---- handing out --------------------------------------------------------- */

/* The rank in [first, end) with the fewest tokens, ties broken at random.
 * refused: [end - first] or NULL.  Returns end if no rank is left. */
static size_t shortest(const struct kv_dispatcher *d, size_t first, size_t end,
                       const bool *refused, uint64_t key)
{
    size_t best = end, ties = 0;

    for (size_t i = first; i < end; i++) {
        if (d->lost[i] || (refused && refused[i - first]))
            continue;
        if (best == end || d->load[i] < d->load[best]) {
            best = i;
            ties = 1;
        } else if (d->load[i] == d->load[best] &&
                   kv_random(key, i) % ++ties == 0) {
            best = i;
        }
    }
    return best;
}

/* The number of tokens that the answer counts on a rank while its prompt waits
 * or runs, and until it is done. */
static size_t held_by(const struct kv_dispatcher *d, size_t i, bool decodes)
{
    const struct kv_answer *a = d->job[i].answer;

    return a->n_prompt + (decodes ? a->most : 0);
}

/* Sends the answer to ranks.  why: the reason why an earlier attempt failed, or
 * NULL. */
static int hand_out(struct kv_dispatcher *d, size_t i, const char *why,
                    struct kv_err *e)
{
    struct item *x = &d->item[i];
    const uint64_t key = kv_mix(kv_mix(d->t->generation.seed, i), x->attempt);
    const size_t p = d->t->n_prefill, n = n_ranks(d);
    struct kv_msg_prompt m;

    x->prefill = shortest(d, 0, p, NULL, key);
    x->decode = shortest(d, p, n, x->refused, key);
    if (x->decode == n || x->attempt == ATTEMPTS_MAX)
        return fail_answer(d, i, why, e);
    x->attempt++;
    x->state = PROMPT_RUNS;
    x->prompt.of.attempt = x->result.of.attempt = 0;
    d->load[x->prefill] += held_by(d, i, false);
    d->load[x->decode] += held_by(d, i, true);
    m = (struct kv_msg_prompt){{(uint32_t)i, (uint32_t)x->attempt}, x->decode};
    kv_transfer_send(d->t, x->prefill, KV_TAG_PROMPT, &m, sizeof(m), NULL, 0);
    return 0;
}

/* Sets the item's next state, and takes its tokens off the ranks' loads. */
static void advance(struct kv_dispatcher *d, size_t i, enum state to)
{
    struct item *x = &d->item[i];

    if (x->state == PROMPT_RUNS && to != PROMPT_RUNS)
        d->load[x->prefill] -= held_by(d, i, false);
    if (to == DONE || to == WAITS)
        d->load[x->decode] -= held_by(d, i, true);
    x->state = to;
}

static int try_again(struct kv_dispatcher *d, size_t i, const char *why,
                     struct kv_err *e)
{
    struct item *x = &d->item[i];
    const struct kv_msg of = {(uint32_t)i, (uint32_t)x->attempt};
    const size_t rank[] = {x->prefill, x->decode};

    for (int j = 0; j < 2; j++) /* a lost rank may still be alive */
        kv_transfer_send(d->t, rank[j], KV_TAG_DROP, &of, sizeof(of), NULL, 0);
    advance(d, i, WAITS);
    if (hand_out(d, i, why, e))
        return -1;
    kv_note("answer %zu of %zu, %s, is made again: %s", i + 1, d->n,
            d->job[i].answer->spec->text, why);
    return 0;
}

/* ---- lost ranks ---------------------------------------------------------- */

static int lose(struct kv_dispatcher *d, size_t rank, struct kv_err *e)
{
    struct kv_err why;

    d->lost[rank] = true;
    kv_fail(&why,
            "rank %zu was silent for %g s: it ended, or its link is cut or too "
            "slow (--disaggregate-silence)",
            rank, d->t->silence);
    for (size_t i = 0; i < d->n; i++) {
        const struct item *x = &d->item[i];

        if ((x->state == PROMPT_RUNS || x->state == DECODES) &&
            (x->prefill == rank || x->decode == rank) &&
            try_again(d, i, why.msg, e))
            return -1;
    }
    if (shortest(d, d->t->n_prefill, n_ranks(d), NULL, 0) == n_ranks(d))
        return kv_fail(e, "no rank is left that decodes: %s", why.msg);
    return 0;
}

int kv_dispatcher_step(struct kv_dispatcher *d, struct kv_err *e)
{
    for (size_t i = 1; i < n_ranks(d); i++)
        if (!d->lost[i] &&
            kv_transport_silence(d->t->transport, i) > d->t->silence &&
            lose(d, i, e))
            return -1;
    if (d->next < d->n && d->next == d->n_done &&
        (!d->begun || d->job[d->next].group != d->group)) {
        d->group = d->job[d->next].group;
        d->begun = kv_seconds();
    }
    for (; d->next < d->n && d->job[d->next].group == d->group &&
           kv_seconds() >= d->begun + d->job[d->next].arrival;
         d->next++) {
        d->item[d->next].arrived = d->begun + d->job[d->next].arrival;
        if (hand_out(d, d->next, "", e))
            return -1;
    }
    return 0;
}

double kv_dispatcher_pause(const struct kv_dispatcher *d)
{
    const double most = 0.05;
    double left;

    if (d->next == d->n || d->job[d->next].group != d->group)
        return most;
    left = d->begun + d->job[d->next].arrival - kv_seconds();
    return left < 0 ? 0 : left < most ? left : most;
}

/* ---- results ------------------------------------------------------------- */

static double at_least_0(double x)
{
    return x > 0 ? x : 0;
}

/* Computes the answer's times, all on rank 0's clock. */
static void note_times(const struct kv_dispatcher *d, size_t i)
{
    const struct item *x = &d->item[i];
    const struct kv_shape *s = &kv_model_info(d->t->generation.model)->shape;
    const double p = d->offset[x->prefill], q = d->offset[x->decode];
    const double begun = x->prompt.begun - p, first = x->prompt.ended - p,
                 granted = x->result.granted - q,
                 arrived = x->result.arrived - q, ready = x->prompt.ready - p,
                 may = granted > first ? granted : first,
                 there = arrived > may ? arrived : may,
                 joined = x->result.joined - q, ended = x->result.ended - q;

    d->job[i].done = (struct kv_transferred){
        .jct = ended - x->arrived,
        .queue = begun - x->arrived,
        .prompt = first - begun,
        .wait = may - first,
        .communication = there - may,
        .join = joined - there,
        .seconds = ended - joined,
        .encode = x->prompt.encode,
        .load = x->result.load,
        .transfer = at_least_0(arrived - (granted > ready ? granted : ready)),
        .code_bytes = x->result.code_bytes,
        .wire_bytes = x->result.wire_bytes,
        .values = (double)(d->job[i].answer->n_prompt *
                           (size_t)kv_shape_sides(s) * s->n_layers *
                           s->n_kv_heads * s->head_dim),
        .again = (size_t)x->result.again,
        .attempts = x->attempt};
}

static void finish(struct kv_dispatcher *d, size_t i)
{
    const struct item *x = &d->item[i];
    struct kv_answer *a = d->job[i].answer;

    if (x->prompt.of.attempt != x->attempt ||
        x->result.of.attempt != x->attempt)
        return;
    note_times(d, i);
    a->prompt_seconds = d->job[i].done.prompt;
    a->seconds = d->job[i].done.seconds;
    if (x->result.again)
        kv_note("answer %zu of %zu, %s: damaged layers from rank %zu, sent "
                "again: %zu",
                i + 1, d->n, a->spec->text, x->prefill,
                (size_t)x->result.again);
    advance(d, i, DONE);
    d->n_done++;
    if (d->t->generation.progress)
        kv_progress_step(d->t->generation.progress, a->most);
}

static void take_answer(struct kv_dispatcher *d, size_t i,
                        const struct kv_message *m)
{
    struct item *x = &d->item[i];
    struct kv_answer *a = d->job[i].answer;

    if (!kv_transfer_head(m, &x->result, sizeof(x->result)) ||
        x->result.made > a->most ||
        m->n != sizeof(x->result) + x->result.made * sizeof(*a->ids)) {
        x->result.of.attempt = 0;
        return;
    }
    free(a->ids);
    a->ids = kv_alloc(a->most, sizeof(*a->ids));
    a->made = (size_t)x->result.made;
    memcpy(a->ids, m->bytes + sizeof(x->result), a->made * sizeof(*a->ids));
    a->finish = (enum kv_finish)x->result.finish;
    a->bits = x->result.bits;
    finish(d, i);
}

/* Takes a message that a rank cannot make the answer. */
static int take_failed(struct kv_dispatcher *d, const struct kv_message *m,
                       struct kv_err *e)
{
    struct kv_msg_failed head;
    struct kv_err why;
    size_t i;

    if (!kv_transfer_head(m, &head, sizeof(head)))
        return 0;
    i = head.of.answer;
    kv_fail(&why, "rank %zu: %.*s", m->from, (int)(m->n - sizeof(head)),
            (const char *)m->bytes + sizeof(head));
    if (i >= d->n)
        return kv_fail(e, "%s", why.msg);
    if (head.of.attempt != d->item[i].attempt || d->item[i].state == DONE)
        return 0;
    if (!head.elsewhere)
        return fail_answer(d, i, why.msg, e);
    d->item[i].refused[d->item[i].decode - d->t->n_prefill] = true;
    return try_again(d, i, why.msg, e);
}

int kv_dispatcher_take(struct kv_dispatcher *d, const struct kv_message *m,
                       struct kv_err *e)
{
    struct kv_msg of;
    struct item *x;

    if (m->tag == KV_TAG_FAILED)
        return take_failed(d, m, e);
    if (!kv_transfer_head(m, &of, sizeof(of)) || of.answer >= d->n)
        return 0;
    x = &d->item[of.answer];
    if (of.attempt != x->attempt || x->state == DONE)
        return 0;
    if (m->tag == KV_TAG_PREFILLED &&
        kv_transfer_head(m, &x->prompt, sizeof(x->prompt))) {
        if (x->state == PROMPT_RUNS)
            advance(d, of.answer, DECODES);
        finish(d, of.answer);
    } else if (m->tag == KV_TAG_DONE) {
        take_answer(d, of.answer, m);
    }
    return 0;
}

bool kv_dispatcher_done(const struct kv_dispatcher *d)
{
    return d->n_done == d->n;
}

bool kv_dispatcher_lost(const struct kv_dispatcher *d, size_t rank)
{
    return d->lost[rank];
}

/* ---- the whole ----------------------------------------------------------- */

struct kv_dispatcher *kv_dispatcher_new(const struct kv_transfer *t,
                                        struct kv_transfer_job *job, size_t n,
                                        const double *offset)
{
    struct kv_dispatcher *d = kv_alloc(1, sizeof(*d));

    *d = (struct kv_dispatcher){
        .t = t, .job = job, .n = n, .offset = offset, .item = NULL};
    d->item = kv_alloc(n, sizeof(*d->item));
    for (size_t i = 0; i < n; i++)
        d->item[i].refused = kv_alloc(t->n_decode, sizeof(bool));
    d->lost = kv_alloc(n_ranks(d), sizeof(*d->lost));
    d->load = kv_alloc(n_ranks(d), sizeof(*d->load));
    return d;
}

void kv_dispatcher_free(struct kv_dispatcher *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->n; i++)
        free(d->item[i].refused);
    free(d->item);
    free(d->lost);
    free(d->load);
    free(d);
}
