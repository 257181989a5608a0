#include "eval/serving/events.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdlib.h>

static bool before(const struct kv_event *a, const struct kv_event *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

void kv_events_add(struct kv_events *q, double time, uint32_t kind, uint32_t at,
                   uint64_t stamp)
{
    const struct kv_event e = {time, q->order++, kind, at, stamp};
    size_t i = q->n;

    if (isinf(time))
        return;
    if (q->n == q->room) {
        q->room = q->room ? 2 * q->room : 64;
        q->heap = kv_realloc(q->heap, q->room, sizeof(*q->heap));
    }
    q->n++;
    for (; i && before(&e, &q->heap[(i - 1) / 2]); i = (i - 1) / 2)
        q->heap[i] = q->heap[(i - 1) / 2];
    q->heap[i] = e;
}

bool kv_events_take(struct kv_events *q, struct kv_event *e)
{
    size_t i = 0;

    if (!q->n)
        return false;
    *e = q->heap[0];
    q->now = e->time;

    const struct kv_event last = q->heap[--q->n];

    for (size_t child = 1; child < q->n; child = 2 * i + 1) {
        if (child + 1 < q->n && before(&q->heap[child + 1], &q->heap[child]))
            child++;
        if (!before(&q->heap[child], &last))
            break;
        q->heap[i] = q->heap[child];
        i = child;
    }
    q->heap[i] = last;
    return true;
}

void kv_events_clear(struct kv_events *q)
{
    free(q->heap);
    *q = (struct kv_events){0};
}
