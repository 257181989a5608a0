#include "lib/base/progress.h"
#include "lib/base/alloc.h"
#include "lib/base/utf8.h"
#include "lib/base/waits.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static int verbosity; /* affects only messages on stderr, no results */

void kv_verbosity_set(int level)
{
    verbosity = level;
}

int kv_verbosity(void)
{
    return verbosity;
}

double kv_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Prints the line in one call, so that no other program's output comes
 * between. */
static void say(const char *who, const char *text)
{
    const bool bar = verbosity && isatty(STDERR_FILENO);
    size_t n;
    char *shown = kv_shown(text, strlen(text), "", &n);

    kv_wait_begin();
    fprintf(stderr, "%s%s%s%s\n", bar ? "\r\033[K" : "", who ? who : "",
            who ? ": " : "", shown);
    kv_wait_end();
    free(shown);
}

void kv_vsay(const char *who, const char *fmt, va_list ap)
{
    char *text = NULL;

    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    say(who, text ? text : fmt);
    free(text);
}

/* Whether the line was said before; remembers the first ones of a run. */
static bool was_said(const char *text)
{
    enum { MOST = 256 };
    static char *said[MOST];
    static size_t n;
    bool found = false;

    flockfile(stderr); /* a lock among threads */
    for (size_t i = 0; i < n && !found; i++)
        found = !strcmp(said[i], text);
    if (!found && n < MOST)
        said[n++] = kv_strdup(text);
    funlockfile(stderr);
    return found;
}

void kv_note(const char *fmt, ...)
{
    char *text;
    va_list ap;
    int n;

    if (verbosity < 1)
        return;
    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    if (!was_said(text))
        say(NULL, text);
    free(text);
}

void kv_detail(const char *fmt, ...)
{
    va_list ap;

    if (verbosity < 2)
        return;
    va_start(ap, fmt);
    kv_vsay(NULL, fmt, ap);
    va_end(ap);
}

/* The number of bytes of the first `width` characters. */
static int cut(const char *text, int width)
{
    size_t at = 0, bad;

    for (; text[at] && width > 0; width--)
        at += kv_utf8_char(text + at, strlen(text + at), &bad);
    return (int)at;
}

/* "what: numbers", cut to the terminal's width, since a wrapped line cannot be
 * wiped.  `what` is cut first. */
static void show(const char *what, const char *numbers)
{
    struct winsize size;
    size_t n;
    char *shown;
    int width;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || !size.ws_col)
        size.ws_col = 80;
    width = size.ws_col - 3 - (int)strlen(numbers);
    if (width <= 0) {
        fprintf(stderr, "\r\033[K%.*s", size.ws_col - 1, numbers);
        return;
    }
    shown = kv_shown(what, strlen(what), "", &n);
    fprintf(stderr, "\r\033[K%.*s: %s", cut(shown, width), shown, numbers);
    free(shown);
}

void kv_progress_init(struct kv_progress *p, const char *what, size_t total)
{
    *p = (struct kv_progress){
        .what = what, .total = total, .started = kv_seconds()};
}

void kv_progress_step(struct kv_progress *p, size_t steps)
{
    const double now = kv_seconds(), spent = now - p->started;
    char numbers[128];

    p->done += steps;
    if (verbosity < 1 || now - p->shown < 0.1 || !isatty(STDERR_FILENO))
        return;
    p->shown = now;
    if (!p->total || !p->done) {
        snprintf(numbers, sizeof(numbers), "%zu, %.0f s", p->done, spent);
    } else {
        const double left =
            spent * (double)(p->total - p->done) / (double)p->done;

        snprintf(numbers, sizeof(numbers),
                 "%3.0f%% %zu/%zu, %.0f s, %.0f s left",
                 100.0 * (double)p->done / (double)p->total, p->done, p->total,
                 spent, left);
    }
    kv_wait_begin();
    show(p->what, numbers);
    kv_wait_end();
}

void kv_progress_clear(struct kv_progress *p)
{
    kv_wait_begin();
    if (p->shown > 0)
        fputs("\r\033[K", stderr);
    kv_wait_end();
    p->shown = 0;
}
