#include "eval/ranks.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/opt.h"
#include "lib/base/progress.h"
#include "lib/model/relay.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* A rank sends one message to the first rank and waits for its answer.  It
 * sends states to the next rank, and waits until they are taken before it sends
 * more. */
enum {
    DATA = 1,
    FAILED,
    STATES,
    TAKEN,
    SILENCE_SECONDS = 8,
    ANSWER_SECONDS = 2
};

int kv_ranks_start(struct kv_ranks *r, struct kv_err *e)
{
    *r = (struct kv_ranks){.n = 1};
    if (kv_transport_start(&r->transport, e))
        return kv_fail_in(e, "--ranks");
    r->self = kv_transport_self(r->transport);
    r->n = kv_transport_ranks(r->transport);
    r->arrived = kv_alloc(r->n, sizeof(*r->arrived));
    return 0;
}

static void put(struct kv_ranks *r, size_t to, int tag, const void *data,
                size_t n)
{
    uint8_t *bytes = kv_alloc(n, 1);

    if (n)
        memcpy(bytes, data, n);
    r->messages++;
    r->bytes += n;
    kv_transport_send(r->transport, to, tag, bytes, n);
}

static void put_to_others(struct kv_ranks *r, int tag, const void *data,
                          size_t n)
{
    for (size_t i = 1; i < r->n; i++)
        put(r, i, tag, data, n);
}

/* Waits until the first rank sends FAILED: it has then printed the sentence.
 * Returns false if it is silent. */
static bool is_told(struct kv_ranks *r)
{
    const double begun = kv_seconds();
    struct kv_message m;

    while (!r->other_failed && kv_seconds() - begun < ANSWER_SECONDS &&
           kv_transport_silence(r->transport, 0) <= SILENCE_SECONDS)
        if (kv_transport_receive(r->transport, &m, 0.1)) {
            r->other_failed = m.tag == FAILED;
            free(m.bytes);
        }
    return r->other_failed;
}

/* A rank that is interrupted need not say so: all are. */
static void tell(struct kv_ranks *r, const char *why)
{
    struct kv_err e;

    if (!r->self) {
        kv_say_error("%s", why);
        put_to_others(r, FAILED, why, strlen(why) + 1);
    } else if (!r->other_failed) {
        put(r, 0, FAILED, why, strlen(why) + 1);
        if (!kv_interrupted(&e) && !is_told(r))
            kv_say_error("rank %zu: %s", r->self, why);
    }
    r->told = true;
}

void kv_ranks_stop(struct kv_ranks *r, const char *why)
{
    if (!r->transport)
        return;
    if (why)
        tell(r, why);
    kv_detail(
        "--ranks: rank 0 of %zu sent and received %zu messages, %zu bytes",
        r->n, r->messages, r->bytes);
    kv_transport_stop(r->transport, !why);
    free(r->states.bytes);
    for (size_t i = 0; i < r->n; i++)
        free(r->arrived[i].bytes);
    free(r->arrived);
    *r = (struct kv_ranks){.told = r->told};
}

static int take(struct kv_ranks *r, struct kv_message *m, struct kv_err *e)
{
    int rc;

    r->messages++;
    r->bytes += m->n;
    if (m->tag == TAKEN) {
        r->untaken = false;
        free(m->bytes);
        return 0;
    }
    if (m->tag == STATES) {
        free(r->states.bytes);
        r->states = *m;
        return 0;
    }
    if (m->tag == DATA) {
        free(r->arrived[m->from].bytes);
        r->arrived[m->from] = *m;
        return 0;
    }
    r->other_failed = true;
    rc = r->self ? kv_fail(e, "%s", (const char *)m->bytes)
                 : kv_fail(e, "rank %zu: %s", m->from, (const char *)m->bytes);
    free(m->bytes);
    return rc;
}

