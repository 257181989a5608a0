/* The files beside tokenizer.json: tokenizer_config.json, added_tokens.json and
 * special_tokens_map.json.
 *
 * They are read as transformers 5 reads them for a tokenizer that has a
 * tokenizer.json: tokens that it lacks are added, in the same order and so with
 * the same ids, and whatever names a special token makes it one.  Where two
 * files contradict each other in what could change ids, this fails and names
 * both, though transformers takes one of them without a word. */
#ifndef KV_MODEL_TOKENIZER_CONFIG_H
#define KV_MODEL_TOKENIZER_CONFIG_H

#include "lib/base/err.h"
#include "lib/tokenizer/tokenizer_added.h"
#include "lib/tokenizer/tokenizer_vocab.h"

#include <stdbool.h>

/* What tokenizer.json says to questions that the other files answer too. */
struct kv_tokenizer_main {
    const struct kv_vocab *vocab;
    struct kv_added *added; /* what is added goes in here */
    const char *own;        /* a class that "auto_map" may name, or NULL */
    int32_t before;         /* the token that it puts before a text, or -1 */
    int prefix_space;       /* does a text get one?  -1: not said */
};

struct kv_tokenizer_config {
    int32_t bos; /* the token called "bos_token", or -1 */
    int prepend; /* enum kv_prepend, as the class wants; -1: as tokenizer.json
                  */
    bool splits_special; /* names of special tokens are always plain text */
    /* A special token whose other flags tokenizer.json gives otherwise, or
     * NULL; stays with the added tokens. */
    const char *flags_differ;
};

/* dir: none of the files need be there. */
int kv_tokenizer_config_read(struct kv_tokenizer_config *c, const char *dir,
                             const struct kv_tokenizer_main *m,
                             struct kv_err *e);

#endif
