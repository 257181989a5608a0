#include "lib/tokenizer/chat_template.h"
#include "lib/base/alloc.h"
#include "lib/tokenizer/chat_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 1 << 19, STEP = 256 /* bytes that cost one step */ };
enum { MAX_OUTPUT = 1 << 24 };
enum { MAX_BLOCKS = 64 }; /* nesting of if and for */
enum { MAX_CALLS = 16 };  /* nesting of macro calls */

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

struct macro {
    const char *name; /* points into the template */
    size_t name_bytes, piece;
};

struct render {
    struct kv_chat chat; /* the first member, so that a kv_chat * can be cast */
    struct kv_chat_piece *piece;
    size_t n_pieces, depth, loops, calls;
    enum { GO_ON, BREAK, CONTINUE } leave; /* how the innermost loop is left */
    struct macro *macro;
    size_t n_macros;
    char *out;
    size_t n_out, capacity;
};

/* ---- running pieces ------------------------------------------------------ */

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
    kv_chat_step(&r->chat, n); /* text captured by a "set" is not in n_out */
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

/* Whether piece i is this statement; in: reads the rest of the piece. */
static bool is_statement(struct render *r, size_t i, const char *word,
                         struct kv_chat_reader *in)
{
    if (i >= r->n_pieces || r->piece[i].kind != KV_CHAT_STATEMENT)
        return false;
    *in = reader(r, i);
    return kv_chat_accept(in, word);
}

/* The object that "set name" or "set name.member" assigns in. */
static json_t *target(struct kv_chat *c, const char *name, const char *member)
{
    json_t *found;

    if (!*member)
        return c->scope[c->n_scopes - 1];
    found = kv_chat_variable(c, name);
    if (kv_chat_is_namespace(found))
        return found;
    return kv_chat_fail(c, "'set %s.%s' of what is no namespace", name, member);
}

/* Removes and returns the output since begin. */
static json_t *written(struct render *r, size_t begin)
{
    json_t *text = r->n_out > begin
                       ? json_stringn(r->out + begin, r->n_out - begin)
                       : json_string("");

    r->n_out = begin;
    return text ? text : kv_chat_fail(&r->chat, "a text is not UTF-8");
}

/* Runs "set x", already parsed, to the end of its "endset".  *value: the text
 * that the block wrote. */
static size_t captured(struct render *r, size_t i, bool live, json_t **value)
{
    struct kv_chat_reader in;
    const size_t begin = r->n_out;

    i = run(r, i + 1, live);
    if (!r->chat.failed && !r->leave && !is_statement(r, i, "endset", &in))
        kv_chat_fail(&r->chat, "a 'set' has no 'endset'");
    *value = written(r, begin);
    return i + 1;
}

/* Runs "set x = y", "set namespace.x = y", or "set x" with its block. */
static size_t set(struct render *r, size_t i, struct kv_chat_reader in,
                  bool live)
{
    struct kv_chat *c = &r->chat;
    char name[KV_CHAT_NAME], member[KV_CHAT_NAME] = "";
    json_t *value = NULL, *object;
    size_t next = i + 1;

    if (!kv_chat_name(&in, name) ||
        (kv_chat_accept(&in, ".") && !kv_chat_name(&in, member)))
        return next;
    if (kv_chat_accept(&in, "=")) {
        value = kv_chat_expression(&in, live);
        done(&in);
    } else {
        done(&in);
        next = c->failed ? next : captured(r, i, live, &value);
    }
    object = live && !c->failed && !r->leave ? target(c, name, member) : NULL;
    if (object)
        kv_chat_walk(c, value, *member != 0);
    if (object && !c->failed)
        json_object_set_new(object, *member ? member : name,
                            value ? json_incref(value) : kv_chat_undefined());
    json_decref(value);
    return next;
}

