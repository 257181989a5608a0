/* A model's answer as text. */
#ifndef KV_ANSWER_TEXT_H
#define KV_ANSWER_TEXT_H

#include "lib/tokenizer/tokenizer.h"

/* Decodes ids [n], which follow prompt [n_prompt].  The text keeps its leading
 * space, which tokenizers drop at the start of a text.  Special tokens, and ids
 * that the tokenizer has no token for, are left out.  *text is the caller's to
 * free. */
int kv_answer_text(const struct kv_tokenizer *t, const int32_t *prompt,
                   size_t n_prompt, const int32_t *ids, size_t n, char **text,
                   size_t *bytes, struct kv_err *e);

/* Texts at which an answer ends. */
struct kv_stops {
    const char *const *text; /* [n], none empty */
    size_t n;
};

/* The number of bytes of text [bytes] before the first stop string; bytes if
 * there is none. */
size_t kv_stops_find(const struct kv_stops *s, const char *text, size_t bytes);

/* Like kv_answer_text(), but the text ends before the first stop string behind
 * the first `least` tokens. */
int kv_answer_cut(const struct kv_tokenizer *t, const int32_t *prompt,
                  size_t n_prompt, const int32_t *ids, size_t n,
                  const struct kv_stops *s, size_t least, char **text,
                  size_t *bytes, struct kv_err *e);

/* Finds the *n stop strings that are a single token; id [s->n] receives the ids
 * of these tokens. */
int kv_stops_ids(const struct kv_stops *s, const struct kv_tokenizer *t,
                 int32_t *id, size_t *n, struct kv_err *e);

/* *stopped: whether the text of the newest tokens of ids [n] contains a stop
 * string. */
int kv_stops_check(const struct kv_stops *s, const struct kv_tokenizer *t,
                   const int32_t *ids, size_t n, bool *stopped,
                   struct kv_err *e);

#endif
