#include "lib/journal.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct kv_journal {
    char *path;
    FILE *file;
    char **line; /* "item\tnumbers", whole lines */
    size_t n_lines;
};

static void remember(struct kv_journal *j, char *line)
{
    j->line = kv_realloc(j->line, j->n_lines + 1, sizeof(*j->line));
    j->line[j->n_lines++] = line;
}

/* Whether a first line and a whole item are there. */
static bool has_items(const char *text)
{
    const char *end = strchr(text, '\n');

    return end && strchr(end + 1, '\n');
}

/* Whole lines of text go into j; returns where the last one ends, 0 when the
 * first line is not this run. */
static size_t read_lines(struct kv_journal *j, const char *text,
                         const char *run)
{
    const char *at = text, *end = strchr(at, '\n');

    if (!end || strlen(run) != (size_t)(end - at) ||
        memcmp(run, at, (size_t)(end - at)) != 0)
        return 0;
    for (at = end + 1; (end = strchr(at, '\n')); at = end + 1)
        remember(j, kv_strndup(at, (size_t)(end - at)));
    return (size_t)(at - text);
}

static int put_line(struct kv_journal *j, const char *line, struct kv_err *e)
{
    if (fprintf(j->file, "%s\n", line) < 0 || fflush(j->file) ||
        fsync(fileno(j->file)))
        return kv_fail(e, "cannot write %s: %s", j->path, strerror(errno));
    return 0;
}

static int start(struct kv_journal *j, const char *run, struct kv_err *e)
{
    j->file = fopen(j->path, "w");
    if (!j->file)
        return kv_fail(e, "cannot write %s: %s", j->path, strerror(errno));
    return put_line(j, run, e);
}

/* A run that was stopped before its first item left nothing to go on from. */
static int resume(struct kv_journal *j, const char *run, struct kv_err *e)
{
    char *text;
    size_t n, whole;
    const size_t tool = strcspn(run, " ") + 1;
    bool items, ours; /* as far as it goes, the same tool's */

    if (kv_file_read(j->path, &text, &n, e))
        return -1;
    items = has_items(text);
    ours = !strncmp(text, run, n < tool ? n : tool);
    whole = read_lines(j, text, run);
    free(text);
    if (!items && ours)
        return start(j, run, e);
    if (!whole)
        return kv_fail(e,
                       "%s holds rows of another run (model, text, options or "
                       "version differ): remove it to start anew",
                       j->path);
    j->file = fopen(j->path, "r+");
    if (!j->file || ftruncate(fileno(j->file), (off_t)whole) ||
        fseek(j->file, 0, SEEK_END))
        return kv_fail(e, "cannot write %s: %s", j->path, strerror(errno));
    return 0;
}

int kv_journal_open(struct kv_journal **out, const char *path, const char *run,
                    struct kv_err *e)
{
    struct kv_journal *j = kv_alloc(1, sizeof(*j));

    j->path = kv_strdup(path);
    if (kv_file_exists(path) ? resume(j, run, e) : start(j, run, e)) {
        kv_journal_close(j);
        return -1;
    }
    *out = j;
    return 0;
}

bool kv_journal_find(const struct kv_journal *j, const char *item,
                     double *value, size_t n)
{
    const size_t len = strlen(item);

    for (size_t i = 0; i < j->n_lines; i++) {
        const char *at = j->line[i] + len;
        size_t got = 0;

        if (strncmp(j->line[i], item, len) || *at != '\t')
            continue;
        for (char *end; got < n; got++, at = end) {
            value[got] = strtod(at, &end);
            if (end == at)
                break;
        }
        return got == n;
    }
    return false;
}

int kv_journal_add(struct kv_journal *j, const char *item, const double *value,
                   size_t n, struct kv_err *e)
{
    enum { NUMBER = 32 };
    const size_t room = strlen(item) + 2 + n * NUMBER;
    char *line = kv_alloc(room, 1);
    size_t at = (size_t)snprintf(line, room, "%s\t", item);

    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(line + at, room - at, " %a", value[i]);
    remember(j, line);
    return put_line(j, line, e);
}

size_t kv_journal_items(const struct kv_journal *j)
{
    return j->n_lines;
}

void kv_journal_close(struct kv_journal *j)
{
    if (!j)
        return;
    if (j->file)
        fclose(j->file);
    for (size_t i = 0; i < j->n_lines; i++)
        free(j->line[i]);
    free(j->line);
    free(j->path);
    free(j);
}

void kv_journal_finish(struct kv_journal *j)
{
    if (j)
        unlink(j->path);
    kv_journal_close(j);
}