/* Runs "if", already parsed, to the end of its "endif". */
static size_t run_if(struct render *r, size_t i, struct kv_chat_reader in,
                     bool live)
{
    bool taken = false;

    for (;;) {
        json_t *x = kv_chat_operand(&in, live && !taken);
        const bool truth = live && !taken && kv_chat_truth(x);

        json_decref(x);
        done(&in);
        i = run(r, i + 1, truth);
        taken |= truth;
        if (r->leave)
            return i;
        if (r->chat.failed || !is_statement(r, i, "elif", &in))
            break;
    }
    if (!r->chat.failed && is_statement(r, i, "else", &in)) {
        done(&in);
        i = run(r, i + 1, live && !taken);
    }
    if (!r->chat.failed && !r->leave && !is_statement(r, i, "endif", &in))
        kv_chat_fail(&r->chat, "an 'if' has no 'endif'");
    return i + 1;
}

/* The variable "loop".  depth is always 1, since recursive loops are
 * refused. */
static json_t *loop_of(json_t *list, size_t i)
{
    const size_t n = json_array_size(list);
    json_t *loop = json_pack(
        "{s:b,s:I,s:I,s:b,s:b,s:I,s:I,s:I,s:I,s:I}", KV_CHAT_LOOP, 1, "index",
        (json_int_t)i + 1, "index0", (json_int_t)i, "first", i == 0, "last",
        i + 1 == n, "length", (json_int_t)n, "revindex", (json_int_t)(n - i),
        "revindex0", (json_int_t)(n - i - 1), "depth", (json_int_t)1, "depth0",
        (json_int_t)0);

    if (i > 0)
        json_object_set(loop, "previtem", json_array_get(list, i - 1));
    if (i + 1 < n)
        json_object_set(loop, "nextitem", json_array_get(list, i + 1));
    return loop;
}

struct loop {
    char name[2][KV_CHAT_NAME];   /* the second is "" unless the loop unpacks
                                   * pairs */
    struct kv_chat_reader filter; /* the text after "if"; c NULL: no "if" */
};

static void bind(struct kv_chat *c, const struct loop *l, json_t *item)
{
    json_t *scope = c->scope[c->n_scopes - 1];

    if (!*l->name[1]) {
        json_object_set(scope, l->name[0], item);
        return;
    }
    item = kv_chat_sequence(item);
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

/* Returns the items that the loop's "if" keeps. */
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
            keep = kv_chat_truth(x);
            json_decref(x);
            pop_scope(c);
        }
        if (keep)
            json_array_append(kept, json_array_get(list, i));
    }
    return kept;
}

/* Parses "x in y", "k, v in y" or "x in y if z". */
static json_t *read_loop(struct render *r, struct kv_chat_reader *in, bool live,
                         struct loop *l)
{
    struct kv_chat *c = &r->chat;
    json_t *x, *list = NULL;

    *l = (struct loop){.filter = {.c = NULL}};
    if (!kv_chat_name(in, l->name[0]) ||
        (kv_chat_accept(in, ",") && !kv_chat_name(in, l->name[1])))
        return NULL;
    if (!kv_chat_accept(in, "in"))
        return kv_chat_fail(c, "a 'for' has no 'in'");
    x = kv_chat_operand(in, live);
    if (!c->failed && kv_chat_accept(in, "if")) {
        l->filter = *in;
        json_decref(kv_chat_expression(in, false));
    }
    done(in);
    if (live && !c->failed)
        list = kv_chat_list(c, x);
    json_decref(x);
    if (!list)
        return NULL;
    x = chosen(c, l, list);
    json_decref(list);
    return x;
}

