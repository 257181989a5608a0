#include "eval/transfer/transfer_impl.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/seq/cache_bytes.h"
#include "lib/seq/seq.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { AGAIN_MAX = 3 };

/* An answer whose cache is being received. */
struct receiving {
    size_t from;
    bool granted, has_first, joined;
    struct kv_msg_first first;
    struct kv_seq *seq;       /* NULL after it has joined */
    struct kv_message *layer; /* [n_layers]: arrived but not yet loaded */
    uint8_t *again;           /* [n_layers]: how often each layer arrived
                               * damaged */
    size_t n_loaded, bytes;   /* bytes: the most that its cache takes */
    struct kv_msg_done done;
};

struct kv_decode_rank {
    const struct kv_transfer *t;
    struct kv_transfer_job *job;
    struct kv_generator *generator;
    size_t n_layers, n_layers_taken; /* the second counts the state, the last
                                      * message */
    struct receiving **all;          /* [n] in the order in which they asked */
    size_t n, held;                  /* held: bytes of the granted caches */
    size_t n_jobs;
    uint32_t *least; /* [n_jobs] attempts below this one are over */
};

static struct kv_answer *answer_of(const struct kv_decode_rank *d,
                                   const struct receiving *r)
{
    return d->job[r->done.of.answer].answer;
}

static void clear(struct kv_decode_rank *d, struct receiving *r)
{
    for (size_t i = 0; i < d->n_layers; i++)
        free(r->layer[i].bytes);
    if (r->granted)
        d->held -= r->bytes;
    if (!r->joined)
        kv_seq_free(r->seq);
    free(r->layer);
    free(r->again);
    free(r);
}

static void drop(struct kv_decode_rank *d, size_t i)
{
    struct receiving *r = d->all[i];

    if (r->joined) {
        kv_generator_drop(d->generator, answer_of(d, r));
        kv_answer_clear(answer_of(d, r));
    }
    clear(d, r);
    memmove(d->all + i, d->all + i + 1, (--d->n - i) * sizeof(*d->all));
}

static void give_up(struct kv_decode_rank *d, size_t i, bool elsewhere,
                    const char *why)
{
    kv_transfer_fail(d->t, d->all[i]->done.of, elsewhere, why);
    drop(d, i);
}

static size_t find(const struct kv_decode_rank *d, struct kv_msg of)
{
    size_t i = 0;

    while (i < d->n && (d->all[i]->done.of.answer != of.answer ||
                        d->all[i]->done.of.attempt != of.attempt))
        i++;
    return i;
}

/* ---- messages ------------------------------------------------------------ */

/* Ends this attempt and earlier ones; their later messages are ignored. */
static void drop_older(struct kv_decode_rank *d, struct kv_msg of)
{
    if (d->least[of.answer] <= of.attempt)
        d->least[of.answer] = of.attempt + 1;
    for (size_t i = d->n; i--;)
        if (d->all[i]->done.of.answer == of.answer &&
            d->all[i]->done.of.attempt <= of.attempt)
            drop(d, i);
}

static void take_ask(struct kv_decode_rank *d, const struct kv_message *m,
                     struct kv_msg of)
{
    struct receiving *r;
    const struct kv_answer *a;

    if (of.attempt < d->least[of.answer])
        return; /* late: another attempt may have the answer's memory */
    drop_older(d, of);
    r = kv_alloc(1, sizeof(*r));
    *r = (struct receiving){.from = m->from, .done = {.of = of}};
    r->done.wire_bytes = (double)m->n;
    a = answer_of(d, r);
    r->bytes = kv_generate_cache_bytes(
        &kv_model_info(d->t->generation.model)->shape, a->n_prompt + a->most);
    r->layer = kv_alloc(d->n_layers, sizeof(*r->layer));
    r->again = kv_alloc(d->n_layers, 1);
    d->all = kv_realloc(d->all, d->n + 1, sizeof(*d->all));
    d->all[d->n++] = r;
    if (r->bytes > d->t->memory) {
        struct kv_err e;

        kv_fail(&e,
                "a cache of up to %.3g MB finds no room in --memory of %.3g MB",
                (double)r->bytes * 1e-6, (double)d->t->memory * 1e-6);
        give_up(d, d->n - 1, true, e.msg);
    }
}

