#include "eval/serving/batching.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdlib.h>

void kv_batching_init(struct kv_batching *b, const struct kv_step_cost *cost)
{
    *b = (struct kv_batching){.cost = *cost};
}

void kv_batching_clear(struct kv_batching *b)
{
    free(b->member);
    free(b->wait);
}

/* The time of part p in the next j steps. */
static double part_time(const struct kv_batching *b, size_t p, double j)
{
    const double n = (double)b->n, t = (double)b->tokens;
    const double wide = fmin(n, b->cost.side);
    const double fixed = p == KV_STEP_FIXED ? b->cost.fixed : 0;

    return j * (fixed + (b->cost.per_request[p] * n +
                         b->cost.per_token[p] * (t + n * (j - 1) / 2)) /
                            wide);
}

static double steps_time(const struct kv_batching *b, double j)
{
    double sum = 0;

    for (size_t p = 0; p < KV_STEP_PARTS; p++)
        sum += part_time(b, p, j);
    return sum;
}

/* The number of steps after which the step running at now is over: the least j
 * >= 1 whose end is at now or later.  steps_time(j) = j a + j (j - 1) c. */
static uint64_t steps_until(const struct kv_batching *b, double now)
{
    const double dt = now - b->start, a = steps_time(b, 1);
    const double c = (steps_time(b, 2) - 2 * a) / 2;
    const double h = (a - c) / 2;
    const double root = h + sqrt(h * h + c * fmax(0, dt));
    double j = fmax(1, ceil(dt > 0 ? dt / root : 1));

    while (j > 1 && b->start + steps_time(b, j - 1) >= now)
        j--;
    while (b->start + steps_time(b, j) < now)
        j++;
    return (uint64_t)j;
}

static bool sooner(const struct kv_member *a, const struct kv_member *b)
{
    return a->end < b->end || (a->end == b->end && a->id < b->id);
}

static void push(struct kv_batching *b, const struct kv_member *m)
{
    size_t i = b->n;

    if (b->n == b->room) {
        b->room = b->room ? 2 * b->room : 16;
        b->member = kv_realloc(b->member, b->room, sizeof(*b->member));
    }
    b->n++;
    for (; i && sooner(m, &b->member[(i - 1) / 2]); i = (i - 1) / 2)
        b->member[i] = b->member[(i - 1) / 2];
    b->member[i] = *m;
}

static struct kv_member pop(struct kv_batching *b)
{
    const struct kv_member top = b->member[0], last = b->member[--b->n];
    size_t i = 0;

    for (size_t child = 1; child < b->n; child = 2 * i + 1) {
        if (child + 1 < b->n &&
            sooner(&b->member[child + 1], &b->member[child]))
            child++;
        if (!sooner(&b->member[child], &last))
            break;
        b->member[i] = b->member[child];
        i = child;
    }
    b->member[i] = last;
    return top;
}

void kv_batching_join(struct kv_batching *b, double now, uint32_t id,
                      uint64_t tokens, uint64_t steps)
{
    if (b->n_wait == b->wait_room) {
        b->wait_room = b->wait_room ? 2 * b->wait_room : 16;
        b->wait = kv_realloc(b->wait, b->wait_room, sizeof(*b->wait));
    }
    b->wait[b->n_wait++] =
        (struct kv_member){.id = id, .tokens = tokens, .steps = steps};
    b->asked = now;
    if (!b->n)
        b->start = now;
}

/* The number of steps until a request joins or leaves; b has at least one
 * member. */
static uint64_t steps_to_change(const struct kv_batching *b)
{
    const uint64_t leave = b->member[0].end - b->step;

    if (!b->n_wait)
        return leave;

    const uint64_t join = steps_until(b, b->asked);

    return join < leave ? join : leave;
}

double kv_batching_next(const struct kv_batching *b)
{
    if (!b->n)
        return b->n_wait ? b->asked : INFINITY;
    return b->start + steps_time(b, (double)steps_to_change(b));
}

void kv_batching_run(struct kv_batching *b)
{
    if (!b->n)
        return;

    const uint64_t steps = steps_to_change(b);
    const double j = (double)steps, time = steps_time(b, j);

    for (size_t p = 0; p < KV_STEP_PARTS; p++)
        b->part[p] += part_time(b, p, j);
    b->start += time;
    b->busy += time;
    b->held += j * (double)b->n;
    b->steps += steps;
    b->step += steps;
    b->tokens += steps * b->n;
}

bool kv_batching_leave(struct kv_batching *b, struct kv_member *m)
{
    if (!b->n || b->member[0].end != b->step)
        return false;
    *m = pop(b);
    b->tokens -= m->tokens + m->steps;
    for (size_t p = 0; p < KV_STEP_PARTS; p++)
        m->part[p] = b->part[p] - m->part[p];
    return true;
}

void kv_batching_admit(struct kv_batching *b)
{
    for (size_t i = 0; i < b->n_wait; i++) {
        struct kv_member *m = &b->wait[i];

        m->end = b->step + m->steps;
        m->joined = b->start;
        for (size_t p = 0; p < KV_STEP_PARTS; p++)
            m->part[p] = b->part[p];
        b->tokens += m->tokens;
        push(b, m);
    }
    b->n_wait = 0;
}
