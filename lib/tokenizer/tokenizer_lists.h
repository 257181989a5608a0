/* GPT-2's vocab.json and merges.txt in the form of tokenizer.json. */
#ifndef KV_MODEL_TOKENIZER_LISTS_H
#define KV_MODEL_TOKENIZER_LISTS_H

#include "lib/base/err.h"

#include <jansson.h>

/* The equivalent of a tokenizer.json, from the folder's two files; the caller's
 * to json_decref.  The "tokenizer_class" of tokenizer_config.json, else the
 * "model_type" of config.json, determines how a text is cut and which token
 * begins it, as in transformers.  NULL with a sentence on an unknown class or
 * type, and on anything that is not supported. */
json_t *kv_tokenizer_of_lists(const char *dir, struct kv_err *e);

#endif
