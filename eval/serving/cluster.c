#include "eval/serving/cluster.h"
#include "eval/serving/events.h"
#include "eval/serving/network.h"
#include "eval/serving/stages.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum kind { ARRIVE, START, PREFILLED, SEND, LANDED, UNPACKED, STEP };

struct decode {
    struct kv_batching batch;
    uint64_t used, peak; /* bytes reserved */
    uint64_t tokens;     /* tokens of the requests that have reserved bytes */
    uint64_t stamp;      /* the stamp of the valid event */
};

struct run {
    const struct kv_cluster *c;
    struct kv_request *r;
    size_t n;
    uint64_t ties;
    struct kv_events events;
    struct kv_stages *prefill; /* [c->prefills] */
    struct decode *decode;     /* [c->decodes] */
    struct kv_network net;
    uint64_t net_stamp;
    uint32_t *waiting; /* [n]: a queue; first to last */
    size_t first, last, most;
    double asked;
};

double kv_cluster_prefill(const struct kv_cluster *c, double tokens)
{
    return c->prefill_fixed +
           tokens * (c->prefill_token + tokens * c->prefill_square);
}

double kv_cluster_quantize(const struct kv_cluster *c, double tokens)
{
    return c->quantize_fixed + tokens * c->quantize_token;
}

static uint64_t bytes_of(const struct run *s, const struct kv_request *r)
{
    return (uint64_t)ceil(((double)r->is.in + r->is.out) * s->c->kept);
}

/* Breaks ties at random with equal probabilities: the k-th tied replica
 * replaces the choice with probability 1 / k. */
static bool takes_tie(const struct run *s, uint32_t id, size_t side, size_t k)
{
    return kv_random(kv_mix(s->ties, id), 64 * k + side) % k == 0;
}

static uint32_t shortest_queue(const struct run *s, uint32_t id)
{
    size_t best = 0, ties = 1;

    for (size_t i = 1; i < s->c->prefills; i++) {
        const uint64_t t = s->prefill[i].tokens, b = s->prefill[best].tokens;

        ties = t < b ? 1 : ties + (t == b);
        if (t < b || (t == b && takes_tie(s, id, 0, ties)))
            best = i;
    }
    return (uint32_t)best;
}

/* Reserves room on a decode replica; false: no replica has room. */
static bool reserve(struct run *s, uint32_t id)
{
    struct kv_request *r = &s->r[id];
    const uint64_t size = bytes_of(s, r);
    struct decode *best = NULL;
    size_t ties = 0;

    for (size_t i = 0; i < s->c->decodes; i++) {
        struct decode *d = &s->decode[i];

        if ((double)(d->used + size) > s->c->room)
            continue;
        ties = best && d->tokens == best->tokens ? ties + 1 : 1;
        if (!best || d->tokens < best->tokens ||
            (d->tokens == best->tokens && takes_tie(s, id, 1, ties))) {
            best = d;
            r->decode = (uint32_t)i;
        }
    }
    if (!best)
        return false;
    best->used += size;
    best->tokens += (uint64_t)r->is.in + r->is.out;
    best->peak = best->used > best->peak ? best->used : best->peak;
    r->reserved = true;
    return true;
}

static void arrive(struct run *s, uint32_t id)
{
    struct kv_request *r = &s->r[id];
    double start;

    if (id + 1 < s->n)
        kv_events_add(&s->events, r[1].is.time, ARRIVE, id + 1, 0);
    r->prefill = shortest_queue(s, id);
    r->quantize = kv_cluster_quantize(s->c, r->is.in);
    r->service = kv_cluster_prefill(s->c, r->is.in) + r->quantize;

    struct kv_stages *p = &s->prefill[r->prefill];

    p->tokens += r->is.in;
    r->prefilled = kv_stages_serve(p, s->events.now, r->service, &start);
    if (s->c->pipelined)
        kv_events_add(&s->events, start, START, id, 0);
    kv_events_add(&s->events, r->prefilled, PREFILLED, id, 0);
}

/* The share of a request's bytes that remains to be sent when prefill ends: at
 * least the last layer, and whatever the link could not send during prefill. */
static double left(const struct run *s, const struct kv_request *r)
{
    const struct kv_cluster *c = s->c;
    const double size = c->sent * r->is.in, layer = 1. / (double)c->layers;

    return fmax(layer,
                1 - fmin(c->up, c->down) * r->service * (1 - layer) / size);
}

/* An event's stamp holds a share of a request's bytes in units of 2^-32. */
static const double SHARE = 0x1p32;

static void transfer(struct run *s, uint32_t id, double share)
{
    s->r[id].sent = s->events.now;
    kv_events_add(&s->events, s->events.now + s->c->transfer_fixed * share,
                  SEND, id, (uint64_t)(share * SHARE));
}

static void prefilled(struct run *s, uint32_t id)
{
    struct kv_request *r = &s->r[id];

    s->prefill[r->prefill].tokens -= r->is.in;
    if (r->reserved)
        transfer(s, id, left(s, r));
    else if (s->first == s->last && reserve(s, id))
        transfer(s, id, 1);
    else
        s->waiting[s->last++] = id;
    s->most = s->last - s->first > s->most ? s->last - s->first : s->most;
}

static void plan_network(struct run *s)
{
    kv_events_add(&s->events, kv_network_next(&s->net), LANDED, 0,
                  ++s->net_stamp);
}

static void plan_step(struct run *s, uint32_t at)
{
    struct decode *d = &s->decode[at];

    kv_events_add(&s->events, kv_batching_next(&d->batch), STEP, at,
                  ++d->stamp);
}

