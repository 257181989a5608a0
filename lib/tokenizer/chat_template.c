#include "lib/tokenizer/chat_template.h"
#include "lib/base/alloc.h"
#include "lib/tokenizer/chat_impl.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 1 << 19, STEP = 256 /* bytes as long as a step */ };
enum { MAX_OUTPUT = 1 << 24, MAX_NAME = 64 };
enum { MAX_BLOCKS = 32 }; /* if and for in each other */

json_t *kv_chat_fail(struct kv_chat *c, const char *fmt, ...)
{
    char why[200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    if (!c->failed)
        kv_fail(c->e, "%s: the chat template, line %zu: %s", c->path, c->line,
                why);
    c->failed = true;
    return NULL;
}

void kv_chat_step(struct kv_chat *c, size_t bytes)
{
    const size_t max = (size_t)MAX_STEPS * STEP;

    c->work += bytes < max ? STEP + bytes : max;
    if (c->work > max)
        kv_chat_fail(c, "it takes more than %d steps", MAX_STEPS);
}

/* ---- pieces -------------------------------------------------------------- */

struct piece {
    enum { TEXT, OUTPUT, STATEMENT } kind;
    const char *begin, *end; /* without the signs around it */
    size_t line;
};

struct render {
    struct kv_chat chat;
    struct piece *piece;
    size_t n_pieces, depth;
    char *out;
    size_t n_out, capacity;
};

static void add_piece(struct render *r, int kind, const char *begin,
                      const char *end, size_t line)
{
    r->piece = kv_realloc(r->piece, r->n_pieces + 1, sizeof(*r->piece));
    r->piece[r->n_pieces++] = (struct piece){kind, begin, end, line};
}

/* Where "%}" and the like stand, texts in quotes passed over. */
static const char *find_close(const char *p, const char *close)
{
    char quote = 0;

    for (; *p; p++) {
        if (quote && *p == '\\' && p[1])
            p++;
        else if (quote)
            quote = *p == quote ? 0 : quote;
        else if (!strncmp(p, close, 2))
            return p;
        else if (*close != '#' && (*p == '\'' || *p == '"'))
            quote = *p;
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

/* The end of the text before a sign: "-" takes the space there, a block at the
 * beginning of its line what stands before it on that line (lstrip_blocks). */
static const char *text_end(const char *whole, const char *begin,
                            const char *sign)
{
    const char *end = sign, *line;

    if (sign[2] == '-') {
        while (end > begin && isspace((unsigned char)end[-1]))
            end--;
    } else if (sign[1] != '{' && sign[2] != '+') {
        for (line = end; line > begin && (line[-1] == ' ' || line[-1] == '\t');)
            line--;
        if (line == whole || line[-1] == '\n')
            end = line;
    }
    return end;
}

/* Where the text after "%}" begins: "-" takes the space there, a block its line
 * end (trim_blocks). */
static const char *text_begin(const char *close)
{
    const char *p = close + 2;

    if (close[-1] == '-')
        while (isspace((unsigned char)*p))
            p++;
    else if (*close != '}' && close[-1] != '+' && *p == '\n')
        p++;
    return p;
}

static const char *next_sign(const char *p)
{
    while ((p = strchr(p, '{')) && p[1] != '{' && p[1] != '%' && p[1] != '#')
        p++;
    return p;
}

/* template: without the one line end at its end. */
static void cut(struct render *r, const char *template)
{
    struct kv_chat *c = &r->chat;
    const char *at = template, *sign, *close, *counted = template;

    while ((sign = next_sign(at)) && !c->failed) {
        const char signs[] = {sign[1] == '{' ? '}' : sign[1], '}', 0};
        const char *begin, *end;

        c->line += lines(counted, sign);
        counted = sign;
        close = find_close(sign + 2, signs);
        if (!close) {
            kv_chat_fail(c, "'%.2s' has no '%s'", sign, signs);
            return;
        }
        add_piece(r, TEXT, at, text_end(template, at, sign), c->line);
        begin = sign + 2 + (sign[2] == '-' || sign[2] == '+');
        end = close - (close > begin && (close[-1] == '-' || close[-1] == '+'));
        if (sign[1] != '#')
            add_piece(r, sign[1] == '{' ? OUTPUT : STATEMENT, begin, end,
                      c->line);
        at = text_begin(close);
    }
    add_piece(r, TEXT, at, at + strlen(at), c->line);
}

/* ---- what pieces do ------------------------------------------------------ */

static void put(struct render *r, const char *text, size_t n)
{
    if (n > MAX_OUTPUT - r->n_out) {
        kv_chat_fail(&r->chat, "it writes more than %d bytes", MAX_OUTPUT);
        return;
    }
    if (r->n_out + n + 1 > r->capacity) {
        r->capacity = 2 * (r->n_out + n + 1);
        r->out = kv_realloc(r->out, r->capacity, 1);
    }
    kv_chat_step(&r->chat, n); /* what a "set" takes is not in n_out */
    memcpy(r->out + r->n_out, text, n);
    r->n_out += n;
}

static void put_value(struct render *r, struct kv_chat_reader *in)
{
    json_t *x = kv_chat_expression(in, true);
    char *text;

    if (!r->chat.failed && !kv_chat_at_end(in))
        kv_chat_fail(&r->chat, "'%.*s' after an expression",
                     (int)(in->end - in->at > 20 ? 20 : in->end - in->at),
                     in->at);
    text = r->chat.failed ? NULL : kv_chat_text(&r->chat, x);
    if (text)
        put(r, text, strlen(text));
    free(text);
    json_decref(x);
}

static struct kv_chat_reader reader(struct render *r, size_t i)
{
    r->chat.line = r->piece[i].line;
    return (struct kv_chat_reader){&r->chat, r->piece[i].begin,
                                   r->piece[i].end};
}

static void done(struct kv_chat_reader *in)
{
    if (!in->c->failed && !kv_chat_at_end(in))
        kv_chat_fail(in->c, "'%.*s' is not understood",
                     (int)(in->end - in->at > 20 ? 20 : in->end - in->at),
                     in->at);
}

static size_t run(struct render *r, size_t i, bool live);

/* Whether piece i is this statement; in: what follows it. */
static bool is_statement(struct render *r, size_t i, const char *word,
                         struct kv_chat_reader *in)
{
    if (i >= r->n_pieces || r->piece[i].kind != STATEMENT)
        return false;
    *in = reader(r, i);
    return kv_chat_accept(in, word);
}

/* Where "set name" or "set name.member" puts its value. */
static json_t *target(struct kv_chat *c, const char *name, const char *member)
{
    json_t *found = NULL;

    if (!*member)
        return c->scope[c->n_scopes - 1];
    for (size_t i = c->n_scopes; i-- > 0 && !found;)
        found = json_object_get(c->scope[i], name);
    if (json_object_get(found, KV_CHAT_NAMESPACE))
        return found;
    return kv_chat_fail(c, "'set %s.%s' of what is no namespace", name, member);
}

/* An undefined value is one that is not there, in no scope. */
static void unset(struct kv_chat *c, json_t *object, const char *name)
{
    json_object_del(object, name);
    for (size_t i = 0; object == c->scope[c->n_scopes - 1] && i < c->n_scopes;
         i++)
        if (json_object_get(c->scope[i], name))
            kv_chat_fail(c, "'%s' is set, and in a loop not defined", name);
}

/* From "set x", read already, to behind its "endset": what is written there. */
static size_t captured(struct render *r, size_t i, bool live, json_t **value)
{
    struct kv_chat_reader in;
    const size_t begin = r->n_out;

    i = run(r, i + 1, live);
    if (!r->chat.failed && !is_statement(r, i, "endset", &in))
        kv_chat_fail(&r->chat, "a 'set' has no 'endset'");
    *value = r->n_out > begin ? json_stringn(r->out + begin, r->n_out - begin)
                              : json_string("");
    if (!*value)
        kv_chat_fail(&r->chat, "a text is not UTF-8");
    r->n_out = begin;
    return i + 1;
}

/* "set x = y", "set namespace.x = y", "set x" */
static size_t set(struct render *r, size_t i, struct kv_chat_reader in,
                  bool live)
{
    struct kv_chat *c = &r->chat;
    char name[MAX_NAME], member[MAX_NAME] = "";
    json_t *value = NULL, *object;
    size_t next = i + 1;

    if (!kv_chat_name(&in, name, sizeof(name)) ||
        (kv_chat_accept(&in, ".") &&
         !kv_chat_name(&in, member, sizeof(member))))
        return next;
    if (kv_chat_accept(&in, "=")) {
        value = kv_chat_expression(&in, live);
        done(&in);
    } else {
        done(&in);
        next = c->failed ? next : captured(r, i, live, &value);
    }
    object = live && !c->failed ? target(c, name, member) : NULL;
    if (object)
        kv_chat_walk(c, value, *member != 0);
    if (object && !c->failed && value)
        json_object_set(object, *member ? member : name, value);
    else if (object && !c->failed)
        unset(c, object, *member ? member : name);
    json_decref(value);
    return next;
}

/* Reads over what a macro would do: to call it is refused. */
static size_t skip_macro(struct render *r, size_t i)
{
    struct kv_chat_reader in;

    i = run(r, i + 1, false);
    if (!r->chat.failed && !is_statement(r, i, "endmacro", &in))
        kv_chat_fail(&r->chat, "a 'macro' has no 'endmacro'");
    return i + 1;
}

/* From "if", read already, to behind its "endif". */
static size_t run_if(struct render *r, size_t i, struct kv_chat_reader in,
                     bool live)
{
    bool taken = false;

    for (;;) {
        json_t *x = kv_chat_expression(&in, live && !taken);
        const bool truth = live && !taken && kv_chat_truth(x);

        json_decref(x);
        done(&in);
        i = run(r, i + 1, truth);
        taken |= truth;
        if (r->chat.failed || !is_statement(r, i, "elif", &in))
            break;
    }
    if (!r->chat.failed && is_statement(r, i, "else", &in)) {
        done(&in);
        i = run(r, i + 1, live && !taken);
    }
    if (!r->chat.failed && !is_statement(r, i, "endif", &in))
        kv_chat_fail(&r->chat, "an 'if' has no 'endif'");
    return i + 1;
}

static json_t *loop_of(json_t *list, size_t i)
{
    const size_t n = json_array_size(list);
    json_t *loop =
        json_pack("{s:I,s:I,s:b,s:b,s:I,s:I,s:I}", "index", (json_int_t)i + 1,
                  "index0", (json_int_t)i, "first", i == 0, "last", i + 1 == n,
                  "length", (json_int_t)n, "revindex", (json_int_t)(n - i),
                  "revindex0", (json_int_t)(n - i - 1));

    if (i > 0)
        json_object_set(loop, "previtem", json_array_get(list, i - 1));
    if (i + 1 < n)
        json_object_set(loop, "nextitem", json_array_get(list, i + 1));
    return loop;
}

struct loop {
    char name[2][MAX_NAME];       /* the second "" but for pairs */
    struct kv_chat_reader filter; /* after "if"; c NULL: none */
};

static void bind(struct kv_chat *c, const struct loop *l, json_t *item)
{
    json_t *scope = c->scope[c->n_scopes - 1];

    if (!*l->name[1]) {
        json_object_set(scope, l->name[0], item);
        return;
    }
    if (json_array_size(item) != 2) {
        kv_chat_fail(c, "the loop is over what are no pairs");
        return;
    }
    json_object_set(scope, l->name[0], json_array_get(item, 0));
    json_object_set(scope, l->name[1], json_array_get(item, 1));
}

static bool push_scope(struct kv_chat *c)
{
    if (c->n_scopes == KV_CHAT_SCOPES) {
        kv_chat_fail(c, "loops are nested more than %d deep", KV_CHAT_SCOPES);
        return false;
    }
    c->scope[c->n_scopes++] = json_object();
    return true;
}

static void pop_scope(struct kv_chat *c)
{
    json_decref(c->scope[--c->n_scopes]);
}

/* The items that the loop's "if" keeps. */
static json_t *chosen(struct kv_chat *c, const struct loop *l, json_t *list)
{
    json_t *kept = json_array();

    for (size_t i = 0; i < json_array_size(list) && !c->failed; i++) {
        struct kv_chat_reader in = l->filter;
        bool keep = true;

        if (in.c && push_scope(c)) {
            json_t *x;

            bind(c, l, json_array_get(list, i));
            x = kv_chat_expression(&in, true);
            done(&in);
            keep = kv_chat_truth(x);
            json_decref(x);
            pop_scope(c);
        }
        if (keep)
            json_array_append(kept, json_array_get(list, i));
    }
    return kept;
}

/* Keys of an object, as in Python. */
static json_t *list_of(struct kv_chat *c, json_t *x)
{
    json_t *keys, *value;
    const char *key;

    if (json_is_array(x))
        return json_incref(x);
    if (!json_is_object(x) || json_object_get(x, KV_CHAT_NAMESPACE))
        return kv_chat_fail(c, "a loop over what is neither a list nor an "
                               "object");
    keys = json_array();
    json_object_foreach(x, key, value)
    {
        kv_chat_step(c, strlen(key));
        json_array_append_new(keys, json_string(key));
    }
    return keys;
}

/* "x in y", "k, v in y", "x in y if z" */
static json_t *read_loop(struct render *r, struct kv_chat_reader *in, bool live,
                         struct loop *l)
{
    struct kv_chat *c = &r->chat;
    json_t *x, *list = NULL;

    *l = (struct loop){.filter = {.c = NULL}};
    if (!kv_chat_name(in, l->name[0], MAX_NAME) ||
        (kv_chat_accept(in, ",") && !kv_chat_name(in, l->name[1], MAX_NAME)))
        return NULL;
    if (!kv_chat_accept(in, "in"))
        return kv_chat_fail(c, "a 'for' has no 'in'");
    x = kv_chat_operand(in, live);
    if (!c->failed && kv_chat_accept(in, "if"))
        l->filter = *in;
    else
        done(in);
    if (live && !c->failed)
        list = list_of(c, x);
    json_decref(x);
    if (!list)
        return NULL;
    x = chosen(c, l, list);
    json_decref(list);
    return x;
}

/* From "for", read already, to behind its "endfor". */
static size_t run_for(struct render *r, size_t i, struct kv_chat_reader in,
                      bool live)
{
    struct kv_chat *c = &r->chat;
    struct loop l;
    json_t *list = read_loop(r, &in, live, &l);
    const size_t n = json_array_size(list);
    size_t end = c->failed ? i : run(r, i + 1, false);

    for (size_t j = 0; j < n && !c->failed && push_scope(c); j++) {
        kv_chat_step(c, 0);
        bind(c, &l, json_array_get(list, j));
        json_object_set_new(c->scope[c->n_scopes - 1], "loop",
                            loop_of(list, j));
        run(r, i + 1, true);
        pop_scope(c);
    }
    json_decref(list);
    if (!c->failed && is_statement(r, end, "else", &in))
        end = run(r, end + 1, live && !n);
    if (!c->failed && !is_statement(r, end, "endfor", &in))
        kv_chat_fail(c, "a 'for' has no 'endfor'");
    return end + 1;
}

static bool ends_block(struct render *r, size_t i)
{
    static const char *const words[] = {"elif",   "else",   "endif",
                                        "endfor", "endset", "endmacro"};
    struct kv_chat_reader in;

    for (size_t w = 0; w < sizeof(words) / sizeof(*words); w++)
        if (is_statement(r, i, words[w], &in))
            return true;
    return false;
}

static size_t run_statement(struct render *r, size_t i, bool live)
{
    struct kv_chat_reader in = reader(r, i);
    char word[MAX_NAME];

    if (kv_chat_accept(&in, "if"))
        return run_if(r, i, in, live);
    if (kv_chat_accept(&in, "for"))
        return run_for(r, i, in, live);
    if (kv_chat_accept(&in, "set"))
        return set(r, i, in, live);
    if (kv_chat_accept(&in, "macro"))
        return skip_macro(r, i);
    if (kv_chat_accept(&in, "generation") ||
        kv_chat_accept(&in, "endgeneration"))
        done(&in); /* marks what is learned in training */
    else if (kv_chat_name(&in, word, sizeof(word)))
        kv_chat_fail(&r->chat, "the statement '%s' is not implemented", word);
    return i + 1;
}

/* To the statement that ends the block that begins at piece i, or the end. */
static size_t run(struct render *r, size_t i, bool live)
{
    if (r->depth == MAX_BLOCKS)
        kv_chat_fail(&r->chat, "blocks are nested more than %d deep",
                     MAX_BLOCKS);
    r->depth++;
    while (i < r->n_pieces && !r->chat.failed && !ends_block(r, i)) {
        const struct piece *p = &r->piece[i];
        struct kv_chat_reader in = reader(r, i);

        kv_chat_step(&r->chat, (size_t)(p->end - p->begin));
        if (p->kind == STATEMENT) {
            i = run_statement(r, i, live);
            continue;
        }
        if (live && p->kind == TEXT)
            put(r, p->begin, (size_t)(p->end - p->begin));
        else if (live)
            put_value(r, &in);
        i++;
    }
    r->depth--;
    return i;
}

int kv_chat_render(const char *path, const char *template, const json_t *values,
                   char **text, size_t *n, struct kv_err *e)
{
    struct render r = {.chat = {.path = path, .line = 1, .e = e}};
    char *copy = kv_strdup(template);
    const size_t length = strlen(copy);

    if (length && copy[length - 1] == '\n')
        copy[length - 1] = 0;
    r.chat.scope[r.chat.n_scopes++] = json_deep_copy(values);
    cut(&r, copy);
    if (!r.chat.failed && run(&r, 0, true) < r.n_pieces && !r.chat.failed)
        kv_chat_fail(&r.chat, "an end without its beginning");
    put(&r, "", 0);
    json_decref(r.chat.scope[0]);
    free(r.piece);
    free(copy);
    if (r.chat.failed) {
        free(r.out);
        return -1;
    }
    r.out[r.n_out] = 0;
    *text = r.out;
    *n = r.n_out;
    return 0;
}
