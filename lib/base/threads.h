/* Threads, before OpenMP starts its own. */
#ifndef KV_BASE_THREADS_H
#define KV_BASE_THREADS_H

#include "lib/base/err.h"

#include <stddef.h>

/* Whether n threads can run beside the calling one, with stacks as large as
 * OpenMP gives its threads: it ends the program without a sentence when one
 * cannot be started.  They run together for a moment. */
int kv_threads_try(size_t n, struct kv_err *e);

#endif
