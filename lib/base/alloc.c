#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/base/waits.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

static void (*end)(void) = abort;

void kv_memory_end_by(void (*by)(void))
{
    end = by;
}

static bool is_limited(int resource)
{
    struct rlimit r;

    return !getrlimit(resource, &r) && r.rlim_cur != RLIM_INFINITY;
}

/* A hint at the limit that may be the cause.  Allocates no memory. */
static const char *limit_hint(void)
{
    return is_limited(RLIMIT_AS)     ? " (ulimit -v?)"
           : is_limited(RLIMIT_DATA) ? " (ulimit -d?)"
                                     : "";
}

/* Ends the program without allocating memory. */
_Noreturn void kv_memory_end(size_t n, size_t size)
{
    kv_wait_begin(); /* until the program has ended */
    fprintf(stderr, "%s: out of memory: %zu x %zu bytes%s\n",
            program_invocation_short_name, n, size, limit_hint());
    end();
    abort();
}

/* Whether the kernel refuses to overcommit memory (mode 2). */
static bool never_overcommits(void)
{
    FILE *f = fopen("/proc/sys/vm/overcommit_memory", "re");
    const bool never = f && fgetc(f) == '2';

    if (f)
        fclose(f);
    return never;
}

void kv_memory_probe(size_t bytes, const char *what)
{
    static atomic_int known; /* 0: not yet, 1: no limit, 2: a limit */
    void *p;

    if (!known)
        known = is_limited(RLIMIT_AS) || is_limited(RLIMIT_DATA) ||
                        never_overcommits()
                    ? 2
                    : 1;
    if (known == 1)
        return;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
             -1, 0);
    if (p == MAP_FAILED) {
        kv_wait_begin();
        fprintf(stderr, "%s: out of memory: %zu bytes for %s%s\n",
                program_invocation_short_name, bytes, what, limit_hint());
        end();
    }
    munmap(p, bytes);
}

/* Writes a size in the form that options take: "1K" for 1024. */
static void as_option(size_t bytes, char text[32])
{
    const char *unit = "";

    for (const char *u = "KMG"; bytes && bytes % 1024 == 0 && *u; u++) {
        bytes /= 1024;
        unit = u;
    }
    snprintf(text, 32, "%zu%.1s", bytes, unit);
}

size_t kv_memory_fit(size_t memory, size_t item_bytes, size_t max,
                     const char *what)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const size_t fit = item_bytes ? memory / item_bytes : 1;
    char given[32], needed[32];

    if (!fit && !atomic_flag_test_and_set(&said)) {
        as_option(memory, given);
        as_option(item_bytes + (1024 - item_bytes % 1024) % 1024, needed);
        kv_note("--memory %s is less than %s takes, %s: one is read at a time",
                given, what, needed);
    }
    return fit < 1 ? 1 : fit < max ? fit : max;
}

size_t kv_memory_fit_threads(size_t memory, size_t item_bytes, size_t n_parts,
                             size_t busy_bytes, size_t threads, size_t max,
                             const char *what)
{
    const size_t all = threads * busy_bytes;
    const size_t few = n_parts < threads ? n_parts : threads;

    if (item_bytes && memory > all &&
        (memory - all) / item_bytes * n_parts >= threads)
        return kv_memory_fit(memory - all, item_bytes, max, what);
    return kv_memory_fit(memory, item_bytes + few * busy_bytes, max, what);
}

void *kv_alloc(size_t n, size_t size)
{
    void *p = NULL;

    if (!size || n <= SIZE_MAX / size)
        p = calloc(n && size ? n : 1, n && size ? size : 1);
    if (!p)
        kv_memory_end(n, size);
    return p;
}

void *kv_realloc(void *p, size_t n, size_t size)
{
    void *q = NULL;

    if (!size || n <= SIZE_MAX / size)
        q = realloc(p, n && size ? n * size : 1);
    if (!q)
        kv_memory_end(n, size);
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
        kv_memory_end(n, size);
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
