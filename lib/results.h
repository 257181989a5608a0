/* Tables of results: CSV (a header line, RFC 4180 quoting), TSV (a header line,
 * no quotes: tab, line feed, carriage return and backslash in a cell are \t,
 * \n, \r and \\), JSON lines, or a Markdown table.  Cells are always UTF-8
 * (U+FFFD replaces invalid bytes), and no control character but a line feed
 * goes to a terminal.  A column that was not set in a row is blank (null in
 * JSON).  Reals are written shortest-exact to 9 digits; NaN is blank.
 *
 * A safe table has a quote ' before each cell that begins with = + - @ or their
 * full-width forms, a tab, a line end or a ', unless the cell is a number.  So
 * no spreadsheet reads the cell as a formula (OWASP, "CSV Injection").  Reading
 * a table back removes these quotes.
 *
 * After a tool's own columns come columns of the specs' parameters, "params.b",
 * "params.K.b".  In JSON lines they are the members of an object, {"params":
 * {"b": 2}}, without blank ones. */
#ifndef KV_RESULTS_H
#define KV_RESULTS_H

#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_results;

/* How existing rows are found, in a file and in its journal. */
struct kv_results_keys {
    const char *const *key; /* columns that tell rows apart, ends with NULL */
    const char *lead;       /* NULL, or a value of the first key: a new row with
                             * it is written before the file's rows that have
                             * the same other keys, blank keys aside */
    const char *full;       /* a column; an existing row where it is blank does
                             * not replace a new row that sets it */
    struct {                /* cells that all rows of a file share */
        const char *column, *value;
    } alike[4];  /* ends with column NULL */
    bool at_end; /* no journal: rows are made one soon after the other */
};

/* A journal's name is its file's name and this suffix. */
#define KV_RESULTS_JOURNAL ".partial"

struct kv_results_form {
    /* NULL: rows go to stdout one by one, after a header before the first row
     * (or at close).  Otherwise the file appears at close. */
    const char *path;
    const char *format;  /* "csv", "tsv", "jsonl" or "md"; NULL: as path ends,
                          * or csv if path ends in none of these */
    const char *chosen;  /* names of columns with commas between; NULL: all */
    char *const *params; /* kv_spec_columns() of all rows; NULL: no row has a
                          * spec */
    const struct kv_results_keys *keys; /* NULL: no row is found */
    bool append; /* with keys: the file's other rows stay */
    bool safe;   /* csv, tsv: ' before cells that a spreadsheet would run */
};

/* columns: the tool's own, ends with NULL.  chosen may name these columns,
 * params (all parameters) and any parameter, whether a row has it or not.
 * Fails on an unknown column (listing the names), on an empty list, on a column
 * given twice, and on a path that ends like another format's files (.json,
 * .h5).
 *
 * keys is not copied; finding rows needs CSV or TSV, all columns and a regular
 * file.  Each finished row goes to the disk at once, in a second table beside
 * the file, its journal (FILE.partial).  Closing writes the file.  It removes
 * the journal unless the journal has rows that the file lacks, such as rows of
 * other specs.  However a run ends, the next run finds the rows in the file and
 * the journal.  Runs side by side may share a journal.  Fails when the journal
 * has other columns, rows that are not alike, or cells of a safe table though
 * this table is not safe.
 *
 * append: the file keeps its rows and the order of its columns; new parameters
 * come last.  Closing reads the file again and adds the rows, so that runs side
 * by side lose none.  Fails for the file as for the journal; without append
 * such a file has no rows to find.
 *
 * safe fails with another format than csv or tsv. */
int kv_results_open(struct kv_results **r, const struct kv_results_form *form,
                    const char *const *columns, struct kv_err *e);

/* Fails when there is no such format; NULL is fine. */
int kv_results_check_format(const char *format, struct kv_err *e);

/* Set a cell of the row being made.  A column that the table lacks is a
 * programming error and aborts; a column that was not chosen is not written. */
void kv_results_text(struct kv_results *r, const char *column,
                     const char *value);
/* A text that may hold zero bytes. */
void kv_results_bytes(struct kv_results *r, const char *column,
                      const char *value, size_t n);
void kv_results_size(struct kv_results *r, const char *column, uint64_t value);
void kv_results_real(struct kv_results *r, const char *column, double value);

struct kv_spec;
/* The cells of a spec's parameters. */
void kv_results_params(struct kv_results *r, const struct kv_spec *s);

/* Whether the file or its journal has a row with the key of the row being made.
 * If so, its cells are copied to the row being made, which keeps its own
 * parameters.  full: only a row with a cell in the column kv_results_keys.full
 * is found.  False without keys. */
bool kv_results_find_row(struct kv_results *r, bool full);

/* Ends the row and clears the cells. */
int kv_results_row(struct kv_results *r, struct kv_err *e);
void kv_results_clear_row(struct kv_results *r);

int kv_results_close(struct kv_results *r, struct kv_err *e); /* frees r */
void kv_results_discard(struct kv_results *r);                /* frees r */

#endif
