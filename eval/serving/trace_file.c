#include "eval/serving/arrivals.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/json_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    const char *path;
    uint32_t longest;
    struct kv_arrival *a;
    size_t n, room, line;
    double first;
};

static int add(struct reader *r, double time, double in, double out,
               struct kv_err *e)
{
    if (!(in >= 1 && out >= 1 && floor(in) == in && floor(out) == out))
        return kv_fail(e,
                       "%s, line %zu: %.12g tokens in, %.12g out: expected "
                       "whole numbers, 1 or more",
                       r->path, r->line, in, out);
    if (in + out > r->longest)
        return kv_fail(e, "%s, line %zu: %.0f tokens, the model takes %u",
                       r->path, r->line, in + out, r->longest);
    if (!r->n)
        r->first = time;
    time -= r->first;
    if (r->n && time < r->a[r->n - 1].time)
        return kv_fail(e, "%s, line %zu: arrives %g s before the line above it",
                       r->path, r->line, r->a[r->n - 1].time - time);
    if (r->n == r->room) {
        r->room = r->room ? 2 * r->room : 1024;
        r->a = kv_realloc(r->a, r->room, sizeof(*r->a));
    }
    r->a[r->n++] = (struct kv_arrival){time, (uint32_t)in, (uint32_t)out};
    return 0;
}

static int field(const struct reader *r, const json_t *o, const char *name,
                 double *value, struct kv_err *e)
{
    const json_t *v = json_object_get(o, name);

    if (!json_is_number(v))
        return kv_fail(e, "%s, line %zu: expected a number \"%s\"", r->path,
                       r->line, name);
    *value = json_number_value(v);
    return 0;
}

/* Reads a line of Mooncake's trace. */
static int json_row(struct reader *r, char *text, size_t bytes,
                    struct kv_err *e)
{
    double time = 0, in = 0, out = 0;
    json_t *o = kv_json_line(r->path, r->line, text, bytes, e);
    const int rc = !o || field(r, o, "timestamp", &time, e) ||
                           field(r, o, "input_length", &in, e) ||
                           field(r, o, "output_length", &out, e)
                       ? -1
                       : add(r, time / 1000, in, out, e);

    json_decref(o);
    return rc;
}

/* Days since 1970-01-01. */
static double days(int year, int month, int day)
{
    const int y = month <= 2 ? year - 1 : year, era = y / 400;
    const int in_era = y - era * 400;
    const int of_year =
        (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;

    return era * 146097. + in_era * 365 + in_era / 4 - in_era / 100 + of_year -
           719468;
}

static bool is_date(int year, int month, int day)
{
    return year >= 0 && month >= 1 && month <= 12 && day >= 1 &&
           day <= days(year + month / 12, month % 12 + 1, 1) -
                      days(year, month, 1);
}

/* Checks a time of day; second may be 60, a leap second. */
static bool is_time(int hour, int minute, double second)
{
    return hour >= 0 && hour < 24 && minute >= 0 && minute < 60 &&
           second >= 0 && second < 61;
}

/* Reads a line of Azure's trace. */
static int csv_row(struct reader *r, const char *text, struct kv_err *e)
{
    int year, month, day, hour, minute, end = 0;
    double second, in, out;

    if (sscanf(text, "%4d-%2d-%2d%*1[ T]%2d:%2d:%lf%*[^,],%lf,%lf%n", &year,
               &month, &day, &hour, &minute, &second, &in, &out, &end) != 8 &&
        sscanf(text, "%4d-%2d-%2d%*1[ T]%2d:%2d:%lf,%lf,%lf%n", &year, &month,
               &day, &hour, &minute, &second, &in, &out, &end) != 8)
        return kv_fail(e,
                       "%s, line %zu: expected YYYY-MM-DD HH:MM:SS.F,"
                       "TOKENS,TOKENS",
                       r->path, r->line);
    if (!is_date(year, month, day) || !is_time(hour, minute, second))
        return kv_fail(e, "%s, line %zu: there is no such date or time",
                       r->path, r->line);
    if (text[end] && text[end] != '\r')
        return kv_fail(e, "%s, line %zu: expected three fields", r->path,
                       r->line);
    return add(
        r, days(year, month, day) * 86400 + hour * 3600 + minute * 60 + second,
        in, out, e);
}

static int read_line(struct reader *r, char *text, bool json, struct kv_err *e)
{
    static const char head[] = "TIMESTAMP,ContextTokens,GeneratedTokens";

    if (!*text || !strcmp(text, "\r"))
        return 0;
    if (json)
        return json_row(r, text, strlen(text), e);
    if (r->line > 1)
        return csv_row(r, text, e);
    if (strncmp(text, head, strlen(head)) != 0)
        return kv_fail(e,
                       "%s: expected JSON lines (Mooncake) or a first line "
                       "\"%s\" (Azure)",
                       r->path, head);
    return 0;
}

int kv_trace_read(const char *path, uint32_t longest, struct kv_arrival **a,
                  size_t *n, struct kv_err *e)
{
    struct reader r = {.path = path, .longest = longest};
    size_t bytes;
    char *text;
    int rc = 0;

    if (kv_file_read(path, &text, &bytes, e))
        return -1;
    if (strlen(text) < bytes)
        rc = kv_fail(e, "%s is not text: a zero byte at %zu", path,
                     strlen(text));

    const bool json = *text == '{';

    for (char *at = text, *next; at && *at && !rc; at = next) {
        next = strchr(at, '\n');
        if (next)
            *next++ = 0;
        r.line++;
        rc = read_line(&r, at, json, e);
    }
    free(text);
    if (!rc && !r.n)
        rc = kv_fail(e, "%s: no requests", path);
    if (rc) {
        free(r.a);
        return -1;
    }
    *a = r.a;
    *n = r.n;
    return 0;
}
