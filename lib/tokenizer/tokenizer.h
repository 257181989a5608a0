/* Tokenizers from a Hugging Face folder or a GGUF file: byte-level BPE (GPT-2,
 * Llama-3), SentencePiece-style BPE with byte fallback (Llama-2), and
 * Unigram. */
#ifndef KV_MODEL_TOKENIZER_H
#define KV_MODEL_TOKENIZER_H

#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_tokenizer;
struct kv_text;

/* path: a GGUF file (lib/tokenizer/tokenizer_gguf.h), or a folder.  The
 * folder's vocabulary is the first of these that exists: tokenizer.json;
 * tokenizer.model (SentencePiece's or Llama 3's); vocab.json and merges.txt;
 * qwen.tiktoken (Qwen 1's).  The folder may also have tokenizer_config.json,
 * added_tokens.json and special_tokens_map.json.  All files are read as in
 * transformers 5.  Fails, naming the cause, on anything unknown or not
 * implemented, and if two files contradict each other: a wrong tokenization
 * must never be silent.  Truncation and padding, which transformers applies
 * when asked to, are ignored.  An open tokenizer does not change, so threads
 * may share it. */
int kv_tokenizer_open(struct kv_tokenizer **t, const char *path,
                      struct kv_err *e);
void kv_tokenizer_free(struct kv_tokenizer *t);

/* The number of places in a text that name a special token. */
struct kv_named {
    size_t n;
    const char *first; /* text of the first one, owned by the tokenizer; NULL:
                        * none */
};

/* text: n_bytes of any bytes (invalid UTF-8 is handled as HF does: replaced).
 * special: recognise added special tokens such as <|endoftext|> in the text;
 * a corpus is read verbatim, with special false.  Added tokens that are not
 * special are always recognised.  No BOS is added here.  *ids is the caller's
 * to free.  named, which may be NULL: where the text names special tokens and
 * was read verbatim. */
int kv_tokenizer_encode(const struct kv_tokenizer *t, const char *text,
                        size_t n_bytes, bool special, int32_t **ids, size_t *n,
                        struct kv_named *named, struct kv_err *e);

/* *text: zero-terminated UTF-8, the caller's to free; U+FFFD replaces an
 * incomplete character.  Special tokens are left out unless special.  Fails on
 * an id without a token. */
int kv_tokenizer_decode(const struct kv_tokenizer *t, const int32_t *ids,
                        size_t n, bool special, char **text, size_t *n_bytes,
                        struct kv_err *e);

/* Appends a token's bytes, even if they are only part of a character.  Returns
 * false and appends nothing if the token is text, special or unknown. */
bool kv_tokenizer_bytes(const struct kv_tokenizer *t, int32_t id,
                        struct kv_text *bytes);

/* kv_tokenizer_vocab(): highest id + 1.  kv_tokenizer_bos(): the id of BOS or
 * -1.  kv_tokenizer_adds_bos(): whether a BOS belongs at the start of a text
 * (post-processor, or add_bos_token). */
size_t kv_tokenizer_vocab(const struct kv_tokenizer *t);
int32_t kv_tokenizer_bos(const struct kv_tokenizer *t);
bool kv_tokenizer_adds_bos(const struct kv_tokenizer *t);

#endif
