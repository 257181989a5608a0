/* Rows added to a table that is there. */
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/base/text.h"
#include "lib/base/waits.h"
#include "lib/results_impl.h"
#include "lib/spec_columns.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static const char params[] = "params.";

/* ---- whether a file can take them ---------------------------------------- */

static int check_alike(const struct kv_results *r, const char *path,
                       const struct kv_results_file *t, struct kv_err *e)
{
    for (size_t i = 0; r->append->alike[i].column; i++) {
        const char *column = r->append->alike[i].column;
        const char *value = r->append->alike[i].value;
        const size_t at = kv_results_file_find(t, column);

        for (size_t row = 0; at < t->n && row < t->n_rows; row++)
            if (strcmp(kv_results_file_cell(t, row, at), value))
                return kv_fail(e,
                               "%s has rows of %s %s, here it is %s: --append "
                               "wants the same",
                               path, column, kv_results_file_cell(t, row, at),
                               value);
    }
    return 0;
}

/* The tool's, in order, then parameters. */
static int check_columns(const struct kv_results *r, const char *path,
                         const struct kv_results_file *t, struct kv_err *e)
{
    for (size_t i = 0; i < r->n_own; i++) {
        if (i < t->n && !strcmp(t->cell[i], r->name[i]))
            continue;
        if (kv_results_file_find(t, r->name[i]) == t->n)
            return kv_fail(e,
                           "%s has no column %s: --append wants a table of the "
                           "same columns and --format",
                           path, r->name[i]);
        return kv_fail(e,
                       "%s has its column %zu called %.64s, not %s: --append "
                       "wants the same columns",
                       path, i + 1, t->cell[i], r->name[i]);
    }
    for (size_t i = r->n_own; i < t->n; i++)
        if (strncmp(t->cell[i], params, strlen(params)) ||
            !kv_spec_is_column(t->cell[i] + strlen(params)))
            return kv_fail(e,
                           "%s has a column %.64s, which no row here has: "
                           "--append wants the same columns",
                           path, t->cell[i]);
    return 0;
}

/* Takes off the quotes of a safe table. */
static int take_guards(const struct kv_results *r, const char *path,
                       struct kv_results_file *t, struct kv_err *e)
{
    for (size_t i = 0; i < t->n_cells; i++) {
        char *text = t->cell[i];

        if (!kv_results_is_guarded(text, strlen(text)))
            continue;
        if (!r->safe)
            return kv_fail(e,
                           "%s has a cell %.64s, as --safe-csv writes it: "
                           "--append wants --safe-csv too",
                           path, text);
        memmove(text, text + 1, strlen(text));
    }
    return 0;
}

static int read_file(const struct kv_results *r, const char *path,
                     struct kv_results_file *t, struct kv_err *e)
{
    if (kv_results_file_read(t, path, r->format == KV_CSV ? ',' : '\t', e))
        return -1;
    if (t->n && (take_guards(r, path, t, e) || check_alike(r, path, t, e) ||
                 check_columns(r, path, t, e))) {
        kv_results_file_clear(t);
        return -1;
    }
    return 0;
}

int kv_results_append_open(struct kv_results *r, const char *path,
                           struct kv_err *e)
{
    if (r->format != KV_CSV && r->format != KV_TSV)
        return kv_fail(e, "--append goes with --format csv or tsv");
    if (read_file(r, path, &r->old, e))
        return -1;
    for (size_t i = r->n_own; i < r->old.n; i++)
        if (kv_results_find(r, r->old.cell[i]) == r->n)
            kv_results_add_name(r, r->old.cell[i]);
    free(r->cell);
    r->cell = kv_alloc(r->n, sizeof(*r->cell));
    return 0;
}

/* ---- rows ---------------------------------------------------------------- */

/* Whether a row of the file has the key of these cells. */
static bool same_key(const struct kv_results *r, const struct cell *cell,
                     const struct kv_results_file *t, size_t row)
{
    for (const char *const *key = r->append->key; *key; key++) {
        const char *text = cell[kv_results_find(r, *key)].text;
        const size_t at = kv_results_file_find(t, *key);

        if (strcmp(text ? text : "", kv_results_file_cell(t, row, at)))
            return false;
    }
    return true;
}

static bool is_in(const struct kv_results *r, const struct cell *cell,
                  const struct kv_results_file *t, bool full)
{
    const size_t at = kv_results_file_find(t, r->append->full);

    for (size_t row = 0; row < t->n_rows; row++)
        if (same_key(r, cell, t, row) &&
            (!full || *kv_results_file_cell(t, row, at)))
            return true;
    return false;
}

bool kv_results_has(struct kv_results *r, bool full)
{
    const bool has = is_in(r, r->cell, &r->old, full);

    kv_results_clear_cells(r);
    return has;
}

