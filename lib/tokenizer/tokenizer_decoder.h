/* From tokens back to text: "decoder" in tokenizer.json.
 *
 * ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, and sequences. */
#ifndef KV_MODEL_TOKENIZER_DECODER_H
#define KV_MODEL_TOKENIZER_DECODER_H

#include "lib/base/err.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <jansson.h>

/* Strings, one after another in one text. */
struct kv_token_list {
    struct kv_text text;
    size_t *end; /* [n] where in the text each ends */
    size_t n, capacity;
};
void kv_token_list_add(struct kv_token_list *x, const char *s, size_t n);
void kv_token_list_clear(struct kv_token_list *x);

struct kv_decoder;

/* j NULL or null: tokens with a space between. */
int kv_decoder_new(struct kv_decoder **d, const json_t *j, struct kv_err *e);
void kv_decoder_free(struct kv_decoder *d);

/* Appends the bytes that a token is, of which a text has U+FFFD where they are
 * part of a character: of the byte-level alphabet, and of <0x0A>.  False, and
 * nothing, for other tokens, which are text. */
bool kv_decoder_bytes(const struct kv_decoder *d, const char *s, size_t n,
                      struct kv_text *bytes);

/* Rewrites the tokens; their text is then the answer, well-formed UTF-8. */
int kv_decoder_run(const struct kv_decoder *d, struct kv_token_list *tokens,
                   struct kv_err *e);

#endif
