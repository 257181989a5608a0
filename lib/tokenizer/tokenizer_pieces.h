/* Vocabularies of GGUF and SentencePiece, which list tokens by id with a score
 * and a type, in the form of tokenizer.json. */
#ifndef KV_MODEL_TOKENIZER_PIECES_H
#define KV_MODEL_TOKENIZER_PIECES_H

#include "lib/base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* GGUF and SentencePiece both have these numbers. */
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

/* s[0..n) without a final zero; n 0: no token has this id. */
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

/* Adds "model"."vocab" and "added_tokens" to out, an object with "model". Fails
 * on a token that is not UTF-8, occurs twice, is too long, or has an unknown
 * type or no score. */
int kv_pieces_add(const struct kv_pieces *p, json_t *out, struct kv_err *e);

/* Adds "merges", after kv_pieces_add().  Merges are sorted by the score of the
 * merged token, best first, and equal scores as transformers sorts them. */
int kv_pieces_add_merges(const struct kv_pieces *p, json_t *out,
                         struct kv_err *e);

/* Adds the fields for characters without a token in SentencePiece's BPE:
 * "unk_token", "fuse_unk" and "byte_fallback". */
void kv_pieces_add_fallback(const struct kv_pieces *p, json_t *out, size_t unk);

/* Adds the rest of "model" for SentencePiece's BPE, with the merges. */
int kv_pieces_add_bpe(const struct kv_pieces *p, json_t *out, size_t unk,
                      struct kv_err *e);

/* Adds the rest of "model" for Unigram, with the two additional fields of
 * tokenizer_unigram.h.  The lowest score is taken over normal tokens alone. */
void kv_pieces_add_unigram(const struct kv_pieces *p, json_t *out, size_t unk,
                           bool byte_fallback, bool single);

/* The normalization of a text before tokenization. */
struct kv_spaces {
    const uint8_t *table; /* [table_bytes] tokenizer_charsmap.h, or NULL */
    size_t table_bytes;
    bool remove_extra; /* removes spaces at both ends, and merges runs */
    bool prefix; /* adds a space before a text, and after an added token */
};

/* Adds "normalizer" and "decoder". */
void kv_pieces_add_spaces(json_t *out, const struct kv_spaces *s);

/* Adds a "post_processor" that puts token id before a text. */
void kv_pieces_add_bos(const struct kv_pieces *p, json_t *out, size_t id);

#endif
