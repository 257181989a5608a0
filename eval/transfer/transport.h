/* Messages between the ranks of one run, which mpirun starts.
 *
 * A separate thread moves them, so they move while the caller computes.
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
    double at; /* kv_seconds() at its complete arrival */
};

/* Joins the run; to be called once in a program, after kv_catch_signals().
 * Fails without MPI, and if MPI does not start within a minute. */
int kv_transport_start(struct kv_transport **t, struct kv_err *e);

size_t kv_transport_ranks(const struct kv_transport *t);
size_t kv_transport_self(const struct kv_transport *t);

/* Takes bytes (of kv_alloc(); n <= INT_MAX) and never waits.  Messages may
 * overtake each other. */
void kv_transport_send(struct kv_transport *t, size_t to, int tag,
                       uint8_t *bytes, size_t n);

/* Takes the next message, waiting at most this many seconds; false: none
 * came. */
bool kv_transport_receive(struct kv_transport *t, struct kv_message *m,
                          double seconds);

/* Seconds since the last sign of life from the rank, which sends one each
 * second while its program lives and its link is open. */
double kv_transport_silence(struct kv_transport *t, size_t rank);

/* Leaves the run and frees t.  together: all ranks leave, and all sent messages
 * arrive.  Otherwise only messages that can be sent at once are sent.  Waits 30
 * s at most. */
void kv_transport_stop(struct kv_transport *t, bool together);

#endif
