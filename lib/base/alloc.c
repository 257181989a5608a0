#include "lib/base/alloc.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Noreturn void out_of_memory(size_t n, size_t size)
{
    fprintf(stderr, "kvtools: out of memory: %zu x %zu bytes\n", n, size);
    exit(2);
}

void *kv_alloc(size_t n, size_t size)
{
    void *p = NULL;

    if (!size || n <= SIZE_MAX / size)
        p = calloc(n && size ? n : 1, n && size ? size : 1);
    if (!p)
        out_of_memory(n, size);
    return p;
}

void *kv_realloc(void *p, size_t n, size_t size)
{
    void *q = NULL;

    if (!size || n <= SIZE_MAX / size)
        q = realloc(p, n && size ? n * size : 1);
    if (!q)
        out_of_memory(n, size);
    return q;
}

void *kv_lines_unset(size_t n, size_t size)
{
    enum { LINE = 64, HUGE_PAGE = 2 << 20, LARGE = 4 << 20 };
    const size_t bytes = n * size;
    const size_t to = bytes < LARGE ? LINE : HUGE_PAGE;
    void *p;

    if (!bytes)
        return NULL;
    if (bytes / size != n || bytes > SIZE_MAX - to ||
        !(p = aligned_alloc(to, (bytes + to - 1) / to * to)))
        out_of_memory(n, size);
    if (to == HUGE_PAGE)
        madvise(p, bytes, MADV_HUGEPAGE); /* advice: no failure to report */
    return p;
}

void *kv_lines(size_t n, size_t size)
{
    void *p = kv_lines_unset(n, size);

    return p ? memset(p, 0, n * size) : NULL;
}

char *kv_strndup(const char *s, size_t n)
{
    char *p = kv_alloc(n + 1, 1);

    memcpy(p, s, n);
    return p;
}

char *kv_strdup(const char *s)
{
    return kv_strndup(s, strlen(s));
}
