/* Byte-level BPE whose vocabulary does not say how a text is cut: the ways
 * there are, by the names that GGUF files have for them (tokenizer.ggml.pre).
 */
#ifndef KV_MODEL_TOKENIZER_CUTS_H
#define KV_MODEL_TOKENIZER_CUTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct kv_cut {
    const char *names; /* with spaces between */
    bool ignores_merges;
    bool adds_bos;        /* unless a key says so or not */
    const char *regex[6]; /* one after the other; NULL ends them */
};

/* NULL: the name is not known. */
const struct kv_cut *kv_cut_find(const char *name, size_t bytes);

/* Sets "pre_tokenizer" and "decoder" of what tokenizer.json would hold. */
void kv_cut_add(const struct kv_cut *cut, json_t *out);

#endif
