/* Tables of results: CSV (a header line, RFC 4180 quoting), JSON lines, or a
 * Markdown table.  Cells are always UTF-8 (U+FFFD replaces invalid bytes), and
 * no control character but a line feed goes to a terminal.  A column that was
 * not set in a row is blank (null in JSON).  Reals are written shortest-exact
 * to 9 digits; NaN is blank. */
#ifndef KV_RESULTS_H
#define KV_RESULTS_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

struct kv_results;

/* path NULL: stdout, written row by row, the header with the first of them (or
 * at close).  Otherwise the file appears when closed.  format: "csv", "jsonl"
 * or "md".  columns end with NULL and are kept by pointer. */
int kv_results_open(struct kv_results **r, const char *path, const char *format,
                    const char *const *columns, struct kv_err *e);

/* Set a cell of the row being made.  A column the table lacks is a
 * programming error and aborts. */
void kv_results_text(struct kv_results *r, const char *column,
                     const char *value);
/* A text that may hold zero bytes. */
void kv_results_bytes(struct kv_results *r, const char *column,
                      const char *value, size_t n);
void kv_results_size(struct kv_results *r, const char *column, uint64_t value);
void kv_results_real(struct kv_results *r, const char *column, double value);

/* Ends the row and clears the cells. */
int kv_results_row(struct kv_results *r, struct kv_err *e);

int kv_results_close(struct kv_results *r, struct kv_err *e); /* frees r */
void kv_results_discard(struct kv_results *r);                /* frees r */

#endif
