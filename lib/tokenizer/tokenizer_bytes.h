/* The alphabet of byte-level BPE: every byte as a printable character.
 *
 * Bytes that print in Latin-1 (! to ~, 0xA1 to 0xAC, 0xAE to 0xFF) represent
 * themselves; other bytes become U+0100 and up in order, so a space is
 * U+0120. */
#ifndef KV_MODEL_TOKENIZER_BYTES_H
#define KV_MODEL_TOKENIZER_BYTES_H

#include "lib/tokenizer/tokenizer_text.h"

struct kv_byte_alphabet {
    struct {
        char s[2];
        size_t n;
    } of[256];
    int16_t byte[0x144]; /* byte by code point; -1: not in the alphabet */
};

void kv_byte_alphabet_init(struct kv_byte_alphabet *a);

/* Appends every byte's character. */
void kv_byte_encode(const struct kv_byte_alphabet *a, const char *s, size_t n,
                    struct kv_text *out);

/* Appends the bytes that the characters represent, or the text itself if one of
 * them is not in the alphabet. */
void kv_byte_decode(const struct kv_byte_alphabet *a, const char *s, size_t n,
                    struct kv_text *out);

#endif
