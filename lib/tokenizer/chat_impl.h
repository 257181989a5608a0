/* The inside of chat templates; for chat_*.c alone. */
#ifndef KV_CHAT_IMPL_H
#define KV_CHAT_IMPL_H

#include "lib/tokenizer/chat_template.h"

#include <stdbool.h>

enum { KV_CHAT_SCOPES = 64, KV_CHAT_ARGS = 8, KV_CHAT_NAME = 64 };

/* The arguments of a call; an undefined one is NULL. */
struct kv_chat_args {
    json_t *value[KV_CHAT_ARGS];
    size_t n;
    json_t *named; /* name=value; an undefined value: kv_chat_undefined() */
};

/* A template that is being rendered. */
struct kv_chat {
    const char *path;
    json_t *scope[KV_CHAT_SCOPES]; /* variables; the last is the innermost */
    size_t n_scopes;
    size_t floor; /* scopes 1 to this one are hidden: the scopes of a macro's
                   * caller */
    size_t work;  /* work so far, in bytes */
    size_t depth; /* nesting of expressions */
    size_t line;  /* line number, for errors */
    bool failed;
    struct kv_chat_clock *clock; /* NULL: none */
    struct kv_err *e;
    /* Calls a macro of the template and returns its text; *known: whether there
     * is a macro of this name. */
    json_t *(*call_macro)(struct kv_chat *c, const char *name,
                          const struct kv_chat_args *a, bool *known);
};

