#include "lib/results_file.h"
#include "lib/base/alloc.h"
#include "lib/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

size_t kv_results_file_find(const struct kv_results_file *t, const char *name)
{
    size_t i = 0;

    while (i < t->n && strcmp(t->cell[i], name))
        i++;
    return i;
}

const char *kv_results_file_cell(const struct kv_results_file *t, size_t row,
                                 size_t column)
{
    return t->cell[(1 + row) * t->n + column];
}

/* ---- cells --------------------------------------------------------------- */

struct reading {
    const char *path, *at;
    char separator;
    size_t line;
    char *text; /* buffer for one cell, as long as the file */
    char **cell;
    size_t n;
};

static int fail_line(const struct reading *r, const char *what,
                     struct kv_err *e)
{
    return kv_fail(e, "%s:%zu: %s", r->path, r->line, what);
}

static int read_quoted(struct reading *r, char *text, struct kv_err *e)
{
    for (r->at++; *r->at != '"' || r->at[1] == '"'; r->at++) {
        if (!*r->at)
            return fail_line(r, "a quote has no partner", e);
        r->line += *r->at == '\n';
        r->at += *r->at == '"';
        *text++ = *r->at;
    }
    r->at++;
    r->at += *r->at == '\r' && r->at[1] == '\n';
    *text = 0;
    return 0;
}

static void read_plain(struct reading *r, char *text)
{
    const char end[] = {r->separator, '\n', 0};
    size_t n = strcspn(r->at, end);

    memcpy(text, r->at, n);
    r->at += n;
    n -= *r->at == '\n' && n && text[n - 1] == '\r';
    text[n] = 0;
}

/* Undoes the escapes that results_put.c writes for TSV. */
static void unescape(char *text)
{
    static const char letter[] = "\\tnr", special[] = "\\\t\n\r";
    char *to = text;

    for (const char *from = text; *from; from++) {
        const char *at =
            *from == '\\' && from[1] ? strchr(letter, from[1]) : NULL;

        *to++ = at ? special[at - letter] : *from;
        from += at != NULL;
    }
    *to = 0;
}

/* Reads a cell, and checks the character after it. */
static int read_cell(struct reading *r, struct kv_err *e)
{
    const bool csv = r->separator == ',';

    if (!csv || *r->at != '"')
        read_plain(r, r->text);
    else if (read_quoted(r, r->text, e))
        return -1;
    if (!csv)
        unescape(r->text);
    if (!*r->at)
        return fail_line(r, "the last line has no end: the file was cut short",
                         e);
    if (*r->at != r->separator && *r->at != '\n')
        return fail_line(r, "text follows a cell in quotes", e);
    r->cell = kv_realloc(r->cell, r->n + 1, sizeof(*r->cell));
    r->cell[r->n++] = kv_strdup(r->text);
    return 0;
}

/* Reads the cells of a line; *n: their number. */
static int read_row(struct reading *r, size_t *n, struct kv_err *e)
{
    const size_t before = r->n;
    char end;

    do {
        if (read_cell(r, e))
            return -1;
        end = *r->at++;
    } while (end == r->separator);
    *n = r->n - before;
    return 0;
}

static int read_rows(struct reading *r, struct kv_results_file *t,
                     struct kv_err *e)
{
    for (size_t n; *r->at; r->line++) {
        const size_t line = r->line;

        if (read_row(r, &n, e))
            return -1;
        if (t->n && n != t->n)
            return kv_fail(e, "%s:%zu: %zu cells, where the header has %zu",
                           r->path, line, n, t->n);
        t->n_rows += t->n > 0;
        t->n = n;
    }
    return 0;
}

/* ---- the file ------------------------------------------------------------ */

/* *text: the whole file, the caller's to free, also on failure; NULL: no such
 * file. */
static int read_all(const char *path, char **text, struct kv_err *e)
{
    /* O_NONBLOCK: do not wait for a pipe's writer */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
    struct stat st;
    size_t n;
    int rc = -1;

    *text = NULL;
    if (!f && errno == ENOENT)
        return 0;
    if (!f)
        return kv_fail(e, "cannot open %s: %s", path, strerror(errno));
    if (fstat(fileno(f), &st) || !S_ISREG(st.st_mode)) {
        kv_fail(e, "%s is not a regular file", path);
        goto out;
    }
    *text = kv_alloc((size_t)st.st_size + 1, 1);
    n = fread(*text, 1, (size_t)st.st_size, f);
    if (ferror(f))
        kv_fail(e, "cannot read %s: %s", path, strerror(errno));
    else
        rc = kv_text_check(path, *text, n, e);
out:
    fclose(f);
    return rc;
}

int kv_results_file_read(struct kv_results_file *t, const char *path,
                         char separator, struct kv_err *e)
{
    struct reading r = {.path = path, .separator = separator, .line = 1};
    char *text;
    int rc = read_all(path, &text, e);

    *t = (struct kv_results_file){0};
    if (!rc && text) {
        const size_t mark = kv_text_mark(text, strlen(text));

        t->marked = mark > 0;
        r.at = text + mark;
        r.text = kv_alloc(strlen(text) + 1, 1);
        rc = read_rows(&r, t, e);
        free(r.text);
    }
    free(text);
    t->cell = r.cell;
    t->n_cells = r.n;
    if (rc)
        kv_results_file_clear(t);
    return rc;
}

void kv_results_file_clear(struct kv_results_file *t)
{
    for (size_t i = 0; i < t->n_cells; i++)
        free(t->cell[i]);
    free(t->cell);
    *t = (struct kv_results_file){0};
}
