/* Existing rows, in a file and in its journal, and the new rows of a run.
 */
#include "lib/base/alloc.h"
#include "lib/base/leftovers.h"
#include "lib/base/progress.h"
#include "lib/base/waits.h"
#include "lib/results_impl.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

int kv_results_journal_open(struct kv_results *r, const char *path,
                            struct kv_err *e)
{
    const size_t capacity = strlen(path) + sizeof(KV_RESULTS_JOURNAL);
    struct kv_err none;

    if (r->format != KV_CSV && r->format != KV_TSV)
        return kv_fail(e, "--%s goes with --format csv or tsv",
                       r->appends ? "append" : "resume");
    r->path = kv_strdup(path);
    r->journal = kv_alloc(capacity, 1);
    snprintf(r->journal, capacity, "%s" KV_RESULTS_JOURNAL, path);
    kv_leftovers_remove(r->journal);
    if (kv_results_table_read(r, path, &r->old, r->appends ? e : &none) &&
        r->appends)
        return -1;
    return kv_results_table_read(r, r->journal, &r->kept, e);
}

/* ---- existing rows ------------------------------------------------------- */

static bool same_key(const struct kv_results *r, const struct cell *cell,
                     const struct kv_results_file *t, size_t row)
{
    for (const char *const *key = r->keys->key; *key; key++) {
        const char *text = cell[kv_results_find(r, *key)].text;
        const size_t at = kv_results_file_find(t, *key);

        if (strcmp(text ? text : "", kv_results_file_cell(t, row, at)))
            return false;
    }
    return true;
}

/* The row of t with the same key as these cells; t->n_rows if there is none. */
static size_t find(const struct kv_results *r, const struct cell *cell,
                   const struct kv_results_file *t, bool full)
{
    const size_t at = kv_results_file_find(t, r->keys->full);
    size_t row = 0;

    while (row < t->n_rows && !(same_key(r, cell, t, row) &&
                                (!full || *kv_results_file_cell(t, row, at))))
        row++;
    return row;
}

/* Whether t has a row for these cells: one with the same key, and full if these
 * cells are. */
static bool is_in(const struct kv_results *r, const struct cell *cell,
                  const struct kv_results_file *t)
{
    const size_t at = kv_results_find(r, r->keys->full);

    return find(r, cell, t, cell[at].text) < t->n_rows;
}

/* Copies a row of t, without its parameters, into the row being made. */
static void take(struct kv_results *r, const struct kv_results_file *t,
                 size_t row)
{
    for (size_t i = 0; i < r->n_own; i++) {
        const char *text = kv_results_file_cell(t, row, i);

        free(r->cell[i].text);
        r->cell[i] =
            (struct cell){*text ? kv_strdup(text) : NULL, strlen(text), false};
    }
}

bool kv_results_find_row(struct kv_results *r, bool full)
{
    const struct kv_results_file *const in[] = {&r->old, &r->kept};

    r->found = false;
    for (size_t i = 0; i < 2 && r->keys && !r->found; i++) {
        const size_t row = find(r, r->cell, in[i], full);

        r->found = row < in[i]->n_rows;
        if (r->found)
            take(r, in[i], row);
    }
    return r->found;
}

/* ---- new rows ------------------------------------------------------------ */

/* Locks the folder while the file or the journal is read and replaced, so that
 * the later of two runs sees the other's rows.  Returns a descriptor; -1 if
 * folders have no locks. */
static int lock_folder(const char *target)
{
    const char *name;
    char *folder = kv_path_folder(target, &name);
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    free(folder);
    kv_wait_begin();
    if (fd >= 0)
        flock(fd, LOCK_EX);
    kv_wait_end();
    return fd;
}

static void unlock_folder(int fd)
{
    if (fd >= 0)
        close(fd);
}

static int add_to_journal(struct kv_results *r, const struct row *row,
                          struct kv_err *e)
{
    const int lock = lock_folder(r->out.target);
    struct kv_results_file t;
    struct kv_out out;
    int rc = kv_results_table_read(r, r->journal, &t, e);

    if (!rc && !(rc = kv_out_open(&out, r->journal, true, e))) {
        out.adds = true;
        rc = kv_results_table_write(r, &out, &t, row, 1, e);
    }
    kv_results_file_clear(&t);
    unlock_folder(lock);
    return rc;
}

int kv_results_journal_row(struct kv_results *r, struct kv_err *e)
{
    const bool found = r->found;

    r->row = kv_realloc(r->row, r->n_rows + 1, sizeof(*r->row));
    r->row[r->n_rows++] = (struct row){r->cell, r->n};
    r->cell = kv_alloc(r->n, sizeof(*r->cell));
    r->found = false;
    return found || r->keys->at_end
               ? 0
               : add_to_journal(r, &r->row[r->n_rows - 1], e);
}

/* ---- the end ------------------------------------------------------------- */

static void free_row(struct row row)
{
    for (size_t i = 0; i < row.n; i++)
        free(row.cell[i].text);
    free(row.cell);
}

/* Drops the new rows that the file already has. */
static void drop_known(struct kv_results *r, const struct kv_results_file *t)
{
    size_t n = 0;

    for (size_t i = 0; i < r->n_rows; i++)
        if (is_in(r, r->row[i].cell, t))
            free_row(r->row[i]);
        else
            r->row[n++] = r->row[i];
    r->n_rows = n;
}

static int write_file(struct kv_results *r, struct kv_err *e)
{
    struct kv_results_file now = {0};
    int rc = 0;

    r->out.adds = r->appends;
    if (r->appends) {
        if (kv_results_table_read(r, r->path, &now, e))
            return -1;
        drop_known(r, &now);
    }
    if (now.n && !r->n_rows)
        kv_note("%s has all these rows", r->path);
    else
        rc = kv_results_table_write(r, &r->out, &now, r->row, r->n_rows, e);
    if (!rc && r->appends && r->n_rows)
        kv_note("%s: %zu row%s added to %zu", r->path, r->n_rows,
                r->n_rows == 1 ? "" : "s", now.n_rows);
    kv_results_file_clear(&now);
    return rc;
}

/* Removes the journal, unless it has rows that the file lacks. */
static int end_journal(struct kv_results *r, struct kv_err *e)
{
    struct kv_results_file file = {0}, kept = {0};
    size_t left = 0;
    int rc = kv_results_table_read(r, r->path, &file, e) ||
                     kv_results_table_read(r, r->journal, &kept, e)
                 ? -1
                 : 0;

    for (size_t row = 0; row < kept.n_rows; row++) {
        take(r, &kept, row);
        left += !is_in(r, r->cell, &file);
    }
    if (left)
        kv_note("%s keeps %zu finished row%s of other runs", r->journal, left,
                left == 1 ? "" : "s");
    else if (!rc)
        unlink(r->journal);
    kv_results_file_clear(&file);
    kv_results_file_clear(&kept);
    return rc;
}

int kv_results_journal_close(struct kv_results *r, struct kv_err *e)
{
    const int lock = lock_folder(r->out.target);
    const int rc = write_file(r, e) || end_journal(r, e) ? -1 : 0;

    unlock_folder(lock);
    return rc;
}

void kv_results_journal_clear(struct kv_results *r)
{
    for (size_t i = 0; i < r->n_rows; i++)
        free_row(r->row[i]);
    free(r->row);
    free(r->path);
    free(r->journal);
    kv_results_file_clear(&r->old);
    kv_results_file_clear(&r->kept);
}