/* Records the first failure; later ones are ignored.  Returns NULL. */
json_t *kv_chat_fail(struct kv_chat *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Counts one more step and this many bytes read or written; fails past the
 * limit of either. */
void kv_chat_step(struct kv_chat *c, size_t bytes);

/* chat_cut.c.  A template cut into pieces, which point into it. */
struct kv_chat_piece {
    enum { KV_CHAT_TEXT, KV_CHAT_OUTPUT, KV_CHAT_STATEMENT } kind;
    const char *begin, *end; /* without the delimiters around it */
    size_t line;
};

/* A copy with the line ends that Jinja reads: LF alone, none at the end.  The
 * caller's to free. */
char *kv_chat_lines(const char *template);
/* The caller's to free. */
struct kv_chat_piece *kv_chat_cut(struct kv_chat *c, const char *template,
                                  size_t *n);

/* chat_expression.c.  A piece of template with an expression; the text before
 * `at` has been parsed. */
struct kv_chat_reader {
    struct kv_chat *c;
    const char *at, *end;
};

/* live: false if the expression is only skipped.  A new reference; NULL:
 * undefined. */
json_t *kv_chat_expression(struct kv_chat_reader *r, bool live);
/* Parses up to "or", the part that may precede an "if". */
json_t *kv_chat_operand(struct kv_chat_reader *r, bool live);

/* chat_primary.c: the parts of expressions. */
/* If the next word or sign is this one, skips it and returns true. */
bool kv_chat_accept(struct kv_chat_reader *r, const char *word);
void kv_chat_expect(struct kv_chat_reader *r, const char *word);
/* Parses the next name, [KV_CHAT_NAME]; fails if there is none. */
bool kv_chat_name(struct kv_chat_reader *r, char *name);
bool kv_chat_at_end(struct kv_chat_reader *r);
/* Whether a value comes next; "and", "or" and "else" are no values. */
bool kv_chat_at_value(struct kv_chat_reader *r);
bool kv_chat_at_number(struct kv_chat_reader *r);
json_t *kv_chat_number(struct kv_chat_reader *r);
json_t *kv_chat_primary(struct kv_chat_reader *r, bool live);
/* Parses arguments after "(", up to its ")". */
void kv_chat_read_args(struct kv_chat_reader *r, bool live,
                       struct kv_chat_args *a);
void kv_chat_clear_args(struct kv_chat_args *a);

/* chat_function.c.  A call name(..) that is not a macro. */
json_t *kv_chat_function(struct kv_chat *c, const char *name,
                         const struct kv_chat_args *a);
bool kv_chat_is_function(const char *name);
/* A function or a macro used as a variable: it is defined, but cannot be
 * written. */
json_t *kv_chat_named_function(const char *name);
bool kv_chat_is_named_function(const json_t *x);

/* chat_value.c.  Values are JSON; NULL is undefined.  A namespace is an object
 * with a member KV_CHAT_NAMESPACE.  A namespace cannot be inside another, so no
 * value contains itself.
 */
#define KV_CHAT_NAMESPACE " namespace"
#define KV_CHAT_LOOP " loop" /* a member of the variable "loop" */
/* Stands for an undefined value where JSON needs one. */
json_t *kv_chat_undefined(void);
bool kv_chat_is_undefined(const json_t *x);
/* x, or NULL if x is kv_chat_undefined(); takes the reference. */
json_t *kv_chat_resolve(json_t *x);
/* The stored variable, not a new reference; NULL: there is none. */
json_t *kv_chat_variable(const struct kv_chat *c, const char *name);
bool kv_chat_is_namespace(const json_t *x);
/* Python's dict: an object that stands for itself. */
bool kv_chat_is_mapping(const json_t *x);
bool kv_chat_truth(const json_t *x);
bool kv_chat_equal(struct kv_chat *c, const json_t *a, const json_t *b);
/* The bytes to count for reading x itself, without its items. */
size_t kv_chat_bytes(const json_t *x);
/* The work of reading all of x; fails if x is too deep or, with plain, if it
 * holds a namespace. */
void kv_chat_walk(struct kv_chat *c, const json_t *x, bool plain);
/* Returns x like Python's str(); the caller frees it. */
char *kv_chat_text(struct kv_chat *c, const json_t *x);
json_t *kv_chat_item(struct kv_chat *c, json_t *of, const json_t *key);
/* bound: from, to and step, each NULL if it is not given. */
json_t *kv_chat_slice(struct kv_chat *c, json_t *of, json_t *const bound[3]);
/* Returns the texts of a list's values. */
json_t *kv_chat_joined(struct kv_chat *c, const json_t *list,
                       const char *between);
/* chat_items.c.  The next functions take the reference to list, which nothing
 * else holds. */
/* Like Python's generator: it is always true, has no length, and is empty after
 * it has been read. */
json_t *kv_chat_iterator(json_t *list);
/* Python's view of an object: has a length, may be read again. */
json_t *kv_chat_view(json_t *list);
/* range(): a view whose items may be indexed. */
json_t *kv_chat_range(json_t *list);
json_t *kv_chat_tuple(json_t *list); /* a view as well */
bool kv_chat_is_tuple(const json_t *x);
/* The list of a range or a tuple; else x.  Not a new reference. */
json_t *kv_chat_sequence(json_t *x);
/* Makes list a tuple or a range, if kind is one.  Takes the reference. */
json_t *kv_chat_as(const json_t *kind, json_t *list);
json_t *kv_chat_view_items(const json_t *x); /* not a new reference, or NULL */
bool kv_chat_is_iterator(const json_t *x);   /* or a view */
/* Takes the first item out of an iterator that is no view; NULL: none is
 * left. */
json_t *kv_chat_next(struct kv_chat *c, json_t *x);
/* The items that a loop over x visits, as a list; NULL and a failure if x has
 * no items. */
json_t *kv_chat_list(struct kv_chat *c, json_t *x);
/* (key, value) pairs of an object. */
json_t *kv_chat_items(struct kv_chat *c, json_t *x);

/* chat_key.c */
/* Not a new reference; NULL: there is none. */
json_t *kv_chat_member(const json_t *x, const json_t *key);
/* Takes the reference to value; fails if key is neither a text nor a whole
 * number.
 */
void kv_chat_set_member(struct kv_chat *c, json_t *x, const json_t *key,
                        json_t *value);
/* The value that a key in jansson's form represents, a new reference. */
json_t *kv_chat_key_value(const char *key);
bool kv_chat_is_number_key(const char *key);

/* chat_operator.c */
json_t *kv_chat_add(struct kv_chat *c, char op, const json_t *a,
                    const json_t *b);
/* op: == != <= >= < > in */
bool kv_chat_compare(struct kv_chat *c, const char *op, const json_t *a,
                     const json_t *b);

/* chat_filter.c, chat_method.c, chat_test.c */
json_t *kv_chat_filter(struct kv_chat *c, const char *name, json_t *x,
                       const struct kv_chat_args *a);
/* The attribute of x that attribute="name" selects; kv_chat_undefined() if x
 * has none. */
json_t *kv_chat_attribute(struct kv_chat *c, json_t *x, const json_t *name);
json_t *kv_chat_method(struct kv_chat *c, const char *name, json_t *x,
                       const struct kv_chat_args *a);
/* Whether Python has a method of this name for values such as x. */
bool kv_chat_is_method(const json_t *x, const char *name);
/* "x is name(arg)"; fails on an unknown test. */
bool kv_chat_test(struct kv_chat *c, const char *name, const json_t *x,
                  const struct kv_chat_args *a);
bool kv_chat_test_takes(const char *name); /* an argument */

/* chat_json.c.  arg: ensure_ascii, indent, separators, sort_keys; NULL if not
 * given. */
json_t *kv_chat_json(struct kv_chat *c, json_t *x, json_t *const *arg);
/* Returns x like Python's repr(); the caller frees it. */
char *kv_chat_real(double x);

/* chat_repr.c: as Python's repr(); the caller's to free. */
char *kv_chat_repr(struct kv_chat *c, const json_t *x);

/* chat_safe.c.  Texts made by the filters safe and escape, which are written,
 * joined by "~" and tested like other texts. */
json_t *kv_chat_safe(struct kv_chat *c, json_t *x, json_t *const *arg);
json_t *kv_chat_escape(struct kv_chat *c, json_t *x, json_t *const *arg);
const char *kv_chat_safe_text(const json_t *x); /* NULL: it is no such text */
/* a + b where one of the texts is safe; the other text is escaped. */
json_t *kv_chat_add_safe(struct kv_chat *c, const json_t *a, const json_t *b);

/* chat_sort.c: filters. */
json_t *kv_chat_dictsort(struct kv_chat *c, json_t *x, json_t *const *arg);
json_t *kv_chat_sort(struct kv_chat *c, json_t *x, json_t *const *arg);
json_t *kv_chat_unique(struct kv_chat *c, json_t *x, json_t *const *arg);
json_t *kv_chat_min(struct kv_chat *c, json_t *x, json_t *const *arg);
json_t *kv_chat_max(struct kv_chat *c, json_t *x, json_t *const *arg);

/* chat_format.c: x.format(..), x a text. */
json_t *kv_chat_format(struct kv_chat *c, const json_t *x,
                       const struct kv_chat_args *a);

/* chat_date.c */
json_t *kv_chat_strftime(struct kv_chat *c, const json_t *format);

#endif
