/* The vocabulary of a GGUF file in the form of tokenizer.json.
 *
 * Four kinds are read: "gpt2", byte-level BPE with a list of merges; "gemma4",
 * BPE over characters with such a list; "llama", SentencePiece's BPE, whose
 * merges follow from the scores; and "t5", Unigram.  These files have no
 * normalizer except for spaces, and t5's; as in llama.cpp, a text is not
 * brought to NFC. */
#ifndef KV_MODEL_TOKENIZER_GGUF_H
#define KV_MODEL_TOKENIZER_GGUF_H

#include "lib/model/gguf.h"

#include <jansson.h>

/* The equivalent of a tokenizer.json, the caller's to json_decref; NULL with a
 * sentence on a missing or wrong key, and on an unknown key that could change
 * ids.  *bos: the id of BOS or -1. */
json_t *kv_tokenizer_of_gguf(const struct kv_gguf *g, int32_t *bos,
                             struct kv_err *e);

#endif
