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

/* base64: the table.  Fails when it is none. */
int kv_charsmap_new(struct kv_charsmap **m, const char *base64,
                    struct kv_err *e);
void kv_charsmap_free(struct kv_charsmap *m);

/* Appends the text, well-formed UTF-8, normalized.
 *
 * longest: the longest that the table has at each place becomes what it says,
 * as in SentencePiece.  Else as Hugging Face's library reads it: what is seen
 * as one character (a grapheme cluster) of at most 5 bytes becomes what the
 * table says to the shortest at its start, and where there is nothing, and in
 * longer ones, each of its characters does.  Fails on a table that names no
 * text. */
int kv_charsmap_run(const struct kv_charsmap *m, bool longest, const char *s,
                    size_t n, struct kv_text *out, struct kv_watch *w,
                    struct kv_err *e);

#endif
