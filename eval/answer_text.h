/* A model's answer as text. */
#ifndef KV_ANSWER_TEXT_H
#define KV_ANSWER_TEXT_H

#include "lib/tokenizer/tokenizer.h"

/* The text of ids [n], which follow prompt [n_prompt], with its leading space,
 * which tokenizers drop at the start of a text.  Special tokens, and ids that
 * the tokenizer has no token for, are left out.  *text is the caller's to
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

/* kv_answer_text() up to the first stop string behind its first `least`
 * tokens. */
int kv_answer_cut(const struct kv_tokenizer *t, const int32_t *prompt,
                  size_t n_prompt, const int32_t *ids, size_t n,
                  const struct kv_stops *s, size_t least, char **text,
                  size_t *bytes, struct kv_err *e);

/* id [s->n]: the stop strings that are one token, *n of them. */
int kv_stops_ids(const struct kv_stops *s, const struct kv_tokenizer *t,
                 int32_t *id, size_t *n, struct kv_err *e);

/* *stopped: whether one of them is among the newest tokens of ids [n]. */
int kv_stops_check(const struct kv_stops *s, const struct kv_tokenizer *t,
                   const int32_t *ids, size_t n, bool *stopped,
                   struct kv_err *e);

#endif
