/* The finished rows of a long run, so that it can resume after a stop.
 *
 * A text file beside the output:
 *
 *   kvtools-partial 2 <run> \t <checksum>
 *   <item> \t <numbers> \t <checksum>       one line an item, any number
 *
 * run: one line that lists all inputs of the numbers.  Numbers are hexadecimal
 * floats (exact); a checksum is the CRC-32, 8 hexadecimal digits, of the
 * checksum of the line before (0 before the first) and the text before the tab:
 * a line holds only where it was written, after those before it.
 *
 * Each line reaches the disk before the next item starts.  The first line whose
 * checksum is wrong, and all that follow, are not taken; they are cut off. */
#ifndef KV_JOURNAL_H
#define KV_JOURNAL_H

#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct kv_journal;

/* path: created, or read and continued.  Fails when the file has items of
 * another run, is of an older format, or none of ours. */
int kv_journal_open(struct kv_journal **j, const char *path, const char *run,
                    struct kv_err *e);

/* The numbers of this item, value [n]; false when it is not finished. */
bool kv_journal_find(struct kv_journal *j, const char *item, double *value,
                     size_t n);

int kv_journal_add(struct kv_journal *j, const char *item, const double *value,
                   size_t n, struct kv_err *e);

size_t kv_journal_items(const struct kv_journal *j);
/* The line, counted from 1, that was damaged when the file was opened; 0: none,
 * or but for a last one that was cut short, as a stop leaves it. */
size_t kv_journal_damaged(const struct kv_journal *j);

/* Keeps the file, for the next run; NULL is fine. */
void kv_journal_close(struct kv_journal *j);
/* The run is complete: removes the file, unless it has items that were neither
 * found nor added, whose number it returns.  Frees j; NULL is fine. */
size_t kv_journal_finish(struct kv_journal *j);

#endif
