/* A queue of events by time; equal times come out in the order they went in. */
#ifndef KV_SERVING_EVENTS_H
#define KV_SERVING_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_event {
    double time; /* s */
    uint64_t order;
    uint32_t kind, at; /* the caller's */
    uint64_t stamp;    /* the caller's; tells events that no longer hold */
};

struct kv_events {
    struct kv_event *heap;
    size_t n, room;
    uint64_t order;
    double now; /* the time of the event taken last */
};

/* Starts as {0}.  time is at least now; infinity is left out. */
void kv_events_add(struct kv_events *q, double time, uint32_t kind, uint32_t at,
                   uint64_t stamp);
/* Takes the earliest; false: there is none. */
bool kv_events_take(struct kv_events *q, struct kv_event *e);
void kv_events_clear(struct kv_events *q);

#endif
