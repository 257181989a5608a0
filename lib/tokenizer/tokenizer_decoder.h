/* From tokens back to text: "decoder" in tokenizer.json.
 *
 * ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, and sequences. */
#ifndef KV_MODEL_TOKENIZER_DECODER_H
#define KV_MODEL_TOKENIZER_DECODER_H

#include "lib/base/err.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <jansson.h>

/* Strings, concatenated in one text. */
struct kv_token_list {
    struct kv_text text;
    size_t *end; /* [n], the end of each in the text */
    size_t n, capacity;
};
void kv_token_list_add(struct kv_token_list *x, const char *s, size_t n);
void kv_token_list_clear(struct kv_token_list *x);

struct kv_decoder;

/* j NULL or null: tokens with a space between. */
int kv_decoder_new(struct kv_decoder **d, const json_t *j, struct kv_err *e);
void kv_decoder_free(struct kv_decoder *d);

/* Appends the bytes of a token in the byte-level alphabet, or of a byte token
 * such as <0x0A>; the bytes may be only part of a character.  Returns false and
 * appends nothing for other tokens, which are text. */
bool kv_decoder_bytes(const struct kv_decoder *d, const char *s, size_t n,
                      struct kv_text *bytes);

/* Rewrites the tokens; their concatenation is then the decoded text,
 * well-formed UTF-8. */
int kv_decoder_run(const struct kv_decoder *d, struct kv_token_list *tokens,
                   struct kv_err *e);

#endif
