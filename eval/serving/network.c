#include "eval/serving/network.h"
#include "lib/base/alloc.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct kv_link *links(size_t n, double rate)
{
    struct kv_link *l = kv_alloc(n, sizeof(*l));

    for (size_t i = 0; i < n; i++)
        l[i].rate = rate;
    return l;
}

void kv_network_init(struct kv_network *net, size_t n_sources,
                     double source_rate, size_t n_sinks, double sink_rate)
{
    *net = (struct kv_network){.source = links(n_sources, source_rate),
                               .sink = links(n_sinks, sink_rate),
                               .n_sources = n_sources,
                               .n_sinks = n_sinks};
}

void kv_network_clear(struct kv_network *net)
{
    free(net->source);
    free(net->sink);
    free(net->flow);
}

static double share(const struct kv_link *l)
{
    return l->rate / (double)l->flows;
}

static void set_rates(struct kv_network *net)
{
    for (size_t i = 0; i < net->n; i++) {
        struct kv_flow *f = &net->flow[i];

        f->rate =
            fmin(share(&net->source[f->source]), share(&net->sink[f->sink]));
    }
}

/* Moves the bytes that flow until `now`. */
static void advance(struct kv_network *net, double now)
{
    const double dt = now - net->now;

    net->now = now;
    if (dt <= 0)
        return;
    for (size_t i = 0; i < net->n; i++) {
        struct kv_flow *f = &net->flow[i];
        const double moved = f->rate * dt;

        f->left -= moved;
        net->source[f->source].bytes += moved;
        net->sink[f->sink].bytes += moved;
    }
    for (size_t i = 0; i < net->n_sources; i++)
        net->source[i].busy += net->source[i].flows ? dt : 0;
    for (size_t i = 0; i < net->n_sinks; i++)
        net->sink[i].busy += net->sink[i].flows ? dt : 0;
}

void kv_network_send(struct kv_network *net, double now, uint32_t id,
                     double bytes, size_t source, size_t sink)
{
    advance(net, now);
    if (net->n == net->room) {
        net->room = net->room ? 2 * net->room : 16;
        net->flow = kv_realloc(net->flow, net->room, sizeof(*net->flow));
    }
    net->flow[net->n++] = (struct kv_flow){.left = bytes,
                                           .id = id,
                                           .source = (uint32_t)source,
                                           .sink = (uint32_t)sink};
    net->source[source].flows++;
    net->sink[sink].flows++;
    set_rates(net);
}

/* The index of the transfer that ends first. */
static size_t first(const struct kv_network *net)
{
    double least = INFINITY;
    size_t at = 0;

    for (size_t i = 0; i < net->n; i++) {
        const double t = net->flow[i].left / net->flow[i].rate;

        if (t < least) {
            least = t;
            at = i;
        }
    }
    return at;
}

double kv_network_next(const struct kv_network *net)
{
    if (!net->n)
        return INFINITY;

    const struct kv_flow *f = &net->flow[first(net)];

    return net->now + fmax(0, f->left / f->rate);
}

uint32_t kv_network_end(struct kv_network *net, double now)
{
    assert(net->n);

    const size_t at = first(net);

    advance(net, now);

    const struct kv_flow f = net->flow[at];

    /* Adds the remainder of rounding, so that the bytes sent equal the bytes
     * requested. */
    net->source[f.source].bytes += f.left;
    net->sink[f.sink].bytes += f.left;
    net->source[f.source].flows--;
    net->sink[f.sink].flows--;
    net->n--;
    memmove(net->flow + at, net->flow + at + 1,
            (net->n - at) * sizeof(*net->flow));
    set_rates(net);
    return f.id;
}
