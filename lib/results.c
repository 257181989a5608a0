#include "lib/results.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum format { CSV, JSONL, MD };

/* text NULL: the cell is blank.  n: its bytes, well-formed UTF-8. */
struct cell {
    char *text;
    size_t n;
    bool number;
};

struct kv_results {
    enum format format;
    FILE *file; /* stdout, or out.file */
    struct kv_out out;
    bool terminal; /* file is one */
    const char *const *column;
    size_t n_columns;
    bool started;      /* the header is out */
    struct cell *cell; /* [n_columns], the row being made */
};

/* RFC 4180: quotes around a cell that holds one of these, and doubled in it.
 * Readers of CSV end at a zero byte. */
static void put_csv(FILE *f, const char *text, size_t n)
{
    const bool quotes = memchr(text, ',', n) || memchr(text, '"', n) ||
                        memchr(text, '\r', n) || memchr(text, '\n', n);

    if (quotes)
        fputc('"', f);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"')
            fputc('"', f);
        if (text[i])
            fputc(text[i], f);
        else
            fputs(KV_UTF8_REPLACEMENT, f);
    }
    if (quotes)
        fputc('"', f);
}

/* C0, DEL and C1 (C2 80 to C2 9F) as numbers. */
static void put_json(FILE *f, const char *text, size_t n)
{
    fputc('"', f);
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];

        if (c == '"' || c == '\\')
            fprintf(f, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            fprintf(f, "\\u%04x", c);
        else if (c == 0xc2 && (unsigned char)text[i + 1] < 0xa0)
            fprintf(f, "\\u%04x", (unsigned char)text[++i]);
        else
            fputc(c, f);
    }
    fputc('"', f);
}

/* A bar or a line's end would end the cell; a backslash would take the bar's
 * own away. */
static void put_md(FILE *f, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '|' || text[i] == '\\')
            fputc('\\', f);
        if (!text[i])
            fputs(KV_UTF8_REPLACEMENT, f);
        else
            fputc(strchr("\n\r\v\f", text[i]) ? ' ' : text[i], f);
    }
}

/* Called with the first row, so that a run that fails early leaves stdout
 * empty. */
static void put_header(struct kv_results *r)
{
    if (r->started)
        return;
    r->started = true;
    for (size_t i = 0; i < r->n_columns && r->format != JSONL; i++) {
        fputs(r->format == MD ? (i ? " | " : "| ") : (i ? "," : ""), r->file);
        fputs(r->column[i], r->file);
    }
    if (r->format == MD) {
        fputs(" |\n|", r->file);
        for (size_t i = 0; i < r->n_columns; i++)
            fputs("---|", r->file);
    }
    if (r->format != JSONL)
        fputc('\n', r->file);
}

/* JSON has no infinity: null, as for a blank cell. */
static void put_json_cell(FILE *f, const struct cell *c)
{
    if (!c->text || (c->number && strstr(c->text, "inf")))
        fputs("null", f);
    else if (c->number)
        fputs(c->text, f);
    else
        put_json(f, c->text, c->n);
}

/* On a terminal, escapes control characters except line feeds. */
static void show(struct cell *c)
{
    char *shown;

    if (!c->text)
        return;
    shown = kv_shown(c->text, c->n, "\n", &c->n);
    free(c->text);
    c->text = shown;
}

static void put_row(struct kv_results *r)
{
    for (size_t i = 0; i < r->n_columns; i++) {
        struct cell *c = &r->cell[i];

        if (r->terminal && r->format != JSONL)
            show(c);

        const char *text = c->text ? c->text : "";

        switch (r->format) {
        case CSV:
            fputs(i ? "," : "", r->file);
            put_csv(r->file, text, c->n);
            break;
        case JSONL:
            fputs(i ? ", " : "{", r->file);
            put_json(r->file, r->column[i], strlen(r->column[i]));
            fputs(": ", r->file);
            put_json_cell(r->file, c);
            break;
        case MD:
            fputs(i ? " | " : "| ", r->file);
            put_md(r->file, text, c->n);
        }
    }
    fputs(r->format == CSV ? "\n" : r->format == MD ? " |\n" : "}\n", r->file);
}

/* Flushes each row at once, so that an interrupted run keeps its rows and a
 * full disk is noticed immediately. */
static int flush(struct kv_results *r, struct kv_err *e)
{
    errno = 0;
    if (!fflush(r->file) && !ferror(r->file))
        return 0;
    return kv_fail(e, "cannot write the results to %s: %s",
                   r->out.path ? r->out.path : "standard output",
                   errno ? strerror(errno) : "write error");
}

int kv_results_open(struct kv_results **r, const char *path, const char *format,
                    const char *const *columns, struct kv_err *e)
{
    static const char *const names[] = {"csv", "jsonl", "md"};
    size_t f = 0;

    while (f < 3 && strcmp(format, names[f]))
        f++;
    if (f == 3)
        return kv_fail(e, "--format %s: expected csv, jsonl or md", format);

    struct kv_results *t = kv_alloc(1, sizeof(*t));

    t->format = (enum format)f;
    t->file = stdout;
    t->column = columns;
    while (columns[t->n_columns])
        t->n_columns++;
    t->cell = kv_alloc(t->n_columns, sizeof(*t->cell));
    if (path) {
        if (kv_out_open(&t->out, path, true, e)) {
            kv_results_discard(t);
            return -1;
        }
        t->file = t->out.file;
    }
    t->terminal = isatty(fileno(t->file));
    *r = t;
    return 0;
}

/* Takes the text over; NULL: blank. */
static void set(struct kv_results *r, const char *column, struct cell cell)
{
    for (size_t i = 0; i < r->n_columns; i++) {
        if (strcmp(r->column[i], column))
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

int kv_results_row(struct kv_results *r, struct kv_err *e)
{
    if (kv_inputs_unchanged(e))
        return -1;
    put_header(r);
    put_row(r);
    for (size_t i = 0; i < r->n_columns; i++) {
        free(r->cell[i].text);
        r->cell[i] = (struct cell){0};
    }
    return flush(r, e);
}

int kv_results_close(struct kv_results *r, struct kv_err *e)
{
    put_header(r);

    const int rc = flush(r, e) || kv_out_commit(&r->out, e) ? -1 : 0;

    kv_results_discard(r);
    return rc;
}

void kv_results_discard(struct kv_results *r)
{
    if (!r)
        return;
    kv_out_discard(&r->out);
    for (size_t i = 0; i < r->n_columns; i++)
        free(r->cell[i].text);
    free(r->cell);
    free(r);
}
