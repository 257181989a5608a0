/* Operations of Python's str, by Unicode; only for chat_*.c. */
#ifndef KV_CHAT_TEXT_H
#define KV_CHAT_TEXT_H

#include "lib/tokenizer/chat_impl.h"

/* str.isspace() of a character: White_Space and U+001C to U+001F. */
bool kv_chat_is_space(uint32_t c);

/* chat_cut.c.  kv_chat_space_before(): the beginning of the white space that
 * ends at end, within one line if one_line.  kv_chat_space_after(): the end of
 * the white space that begins at p. */
const char *kv_chat_space_before(const char *begin, const char *end,
                                 bool one_line);
const char *kv_chat_space_after(const char *p);

/* kv_chat_characters(): the number of characters of a text.
 * kv_chat_character(): the position of character i, or of the end. */
size_t kv_chat_characters(const char *s);
const char *kv_chat_character(const char *s, size_t i);

/* sides: of KV_CHAT_LEFT and KV_CHAT_RIGHT.  set: the characters to remove;
 * NULL: white space. */
enum { KV_CHAT_LEFT = 1, KV_CHAT_RIGHT = 2 };
json_t *kv_chat_strip(struct kv_chat *c, const json_t *x, int sides,
                      const char *set);

/* str.upper(), lower(), title() and capitalize(), including special cases; and
 * Jinja's filter title, which cuts words in its own way. */
enum kv_chat_case {
    KV_CHAT_UPPER,
    KV_CHAT_LOWER,
    KV_CHAT_TITLE,
    KV_CHAT_CAPITALIZE,
    KV_CHAT_JINJA_TITLE,
};
json_t *kv_chat_with_case(const char *s, enum kv_chat_case wanted);

/* Splits s at the text `by`.  by NULL: splits at white space and drops empty
 * parts.  max: the largest number of splits; -1: no limit. */
json_t *kv_chat_split(struct kv_chat *c, const char *s, const char *by,
                      json_int_t max);
json_t *kv_chat_splitlines(struct kv_chat *c, const char *s);
json_t *kv_chat_replace(struct kv_chat *c, const json_t *x, const char *old,
                        const char *new);

#endif
