/* Added tokens: strings that are matched in a text before any other processing.
 * "added_tokens" in tokenizer.json has them, and other files of the folder may
 * name more (tokenizer_config.h). */
#ifndef KV_MODEL_TOKENIZER_ADDED_H
#define KV_MODEL_TOKENIZER_ADDED_H

#include "lib/base/err.h"
#include "lib/tokenizer/tokenizer_normalizer.h"
#include "lib/tokenizer/tokenizer_text.h"
#include "lib/tokenizer/tokenizer_vocab.h"

#include <jansson.h>
#include <stdbool.h>

struct kv_added_token {
    char *content;
    int32_t id;
    bool special;
    bool normalized;     /* matched in the normalized text */
    bool single_word;    /* not inside a word */
    bool lstrip, rstrip; /* also matches the white space on that side */
};

struct kv_added;

/* j: the array of tokenizer.json; NULL or null: none. */
int kv_added_new(struct kv_added **a, const json_t *j,
                 const struct kv_vocab *vocab, struct kv_err *e);
void kv_added_free(struct kv_added *a);

/* Reads a token from JSON; its content stays the JSON's, and its id is not
 * read.  others: names of further members that are accepted. */
int kv_added_parse(struct kv_added_token *t, const json_t *j,
                   const char *others, struct kv_err *e);

/* Adds a token and copies its content.  Its id comes from the vocabulary or,
 * for a new token, is the next id after all others, as in Hugging Face's
 * library.  Fails if t->id is neither this id nor -1 (unknown), and on a
 * content that has been added before. */
int kv_added_put(struct kv_added *a, const struct kv_added_token *t,
                 const struct kv_vocab *vocab, struct kv_err *e);

/* Call it after the last token is added and before a text is walked.  A
 * normalized token is matched in its own normalized form. */
int kv_added_index(struct kv_added *a, const struct kv_normalizer *normalizer,
                   struct kv_err *e);

/* Finds a token by content or, after the index is built, by id; NULL if there
 * is none. */
struct kv_added_token *kv_added_find(const struct kv_added *a,
                                     const char *content);
const struct kv_added_token *kv_added_id(const struct kv_added *a, int32_t id);
int32_t kv_added_last_id(const struct kv_added *a); /* -1: none */

/* Walks a text from one added token to the next.  The leftmost match comes
 * first; of matches at one place, the longest.
 *
 * normalized: whether s is normalized, which selects the tokens to match.
 * special: special tokens are matched; otherwise they are skipped, n_passed
 * counts them, and `passed` is the first of them. */
struct kv_added_scan {
    const struct kv_added *a;
    const char *s;
    size_t n, at, from;
    bool normalized, special;
    size_t n_passed;
    const struct kv_added_token *passed;
};

/* Sets text[start..end), which may be empty, to the part before the next token
 * or after the last one.  Returns the token after it, or NULL at the end. */
const struct kv_added_token *kv_added_next(struct kv_added_scan *x,
                                           size_t *start, size_t *end);

#endif
