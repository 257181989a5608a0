/* GPT-2's vocab.json and merges.txt in the words of tokenizer.json. */
#ifndef KV_MODEL_TOKENIZER_LISTS_H
#define KV_MODEL_TOKENIZER_LISTS_H

#include "lib/base/err.h"

#include <jansson.h>

/* What tokenizer.json would hold, of the folder's two files; the caller's to
 * json_decref.  How a text is cut and what begins it are known by the
 * "tokenizer_class" of tokenizer_config.json, else by the "model_type" of
 * config.json, as in transformers.  NULL with a sentence on a class or type
 * that is not known, and on what is not supported. */
json_t *kv_tokenizer_of_lists(const char *dir, struct kv_err *e);

#endif
