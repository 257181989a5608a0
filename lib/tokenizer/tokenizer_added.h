/* Added tokens: strings that are found in a text before anything else
 * happens to it.  "added_tokens" in tokenizer.json has them, and other files of
 * the folder may name more (tokenizer_config.h). */
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
    bool normalized;     /* is looked for in the normalized text */
    bool single_word;    /* not inside a word */
    bool lstrip, rstrip; /* takes the white space beside it along */
};

struct kv_added;

/* j: the array of tokenizer.json; NULL or null: none. */
int kv_added_new(struct kv_added **a, const json_t *j,
                 const struct kv_vocab *vocab, struct kv_err *e);
void kv_added_free(struct kv_added *a);

/* A token as JSON describes it, its content still the JSON's; id is not read
 * here.  others: names of members beside these that are known. */
int kv_added_parse(struct kv_added_token *t, const json_t *j,
                   const char *others, struct kv_err *e);

/* Takes in one more, whose content is copied.  Its id is the vocabulary's where
 * that has it, else the next after all that there are, as Hugging Face's
 * library counts, whatever a file says: t->id is this one or -1 for not known,
 * else it fails.  Fails too on a content that is there already. */
int kv_added_put(struct kv_added *a, const struct kv_added_token *t,
                 const struct kv_vocab *vocab, struct kv_err *e);

/* After the last of them, and before a text is walked.  A normalized token is
 * looked for in its own normalized form. */
int kv_added_index(struct kv_added *a, const struct kv_normalizer *normalizer,
                   struct kv_err *e);

/* By content or, once they are indexed, by id; NULL when there is none. */
struct kv_added_token *kv_added_find(const struct kv_added *a,
                                     const char *content);
const struct kv_added_token *kv_added_id(const struct kv_added *a, int32_t id);
int32_t kv_added_last_id(const struct kv_added *a); /* -1: none */

/* Walks a text from token to token, the leftmost and there the longest first.
 *
 * normalized: whether s is, and so which tokens are looked for.
 * special: special tokens count; else they are passed over, n_passed so far,
 * the first of which is `passed`. */
struct kv_added_scan {
    const struct kv_added *a;
    const char *s;
    size_t n, at, from;
    bool normalized, special;
    size_t n_passed;
    const struct kv_added_token *passed;
};

/* Before each token and after the last lies text[start..end), maybe empty.
 * Returns the token after it, or NULL at the end. */
const struct kv_added_token *kv_added_next(struct kv_added_scan *x,
                                           size_t *start, size_t *end);

#endif
