/* Threads, before OpenMP starts its own. */
#ifndef KV_BASE_THREADS_H
#define KV_BASE_THREADS_H

#include "lib/base/err.h"

#include <stddef.h>

enum { KV_THREADS_MAX = 4096 };

/* The number of threads that OMP_NUM_THREADS asks for, 0 if it is not set.
 * Fails, naming its value, when the value is not one number from 1 to
 * KV_THREADS_MAX. */
int kv_threads_asked(size_t *n, struct kv_err *e);

/* The least stack of every thread: loops over codes keep their tiles there. */
enum { KV_STACK_MIN = 1 << 20 };

/* Fails when the first thread's stack is smaller than KV_STACK_MIN (ulimit
 * -s). */
int kv_stack_check(struct kv_err *e);
/* Stack bytes of the calling thread, which is not the first thread. */
size_t kv_thread_stack(void);
/* -1 with the sentence that a stack of `bytes` bytes is too small. */
int kv_fail_stack(size_t bytes, struct kv_err *e);

/* Whether n threads can run beside the calling one, with stacks as large as
 * OpenMP's and no smaller than the least.  The threads run together for a
 * moment.  OpenMP itself ends the program without a sentence if it cannot start
 * a thread. */
int kv_threads_try(size_t n, struct kv_err *e);

#endif