/* Runs "for", already parsed, to the end of its "endfor". */
static size_t run_for(struct render *r, size_t i, struct kv_chat_reader in,
                      bool live)
{
    struct kv_chat *c = &r->chat;
    struct loop l;
    json_t *list = read_loop(r, &in, live, &l);
    const size_t n = json_array_size(list);
    size_t end = c->failed ? i : run(r, i + 1, false);

    r->loops++;
    for (size_t j = 0;
         j < n && !c->failed && r->leave != BREAK && push_scope(c); j++) {
        kv_chat_step(c, 0);
        bind(c, &l, json_array_get(list, j));
        json_object_set_new(c->scope[c->n_scopes - 1], "loop",
                            loop_of(list, j));
        run(r, i + 1, true);
        pop_scope(c);
        r->leave = r->leave == BREAK ? BREAK : GO_ON;
    }
    r->leave = GO_ON;
    r->loops--;
    json_decref(list);
    if (!c->failed && is_statement(r, end, "else", &in))
        end = run(r, end + 1, live && !n);
    if (!c->failed && !is_statement(r, end, "endfor", &in))
        kv_chat_fail(c, "a 'for' has no 'endfor'");
    return end + 1;
}

/* ---- macros -------------------------------------------------------------- */

/* Runs "macro", already parsed, to the end of its "endmacro", and defines its
 * name. */
static size_t define_macro(struct render *r, size_t i, struct kv_chat_reader in,
                           bool live)
{
    const size_t first = i;
    struct macro m = {.piece = first};
    char name[KV_CHAT_NAME];

    if (kv_chat_name(&in, name))
        m.name = in.at - (m.name_bytes = strlen(name));
    i = run(r, i + 1, false);
    if (!r->chat.failed && !is_statement(r, i, "endmacro", &in))
        kv_chat_fail(&r->chat, "a 'macro' has no 'endmacro'");
    if (live && r->chat.n_scopes > 1)
        kv_chat_fail(&r->chat, "a macro in a loop or in a macro is not "
                               "implemented");
    if (live && !r->chat.failed) {
        json_object_set_new(*r->chat.scope, name, kv_chat_named_function(name));
        r->macro = kv_realloc(r->macro, r->n_macros + 1, sizeof(*r->macro));
        r->macro[r->n_macros++] = m;
    }
    return i + 1;
}

/* Binds the parameters "(a, b=1)" of a macro to the call's arguments, else to
 * their defaults, else to undefined. */
static void bind_params(struct kv_chat *c, struct kv_chat_reader *in,
                        const struct kv_chat_args *a)
{
    json_t *scope = c->scope[c->n_scopes - 1];
    size_t n = 0, n_named = 0;
    char name[KV_CHAT_NAME];

    kv_chat_expect(in, "(");
    while (!c->failed && !kv_chat_accept(in, ")")) {
        json_t *named, *given, *otherwise = NULL;

        if (!kv_chat_name(in, name))
            return;
        named = json_object_get(a->named, name);
        given = n < a->n ? a->value[n] : kv_chat_resolve(json_incref(named));
        if (kv_chat_accept(in, "="))
            otherwise = kv_chat_expression(in, n >= a->n && !named);
        if (n < a->n ? named != NULL : false)
            kv_chat_fail(c, "a macro is given '%s' twice", name);
        json_object_set_new(scope, name,
                            given       ? json_incref(given)
                            : otherwise ? json_incref(otherwise)
                                        : kv_chat_undefined());
        json_decref(otherwise);
        if (n++ >= a->n)
            json_decref(given);
        n_named += named != NULL;
        if (!kv_chat_accept(in, ",")) {
            kv_chat_expect(in, ")");
            break;
        }
    }
    if (!c->failed && (a->n > n || n_named < json_object_size(a->named)))
        kv_chat_fail(c, "a macro is given arguments that it does not have");
}

/* Runs a macro and returns the text that it writes. */
static json_t *run_macro(struct render *r, const struct macro *m,
                         const struct kv_chat_args *a)
{
    struct kv_chat *c = &r->chat;
    const size_t floor = c->floor, line = c->line, begin = r->n_out;
    const size_t loops = r->loops;
    struct kv_chat_reader in = reader(r, m->piece);
    json_t *text = NULL;

    if (r->calls == MAX_CALLS)
        return kv_chat_fail(c, "macros call each other more than %d deep",
                            MAX_CALLS);
    if (!push_scope(c))
        return NULL;
    c->floor = c->n_scopes - 2;
    r->calls++;
    r->loops = 0;
    in.at = m->name + m->name_bytes;
    bind_params(c, &in, a);
    done(&in);
    if (!c->failed)
        run(r, m->piece + 1, true);
    if (!c->failed)
        text = written(r, begin);
    r->calls--;
    r->loops = loops;
    pop_scope(c);
    c->floor = floor;
    c->line = line;
    return text;
}

