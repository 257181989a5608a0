/* First runs a function that may crash, hang or take all memory in a separate
 * process. */
#ifndef KV_BASE_TRIAL_H
#define KV_BASE_TRIAL_H

#include "lib/base/err.h"

#include <stddef.h>

/* Calls run(arg) in a copy of this process, which ends with run.  It may take
 * ms of the processor's time (by the clock ten times that and 10 s) and `bytes`
 * more memory than now.  Nothing that it changes in memory is seen here.  Fails
 * when run did not return, saying how it ended, and when the user stops the
 * program. */
int kv_trial(void (*run)(const void *), const void *arg, size_t ms,
             size_t bytes, struct kv_err *e);

#endif
