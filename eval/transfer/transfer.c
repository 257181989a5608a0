#include "eval/transfer/transfer_impl.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PINGS = 8 };

/* Stands for the rank itself in messages that are about no answer. */
static const struct kv_msg myself = {UINT32_MAX, 0};

static size_t self_of(const struct kv_transfer *t)
{
    return kv_transport_self(t->transport);
}

static size_t ranks_of(const struct kv_transfer *t)
{
    return t->n_prefill + t->n_decode;
}

static int check_rank(const struct kv_transfer *t, size_t rank,
                      struct kv_err *e)
{
    if (kv_transport_silence(t->transport, rank) <= t->silence)
        return 0;
    return kv_fail(e,
                   "rank %zu was silent for %g s: it ended, or its link is cut "
                   "or too slow (--disaggregate-silence)",
                   rank, t->silence);
}

void kv_transfer_end(const struct kv_transfer *t, bool lost, const char *why)
{
    const uint8_t head = lost;

    for (size_t i = 1; i < ranks_of(t); i++)
        kv_transfer_send(t, i, KV_TAG_END, &head, sizeof(head), why,
                         why ? strlen(why) : 0);
}

/* Returns 1 if another rank failed. */
static int take_end(const struct kv_message *m, struct kv_err *e)
{
    if (m->n <= 1)
        return 0;
    kv_fail(e, "%.*s", (int)m->n - 1, (const char *)m->bytes + 1);
    return 1;
}

/* ---- meeting ------------------------------------------------------------- */

static void answer_clock(const struct kv_transfer *t,
                         const struct kv_message *m)
{
    kv_transfer_send(t, 0, KV_TAG_CLOCK, &m->at, sizeof(m->at), NULL, 0);
}

/* Takes a message that was not waited for.  Returns 1 as take_end() does, -1 if
 * a rank failed. */
static int take_other(const struct kv_transfer *t, const struct kv_message *m,
                      struct kv_err *e)
{
    const size_t head = sizeof(struct kv_msg_failed);

    if (m->tag == KV_TAG_END)
        return take_end(m, e);
    if (m->tag == KV_TAG_FAILED && !self_of(t) && m->n >= head)
        return kv_fail(e, "rank %zu: %.*s", m->from, (int)(m->n - head),
                       (const char *)m->bytes + head);
    if (m->tag == KV_TAG_CLOCK && self_of(t))
        answer_clock(t, m); /* the question overtook the message that is waited
                             * for */
    return 0;
}

/* Waits for a message with the tag, or END; *m's bytes are the caller's. */
static int wait_for(const struct kv_transfer *t, size_t from, int tag,
                    struct kv_message *m, struct kv_err *e)
{
    for (;;) {
        int rc;

        if (kv_interrupted(e) || check_rank(t, from, e))
            return -1;
        if (!kv_transport_receive(t->transport, m, 0.05))
            continue;
        if (m->from == from && m->tag == tag)
            return 0;
        rc = take_other(t, m, e);
        free(m->bytes);
        if (rc)
            return rc;
    }
}

static int check_hello(size_t from, const struct kv_message *m, const char *key,
                       struct kv_err *e)
{
    const size_t n = strlen(key);

    if (m->n && *m->bytes == '!')
        return kv_fail(e, "rank %zu: %.*s", from, (int)m->n - 1,
                       (const char *)m->bytes + 1);
    if (m->n != n || memcmp(m->bytes, key, n) != 0)
        return kv_fail(e,
                       "rank %zu has other answers to make than rank 0: the "
                       "model, prompts, specs and options are to be the same",
                       from);
    return 0;
}

/* Rank 0's part: the ranks say hello in any order. */
static int meet_all(const struct kv_transfer *t, const char *key,
                    struct kv_err *e)
{
    bool *there = kv_alloc(ranks_of(t), sizeof(*there));
    size_t n = 1;
    int rc = 0;

    while (n < ranks_of(t) && !rc) {
        struct kv_message m;

        rc = kv_interrupted(e);
        for (size_t i = 1; i < ranks_of(t) && !rc; i++)
            rc = there[i] ? 0 : check_rank(t, i, e);
        if (rc || !kv_transport_receive(t->transport, &m, 0.05))
            continue;
        if (m.tag == KV_TAG_HELLO && !there[m.from]) {
            there[m.from] = true;
            n++;
            rc = check_hello(m.from, &m, key, e);
        }
        free(m.bytes);
    }
    free(there);
    return rc ? -1 : 0;
}

int kv_transfer_meet(const struct kv_transfer *t, const char key[KV_HASH_CHARS],
                     const struct kv_err *why_not, struct kv_err *e)
{
    struct kv_message m;
    int rc;

    if (self_of(t)) {
        if (why_not)
            kv_transfer_send(t, 0, KV_TAG_HELLO, "!", 1, why_not->msg,
                             strlen(why_not->msg));
        else
            kv_transfer_send(t, 0, KV_TAG_HELLO, key, strlen(key), NULL, 0);
        rc = wait_for(t, 0, KV_TAG_HELLO, &m, e);
        if (!rc)
            free(m.bytes);
        return rc;
    }
    if (why_not ? kv_fail(e, "%s", why_not->msg) : meet_all(t, key, e))
        return -1;
    for (size_t i = 1; i < ranks_of(t); i++)
        kv_transfer_send(t, i, KV_TAG_HELLO, NULL, 0, NULL, 0);
    return 0;
}

