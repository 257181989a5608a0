/* Calls that may wait for other programs: reading from a pipe, a FIFO, a socket
 * or a terminal, writing to one, opening a FIFO, taking a lock. */
#ifndef KV_BASE_WAITS_H
#define KV_BASE_WAITS_H

#include <stdio.h>
#include <sys/types.h>

/* Enclose such a call, on any thread, in these two.  A request to stop
 * (kv_catch_signals) ends the program if such a call lasts a tenth of a second
 * longer. */
void kv_wait_begin(void);
void kv_wait_end(void);

/* read(2) that waits until something comes, also on a nonblocking
 * descriptor. */
ssize_t kv_wait_read(int fd, void *data, size_t n);

/* A stream that writes to a descriptor, which it closes, by calls that may
 * wait.  It has no fileno().  NULL with errno. */
FILE *kv_wait_stream(int fd);

#endif
