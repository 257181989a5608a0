/* An error: one sentence for the user. */
#ifndef KV_BASE_ERR_H
#define KV_BASE_ERR_H

#include "lib/base/public.h"

struct kv_err {
    char msg[1024];
};

KV_PUBLIC_BEGIN

/* Writes the sentence and returns -1, for `return kv_fail(e, ...)`.  Name the
 * file, the value and what was expected; no full stop, no newline.  e may be
 * NULL (the sentence is dropped). */
int kv_fail(struct kv_err *e, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Puts "context: " before the sentence already in e; returns -1. */
int kv_fail_in(struct kv_err *e, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

KV_PUBLIC_END

#endif
