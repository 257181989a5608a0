/* Shared by results*.c. */
#ifndef KV_RESULTS_IMPL_H
#define KV_RESULTS_IMPL_H

#include "lib/base/file.h"
#include "lib/results.h"
#include "lib/results_file.h"

#include <stdbool.h>
#include <stdio.h>

enum kv_format { KV_CSV, KV_TSV, KV_JSONL, KV_MD, KV_FORMATS };

/* text NULL: the cell is blank.  n: its bytes, well-formed UTF-8. */
struct cell {
    char *text;
    size_t n;
    bool number;
};

struct kv_results {
    enum kv_format format;
    FILE *file; /* stdout, or out.file */
    struct kv_out out;
    bool terminal; /* the output is a terminal */
    bool started;  /* the header is written */
    bool safe;     /* of struct kv_results_form */

    char **name; /* [n], the tool's columns, then the parameters' columns */
    size_t n_own, n;
    struct cell *cell; /* [n], the row being made */
    size_t *shown;     /* [n_shown] indices into name, in the order of output */
    size_t n_shown;

    const struct kv_results_keys *keys; /* or NULL; the members below are used
                                         * only with keys */
    bool appends;
    char *path, *journal;
    struct kv_results_file old, kept; /* rows of file and journal at open */
    bool found;                       /* the row being made was found among
                                       * these */
    struct row {
        struct cell *cell;
        size_t n; /* r->n when the row was made */
    } * row;      /* [n_rows], rows for the file */
    size_t n_rows;
};

/* kv_results_find(): the index of a name in r->name; r->n if it is missing.
 * kv_results_add_name(): adds a copy of a name. */
size_t kv_results_find(const struct kv_results *r, const char *name);
size_t kv_results_add_name(struct kv_results *r, const char *name);

/* results_journal.c.  _open() reads the file and its journal, _row() writes the
 * row being made to the journal, _close() writes the file and removes the
 * journal if the file has all its rows. */
int kv_results_journal_open(struct kv_results *r, const char *path,
                            struct kv_err *e);
int kv_results_journal_row(struct kv_results *r, struct kv_err *e);
int kv_results_journal_close(struct kv_results *r, struct kv_err *e);
void kv_results_journal_clear(struct kv_results *r);

/* results_append.c.  Reads the rows of a file or a journal; a missing file has
 * no rows.  Fails when rows cannot be added to it. */
int kv_results_table_read(const struct kv_results *r, const char *path,
                          struct kv_results_file *t, struct kv_err *e);
/* Writes and commits the rows of t, then row [n]. */
int kv_results_table_write(struct kv_results *r, struct kv_out *out,
                           const struct kv_results_file *t,
                           const struct row *row, size_t n, struct kv_err *e);

/* Fails when the file did not take what was written. */
int kv_results_flush(struct kv_results *r, struct kv_err *e);

/* Sets the columns and their order; fails when kv_results_open() would. */
int kv_results_choose(struct kv_results *r, const struct kv_results_form *form,
                      const char *const *columns, struct kv_err *e);

/* kv_results_is_unsafe(): whether a safe table must put a quote before this
 * cell.  kv_results_is_guarded(): whether the cell has this quote. */
bool kv_results_is_unsafe(const char *text, size_t n);
bool kv_results_is_guarded(const char *text, size_t n);

/* Write the header and the row being made in the table's format. */
void kv_results_put_header(struct kv_results *r);
void kv_results_put_row(struct kv_results *r);

#endif
