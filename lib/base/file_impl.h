/* What inputs, outputs and signals know of each other. */
#ifndef KV_BASE_FILE_IMPL_H
#define KV_BASE_FILE_IMPL_H

#include "lib/base/err.h"

#include <stdbool.h>

struct stat;

/* The name of the input that is this file; NULL when none is, or none is
 * guarded. */
const char *kv_input_that_is(const struct stat *st);

/* The name of the input that is mapped at this address, NULL without one;
 * *shortened: the file no longer reaches so far.  Safe in a signal handler. */
const char *kv_input_at(const void *address, bool *shortened);

/* Where an output of this name goes: the end of its links, which need not be
 * there, or a link of /proc that is an open descriptor.  The caller's to free;
 * NULL, with errno, where links go in a circle. */
char *kv_out_target(const char *path);

/* Fails where it is known before anything is opened that an output of this name
 * cannot be: links in a circle, a descriptor that is not there. */
int kv_out_check(const char *path, struct kv_err *e);

/* Removes what is not finished.  Safe in a signal handler. */
void kv_temporaries_remove(void);

/* Every signal as if no handler had been set, none blocked: in a copy of this
 * process. */
void kv_signals_forget(void);

#endif
