/* The normalization of a text before it is cut: "normalizer" in tokenizer.json.
 *
 * NFC, NFD, NFKC, NFKD, Precompiled, Prepend, Replace, and sequences of them.
 * The first four follow the installed utf8proc; Hugging Face's library has
 * older tables and leaves characters of the newest Unicode versions as they
 * are. */
#ifndef KV_MODEL_TOKENIZER_NORMALIZER_H
#define KV_MODEL_TOKENIZER_NORMALIZER_H

#include "lib/base/err.h"
#include "lib/tokenizer/tokenizer_pattern.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <jansson.h>
#include <stdbool.h>

struct kv_normalizer;

/* j NULL or null: changes nothing. */
int kv_normalizer_new(struct kv_normalizer **z, const json_t *j,
                      struct kv_err *e);
void kv_normalizer_free(struct kv_normalizer *z);

/* Whether the normalizer puts a prefix before a text. */
bool kv_normalizer_prepends(const struct kv_normalizer *z);

/* Replaces *out by the normalized text.  prefix: whether the text gets the
 * normalizer's prefix. */
int kv_normalizer_run(const struct kv_normalizer *z, const char *s, size_t n,
                      bool prefix, struct kv_text *out, struct kv_watch *w,
                      struct kv_err *e);

#endif
