#include "lib/base/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static int verbosity = 1; /* words on stderr only; changes no number */

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

static void say(const char *fmt, va_list ap)
{
    if (verbosity && isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
}

void kv_note(const char *fmt, ...)
{
    va_list ap;

    if (verbosity < 1)
        return;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
}

void kv_detail(const char *fmt, ...)
{
    va_list ap;

    if (verbosity < 2)
        return;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
}

/* "what: numbers", what cut, or all of it, where the terminal's line ends: a
 * line that wraps is not wiped. */
static void show(const char *what, const char *numbers)
{
    struct winsize size;
    int room;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || !size.ws_col)
        size.ws_col = 80;
    room = size.ws_col - 3 - (int)strlen(numbers);
    if (room > 0)
        fprintf(stderr, "\r\033[K%.*s: %s", room, what, numbers);
    else
        fprintf(stderr, "\r\033[K%.*s", size.ws_col - 1, numbers);
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
    show(p->what, numbers);
}

void kv_progress_clear(struct kv_progress *p)
{
    if (p->shown > 0)
        fputs("\r\033[K", stderr);
    p->shown = 0;
}