/* Fails if a rank whose message is due has been silent for too long. */
static int check_silence(struct kv_ranks *r, struct kv_err *e)
{
    const size_t end = r->self ? 1 : r->n;

    for (size_t i = r->self ? 0 : 1; i < end; i++)
        if (!r->arrived[i].bytes &&
            kv_transport_silence(r->transport, i) > SILENCE_SECONDS)
            return kv_fail(e, "rank %zu has said nothing for %d seconds", i,
                           (int)SILENCE_SECONDS);
    return 0;
}

/* Takes a message that comes within this time.  If this rank itself was stopped
 * for a while, unseen messages may wait, so it looks for one before it takes
 * another rank for lost. */
static int listen(struct kv_ranks *r, double seconds, struct kv_err *e)
{
    struct kv_message m;

    if (kv_transport_receive(r->transport, &m, seconds))
        return take(r, &m, e);
    if (kv_interrupted(e))
        return -1;
    if (!check_silence(r, e))
        return 0;
    if (kv_transport_receive(r->transport, &m, 1))
        return take(r, &m, e);
    return check_silence(r, e);
}

int kv_ranks_check(struct kv_ranks *r, struct kv_err *e)
{
    return r->n > 1 ? listen(r, 0, e) : 0;
}

/* Waits for a rank's message and takes it from r->arrived. */
static int await(struct kv_ranks *r, size_t from, struct kv_message *m,
                 struct kv_err *e)
{
    while (!r->arrived[from].bytes)
        if (listen(r, 0.1, e))
            return -1;
    *m = r->arrived[from];
    r->arrived[from].bytes = NULL;
    return 0;
}

static int await_bytes(struct kv_ranks *r, size_t from, void *to, size_t n,
                       struct kv_err *e)
{
    struct kv_message m;
    int rc = 0;

    if (await(r, from, &m, e))
        return -1;
    if (m.n != n)
        rc = kv_fail(e, "rank %zu sent %zu bytes, expected %zu", from, m.n, n);
    else
        memcpy(to, m.bytes, n);
    free(m.bytes);
    return rc;
}

/* ---- meeting ------------------------------------------------------------- */

static int compare(size_t rank, const char *key, const char *mine,
                   struct kv_err *e)
{
    while (*key && *mine) {
        const size_t n = strcspn(key, "\n"), m = strcspn(mine, "\n");

        if (n != m || memcmp(key, mine, n) != 0)
            return kv_fail(e, "rank %zu has the %.*s, expected the %.*s", rank,
                           (int)n, key, (int)m, mine);
        key += n + 1;
        mine += m + 1;
    }
    return 0;
}

int kv_ranks_meet(struct kv_ranks *r, const char *key, uint8_t *row, size_t n,
                  struct kv_err *e)
{
    if (r->self) {
        put(r, 0, DATA, key, strlen(key) + 1);
        return await_bytes(r, 0, row, n, e);
    }
    for (size_t i = 1; i < r->n; i++) {
        struct kv_message m;
        int rc;

        if (await(r, i, &m, e))
            return -1;
        rc = compare(i, (const char *)m.bytes, key, e);
        free(m.bytes);
        if (rc)
            return -1;
    }
    put_to_others(r, DATA, row, n);
    return 0;
}

/* ---- scores -------------------------------------------------------------- */

size_t kv_ranks_first(const struct kv_ranks *r, size_t rank, size_t n)
{
    if (r->by_layers) /* all windows go to the last rank */
        return rank < r->n ? 0 : n;
    return n * rank / r->n;
}

int kv_ranks_gather(struct kv_ranks *r, void *all, const size_t *at,
                    struct kv_err *e)
{
    const size_t own = at[r->self + 1] - at[r->self];
    uint8_t *bytes = all, done = 1;

    if (own > INT_MAX)
        return kv_fail(e,
                       "--ranks: %zu bytes of scores in a message: expected "
                       "fewer tokens",
                       own);
    if (r->self) {
        put(r, 0, DATA, bytes + at[r->self], own);
        return await_bytes(r, 0, &done, 1, e);
    }
    for (size_t i = 1; i < r->n; i++)
        if (await_bytes(r, i, bytes + at[i], at[i + 1] - at[i], e))
            return -1;
    put_to_others(r, DATA, &done, 1);
    return 0;
}

