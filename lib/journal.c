#include "lib/journal.h"
#include "lib/base/alloc.h"
#include "lib/base/crc32.h"
#include "lib/base/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC "kvtools-partial "
#define FORMAT "2 "

struct kv_journal {
    char *path;
    FILE *file;
    struct row {
        char *line; /* "item\tnumbers", whole */
        bool taken; /* found, or added, since the file was opened */
    } * row;
    size_t n_rows, damaged;
    uint32_t sum; /* of the last line */
};

static void remember(struct kv_journal *j, char *line, bool taken)
{
    j->row = kv_realloc(j->row, j->n_rows + 1, sizeof(*j->row));
    j->row[j->n_rows++] = (struct row){line, taken};
}

static uint32_t next_sum(uint32_t before, const char *line, size_t n)
{
    const uint32_t both[] = {before, kv_crc32(line, n)};

    return kv_crc32(both, sizeof(both));
}

/* A line of the text, without its end; the next line begins at next, which is
 * NULL without a line feed. */
struct line {
    const char *text, *next;
    size_t n;
};

static struct line line_at(const char *at, const char *end)
{
    const char *stop = memchr(at, '\n', (size_t)(end - at));

    if (!stop)
        return (struct line){at, NULL, (size_t)(end - at)};
    return (struct line){at, stop + 1, (size_t)(stop - at)};
}

/* Takes the checksum off a line: false when it has none or another. */
static bool check_line(struct line *l, uint32_t *sum)
{
    enum { DIGITS = 8 };
    char want[DIGITS + 2];
    uint32_t s;

    if (!l->next || l->n < DIGITS + 1)
        return false;
    s = next_sum(*sum, l->text, l->n - (DIGITS + 1));
    snprintf(want, sizeof(want), "\t%08x", (unsigned)s);
    l->n -= DIGITS + 1;
    if (memcmp(l->text + l->n, want, DIGITS + 1) != 0)
        return false;
    *sum = s;
    return true;
}

static int put_line(struct kv_journal *j, const char *line, struct kv_err *e)
{
    j->sum = next_sum(j->sum, line, strlen(line));
    if (fprintf(j->file, "%s\t%08x\n", line, (unsigned)j->sum) < 0 ||
        fflush(j->file) || fsync(fileno(j->file)))
        return kv_fail(e, "cannot write %s: %s", j->path, strerror(errno));
    return 0;
}

static int start(struct kv_journal *j, const char *head, struct kv_err *e)
{
    j->file = fopen(j->path, "w");
    if (!j->file)
        return kv_fail(e, "cannot write %s: %s", j->path, strerror(errno));
    return put_line(j, head, e);
}

/* Items from `at` on go into j; returns where the last good one ends. */
static const char *read_items(struct kv_journal *j, const char *at,
                              const char *end)
{
    for (struct line l; at < end; at = l.next) {
        l = line_at(at, end);

        const bool cut = !l.next;

        if (!check_line(&l, &j->sum)) {
            j->damaged = cut ? 0 : j->n_rows + 2;
            break;
        }
        remember(j, kv_strndup(l.text, l.n), false);
    }
    return at;
}

static bool begins(const char *text, size_t n, const char *with)
{
    const size_t max = strlen(with);

    return !strncmp(text, with, n < max ? n : max);
}

/* Fails describing a file that does not begin with our header. */
static int fail_head(const char *path, const char *text, size_t n,
                     const char *run, struct kv_err *e)
{
    const size_t tool = strcspn(run, " ") + 1; /* format 1 began with it */

    if (begins(text, n, MAGIC FORMAT))
        return kv_fail(e,
                       "%s: its first line is damaged: remove it to start "
                       "anew",
                       path);
    if (begins(text, n, MAGIC) || !strncmp(text, run, tool))
        return kv_fail(e,
                       "%s holds rows that another version of kvtools "
                       "kept: remove it to start anew",
                       path);
    return kv_fail(e,
                   "%s holds no rows of kvtools (it does not begin with "
                   "\"" MAGIC "\"): expected those that --resume keeps",
                   path);
}