static void arrived(struct receiving *r, const struct kv_message *m)
{
    r->done.wire_bytes += (double)m->n;
    r->done.arrived = m->at > r->done.arrived ? m->at : r->done.arrived;
}

static void take_layer(struct kv_decode_rank *d, struct receiving *r,
                       struct kv_message *m)
{
    struct kv_msg_layer head;

    if (++d->n_layers_taken == d->t->fault.end)
        raise(SIGKILL);
    if (!kv_transfer_head(m, &head, sizeof(head)) || head.layer < r->n_loaded ||
        head.layer >= d->n_layers || r->layer[head.layer].bytes)
        return;
    arrived(r, m);
    r->layer[head.layer] = *m;
    m->bytes = NULL;
}

void kv_decode_rank_take(struct kv_decode_rank *d, struct kv_message *m)
{
    struct kv_msg of;
    size_t i;

    if (!kv_transfer_head(m, &of, sizeof(of)) || of.answer >= d->n_jobs)
        return;
    i = find(d, of);
    if (m->tag == KV_TAG_ASK)
        take_ask(d, m, of);
    else if (m->tag == KV_TAG_DROP)
        drop_older(d, of);
    else if (m->tag == KV_TAG_LAYER && i < d->n && d->all[i]->granted)
        take_layer(d, d->all[i], m);
    else if (m->tag == KV_TAG_FIRST && i < d->n) {
        d->all[i]->has_first =
            kv_transfer_head(m, &d->all[i]->first, sizeof(d->all[i]->first));
        arrived(d->all[i], m);
    }
}

/* ---- room ---------------------------------------------------------------- */

/* Grants room in order, so that no request waits for ever.  Grants it to at
 * most as many answers as decode together, so that a joined answer decodes at
 * once. */
static bool grant(struct kv_decode_rank *d)
{
    const size_t most = d->t->generation.batch;
    size_t granted = 0;

    for (size_t i = 0; i < d->n; i++) {
        struct receiving *r = d->all[i];
        struct kv_err e;

        granted += r->granted;
        if (r->granted)
            continue;
        if (granted == most || d->held + r->bytes > d->t->memory)
            return false;
        if (kv_generator_open(d->generator, answer_of(d, r), &r->seq, &e)) {
            give_up(d, i, false, e.msg);
            return true;
        }
        r->granted = true;
        d->held += r->bytes;
        r->done.granted = kv_seconds();
        kv_transfer_send(d->t, r->from, KV_TAG_GRANT, &r->done.of,
                         sizeof(r->done.of), NULL, 0);
        return true;
    }
    return false;
}

/* ---- loading ------------------------------------------------------------- */

static void count_codes(struct receiving *r, const uint8_t *bytes)
{
    struct kv_cache_head head;

    memcpy(&head, bytes, sizeof(head));
    r->done.code_bytes +=
        (double)head.side_bytes[KV_K] + (double)head.side_bytes[KV_V];
}

/* Loads the next layer, or the state.  A damaged message is requested again,
 * unless it has reached the cache. */
static int load_layer(struct kv_decode_rank *d, struct receiving *r,
                      struct kv_err *e)
{
    const size_t layer = r->n_loaded, head = sizeof(struct kv_msg_layer);
    struct kv_message *m = &r->layer[layer];
    const struct kv_msg_layer which = {r->done.of, layer};
    const double start = kv_seconds();
    const bool state =
        layer == kv_model_info(d->t->generation.model)->shape.n_layers;
    const int rc =
        (state ? kv_seq_load_state(r->seq, m->bytes + head, m->n - head, e)
               : kv_seq_load(r->seq, layer, m->bytes + head, m->n - head, e));

