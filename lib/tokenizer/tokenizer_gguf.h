/* The vocabulary of a GGUF file in the words of tokenizer.json.
 *
 * Two kinds are read: "gpt2", byte-level BPE with a list of merges, and
 * "llama", SentencePiece's BPE, whose merges follow from the scores.  No
 * normalizer but the one for spaces is in these files: a text that is not in
 * NFC is not brought to it, as in llama.cpp. */
#ifndef KV_MODEL_TOKENIZER_GGUF_H
#define KV_MODEL_TOKENIZER_GGUF_H

#include "lib/model/gguf.h"

#include <jansson.h>

/* What tokenizer.json would hold, the caller's to json_decref; NULL with a
 * sentence on a key that is missing or wrong, and on one that could change ids
 * and is not known.  *bos: the id of BOS or -1. */
json_t *kv_tokenizer_of_gguf(const struct kv_gguf *g, int32_t *bos,
                             struct kv_err *e);

/* How "gpt2" vocabularies cut a text, by tokenizer.ggml.pre. */
struct kv_gguf_cut {
    const char *names; /* with spaces between */
    bool ignores_merges;
    bool adds_bos;        /* unless a key says so or not */
    const char *regex[6]; /* one after the other; NULL ends them */
};

/* NULL: the name is not known. */
const struct kv_gguf_cut *kv_gguf_cut_find(const char *name, size_t bytes);

#endif
