/* What a long run has finished so far, so that it can go on after a stop.
 *
 * A text file beside the output: a first line that names the run, then a line
 * for each finished item: its name, a tab, its numbers as hexadecimal floats
 * (exact).  Each line reaches the disk before the next item starts; a last
 * line that was cut short is dropped. */
#ifndef KV_JOURNAL_H
#define KV_JOURNAL_H

#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct kv_journal;

/* path: created, or read and continued.  run: one line that says what the
 * numbers depend on; fails when the file has items of another run. */
int kv_journal_open(struct kv_journal **j, const char *path, const char *run,
                    struct kv_err *e);

/* The numbers of this item, value [n]; false when it is not finished. */
bool kv_journal_find(const struct kv_journal *j, const char *item,
                     double *value, size_t n);

int kv_journal_add(struct kv_journal *j, const char *item, const double *value,
                   size_t n, struct kv_err *e);

size_t kv_journal_items(const struct kv_journal *j);

/* Keeps the file, for the next run; NULL is fine. */
void kv_journal_close(struct kv_journal *j);
/* Removes it: the run is complete.  Frees j; NULL is fine. */
void kv_journal_finish(struct kv_journal *j);

#endif
