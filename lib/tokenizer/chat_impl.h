/* The inside of chat templates; for chat_*.c alone. */
#ifndef KV_CHAT_IMPL_H
#define KV_CHAT_IMPL_H

#include "lib/tokenizer/chat_template.h"

#include <stdbool.h>

enum { KV_CHAT_SCOPES = 64 };

/* A template that is being rendered. */
struct kv_chat {
    const char *path;
    json_t *scope[KV_CHAT_SCOPES]; /* variables; the last is the innermost */
    size_t n_scopes;
    size_t work;  /* so far, in bytes */
    size_t depth; /* of expressions in expressions */
    size_t line;  /* of what is being read */
    bool failed;
    struct kv_err *e;
};

/* Once: what comes after a failure says nothing.  Returns NULL. */
json_t *kv_chat_fail(struct kv_chat *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* One more step, and so many bytes that it reads or writes; fails past the
 * limit of both. */
void kv_chat_step(struct kv_chat *c, size_t bytes);

/* chat_expression.c.  A piece of template that holds an expression, and what
 * stands before it is read already. */
struct kv_chat_reader {
    struct kv_chat *c;
    const char *at, *end;
};

/* live: false where it is only read over.  A new reference; NULL: undefined. */
json_t *kv_chat_expression(struct kv_chat_reader *r, bool live);
/* Up to "or": what may stand before an "if". */
json_t *kv_chat_operand(struct kv_chat_reader *r, bool live);

/* True, and reads over it, when the next word or sign is this. */
bool kv_chat_accept(struct kv_chat_reader *r, const char *word);
/* The next name, [size]; fails when there is none. */
bool kv_chat_name(struct kv_chat_reader *r, char *name, size_t size);
bool kv_chat_at_end(struct kv_chat_reader *r);

/* chat_value.c.  Values are JSON; NULL is undefined.  A namespace is an object
 * with a member of this name, and is in no namespace, so nothing is in itself.
 */
#define KV_CHAT_NAMESPACE " namespace"
bool kv_chat_truth(const json_t *x);
bool kv_chat_equal(struct kv_chat *c, const json_t *a, const json_t *b);
/* The work of reading x whole; fails where it is too deep and, if plain, where
 * it holds a namespace. */
void kv_chat_walk(struct kv_chat *c, const json_t *x, bool plain);
/* As text is made of it; fails for lists and objects.  Free it. */
char *kv_chat_text(struct kv_chat *c, const json_t *x);
json_t *kv_chat_item(struct kv_chat *c, json_t *of, const json_t *key);
json_t *kv_chat_slice(struct kv_chat *c, json_t *of, const json_t *from,
                      const json_t *to);
json_t *kv_chat_reverse(struct kv_chat *c, json_t *of); /* [::-1] */
json_t *kv_chat_filter(struct kv_chat *c, const char *name, json_t *x,
                       json_t *const *arg, size_t n);
json_t *kv_chat_method(struct kv_chat *c, const char *name, json_t *x,
                       json_t *const *arg, size_t n);
/* "x is name"; 1, 0, or -1 where it is not known. */
int kv_chat_test(const char *name, const json_t *x);
json_t *kv_chat_add(struct kv_chat *c, char op, const json_t *a,
                    const json_t *b);
/* Whether a is in b. */
bool kv_chat_in(struct kv_chat *c, const json_t *a, const json_t *b);

#endif
