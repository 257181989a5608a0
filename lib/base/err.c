#include "lib/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int kv_fail(struct kv_err *e, const char *fmt, ...)
{
    va_list ap;

    if (!e)
        return -1;
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
    va_end(ap);
    return -1;
}

int kv_fail_in(struct kv_err *e, const char *fmt, ...)
{
    struct kv_err inner;
    va_list ap;
    int n;

    if (!e)
        return -1;
    inner = *e;
    va_start(ap, fmt);
    n = vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n + 3 < sizeof(e->msg)) {
        const size_t capacity = sizeof(e->msg) - (size_t)n - 3;
        const size_t len = strlen(inner.msg);

        memcpy(e->msg + n, ": ", 2);
        memcpy(e->msg + n + 2, inner.msg, len < capacity ? len : capacity);
        e->msg[(size_t)n + 2 + (len < capacity ? len : capacity)] = 0;
    }
    return -1;
}
