/* Writes a table's header and rows in its format. */
#include "lib/base/alloc.h"
#include "lib/base/utf8.h"
#include "lib/results_impl.h"

#include <stdlib.h>
#include <string.h>

/* The text around and between the cells of a line, except in JSON. */
static const struct {
    const char *start, *between, *end;
} line[KV_FORMATS] = {[KV_CSV] = {"", ",", "\n"},
                      [KV_TSV] = {"", "\t", "\n"},
                      [KV_MD] = {"| ", " | ", " |\n"}};

/* RFC 4180: quotes go around a cell that has one of these characters, and a
 * quote inside is doubled.  A zero byte is replaced, since CSV readers stop
 * there. */
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

/* Writes a JSON string; the control characters C0, DEL and C1 (C2 80 to C2 9F)
 * as \u escapes. */
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

/* TSV has escapes instead of quotes, so that cut(1) and awk(1) read cells
 * directly. */
static void put_tsv(FILE *f, const char *text, size_t n)
{
    static const char special[] = "\\\t\n\r", letter[] = "\\tnr";

    for (size_t i = 0; i < n; i++) {
        const char *at = text[i] ? strchr(special, text[i]) : NULL;

        if (!text[i])
            fputs(KV_UTF8_REPLACEMENT, f);
        else if (at)
            fprintf(f, "\\%c", letter[at - special]);
        else
            fputc(text[i], f);
    }
}

/* Escapes bars and backslashes, and replaces line ends by spaces: a bar or a
 * line end would end the cell, and a backslash would undo a bar's escape. */
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
void kv_results_put_header(struct kv_results *r)
{
    if (r->started)
        return;
    r->started = true;
    if (r->format == KV_JSONL)
        return;
    for (size_t i = 0; i < r->n_shown; i++) {
        fputs(i ? line[r->format].between : line[r->format].start, r->file);
        fputs(r->name[r->shown[i]], r->file);
    }
    fputs(line[r->format].end, r->file);
    for (size_t i = 0; i < r->n_shown && r->format == KV_MD; i++)
        fputs(i ? "---|" : "|---|", r->file);
    if (r->format == KV_MD)
        fputc('\n', r->file);
}

/* Writes null for a blank cell, and for infinity, which JSON lacks. */
static void put_json_value(FILE *f, const struct cell *c)
{
    if (!c->text || (c->number && strstr(c->text, "inf")))
        fputs("null", f);
    else if (c->number)
        fputs(c->text, f);
    else
        put_json(f, c->text, c->n);
}

/* The state of a JSON line: the open objects, as a prefix of the last name
 * ("params.K."), and whether a member precedes. */
struct json {
    FILE *file;
    const char *name;
    size_t open;
    bool after;
};

/* The number of characters of "params.K.b" that name objects. */
static size_t objects_of(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot ? (size_t)(dot - name) + 1 : 0;
}

static void put_key(struct json *j, const char *key, size_t n)
{
    if (j->after)
        fputs(", ", j->file);
    put_json(j->file, key, n);
    fputs(": ", j->file);
    j->after = true;
}

/* Closes the open objects that do not contain the name, and opens the objects
 * that do. */
static void go_to(struct json *j, const char *name)
{
    const size_t n = objects_of(name);
    size_t same = 0;

    for (size_t i = 0; i < n && i < j->open && name[i] == j->name[i]; i++)
        same = name[i] == '.' ? i + 1 : same;
    for (size_t i = same; i < j->open; i++)
        if (j->name[i] == '.')
            fputc('}', j->file);
    for (size_t at = same, end; at < n; at = end + 1) {
        end = at + strcspn(name + at, ".");
        put_key(j, name + at, end - at);
        fputc('{', j->file);
        j->after = false;
    }
    j->name = name;
    j->open = n;
}

/* Writes a row as a JSON line; leaves out blank members of nested objects. */
static void put_json_row(struct kv_results *r)
{
    struct json j = {.file = r->file};

    fputc('{', j.file);
    for (size_t i = 0; i < r->n_shown; i++) {
        const char *name = r->name[r->shown[i]];
        const struct cell *c = &r->cell[r->shown[i]];
        const size_t n = objects_of(name);

        if (n && !c->text)
            continue;
        go_to(&j, name);
        put_key(&j, name + n, strlen(name + n));
        put_json_value(j.file, c);
    }
    go_to(&j, "");
    fputs("}\n", j.file);
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

bool kv_results_is_unsafe(const char *text, size_t n)
{
    static const char *const starts[] = {"=",      "+",      "-",      "@",
                                         "\t",     "\r",     "\n",     "\uff1d",
                                         "\uff0b", "\uff0d", "\uff20", "'"};
    char *end;

    if (*text == '-' && (strtod(text, &end), end == text + n))
        return false; /* a number */
    for (size_t i = 0; i < sizeof(starts) / sizeof(*starts); i++)
        if (!strncmp(text, starts[i], strlen(starts[i])))
            return true;
    return false;
}

bool kv_results_is_guarded(const char *text, size_t n)
{
    return *text == '\'' && kv_results_is_unsafe(text + 1, n - 1);
}

static void guard(struct cell *c)
{
    if (!c->text || !kv_results_is_unsafe(c->text, c->n))
        return;
    c->text = kv_realloc(c->text, c->n + 2, 1);
    memmove(c->text + 1, c->text, c->n + 1);
    c->text[0] = '\'';
    c->n++;
}

void kv_results_put_row(struct kv_results *r)
{
    static void (*const put[])(FILE *, const char *, size_t) = {
        [KV_CSV] = put_csv, [KV_TSV] = put_tsv, [KV_MD] = put_md};

    if (r->format == KV_JSONL) {
        put_json_row(r);
        return;
    }
    for (size_t i = 0; i < r->n_shown; i++) {
        struct cell *c = &r->cell[r->shown[i]];

        if (r->safe)
            guard(c);
        if (r->terminal)
            show(c);
        fputs(i ? line[r->format].between : line[r->format].start, r->file);
        put[r->format](r->file, c->text ? c->text : "", c->n);
    }
    fputs(line[r->format].end, r->file);
}
