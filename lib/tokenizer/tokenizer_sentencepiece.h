/* SentencePiece's tokenizer.model in the form of tokenizer.json: BPE and
 * Unigram. */
#ifndef KV_MODEL_TOKENIZER_SENTENCEPIECE_H
#define KV_MODEL_TOKENIZER_SENTENCEPIECE_H

#include "lib/base/err.h"

#include <jansson.h>

/* The equivalent of a tokenizer.json, from the folder's tokenizer.model; the
 * caller's to json_decref.  NULL with a sentence on a file of another kind, and
 * on features that are not supported.  BOS comes before a text unless
 * "add_bos_token" of tokenizer_config.json is false, as in transformers'
 * classes for these files. */
json_t *kv_tokenizer_of_sentencepiece(const char *dir, struct kv_err *e);

#endif
