/* SentencePiece's table of characters to normalize, "precompiled_charsmap":
 *
 *   | trie_bytes: u32 | trie: u32[trie_bytes / 4] | texts, a zero after each |
 *
 * The trie is a double array (Darts-clone) whose values are places in texts. */
#ifndef KV_MODEL_TOKENIZER_CHARSMAP_H
#define KV_MODEL_TOKENIZER_CHARSMAP_H

#include "lib/base/err.h"
#include "lib/tokenizer/tokenizer_pattern.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <stdbool.h>

struct kv_charsmap;

/* base64: the table.  Fails if it is not a valid table. */
int kv_charsmap_new(struct kv_charsmap **m, const char *base64,
                    struct kv_err *e);
void kv_charsmap_free(struct kv_charsmap *m);

/* Appends the text, well-formed UTF-8, normalized.
 *
 * longest: the longest entry of the table at each position is replaced, as in
 * SentencePiece.  Otherwise as in Hugging Face's library: a grapheme cluster of
 * at most 5 bytes is replaced as a whole by the shortest entry at its start; if
 * there is none, or the cluster is longer, each of its characters is replaced.
 * Fails on a table whose entry points to no text. */
int kv_charsmap_run(const struct kv_charsmap *m, bool longest, const char *s,
                    size_t n, struct kv_text *out, struct kv_watch *w,
                    struct kv_err *e);

#endif
