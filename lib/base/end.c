#include "lib/base/end.h"
#include "lib/base/waits.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void (*end)(void) = abort;

void kv_end_by(void (*by)(void))
{
    end = by;
}

void kv_end(const char *fmt, ...)
{
    static atomic_flag ending = ATOMIC_FLAG_INIT;
    va_list ap;

    kv_wait_begin(); /* until the program has ended */
    while (atomic_flag_test_and_set(&ending))
        pause(); /* another thread ends the program */
    fflush(stdout);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    end();
    abort();
}
