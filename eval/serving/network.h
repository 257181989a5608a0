/* Transfers that share links.  A transfer has a source and a sink; each link
 * divides its rate equally among its transfers, and the transfer gets the
 * smaller share. */
#ifndef KV_SERVING_NETWORK_H
#define KV_SERVING_NETWORK_H

#include <stddef.h>
#include <stdint.h>

struct kv_link {
    double rate;  /* bytes/s */
    double bytes; /* bytes moved so far */
    size_t flows; /* flows that share the rate now */
    double busy;  /* s in which the link had transfers */
};

struct kv_flow {
    double left, rate; /* bytes, bytes/s */
    uint32_t id, source, sink;
};

struct kv_network {
    struct kv_link *source, *sink; /* [n_sources], [n_sinks] */
    size_t n_sources, n_sinks;
    struct kv_flow *flow; /* sorted by when they began */
    size_t n, room;
    double now;
};

void kv_network_init(struct kv_network *net, size_t n_sources,
                     double source_rate, size_t n_sinks, double sink_rate);
void kv_network_clear(struct kv_network *net);

/* Begins a transfer; now never falls from call to call. */
void kv_network_send(struct kv_network *net, double now, uint32_t id,
                     double bytes, size_t source, size_t sink);
/* The time when the next transfer ends if no other begins before; infinity:
 * there is none.
 */
double kv_network_next(const struct kv_network *net);
/* Ends the transfer of kv_network_next() at its time, `now`; returns its id. */
uint32_t kv_network_end(struct kv_network *net, double now);

#endif