/* A run that was stopped before its first item left nothing to go on from. */
static int resume(struct kv_journal *j, const char *head, const char *run,
                  struct kv_err *e)
{
    char *text;
    const char *whole, *end;
    size_t n;
    int rc = -1;

    if (kv_file_read(j->path, &text, &n, e))
        return -1;
    end = text + n;

    struct line first = line_at(text, end);

    if (!first.next && begins(text, n, MAGIC FORMAT)) {
        rc = start(j, head, e);
        goto out;
    }
    if (!begins(text, n, MAGIC FORMAT) || !check_line(&first, &j->sum)) {
        fail_head(j->path, text, n, run, e);
        goto out;
    }
    whole = read_items(j, first.next, end);
    if (strlen(head) != first.n || memcmp(head, text, first.n) != 0) {
        if (!j->n_rows && !j->damaged) {
            j->sum = 0;
            rc = start(j, head, e);
        } else {
            kv_fail(e,
                    "%s holds rows of another run (model, text, calibration, "
                    "base, options or version differ): remove it to start anew",
                    j->path);
        }
        goto out;
    }
    j->file = fopen(j->path, "r+");
    if (!j->file || ftruncate(fileno(j->file), (off_t)(whole - text)) ||
        fseek(j->file, 0, SEEK_END)) {
        kv_fail(e, "cannot write %s: %s", j->path, strerror(errno));
        goto out;
    }
    rc = 0;
out:
    free(text);
    return rc;
}

int kv_journal_open(struct kv_journal **out, const char *path, const char *run,
                    struct kv_err *e)
{
    struct kv_journal *j = kv_alloc(1, sizeof(*j));
    const size_t capacity = sizeof(MAGIC FORMAT) + strlen(run);
    char *head = kv_alloc(capacity, 1);
    int rc;

    snprintf(head, capacity, MAGIC FORMAT "%s", run);
    j->path = kv_strdup(path);
    rc = kv_file_exists(path) ? resume(j, head, run, e) : start(j, head, e);
    free(head);
    if (rc)
        kv_journal_close(j);
    else
        *out = j;
    return rc;
}

bool kv_journal_find(struct kv_journal *j, const char *item, double *value,
                     size_t n)
{
    const size_t len = strlen(item);

    for (size_t i = 0; i < j->n_rows; i++) {
        const char *at = j->row[i].line + len;
        size_t got = 0;

        if (strncmp(j->row[i].line, item, len) || *at != '\t')
            continue;
        j->row[i].taken = true;
        for (char *end; got < n; got++, at = end) {
            value[got] = strtod(at, &end);
            if (end == at)
                break;
        }
        return got == n && !*at;
    }
    return false;
}

int kv_journal_add(struct kv_journal *j, const char *item, const double *value,
                   size_t n, struct kv_err *e)
{
    enum { NUMBER = 32 };
    const size_t capacity = strlen(item) + 2 + n * NUMBER;
    char *line = kv_alloc(capacity, 1);
    size_t at = (size_t)snprintf(line, capacity, "%s\t", item);

    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(line + at, capacity - at, " %a", value[i]);
    remember(j, line, true);
    return put_line(j, line, e);
}

size_t kv_journal_items(const struct kv_journal *j)
{
    return j->n_rows;
}

size_t kv_journal_damaged(const struct kv_journal *j)
{
    return j->damaged;
}

void kv_journal_close(struct kv_journal *j)
{
    if (!j)
        return;
    if (j->file)
        fclose(j->file);
    for (size_t i = 0; i < j->n_rows; i++)
        free(j->row[i].line);
    free(j->row);
    free(j->path);
    free(j);
}

size_t kv_journal_finish(struct kv_journal *j)
{
    size_t left = 0;

    for (size_t i = 0; j && i < j->n_rows; i++)
        left += !j->row[i].taken;
    if (j && !left)
        unlink(j->path);
    kv_journal_close(j);
    return left;
}
