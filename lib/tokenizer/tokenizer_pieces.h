/* Vocabularies that list tokens by id, with a score and a type each, as GGUF
 * and SentencePiece do: what tokenizer.json would hold of them. */
#ifndef KV_MODEL_TOKENIZER_PIECES_H
#define KV_MODEL_TOKENIZER_PIECES_H

#include "lib/base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Both know them by these numbers. */
enum kv_piece_type {
    KV_PIECE_UNDEFINED,
    KV_PIECE_NORMAL,
    KV_PIECE_UNKNOWN,
    KV_PIECE_CONTROL,
    KV_PIECE_USER_DEFINED,
    KV_PIECE_UNUSED,
    KV_PIECE_BYTE,
    KV_N_PIECE_TYPES
};

/* s[0..n) without a zero behind it; n 0: no token has this id. */
struct kv_piece {
    const char *s;
    size_t n;
    int64_t type;
    double score;
};

struct kv_pieces {
    struct kv_piece *piece; /* [n] by id */
    size_t n;
};

/* "model"."vocab" and "added_tokens" of out, an object with "model".  Fails on
 * a token that is no UTF-8, is there twice, is too long, or has another type or
 * no score. */
int kv_pieces_add(const struct kv_pieces *p, json_t *out, struct kv_err *e);

/* "merges", after kv_pieces_add.  They follow from the scores, the best whole
 * first, and of equals as transformers sorts them. */
int kv_pieces_add_merges(const struct kv_pieces *p, json_t *out,
                         struct kv_err *e);

/* What SentencePiece's BPE makes of a character without a token. */
void kv_pieces_add_fallback(const struct kv_pieces *p, json_t *out, size_t unk);

/* All else of "model" for SentencePiece's BPE, merges too. */
int kv_pieces_add_bpe(const struct kv_pieces *p, json_t *out, size_t unk,
                      struct kv_err *e);

/* All else of "model" for Unigram, with tokenizer_unigram.h's two more.  The
 * lowest score is that of what is normal. */
void kv_pieces_add_unigram(const struct kv_pieces *p, json_t *out, size_t unk,
                           bool byte_fallback, bool single);

/* What is done to a text before anything else. */
struct kv_spaces {
    const uint8_t *table; /* [table_bytes] tokenizer_charsmap.h, or NULL */
    size_t table_bytes;
    bool remove_extra; /* spaces: at both ends, and of several all but one */
    bool prefix; /* a text, and what follows an added token, gets a space */
};

/* "normalizer" and "decoder". */
void kv_pieces_add_spaces(json_t *out, const struct kv_spaces *s);

/* "post_processor": token id comes before a text. */
void kv_pieces_add_bos(const struct kv_pieces *p, json_t *out, size_t id);

#endif
