/* The tokens before and after a text: "post_processor" in tokenizer.json.
 *
 * TemplateProcessing with at most one token before the text and none after it,
 * ByteLevel (which affects only offsets), and sequences of them. */
#ifndef KV_MODEL_TOKENIZER_POST_H
#define KV_MODEL_TOKENIZER_POST_H

#include "lib/base/err.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* j NULL or null: no tokens.  *bos: the id of the token before the text, below
 * n_vocab; -1 if there is none. */
int kv_post_parse(const json_t *j, size_t n_vocab, int32_t *bos,
                  struct kv_err *e);

#endif