static json_t *call_macro(struct kv_chat *c, const char *name,
                          const struct kv_chat_args *a, bool *known)
{
    struct render *r = (struct render *)c;

    if (!kv_chat_is_named_function(kv_chat_variable(c, name)))
        return NULL;
    for (size_t i = r->n_macros; i-- > 0;) {
        const struct macro m = r->macro[i];

        if (m.name_bytes != strlen(name) ||
            memcmp(m.name, name, m.name_bytes) != 0)
            continue;
        *known = true;
        return run_macro(r, &m, a);
    }
    return NULL;
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

/* Runs "break" or "continue". */
static void leave_loop(struct render *r, struct kv_chat_reader *in, bool live,
                       int how)
{
    done(in);
    if (live && !r->loops)
        kv_chat_fail(&r->chat, "a loop is left where there is none");
    else if (live)
        r->leave = how;
}

static size_t run_statement(struct render *r, size_t i, bool live)
{
    struct kv_chat_reader in = reader(r, i);
    char word[KV_CHAT_NAME];

    if (kv_chat_accept(&in, "if"))
        return run_if(r, i, in, live);
    if (kv_chat_accept(&in, "for"))
        return run_for(r, i, in, live);
    if (kv_chat_accept(&in, "set"))
        return set(r, i, in, live);
    if (kv_chat_accept(&in, "macro"))
        return define_macro(r, i, in, live);
    if (kv_chat_accept(&in, "break"))
        leave_loop(r, &in, live, BREAK);
    else if (kv_chat_accept(&in, "continue"))
        leave_loop(r, &in, live, CONTINUE);
    else if (kv_chat_accept(&in, "generation") ||
             kv_chat_accept(&in, "endgeneration"))
        done(&in); /* marks text that is learned in training */
    else if (kv_chat_name(&in, word))
        kv_chat_fail(&r->chat, "the statement '%s' is not implemented", word);
    return i + 1;
}

/* Runs to the statement that ends the block that begins at piece i, or to the
 * end. */
static size_t run(struct render *r, size_t i, bool live)
{
    if (r->depth == MAX_BLOCKS)
        kv_chat_fail(&r->chat, "blocks are nested more than %d deep",
                     MAX_BLOCKS);
    r->depth++;
    while (i < r->n_pieces && !r->chat.failed && !r->leave &&
           !ends_block(r, i)) {
        const struct kv_chat_piece *p = &r->piece[i];
        struct kv_chat_reader in = reader(r, i);

        kv_chat_step(&r->chat, (size_t)(p->end - p->begin));
        if (p->kind == KV_CHAT_STATEMENT) {
            i = run_statement(r, i, live);
            continue;
        }
        if (live && p->kind == KV_CHAT_TEXT)
            put(r, p->begin, (size_t)(p->end - p->begin));
        else if (live)
            put_value(r, &in);
        i++;
    }
    r->depth--;
    return i;
}

int kv_chat_render(const char *path, const char *template, const json_t *values,
                   struct kv_chat_clock *clock, char **text, size_t *n,
                   struct kv_err *e)
{
    struct render r = {.chat = {.path = path,
                                .line = 1,
                                .clock = clock,
                                .e = e,
                                .call_macro = call_macro}};
    char *copy = kv_chat_lines(template);

    r.chat.scope[r.chat.n_scopes++] = json_deep_copy(values);
    r.piece = kv_chat_cut(&r.chat, copy, &r.n_pieces);
    if (!r.chat.failed && run(&r, 0, true) < r.n_pieces && !r.chat.failed)
        kv_chat_fail(&r.chat, "an end without its beginning");
    put(&r, "", 0);
    json_decref(r.chat.scope[0]);
    free(r.macro);
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
