#include "lib/base/alloc.h"
#include "lib/base/utf8.h"
#include "lib/results_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const format_names[] = {"csv", "tsv", "jsonl", "md"};

static size_t find_format(const char *name)
{
    size_t f = 0;

    while (f < KV_FORMATS && strcmp(format_names[f], name))
        f++;
    return f;
}

int kv_results_check_format(const char *format, struct kv_err *e)
{
    return !format || find_format(format) < KV_FORMATS
               ? 0
               : kv_fail(e, "--format %s: expected csv, tsv, jsonl or md",
                         format);
}

/* Sets the format.  Fails if the file's name says another format. */
static int settle_format(const struct kv_results_form *form,
                         enum kv_format *format, struct kv_err *e)
{
    static const char *const others[] = {
        "json", "h5", "hdf5", "html", "npz", "xls", "xlsx", "yaml", "parquet"};
    const char *dot = form->path ? strrchr(form->path, '.') : NULL;
    const char *name = dot && !strchr(dot, '/') ? dot + 1 : "";
    const size_t said = find_format(name);

    if (kv_results_check_format(form->format, e))
        return -1;
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        if (!strcmp(name, others[i]))
            return kv_fail(e,
                           "the table %s would not be %s: expected a name in "
                           ".csv, .tsv, .jsonl or .md",
                           form->path, name);
    if (form->format && said < KV_FORMATS && strcmp(name, form->format))
        return kv_fail(e, "--format %s: the table's name %s says %s",
                       form->format, form->path, name);
    *format = (enum kv_format)(form->format        ? find_format(form->format)
                               : said < KV_FORMATS ? said
                                                   : KV_CSV);
    return 0;
}

/* Flushes each row at once, so that an interrupted run keeps its rows and a
 * full disk is noticed immediately. */
int kv_results_flush(struct kv_results *r, struct kv_err *e)
{
    errno = 0;
    if (!fflush(r->file) && !ferror(r->file))
        return 0;
    return kv_fail(e, "cannot write the results to %s: %s",
                   r->out.path ? r->out.path : "standard output",
                   errno ? strerror(errno) : "write error");
}

int kv_results_open(struct kv_results **r, const struct kv_results_form *form,
                    const char *const *columns, struct kv_err *e)
{
    struct kv_results *t;
    enum kv_format format = KV_CSV;

    if (settle_format(form, &format, e))
        return -1;
    if (form->safe && format != KV_CSV && format != KV_TSV)
        return kv_fail(e, "--safe-csv goes with --format csv or tsv");
    t = kv_alloc(1, sizeof(*t));
    t->format = format;
    t->safe = form->safe;
    t->file = stdout;
    t->keys = form->keys;
    t->appends = form->append;
    if (kv_results_choose(t, form, columns, e) ||
        (t->keys && kv_results_journal_open(t, form->path, e)) ||
        (form->path && kv_out_open(&t->out, form->path, true, e))) {
        kv_results_discard(t);
        return -1;
    }
    if (t->keys && !t->out.temp) {
        kv_fail(e, "--%s wants a regular file, not %s",
                t->appends ? "append" : "resume", form->path);
        kv_results_discard(t);
        return -1;
    }
    if (form->path)
        t->file = t->out.file;
    t->terminal = form->path ? t->out.terminal : isatty(STDOUT_FILENO);
    *r = t;
    return 0;
}

/* Sets a cell, and takes ownership of its text; NULL: blank. */
static void set(struct kv_results *r, const char *column, struct cell cell)
{
    for (size_t i = 0; i < r->n_own; i++) {
        if (strcmp(r->name[i], column))
            continue;
        free(r->cell[i].text);
        r->cell[i] = cell;
        return;
    }
    fprintf(stderr, "kvtools: no column \"%s\" in this table\n", column);
    abort();
}

void kv_results_bytes(struct kv_results *r, const char *column,
                      const char *value, size_t n)
{
    struct cell c = {0};

    if (value)
        c.text = kv_utf8_repair(value, n, &c.n);
    set(r, column, c);
}

void kv_results_text(struct kv_results *r, const char *column,
                     const char *value)
{
    kv_results_bytes(r, column, value, value ? strlen(value) : 0);
}

static void set_number(struct kv_results *r, const char *column,
                       const char *text)
{
    set(r, column, (struct cell){kv_strdup(text), strlen(text), true});
}

void kv_results_size(struct kv_results *r, const char *column, uint64_t value)
{
    char text[32];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    set_number(r, column, text);
}

void kv_results_real(struct kv_results *r, const char *column, double value)
{
    char text[32];

    snprintf(text, sizeof(text), "%.9g", value);
    if (isnan(value))
        set(r, column, (struct cell){0});
    else
        set_number(r, column, text);
}

void kv_results_clear_row(struct kv_results *r)
{
    for (size_t i = 0; r->cell && i < r->n; i++) {
        free(r->cell[i].text);
        r->cell[i] = (struct cell){0};
    }
    r->found = false;
}

int kv_results_row(struct kv_results *r, struct kv_err *e)
{
    if (kv_inputs_unchanged(e))
        return -1;
    if (r->keys)
        return kv_results_journal_row(r, e);
    kv_results_put_header(r);
    kv_results_put_row(r);
    kv_results_clear_row(r);
    return kv_results_flush(r, e);
}

int kv_results_close(struct kv_results *r, struct kv_err *e)
{
    int rc;

    if (r->keys) {
        rc = kv_results_journal_close(r, e);
    } else {
        kv_results_put_header(r);
        rc = kv_results_flush(r, e) || kv_out_commit(&r->out, e) ? -1 : 0;
    }
    kv_results_discard(r);
    return rc;
}

void kv_results_discard(struct kv_results *r)
{
    if (!r)
        return;
    kv_out_discard(&r->out);
    kv_results_journal_clear(r);
    kv_results_clear_row(r);
    for (size_t i = 0; i < r->n; i++)
        free(r->name[i]);
    free(r->name);
    free(r->cell);
    free(r->shown);
    free(r);
}