/* ---- clocks -------------------------------------------------------------- */

/* Measures each rank's clock offset [ranks] by the quickest of PINGS
 * questions. */
static int compare_clocks(const struct kv_transfer *t, double *offset,
                          struct kv_err *e)
{
    for (size_t i = 1; i < ranks_of(t); i++) {
        double best = INFINITY;

        for (int k = 0; k < PINGS; k++) {
            const double asked = kv_seconds();
            struct kv_message m;
            double there;

            kv_transfer_send(t, i, KV_TAG_CLOCK, NULL, 0, NULL, 0);
            if (wait_for(t, i, KV_TAG_CLOCK, &m, e))
                return -1;
            if (kv_transfer_head(&m, &there, sizeof(there)) &&
                m.at - asked < best) {
                best = m.at - asked;
                offset[i] = there - (asked + m.at) / 2;
            }
            free(m.bytes);
        }
    }
    return 0;
}

/* ---- a rank's work ------------------------------------------------------- */

struct rank {
    const struct kv_transfer *t;
    struct kv_prefill_rank *prefill; /* a rank has one of these */
    struct kv_decode_rank *decode;
    struct kv_dispatcher *dispatcher; /* rank 0's dispatcher, which runs between
                                       * its prompts */
    bool ended, lost;
};

static int take(struct rank *r, struct kv_message *m, struct kv_err *e)
{
    switch (m->tag) {
    case KV_TAG_CLOCK:
        answer_clock(r->t, m);
        return 0;
    case KV_TAG_END:
        r->ended = true;
        r->lost = m->n && *m->bytes;
        return take_end(m, e);
    case KV_TAG_DONE:
    case KV_TAG_FAILED:
    case KV_TAG_PREFILLED:
        return r->dispatcher ? kv_dispatcher_take(r->dispatcher, m, e) : 0;
    default:
        if (r->prefill)
            kv_prefill_rank_take(r->prefill, m);
        else
            kv_decode_rank_take(r->decode, m);
        return 0;
    }
}

/* Waits for a message, then takes all that have arrived. */
static int take_all(struct rank *r, double seconds, struct kv_err *e)
{
    struct kv_message m;
    int rc = 0;

    while (!rc && kv_transport_receive(r->t->transport, &m, seconds)) {
        if (!r->dispatcher || !kv_dispatcher_lost(r->dispatcher, m.from))
            rc = take(r, &m, e);
        free(m.bytes);
        seconds = 0;
    }
    if (rc)
        return rc;
    if (kv_interrupted(e))
        return -1;
    return r->dispatcher ? kv_dispatcher_step(r->dispatcher, e)
                         : check_rank(r->t, 0, e);
}

static int poll(void *arg, struct kv_err *e)
{
    return take_all(arg, 0, e);
}

static int work(struct rank *r, struct kv_err *e)
{
    double pause = 0;

    for (;;) {
        const int rc = take_all(r, pause, e);
        bool ran;

        if (rc)
            return rc;
        if (r->ended || (r->dispatcher && kv_dispatcher_done(r->dispatcher)))
            return 0;
        if (r->prefill ? kv_prefill_rank_step(r->prefill, &ran, e)
                       : kv_decode_rank_step(r->decode, &ran, e))
            return r->ended ? 1 : -1;
        pause = ran             ? 0
                : r->dispatcher ? kv_dispatcher_pause(r->dispatcher)
                                : 0.05;
    }
}

static int work_first(struct rank *r, struct kv_transfer_job *job, size_t n,
                      struct kv_err *e)
{
    double *offset = kv_alloc(ranks_of(r->t), sizeof(*offset));
    int rc = compare_clocks(r->t, offset, e);

    r->dispatcher = kv_dispatcher_new(r->t, job, n, offset);
    if (!rc)
        rc = work(r, e);
    for (size_t i = 1; i < ranks_of(r->t); i++)
        r->lost = r->lost || kv_dispatcher_lost(r->dispatcher, i);
    kv_dispatcher_free(r->dispatcher);
    free(offset);
    return rc;
}

int kv_transfer_run(const struct kv_transfer *t, struct kv_transfer_job *job,
                    size_t n, bool *lost, struct kv_err *e)
{
    const size_t self = self_of(t);
    struct rank r = {.t = t};
    int rc;

    if (self < t->n_prefill)
        r.prefill = kv_prefill_rank_new(t, job, poll, &r);
    else
        r.decode = kv_decode_rank_new(t, job, n);
    rc = self ? work(&r, e) : work_first(&r, job, n, e);
    if (rc && self && !r.ended)
        kv_transfer_fail(t, myself, false, e->msg);
    *lost = r.lost || rc;
    kv_prefill_rank_free(r.prefill);
    kv_decode_rank_free(r.decode);
    return rc;
}
