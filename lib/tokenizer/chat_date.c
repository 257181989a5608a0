/* strftime_now(): the date that a template writes. */
#include "lib/tokenizer/chat_impl.h"

#include <string.h>
#include <time.h>

static struct tm calendar(const struct kv_chat_clock *clock)
{
    const time_t now = (time_t)clock->now;
    struct tm t = {0};

    gmtime_r(&now, &t); /* the seconds are local, so add no time zone */
    return t;
}

int kv_chat_clock_parse(struct kv_chat_clock *clock, const char *text,
                        struct kv_err *e)
{
    static const char *const forms[] = {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"};

    for (size_t i = 0; i < 2; i++) {
        struct tm t = {0}, back;
        const char *end = strptime(text, forms[i], &t);
        const int day = t.tm_mday;

        if (!end || *end || t.tm_year < -900)
            continue;
        *clock = (struct kv_chat_clock){.now = timegm(&t)};
        back = calendar(clock);
        if (back.tm_mday == day) /* not February 30 */
            return 0;
    }
    return kv_fail(e,
                   "\"%s\" is no date: expected one such as 2025-01-31 or "
                   "2025-01-31T12:00:00",
                   text);
}

void kv_chat_clock_local(struct kv_chat_clock *clock)
{
    const time_t now = time(NULL);
    struct tm t = {0};

    localtime_r(&now, &t);
    *clock = (struct kv_chat_clock){.now = timegm(&t)};
}

void kv_chat_clock_text(const struct kv_chat_clock *clock,
                        char text[KV_CHAT_CLOCK_CHARS])
{
    const struct tm t = calendar(clock);

    strftime(text, KV_CHAT_CLOCK_CHARS, "%Y-%m-%dT%H:%M:%S", &t);
}

/* Whether all codes of the format depend only on the date and the time. */
static bool is_known(const char *format)
{
    for (const char *p = format; (p = strchr(p, '%')); p++) {
        p += p[1] == '-' ? 2 : 1;
        if (!*p || !strchr("aAbBcdeFHIjmMpSTuUVwWxXyYGD%", *p))
            return false;
    }
    return true;
}

json_t *kv_chat_strftime(struct kv_chat *c, const json_t *format)
{
    const char *text = json_string_value(format);
    char out[256];
    struct tm t;

    if (!c->clock)
        return kv_chat_fail(c, "strftime_now() has no date here");
    if (!text || !is_known(text))
        return kv_chat_fail(c, "strftime_now() of '%s' is not implemented",
                            text ? text : "no text");
    c->clock->asked = true;
    t = calendar(c->clock);
    if (*text && !strftime(out, sizeof(out), text, &t))
        return kv_chat_fail(c, "strftime_now() writes more than %zu bytes",
                            sizeof(out) - 1);
    return json_string(*text ? out : "");
}
