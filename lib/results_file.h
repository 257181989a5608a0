/* A CSV or TSV file of results, read back. */
#ifndef KV_RESULTS_FILE_H
#define KV_RESULTS_FILE_H

#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct kv_results_file {
    size_t n, n_rows; /* columns, rows without the header */
    char **cell;      /* [n_cells]: [1 + n_rows][n], the header first */
    size_t n_cells;
    bool marked; /* the file begins with UTF-8's byte order mark, as
                  * spreadsheets write it */
};

/* path: a regular file of whole lines; a missing or empty file has no columns.
 * separator: ',' with RFC 4180's quotes, or '\t' with the escapes of
 * lib/results.h.  Fails, naming the line, on a row of another number of cells,
 * a quote without its partner and a last line without an end.  Also fails where
 * kv_text_check() fails, such as on the byte order marks of UTF-16.
 *
 * The file is not an input (lib/base/file.h), so outputs may replace it. */
int kv_results_file_read(struct kv_results_file *t, const char *path,
                         char separator, struct kv_err *e);
void kv_results_file_clear(struct kv_results_file *t);

/* The index of a column; n when there is none. */
size_t kv_results_file_find(const struct kv_results_file *t, const char *name);
/* A cell of a row; rows are counted from 0. */
const char *kv_results_file_cell(const struct kv_results_file *t, size_t row,
                                 size_t column);

#endif
