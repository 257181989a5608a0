/* Growing strings, and the UTF-8 that tokenizers need. */
#ifndef KV_MODEL_TOKENIZER_TEXT_H
#define KV_MODEL_TOKENIZER_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* s[0..n), not zero-terminated; all zeros is the empty text. */
struct kv_text {
    char *s;
    size_t n, capacity;
};

/* Reserves room for this many bytes after the text; the caller may write them
 * and then raise n. */
char *kv_text_extend(struct kv_text *t, size_t n_bytes);
void kv_text_add(struct kv_text *t, const char *s, size_t n_bytes);
void kv_text_clear(struct kv_text *t);

/* The number of bytes of the character at s, in well-formed UTF-8. */
static inline size_t kv_utf8_bytes(const char *s)
{
    const unsigned char lead = (unsigned char)*s;

    return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* The code point at s, in well-formed UTF-8; its bytes are *n_bytes. */
uint32_t kv_utf8_get(const char *s, size_t *n_bytes);

/* Writes c as UTF-8 and returns its bytes, 1 to 4. */
size_t kv_utf8_put(uint32_t c, char s[4]);

/* The length of the longest well-formed start of the text. */
size_t kv_utf8_valid(const char *s, size_t n_bytes);

/* White_Space, and \w as Unicode's TR 18 defines it. */
bool kv_is_space(uint32_t c);
bool kv_is_word(uint32_t c);

#endif
