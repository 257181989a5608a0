/* Messages between the ranks of one run, which mpirun starts.
 *
 * A thread of its own moves them, so that they move while the caller computes.
 * transport_mpi.c is the only user of MPI; a build without it has
 * transport_none.c. */
#ifndef KV_TRANSPORT_H
#define KV_TRANSPORT_H

#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_transport;

struct kv_message {
    size_t from;
    int tag;
    uint8_t *bytes; /* [n]; the receiver frees them */
    size_t n;
    double at; /* kv_seconds() when all of it was there */
};

/* Joins the run.  Once in a program, after kv_catch_signals().  Fails without
 * MPI, and where it does not start within a minute. */
int kv_transport_start(struct kv_transport **t, struct kv_err *e);

size_t kv_transport_ranks(const struct kv_transport *t);
size_t kv_transport_self(const struct kv_transport *t);

/* Takes bytes (of kv_alloc(); n <= INT_MAX) and never waits.  Messages may
 * overtake each other. */
void kv_transport_send(struct kv_transport *t, size_t to, int tag,
                       uint8_t *bytes, size_t n);

/* The next message, waiting at most so many seconds; false: none came. */
bool kv_transport_receive(struct kv_transport *t, struct kv_message *m,
                          double seconds);

/* Seconds since anything came from the rank, which says something each second
 * while its program lives and its link is open. */
double kv_transport_silence(struct kv_transport *t, size_t rank);

/* Leaves the run and frees t.  together: all ranks do, and what was sent
 * arrives.  Else what can be sent at once is.  Waits 30 s at most. */
void kv_transport_stop(struct kv_transport *t, bool together);

#endif
