/* tiktoken's files, a token in base64 and its rank a line, in the words of
 * tokenizer.json. */
#ifndef KV_MODEL_TOKENIZER_RANKS_H
#define KV_MODEL_TOKENIZER_RANKS_H

#include "lib/base/err.h"

#include <jansson.h>
#include <stdbool.h>

/* Whether the file is one; one that cannot be read is none. */
bool kv_ranks_is(const char *path);

/* What tokenizer.json would hold, of the folder's qwen.tiktoken (Qwen 1) or
 * tokenizer.model (Llama 3); the caller's to json_decref.  The file does not
 * say how a text is cut nor which special tokens there are: both are known of
 * these two, by their number of ranks.  Where tokenizer_config.json lists added
 * tokens those count, after the first.  NULL with a sentence. */
json_t *kv_tokenizer_of_qwen_ranks(const char *dir, struct kv_err *e);
json_t *kv_tokenizer_of_llama_ranks(const char *dir, struct kv_err *e);

#endif