    r->done.load += kv_seconds() - start;
    if (!rc && !state)
        count_codes(r, m->bytes + head);
    free(m->bytes);
    *m = (struct kv_message){0};
    if (!rc) {
        r->n_loaded++;
        return 0;
    }
    if ((!state && kv_cache_tokens(kv_seq_cache(r->seq, layer))) ||
        r->again[layer]++ == AGAIN_MAX)
        return state ? -1 : kv_fail_in(e, "layer %zu", layer);
    r->done.again++;
    kv_transfer_send(d->t, r->from, KV_TAG_AGAIN, &which, sizeof(which), NULL,
                     0);
    return 0;
}

/* Passes the loaded cache to the generator, which continues the answer. */
static void join(struct kv_decode_rank *d, struct receiving *r)
{
    struct kv_answer *a = answer_of(d, r);

    kv_transfer_send(d->t, r->from, KV_TAG_LOADED, &r->done.of,
                     sizeof(r->done.of), NULL, 0);
    a->ids = kv_alloc(a->most, sizeof(*a->ids));
    a->ids[0] = r->first.id;
    a->made = 1;
    a->finish = r->first.finish;
    r->done.joined = kv_seconds();
    kv_generator_join(d->generator, a, r->seq, r->first.ended);
    r->joined = true;
}

/* Loads the layers that have arrived; returns whether any was loaded, or the
 * answer was given up. */
static bool load(struct kv_decode_rank *d, size_t i)
{
    struct receiving *r = d->all[i];
    bool any = false;
    struct kv_err e;

    while (r->n_loaded < d->n_layers && r->layer[r->n_loaded].bytes) {
        any = true;
        if (load_layer(d, r, &e)) {
            give_up(d, i, true, e.msg);
            return true;
        }
    }
    if (r->n_loaded == d->n_layers && r->has_first && !r->joined) {
        join(d, r);
        any = true;
    }
    return any;
}

/* ---- answers ------------------------------------------------------------- */

static int answer_ended(void *arg, struct kv_answer *a, struct kv_err *e)
{
    struct kv_decode_rank *d = arg;
    size_t i = 0;
    struct kv_msg_done *done;

    (void)e;
    while (answer_of(d, d->all[i]) != a || !d->all[i]->joined)
        i++;
    done = &d->all[i]->done;
    if (a->finish == KV_FINISH_FAILED) {
        kv_transfer_fail(d->t, done->of, false, a->why);
    } else {
        done->ended = kv_seconds();
        done->bits = a->bits;
        done->made = a->made;
        done->finish = a->finish;
        kv_transfer_send(d->t, 0, KV_TAG_DONE, done, sizeof(*done), a->ids,
                         a->made * sizeof(*a->ids));
    }
    kv_answer_clear(a);
    clear(d, d->all[i]);
    memmove(d->all + i, d->all + i + 1, (--d->n - i) * sizeof(*d->all));
    return 0;
}

int kv_decode_rank_step(struct kv_decode_rank *d, bool *ran, struct kv_err *e)
{
    *ran = false;
    while (grant(d))
        *ran = true;
    for (size_t i = d->n; i--;)
        if (d->all[i]->granted)
            *ran = load(d, i) || *ran;
    if (kv_generator_idle(d->generator))
        return 0;
    *ran = true;
    return kv_generator_step(d->generator, e);
}

/* ---- the whole ----------------------------------------------------------- */

struct kv_decode_rank *kv_decode_rank_new(const struct kv_transfer *t,
                                          struct kv_transfer_job *job, size_t n)
{
    struct kv_decode_rank *d = kv_alloc(1, sizeof(*d));
    struct kv_generation g = t->generation;

    g.progress = NULL;
    g.ended = answer_ended;
    g.layer = NULL;
    g.arg = d;
    *d = (struct kv_decode_rank){.t = t,
                                 .job = job,
                                 .n_jobs = n,
                                 .least = kv_alloc(n, sizeof(*d->least)),
                                 .generator = kv_generator_new(&g),
                                 .n_layers = kv_transfer_layers(t)};
    return d;
}

void kv_decode_rank_free(struct kv_decode_rank *d)
{
    if (!d)
        return;
    while (d->n)
        drop(d, d->n - 1);
    free(d->all);
    free(d->least);
    kv_generator_free(d->generator);
    free(d);
}