void kv_results_append_row(struct kv_results *r)
{
    r->row = kv_realloc(r->row, r->n_rows + 1, sizeof(*r->row));
    r->row[r->n_rows++] = r->cell;
    r->cell = kv_alloc(r->n, sizeof(*r->cell));
}

/* ---- the file with them -------------------------------------------------- */

/* The file's columns as they are, then what the rows have beyond. */
static void arrange(struct kv_results *r, const struct kv_results_file *t)
{
    size_t *shown = kv_alloc(t->n + r->n_shown, sizeof(*shown)), n = 0;

    for (; n < t->n; n++) {
        shown[n] = kv_results_find(r, t->cell[n]);
        if (shown[n] == r->n)
            kv_results_add_name(r, t->cell[n]);
    }
    for (size_t i = 0; i < r->n_shown; i++)
        if (kv_results_file_find(t, r->name[r->shown[i]]) == t->n)
            shown[n++] = r->shown[i];
    free(r->shown);
    r->shown = shown;
    r->n_shown = n;
    free(r->cell);
    r->cell = kv_alloc(r->n, sizeof(*r->cell));
}

/* A row with one value for both sides, in a table that has come to have
 * columns for each. */
static void fill_sides(struct kv_results *r)
{
    for (size_t i = r->n_own; i < r->n; i++) {
        const char *name = r->name[i] + strlen(params);
        char both[64];
        size_t j;

        if (r->cell[i].text ||
            (strncmp(name, "K.", 2) && strncmp(name, "V.", 2)))
            continue;
        snprintf(both, sizeof(both), "%s%s", params, name + 2);
        j = kv_results_find(r, both);
        if (j < r->n && r->cell[j].text)
            r->cell[i] =
                (struct cell){kv_strdup(r->cell[j].text), r->cell[j].n, true};
    }
}

static void put(struct kv_results *r)
{
    fill_sides(r);
    kv_results_put_row(r);
    kv_results_clear_cells(r);
}

static void put_old(struct kv_results *r, const struct kv_results_file *t,
                    size_t row)
{
    for (size_t i = 0; i < t->n; i++) {
        const char *text = kv_results_file_cell(t, row, i);

        if (*text)
            r->cell[r->shown[i]] =
                (struct cell){kv_strdup(text), strlen(text), false};
    }
    put(r);
}

/* n: how many cells it has. */
static void free_row(struct cell *cell, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(cell[i].text);
    free(cell);
}

/* Keeps of the rows those that the file lacks. */
static void drop_known(struct kv_results *r, const struct kv_results_file *t)
{
    const size_t full = kv_results_find(r, r->append->full);
    size_t n = 0;

    for (size_t i = 0; i < r->n_rows; i++)
        if (is_in(r, r->row[i], t, r->row[i][full].text))
            free_row(r->row[i], r->n);
        else
            r->row[n++] = r->row[i];
    r->n_rows = n;
}

static int write_all(struct kv_results *r, const struct kv_results_file *t,
                     struct kv_err *e)
{
    const size_t n_cells = r->n, n = r->n_rows;
    char *path = kv_strdup(r->out.path);
    int rc;

    arrange(r, t);
    fputs(t->marked ? KV_UTF8_MARK : "", r->file);
    kv_results_put_header(r);
    for (size_t i = 0; i < t->n_rows; i++)
        put_old(r, t, i);
    for (size_t i = 0; i < r->n_rows; i++) {
        memcpy(r->cell, r->row[i], n_cells * sizeof(*r->cell));
        free(r->row[i]);
        put(r);
    }
    r->n_rows = 0;
    r->out.adds = true;
    rc = kv_results_flush(r, e) || kv_out_commit(&r->out, e) ? -1 : 0;
    if (!rc)
        kv_note("%s: %zu row%s added to %zu", path, n, n == 1 ? "" : "s",
                t->n_rows);
    free(path);
    return rc;
}

/* Held while the file is read and replaced, so that of two runs the later one
 * sees the rows of the other.  A descriptor; -1 where folders have no locks. */
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

int kv_results_append_close(struct kv_results *r, struct kv_err *e)
{
    const int lock = lock_folder(r->out.target);
    struct kv_results_file now;
    int rc = read_file(r, r->out.path, &now, e);

    if (!rc) {
        drop_known(r, &now);
        if (r->n_rows || !now.n)
            rc = write_all(r, &now, e);
        else
            kv_note("%s has all these rows", r->out.path);
        kv_results_file_clear(&now);
    }
    if (lock >= 0)
        close(lock);
    return rc;
}

void kv_results_append_clear(struct kv_results *r)
{
    for (size_t i = 0; i < r->n_rows; i++)
        free_row(r->row[i], r->n);
    free(r->row);
    kv_results_file_clear(&r->old);
}
