/* Adds rows to an existing table. */
#include "lib/base/alloc.h"
#include "lib/base/text.h"
#include "lib/results_impl.h"
#include "lib/spec_columns.h"

#include <stdlib.h>
#include <string.h>

static const char params[] = "params.";

/* ---- whether a file can take the rows ------------------------------------ */

/* Advice to the user whose file or journal cannot take rows. */
static const char *advice(const struct kv_results *r, const char *path)
{
    return strcmp(path, r->journal)
               ? "--append wants the same model, version, columns and --format"
               : "remove it to start anew";
}

static int check_alike(const struct kv_results *r, const char *path,
                       const struct kv_results_file *t, struct kv_err *e)
{
    for (size_t i = 0; r->keys->alike[i].column; i++) {
        const char *column = r->keys->alike[i].column;
        const char *value = r->keys->alike[i].value;
        const size_t at = kv_results_file_find(t, column);

        for (size_t row = 0; at < t->n && row < t->n_rows; row++)
            if (strcmp(kv_results_file_cell(t, row, at), value))
                return kv_fail(e, "%s has rows of %s %s, here it is %s: %s",
                               path, column, kv_results_file_cell(t, row, at),
                               value, advice(r, path));
    }
    return 0;
}

/* Fails unless the file's columns are the tool's own, in order, then
 * parameters. */
static int check_columns(const struct kv_results *r, const char *path,
                         const struct kv_results_file *t, struct kv_err *e)
{
    for (size_t i = 0; i < r->n_own; i++) {
        if (i < t->n && !strcmp(t->cell[i], r->name[i]))
            continue;
        if (kv_results_file_find(t, r->name[i]) == t->n)
            return kv_fail(e, "%s has no column %s: %s", path, r->name[i],
                           advice(r, path));
        return kv_fail(e, "%s has its column %zu called %.64s, not %s: %s",
                       path, i + 1, t->cell[i], r->name[i], advice(r, path));
    }
    for (size_t i = r->n_own; i < t->n; i++)
        if (strncmp(t->cell[i], params, strlen(params)) ||
            !kv_spec_is_column(t->cell[i] + strlen(params)))
            return kv_fail(e,
                           "%s has a column %.64s, which no row here has: %s",
                           path, t->cell[i], advice(r, path));
    return 0;
}

/* Removes the quotes that guard the cells of a safe table. */
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
                           "rows are added with --safe-csv too",
                           path, text);
        memmove(text, text + 1, strlen(text));
    }
    return 0;
}

int kv_results_table_read(const struct kv_results *r, const char *path,
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

/* ---- the file with the new rows ------------------------------------------ */

/* The indices of the columns to write, *n of them: the file's columns in their
 * order, then the new rows' additional columns. */
static size_t *arrange(struct kv_results *r, const struct kv_results_file *t,
                       size_t *n)
{
    size_t *shown = kv_alloc(t->n + r->n_shown, sizeof(*shown));

    for (*n = 0; *n < t->n; ++*n) {
        shown[*n] = kv_results_find(r, t->cell[*n]);
        if (shown[*n] == r->n)
            kv_results_add_name(r, t->cell[*n]);
    }
    for (size_t i = 0; i < r->n_shown; i++)
        if (kv_results_file_find(t, r->name[r->shown[i]]) == t->n)
            shown[(*n)++] = r->shown[i];
    free(r->cell);
    r->cell = kv_alloc(r->n, sizeof(*r->cell));
    return shown;
}

/* Copies a row's single value for both sides into the columns of each side, if
 * the table has come to have these columns. */
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
    kv_results_clear_row(r);
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

static void put_new(struct kv_results *r, const struct row *row)
{
    for (size_t i = 0; i < row->n; i++)
        if (row->cell[i].text)
            r->cell[i] =
                (struct cell){kv_strndup(row->cell[i].text, row->cell[i].n),
                              row->cell[i].n, row->cell[i].number};
    put(r);
}

/* Whether a new row leads this row of the file. */
static bool leads(const struct kv_results *r, const struct row *new,
                  const struct kv_results_file *t, size_t row)
{
    for (size_t i = 0; r->keys->key[i]; i++) {
        const struct cell *c = &new->cell[kv_results_find(r, r->keys->key[i])];
        const char *old = kv_results_file_cell(
            t, row, kv_results_file_find(t, r->keys->key[i]));
        const char *own = c->text ? c->text : "";

        if (strcmp(own, i ? old : r->keys->lead) && (!i || *own))
            return false;
    }
    return true;
}

int kv_results_table_write(struct kv_results *r, struct kv_out *out,
                           const struct kv_results_file *t,
                           const struct row *row, size_t n, struct kv_err *e)
{
    size_t n_shown, *shown = arrange(r, t, &n_shown);
    struct kv_results to = *r;
    bool *done = kv_alloc(n + 1, sizeof(*done));

    to.file = out->file;
    to.shown = shown;
    to.n_shown = n_shown;
    fputs(t->marked ? KV_UTF8_MARK : "", to.file);
    kv_results_put_header(&to);
    for (size_t i = 0; i < t->n_rows; i++) {
        for (size_t j = 0; j < n && r->keys->lead; j++) {
            if (done[j] || !leads(r, &row[j], t, i))
                continue;
            put_new(&to, &row[j]);
            done[j] = true;
        }
        put_old(&to, t, i);
    }
    for (size_t i = 0; i < n; i++)
        if (!done[i])
            put_new(&to, &row[i]);
    free(done);
    free(shown);
    return kv_out_commit(out, e);
}
