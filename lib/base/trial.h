/* What might crash, go on for ever or take all memory is tried in a process of
 * its own first. */
#ifndef KV_BASE_TRIAL_H
#define KV_BASE_TRIAL_H

#include "lib/base/err.h"

#include <stddef.h>

/* Calls run(arg) in a copy of this process, which may take ms of the
 * processor's time (ten times that and 10 s by the clock) and so many bytes of
 * memory more than now, and ends with run.  Nothing that it changes in memory
 * is seen here.  Fails, saying how it ended, when it did not return; and when
 * the user stops the program. */
int kv_trial(void (*run)(const void *), const void *arg, size_t ms,
             size_t bytes, struct kv_err *e);

#endif
