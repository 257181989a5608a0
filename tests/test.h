/* Shared by all test files: cmocka, a temporary folder, the shared inputs. */
#ifndef KV_TEST_H
#define KV_TEST_H

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* Under AddressSanitizer everything takes ten times as long, so redundant loops
 * are shorter. */
#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* The folder of larger test inputs: $KVTOOLS_SHARED, or ../shared beside the
 * source tree.  NULL if absent; then call skip(). */
static inline const char *test_shared(void)
{
    static char path[4096];
    const char *set = getenv("KVTOOLS_SHARED");
    const char *top = getenv("KV_SOURCE_ROOT");

    if (set)
        snprintf(path, sizeof(path), "%s", set);
    else
        snprintf(path, sizeof(path), "%s/../shared", top ? top : ".");
    return access(path, R_OK) ? NULL : path;
}

/* The top of this program's test folders. */
static char test_top[4096 - 16];

static inline int test_remove(const char *path, const struct stat *st, int kind,
                              struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static inline void test_remove_all(void)
{
    nftw(test_top, test_remove, 16, FTW_DEPTH | FTW_PHYS);
}

/* Makes a folder under $TMPDIR or /tmp, which is removed with its contents when
 * the program ends. */
static inline const char *test_folder(void)
{
    static char path[sizeof(test_top) + 16]; /* test_top and a number */
    static unsigned n;

    if (!n) {
        const char *tmp = getenv("TMPDIR");

        snprintf(test_top, sizeof(test_top), "%s/kvtools-XXXXXX",
                 tmp ? tmp : "/tmp");
        assert_non_null(mkdtemp(test_top));
        assert_int_equal(atexit(test_remove_all), 0);
    }
    snprintf(path, sizeof(path), "%s/%u", test_top, n++);
    assert_int_equal(mkdir(path, 0700), 0);
    return path;
}

/* The sentence in e contains these words. */
#define assert_says(e, words)                                   \
    do {                                                        \
        if (!strstr((e).msg, words))                            \
            fail_msg("expected \"%s\" in: %s", words, (e).msg); \
    } while (0)

/* |a - b| <= bound.  Unlike cmocka's assert_float_equal it fails on NaN. */
#define assert_within(a, b, bound)                                         \
    do {                                                                   \
        const double a_ = (double)(a), b_ = (double)(b);                   \
        if (!(a_ - b_ <= (bound) && b_ - a_ <= (bound)))                   \
            fail_msg("%.9g is not within %g of %.9g", a_, (double)(bound), \
                     b_);                                                  \
    } while (0)

#endif
