/* A progress bar on stderr, only when stderr is a terminal and the run is not
 * quiet; nothing otherwise.  Call from one thread at a time. */
#ifndef KV_BASE_PROGRESS_H
#define KV_BASE_PROGRESS_H

#include <stdarg.h>
#include <stddef.h>

struct kv_progress {
    const char *what;
    size_t total, done;
    double started, shown;
};

/* what: a word or two, which must stay valid; total: the number of steps, 0
 * when unknown. */
void kv_progress_init(struct kv_progress *p, const char *what, size_t total);
void kv_progress_step(struct kv_progress *p, size_t steps);
/* Wipes the line. */
void kv_progress_clear(struct kv_progress *p);

/* 0 quiet, as in a library; 1 normal, 2 verbose: the option parser sets it. */
void kv_verbosity_set(int level);
int kv_verbosity(void);

/* Prints a line on stderr at every verbosity, "who: ..." if who is not NULL.
 * All messages for the user go through here: control characters in quoted text
 * (names, operands, strings out of files) never reach a terminal. */
void kv_vsay(const char *who, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));

/* Prints a note for the user on stderr, unless quiet; the same line only once a
 * run.
 */
void kv_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Prints a line for the user only with -v, even if it repeats. */
void kv_detail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Seconds on a clock that never goes back. */
double kv_seconds(void);

#endif