int kv_ranks_wait(struct kv_ranks *r, struct kv_err *e)
{
    uint8_t here = 1;

    if (r->self) {
        put(r, 0, DATA, &here, 1);
        return await_bytes(r, 0, &here, 1, e);
    }
    for (size_t i = 1; i < r->n; i++)
        if (await_bytes(r, i, &here, 1, e))
            return -1;
    put_to_others(r, DATA, &here, 1);
    return 0;
}

/* ---- layers -------------------------------------------------------------- */

/* The most bytes of hidden states that one message holds. */
static const size_t piece_bytes = (size_t)256 << 20;

static int pass_on(struct kv_ranks *r, const void *data, size_t n,
                   struct kv_err *e)
{
    while (r->untaken)
        if (listen(r, 0.1, e))
            return -1;
    r->untaken = true;
    put(r, r->self + 1, STATES, data, n);
    return 0;
}

static int take_states(struct kv_ranks *r, void *data, size_t n,
                       struct kv_err *e)
{
    const uint8_t taken = 1;
    int rc = 0;

    while (!r->states.bytes)
        if (listen(r, 0.1, e))
            return -1;
    if (r->states.n != n)
        rc = kv_fail(e, "rank %zu sent states of %zu bytes, expected %zu",
                     r->states.from, r->states.n, n);
    else
        memcpy(data, r->states.bytes, n);
    free(r->states.bytes);
    r->states.bytes = NULL;
    put(r, r->self - 1, TAKEN, &taken, 1);
    return rc;
}

static int give(void *ranks, const float *x, size_t n, struct kv_err *e)
{
    const size_t bytes = n * sizeof(*x);

    for (size_t at = 0; at < bytes; at += piece_bytes)
        if (pass_on(ranks, (const uint8_t *)x + at,
                    bytes - at < piece_bytes ? bytes - at : piece_bytes, e))
            return -1;
    return 0;
}

static int take_all(void *ranks, float *x, size_t n, struct kv_err *e)
{
    const size_t bytes = n * sizeof(*x);

    for (size_t at = 0; at < bytes; at += piece_bytes)
        if (take_states(ranks, (uint8_t *)x + at,
                        bytes - at < piece_bytes ? bytes - at : piece_bytes, e))
            return -1;
    return 0;
}

int kv_ranks_by_layers(struct kv_ranks *r, struct kv_model *m, struct kv_err *e)
{
    struct kv_relay relay = {.take = take_all, .give = give, .arg = r};

    for (size_t i = 0, first, end; i < r->n; i++) {
        if (kv_model_split(m, i, r->n, &first, &end, e))
            return kv_fail_in(e, "--ranks");
        kv_detail("--split layers: rank %zu has layers %zu to %zu, %zu bytes "
                  "of weights",
                  i, first, end - 1, kv_model_part_bytes(m, first, end));
        if (i == r->self) {
            relay.first = first;
            relay.end = end;
        }
    }
    r->by_layers = true;
    kv_model_relay(m, &relay);
    return 0;
}

/* ---- other parts of a whole ---------------------------------------------- */

int kv_ranks_collect(struct kv_ranks *r, uint8_t *bytes, size_t n,
                     struct kv_message *part, struct kv_err *e)
{
    uint8_t done = 1;

    if (r->self && n <= INT_MAX) {
        r->messages++;
        r->bytes += n;
        kv_transport_send(r->transport, 0, DATA, bytes, n);
        return await_bytes(r, 0, &done, 1, e);
    }
    free(bytes);
    if (r->self)
        return kv_fail(e,
                       "--ranks: %zu bytes in a message, expected at most %d: "
                       "take more ranks",
                       n, INT_MAX);
    for (size_t i = 1; i < r->n; i++)
        if (await(r, i, &part[i], e))
            return -1;
    put_to_others(r, DATA, &done, 1);
    return 0;
}
