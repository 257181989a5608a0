/* A trial run, in a separate process, of a function that may crash, hang or
 * take all memory. */
#ifndef KV_BASE_TRIAL_H
#define KV_BASE_TRIAL_H

#include "lib/base/err.h"

#include <stddef.h>

/* Calls run(arg) in a copy of this process, which ends with run.  The copy may
 * take ms of CPU time, 10 * ms + 10 s of wall time, and `bytes` more memory
 * than now.  Its changes to memory are not seen here.  Fails when run did not
 * return, saying how it ended, and when the user stops the program. */
int kv_trial(void (*run)(const void *), const void *arg, size_t ms,
             size_t bytes, struct kv_err *e);

#endif
