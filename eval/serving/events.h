/* A queue of events by time; events of equal times come out in the order in
 * which they went in. */
#ifndef KV_SERVING_EVENTS_H
#define KV_SERVING_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_event {
    double time; /* s */
    uint64_t order;
    uint32_t kind, at; /* the caller's */
    uint64_t stamp;    /* the caller's; identifies events that are no longer
                        * valid */
};

struct kv_events {
    struct kv_event *heap;
    size_t n, room;
    uint64_t order;
    double now; /* the time of the event taken last */
};

/* The queue starts as {0}.  time must be at least now; an event at infinity is
 * dropped. */
void kv_events_add(struct kv_events *q, double time, uint32_t kind, uint32_t at,
                   uint64_t stamp);
/* Takes the earliest event; false: there is none. */
bool kv_events_take(struct kv_events *q, struct kv_event *e);
void kv_events_clear(struct kv_events *q);

#endif
