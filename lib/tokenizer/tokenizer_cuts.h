/* BPE whose vocabulary does not say how a text is cut: the ways there are, by
 * the names that GGUF files have for them (tokenizer.ggml.pre).  Of those that
 * llama.cpp knows, these lack: what is for embeddings alone (whitespace,
 * roberta-bpe, jina-v1-en, jina-v2-code), and kimi-k2 and superbpe. */
#ifndef KV_MODEL_TOKENIZER_CUTS_H
#define KV_MODEL_TOKENIZER_CUTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct kv_cut {
    const char *names; /* with spaces between */
    bool ignores_merges;
    bool adds_bos;        /* unless a key says so or not */
    const char *regex[7]; /* one after the other; NULL ends them */
    bool raw; /* characters stand for themselves, U+2581 for a space: not the
                 alphabet of bytes */
};

/* NULL: the name is not known. */
const struct kv_cut *kv_cut_find(const char *name, size_t bytes);

/* Sets "pre_tokenizer" and, unless raw, "decoder" of what tokenizer.json would
 * hold. */
void kv_cut_add(const struct kv_cut *cut, json_t *out);

#endif
