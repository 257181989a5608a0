/* The ways to cut a text before BPE, for vocabularies that do not include the
 * rule, by their names in GGUF files (tokenizer.ggml.pre).  From llama.cpp's
 * list these are missing: the ones for embedding models (whitespace,
 * roberta-bpe, jina-v1-en, jina-v2-code), kimi-k2 and superbpe. */
#ifndef KV_MODEL_TOKENIZER_CUTS_H
#define KV_MODEL_TOKENIZER_CUTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct kv_cut {
    const char *names; /* names, separated by spaces */
    bool ignores_merges;
    bool adds_bos;        /* default if no key sets it */
    const char *regex[7]; /* applied in order; NULL ends the list */
    bool raw; /* characters represent themselves, with U+2581 for a space; else
               * bytes by their alphabet */
};

/* NULL: unknown name. */
const struct kv_cut *kv_cut_find(const char *name, size_t bytes);

/* Sets "pre_tokenizer" and, unless raw, "decoder" in the equivalent of a
 * tokenizer.json. */
void kv_cut_add(const struct kv_cut *cut, json_t *out);

#endif
