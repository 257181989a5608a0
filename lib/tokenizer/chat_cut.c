/* Cuts a template into pieces, as Jinja's lexer does with trim_blocks and
 * lstrip_blocks. */
#include "lib/base/alloc.h"
#include "lib/base/utf8.h"
#include "lib/tokenizer/chat_text.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <string.h>

char *kv_chat_lines(const char *template)
{
    char *copy = kv_strdup(template), *to = copy;

    for (const char *p = copy; *p; p++) {
        const bool cr = *p == '\r';

        *to++ = cr ? '\n' : *p;
        p += cr && p[1] == '\n';
    }
    to -= to > copy && to[-1] == '\n';
    *to = 0;
    return copy;
}

/* The end of a comment. */
static const char *comment_end(const char *p)
{
    return strstr(p, "#}");
}

/* The position of "%}" or "}}", outside of quoted texts and brackets. */
static const char *find_close(const char *p, char sign)
{
    size_t open = 0;
    char quote = 0;

    for (; *p; p++) {
        if (quote && *p == '\\' && p[1])
            p++;
        else if (quote)
            quote = *p == quote ? 0 : quote;
        else if (!open && *p == sign && p[1] == '}')
            return p;
        else if (*p == '\'' || *p == '"')
            quote = *p;
        else if (strchr("([{", *p))
            open++;
        else if (strchr(")]}", *p))
            open -= open > 0;
    }
    return NULL;
}

static size_t lines(const char *begin, const char *end)
{
    size_t n = 0;

    while (begin < end)
        n += *begin++ == '\n';
    return n;
}

const char *kv_chat_space_before(const char *begin, const char *end,
                                 bool one_line)
{
    while (end > begin) {
        const char *last = end - 1;
        size_t n;

        while (last > begin && ((unsigned char)*last & 0xc0) == 0x80)
            last--;
        if (!kv_utf8_valid(last, (size_t)(end - last)) ||
            !kv_chat_is_space(kv_utf8_get(last, &n)) ||
            (one_line && *last == '\n'))
            break;
        end = last;
    }
    return end;
}

const char *kv_chat_space_after(const char *p)
{
    size_t n, bad;

    while (*p && (n = kv_utf8_char(p, strlen(p) < 4 ? strlen(p) : 4, &bad)) &&
           kv_chat_is_space(kv_utf8_get(p, &n)))
        p += n;
    return p;
}

/* The end of the text before a sign ("{%", "{{" or "{#").  "-" removes the
 * white space before it.  A block at the beginning of a line removes the space
 * before it on that line (lstrip_blocks). */
static const char *text_end(const char *whole, const char *begin,
                            const char *sign)
{
    const char *line;

    if (sign[2] == '-')
        return kv_chat_space_before(begin, sign, false);
    if (sign[1] == '{' || sign[2] == '+')
        return sign;
    line = kv_chat_space_before(begin, sign, true);
    return line == whole || line[-1] == '\n' ? line : sign;
}

/* The beginning of the text after a closing "%}", "}}" or "#}".  sign: the "-"
 * or "+" before it, or 0.  "-" removes the white space after it; a block
 * removes its line end (trim_blocks). */
static const char *text_begin(const char *close, char sign)
{
    const char *p = close + 2;

    if (sign == '-')
        return kv_chat_space_after(p);
    return p + (*close != '}' && sign != '+' && *p == '\n');
}

static const char *next_sign(const char *p)
{
    while ((p = strchr(p, '{')) && p[1] != '{' && p[1] != '%' && p[1] != '#')
        p++;
    return p;
}

static void add_piece(struct kv_chat_piece **piece, size_t *n, int kind,
                      const char *begin, const char *end, size_t line)
{
    *piece = kv_realloc(*piece, *n + 1, sizeof(**piece));
    (*piece)[(*n)++] = (struct kv_chat_piece){kind, begin, end, line};
}

struct kv_chat_piece *kv_chat_cut(struct kv_chat *c, const char *template,
                                  size_t *n)
{
    const char *at = template, *sign, *counted = template;
    struct kv_chat_piece *piece = NULL;

    *n = 0;
    while ((sign = next_sign(at)) && !c->failed) {
        const char own = sign[1] == '{' ? '}' : sign[1];
        const char *begin = sign + 2, *close;
        char last = 0;

        c->line += lines(counted, sign);
        counted = sign;
        begin += *begin == '-' || *begin == '+';
        close = own == '#' ? comment_end(begin) : find_close(begin, own);
        if (!close) {
            kv_chat_fail(c, "'%.2s' has no '%c}'", sign, own);
            break;
        }
        if (close > begin &&
            (close[-1] == '-' || (close[-1] == '+' && own != '}')))
            last = close[-1];
        add_piece(&piece, n, KV_CHAT_TEXT, at, text_end(template, at, sign),
                  c->line);
        if (own != '#')
            add_piece(&piece, n,
                      own == '}' ? KV_CHAT_OUTPUT : KV_CHAT_STATEMENT, begin,
                      close - (last != 0), c->line);
        at = text_begin(close, last);
    }
    add_piece(&piece, n, KV_CHAT_TEXT, at, at + strlen(at), c->line);
    return piece;
}
