/* tiktoken's files, which have a token in base64 and its rank in each line, in
 * the form of tokenizer.json. */
#ifndef KV_MODEL_TOKENIZER_RANKS_H
#define KV_MODEL_TOKENIZER_RANKS_H

#include "lib/base/err.h"

#include <jansson.h>
#include <stdbool.h>

/* Whether the file is a tiktoken file; false if it cannot be read. */
bool kv_ranks_is(const char *path);

/* The equivalent of a tokenizer.json, from the folder's qwen.tiktoken (Qwen 1)
 * or tokenizer.model (Llama 3); the caller's to json_decref.  The file has
 * neither the rule for cutting a text nor the special tokens; the number of
 * ranks tells which of the two models it is, and so determines both.  Added
 * tokens of tokenizer_config.json, if listed, replace all special tokens after
 * the first.  NULL with a sentence. */
json_t *kv_tokenizer_of_qwen_ranks(const char *dir, struct kv_err *e);
json_t *kv_tokenizer_of_llama_ranks(const char *dir, struct kv_err *e);

#endif