static void send(struct run *s, uint32_t id, double share)
{
    const struct kv_request *r = &s->r[id];
    const double bytes = s->c->sent * r->is.in * share;

    s->asked += bytes;
    kv_network_send(&s->net, s->events.now, id, bytes, r->prefill, r->decode);
    plan_network(s);
}

static void landed(struct run *s)
{
    const uint32_t id = kv_network_end(&s->net, s->events.now);
    struct kv_request *r = &s->r[id];

    r->landed = s->events.now;
    plan_network(s);
    kv_events_add(&s->events,
                  s->events.now + s->c->unpack_fixed +
                      s->c->unpack_token * r->is.in,
                  UNPACKED, id, 0);
}

static void unpacked(struct run *s, uint32_t id)
{
    struct kv_request *r = &s->r[id];

    r->unpacked = s->events.now;
    kv_batching_join(&s->decode[r->decode].batch, s->events.now, id,
                     (uint64_t)r->is.in + 1, r->is.out > 1 ? r->is.out - 1 : 1);
    plan_step(s, r->decode);
}

static void step(struct run *s, uint32_t at)
{
    struct decode *d = &s->decode[at];
    struct kv_member m;

    kv_batching_run(&d->batch);
    while (kv_batching_leave(&d->batch, &m)) {
        struct kv_request *r = &s->r[m.id];

        r->joined = m.joined;
        r->end = s->events.now;
        r->done = true;
        for (size_t p = 0; p < KV_STEP_PARTS; p++)
            r->part[p] = m.part[p];
        d->used -= bytes_of(s, r);
        d->tokens -= (uint64_t)r->is.in + r->is.out;
        while (s->first < s->last && reserve(s, s->waiting[s->first]))
            transfer(s, s->waiting[s->first++], 1);
    }
    kv_batching_admit(&d->batch);
    plan_step(s, at);
}

static void take(struct run *s, const struct kv_event *e)
{
    switch ((enum kind)e->kind) {
    case ARRIVE:
        arrive(s, e->at);
        break;
    case START:
        if (s->first == s->last)
            reserve(s, e->at);
        break;
    case PREFILLED:
        prefilled(s, e->at);
        break;
    case SEND:
        send(s, e->at, (double)e->stamp / SHARE);
        break;
    case LANDED:
        if (e->stamp == s->net_stamp)
            landed(s);
        break;
    case UNPACKED:
        unpacked(s, e->at);
        break;
    case STEP:
        if (e->stamp == s->decode[e->at].stamp)
            step(s, e->at);
        break;
    }
}

static void sum_up(const struct run *s, struct kv_cluster_use *use)
{
    const struct kv_cluster *c = s->c;
    double steps = 0, held = 0;

    *use = (struct kv_cluster_use){.end = s->events.now,
                                   .waiting = (double)s->most,
                                   .bytes_asked = s->asked};
    for (size_t i = 0; i < c->prefills; i++) {
        use->prefill += s->prefill[i].busy / use->end / (double)c->prefills;
        use->network += s->net.source[i].busy / use->end / (double)c->prefills;
        use->bytes_sent += s->net.source[i].bytes;
    }
    for (size_t i = 0; i < c->decodes; i++) {
        const struct decode *d = &s->decode[i];

        use->decode += d->batch.busy / use->end / (double)c->decodes;
        use->peak = fmax(use->peak, (double)d->peak);
        use->bytes_received += s->net.sink[i].bytes;
        use->bytes_left += (double)d->used;
        steps += (double)d->batch.steps;
        held += d->batch.held;
    }
    use->batch = steps > 0 ? held / steps : 0;
}

static void start(struct run *s)
{
    const struct kv_cluster *c = s->c;

    s->prefill = kv_alloc(c->prefills, sizeof(*s->prefill));
    s->decode = kv_alloc(c->decodes, sizeof(*s->decode));
    s->waiting = kv_alloc(s->n, sizeof(*s->waiting));
    for (size_t i = 0; i < c->prefills; i++)
        s->prefill[i].n = c->stages;
    for (size_t i = 0; i < c->decodes; i++)
        kv_batching_init(&s->decode[i].batch, &c->step);
    kv_network_init(&s->net, c->prefills, c->up, c->decodes, c->down);
    kv_events_add(&s->events, s->r[0].is.time, ARRIVE, 0, 0);
}

static void finish(struct run *s)
{
    for (size_t i = 0; i < s->c->decodes; i++)
        kv_batching_clear(&s->decode[i].batch);
    kv_network_clear(&s->net);
    kv_events_clear(&s->events);
    free(s->prefill);
    free(s->decode);
    free(s->waiting);
}

int kv_cluster_run(const struct kv_cluster *c, uint64_t seed,
                   struct kv_request *request, size_t n,
                   struct kv_cluster_use *use, struct kv_err *e)
{
    struct run s = {.c = c, .r = request, .n = n, .ties = kv_mix(seed, 0)};
    struct kv_event event;

    assert(n && n < UINT32_MAX && c->stages <= KV_STAGES_MAX);
    for (size_t i = 0; i < n; i++) {
        request[i] = (struct kv_request){.is = request[i].is};
        if ((double)bytes_of(&s, &request[i]) > c->room)
            return kv_fail(e,
                           "a request of %u + %u tokens needs %.3g GB on a "
                           "decode replica, which has room for %.3g",
                           request[i].is.in, request[i].is.out,
                           (double)bytes_of(&s, &request[i]) / 1e9,
                           c->room / 1e9);
    }
    start(&s);
    while (kv_events_take(&s.events, &event))
        take(&s, &event);
    sum_up(&s, use);
    finish(&s);
    return 0;
}
