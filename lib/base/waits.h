/* Calls that may wait for other programs: reading from a pipe, a FIFO, a socket
 * or a terminal, writing to one, opening a FIFO, taking a lock. */
#ifndef KV_BASE_WAITS_H
#define KV_BASE_WAITS_H

#include <stdio.h>
#include <sys/types.h>

/* Around such a call, on any thread: a request to stop (kv_catch_signals) ends
 * the program when such calls last a tenth of a second beyond it. */
void kv_wait_begin(void);
void kv_wait_end(void);

/* read(2) until something comes: also of a descriptor that would not wait. */
ssize_t kv_wait_read(int fd, void *data, size_t n);

/* A stream that writes to a descriptor, which it closes, by calls that may
 * wait.  It has no fileno().  NULL with errno. */
FILE *kv_wait_stream(int fd);

#endif
