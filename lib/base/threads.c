#include "lib/base/threads.h"
#include "lib/base/alloc.h"

#include <ctype.h>
#include <dlfcn.h>
#include <gnu/lib-names.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

int kv_threads_asked(size_t *n, struct kv_err *e)
{
    static const char name[] = "OMP_NUM_THREADS", spaces[] = " \t";
    const char *text = getenv(name), *digits, *end;
    unsigned long long x;

    *n = 0;
    if (!text)
        return 0;
    digits = text + strspn(text, spaces);
    end = digits + strspn(digits, "0123456789");
    x = strtoull(digits, NULL, 10); /* ULLONG_MAX if it overflows */
    if (end == digits || end[strspn(end, spaces)] || !x)
        return kv_fail(e, "%s is '%s': expected one number, 1 to %d", name,
                       text, KV_THREADS_MAX);
    if (x > KV_THREADS_MAX)
        return kv_fail(e, "%s is %s: expected at most %d", name, text,
                       KV_THREADS_MAX);
    *n = (size_t)x;
    return 0;
}

int kv_stack_check(struct kv_err *e)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_STACK, &r) || r.rlim_cur >= KV_STACK_MIN)
        return 0;
    return kv_fail(e,
                   "the stack has %llu bytes (ulimit -s): expected at least %d",
                   (unsigned long long)r.rlim_cur, KV_STACK_MIN);
}

int kv_fail_stack(size_t bytes, struct kv_err *e)
{
    return kv_fail(e,
                   "a thread's stack has %zu bytes (OMP_STACKSIZE): expected "
                   "at least %d",
                   bytes, KV_STACK_MIN);
}

size_t kv_thread_stack(void)
{
    pthread_attr_t attr;
    size_t bytes = SIZE_MAX;

    if (!pthread_getattr_np(pthread_self(), &attr)) {
        pthread_attr_getstacksize(&attr, &bytes);
        pthread_attr_destroy(&attr);
    }
    return bytes;
}

/* The stack size as libgomp reads it from the environment: kilobytes, or a
 * number with a unit letter; 0: libgomp's default. */
static size_t asked_stack(void)
{
    const char *text = getenv("OMP_STACKSIZE");
    char *end = NULL;
    size_t n;
    int shift;

    if (!text)
        text = getenv("GOMP_STACKSIZE");
    if (!text)
        return 0;
    n = strtoul(text, &end, 10);
    while (isspace((unsigned char)*end))
        end++;
    switch (tolower((unsigned char)*end)) {
    case 'b':
        shift = 0;
        break;
    case 'm':
        shift = 20;
        break;
    case 'g':
        shift = 30;
        break;
    default:
        shift = 10;
    }
    return n <= SIZE_MAX >> shift ? n << shift : 0;
}

static void *wait_for(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

/* glibc loads libgcc when it first ends a thread, and aborts if it cannot: so
 * load it now. */
static int load_unwinder(struct kv_err *e)
{
#ifdef LIBGCC_S_SO
    if (!dlopen(LIBGCC_S_SO, RTLD_NOW))
        return kv_fail(e, "threads cannot be ended: %s", dlerror());
#endif
    return 0;
}

int kv_threads_try(size_t n, struct kv_err *e)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t *thread = kv_alloc(n, sizeof(*thread));
    const size_t asked = asked_stack();
    size_t started = 0, stack = 0;
    pthread_attr_t attr;
    int why = 0;

    if (n && load_unwinder(e)) {
        free(thread);
        return -1;
    }
    pthread_attr_init(&attr);
    /* an impossible size means the default, as in libgomp */
    if (asked && !pthread_attr_setstacksize(&attr, asked) && n &&
        asked < KV_STACK_MIN) {
        pthread_attr_destroy(&attr);
        free(thread);
        return kv_fail_stack(asked, e);
    }
    pthread_attr_getstacksize(&attr, &stack);
    pthread_mutex_lock(&gate);
    while (started < n && !why) {
        why = pthread_create(&thread[started], &attr, wait_for, &gate);
        started += !why;
    }
    pthread_mutex_unlock(&gate);
    for (size_t i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    pthread_attr_destroy(&attr);
    free(thread);
    return why ? kv_fail(e,
                         "only %zu of %zu threads can be started, with a stack "
                         "of %zu bytes each (OMP_STACKSIZE): %s",
                         started + 1, n + 1, stack, strerror(why))
               : 0;
}
