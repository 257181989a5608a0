/* The files beside tokenizer.json: tokenizer_config.json, added_tokens.json and
 * special_tokens_map.json.
 *
 * They are read as in transformers 5 for a tokenizer with a tokenizer.json:
 * missing tokens are added in the same order and so with the same ids, and a
 * token that any file names as special is special.  If two files contradict
 * each other in a way that could change ids, reading fails and names both;
 * transformers silently takes one. */
#ifndef KV_MODEL_TOKENIZER_CONFIG_H
#define KV_MODEL_TOKENIZER_CONFIG_H

#include "lib/base/err.h"
#include "lib/tokenizer/tokenizer_added.h"
#include "lib/tokenizer/tokenizer_vocab.h"

#include <stdbool.h>

/* Settings of tokenizer.json that the other files may set too. */
struct kv_tokenizer_main {
    const struct kv_vocab *vocab;
    struct kv_added *added; /* receives the added tokens */
    const char *own;        /* the class that "auto_map" may name, or NULL */
    int32_t before;         /* the token that tokenizer.json puts before a text,
                             * or -1 */
    int prefix_space;       /* whether a text gets a leading space; -1: not
                             * given */
};

struct kv_tokenizer_config {
    int32_t bos; /* the token called "bos_token", or -1 */
    int prepend; /* enum kv_prepend, set by the class; -1: as in tokenizer.json
                  */
    bool splits_special; /* names of special tokens are always plain text */
    /* A special token whose other flags contradict tokenizer.json, or NULL;
     * owned by the added tokens. */
    const char *flags_differ;
};

/* dir: the folder; every one of the files is optional. */
int kv_tokenizer_config_read(struct kv_tokenizer_config *c, const char *dir,
                             const struct kv_tokenizer_main *m,
                             struct kv_err *e);

#endif
