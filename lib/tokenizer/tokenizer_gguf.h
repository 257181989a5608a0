/* The vocabulary of a GGUF file in the words of tokenizer.json.
 *
 * Read are "gpt2", byte-level BPE with a list of merges, "gemma4", the same of
 * characters, "llama", SentencePiece's BPE, whose merges follow from the
 * scores, and "t5", Unigram. No normalizer but the one for spaces, and t5's, is
 * in these files: a text that is not in NFC is not brought to it, as in
 * llama.cpp. */
#ifndef KV_MODEL_TOKENIZER_GGUF_H
#define KV_MODEL_TOKENIZER_GGUF_H

#include "lib/model/gguf.h"

#include <jansson.h>

/* What tokenizer.json would hold, the caller's to json_decref; NULL with a
 * sentence on a key that is missing or wrong, and on one that could change ids
 * and is not known.  *bos: the id of BOS or -1. */
json_t *kv_tokenizer_of_gguf(const struct kv_gguf *g, int32_t *bos,
                             struct kv_err *e);

#endif
