/* The rules that cut a text before BPE (pre-tokenizers), by their names in GGUF
 * files (tokenizer.ggml.pre), for vocabularies that do not include the rule.
 * Of llama.cpp's list these rules are missing: kimi-k2, superbpe, and the rules
 * for embedding models (whitespace, roberta-bpe, jina-v1-en, jina-v2-code). */
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
