/* Continuous batching on a decode replica: every step makes a token for each
 * request that it holds; requests join and leave between steps.
 *
 * A step of n requests that hold t tokens together takes
 *
 *   fixed + sum over parts of (per_request n + per_token t) / min(n, side)
 *
 * seconds, and t grows by n.  So the time of j steps without a change is a
 * polynomial in j, and a change costs O(log n) for any number of steps before
 * it. */
#ifndef KV_SERVING_BATCHING_H
#define KV_SERVING_BATCHING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kv_step_part {
    KV_STEP_FIXED, /* weights, and the step's own time */
    KV_STEP_READ,  /* reading KV */
    KV_STEP_PRODUCTS,
    KV_STEP_VECTOR, /* dequantizing or approximating */
    KV_STEP_PARTS
};

struct kv_step_cost {
    double per_request[KV_STEP_PARTS], per_token[KV_STEP_PARTS]; /* s */
    double fixed;                                                /* s */
    double side; /* requests whose KV is read in parallel in the time of one, >=
                  * 1 */
};

struct kv_member {
    uint32_t id;
    uint64_t end;    /* the step after which it leaves */
    uint64_t tokens; /* tokens held when it joined */
    uint64_t steps;
    double joined;
    double part[KV_STEP_PARTS]; /* the running sums when it joined; at the end
                                 * its own times */
};

struct kv_batching {
    struct kv_step_cost cost;
    struct kv_member *member; /* a heap by end */
    struct kv_member *wait;   /* join at the next step */
    size_t n, n_wait, room, wait_room;
    uint64_t tokens, step;
    double start; /* s: the time when the step began, or the last one ended */
    double asked; /* when the last waiting request arrived */
    double part[KV_STEP_PARTS];
    double busy, held; /* s: time with requests; requests in a step, summed over
                        * steps */
    uint64_t steps;
};

void kv_batching_init(struct kv_batching *b, const struct kv_step_cost *cost);
void kv_batching_clear(struct kv_batching *b);

/* Adds a request with this many tokens that leaves after this many steps, 1 or
 * more. */
void kv_batching_join(struct kv_batching *b, double now, uint32_t id,
                      uint64_t tokens, uint64_t steps);
/* The time when the next request joins or leaves; infinity: none. */
double kv_batching_next(const struct kv_batching *b);
/* Runs the steps up to the time of kv_batching_next(). */
void kv_batching_run(struct kv_batching *b);
/* Takes a request that leaves at the step that ended, with its own parts of the
 * time; false: no more. */
bool kv_batching_leave(struct kv_batching *b, struct kv_member *m);
/* Called after all have left: waiting requests join the step that begins. */
void kv_batching_admit(struct kv_batching *b);

#endif
