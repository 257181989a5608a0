/* A text as a model sees it: tokenized once, cut into windows that do not
 * overlap.  By default the name of a special token is read as text, and a note
 * on stderr counts such names.  With special it is read as the token, as in
 * Hugging Face's tokenizers. */
#ifndef KV_WINDOWS_H
#define KV_WINDOWS_H

#include "lib/base/err.h"
#include "lib/reading.h"
#include "lib/tokenizer/tokenizer.h"

/* The longest text.  A text is a regular file, a pipe, a FIFO, a socket or a
 * terminal; "-" is standard input. */
enum { KV_TEXT_MAX_BYTES = 1 << 30 };

struct kv_windows {
    char text[128];     /* the file's name, without its folder */
    char text_hash[32]; /* sha256sum FILE | cut -c1-16 */
    struct kv_reading reading;
    size_t n, ctx;   /* windows, and tokens in each */
    bool random;     /* drawn, not the first */
    size_t n_tokens; /* tokens of the whole text, with the BOS */
    int32_t *tokens; /* [n][ctx] */
};

/* Which windows of a text to read. */
struct kv_windows_wanted {
    size_t ctx, n; /* n: number of windows, from the first; 0: all whole
                    * windows */
    bool special;  /* --parse-special */
    bool bos;      /* --bos */
    bool random; /* n of all whole windows instead, drawn by seed, each at most
                  * once, in the text's order */
    uint64_t seed;
};

/* Windows of ctx >= 1 tokens.  A BOS precedes the text if the tokenizer adds
 * one.  With wanted->bos each window begins with a BOS instead, and ctx - 1
 * tokens of the text follow.  Models that were always trained with a BOS, such
 * as Gemma, predict badly without it.
 * Fails on an empty file, a text shorter than one window, fewer windows than
 * asked for (naming their number), a token id >= n_vocab, and where a BOS is
 * wanted and the tokenizer adds none or ctx is 1. */
int kv_windows_read(struct kv_windows *w, const struct kv_tokenizer *t,
                    const char *path, const struct kv_windows_wanted *wanted,
                    size_t n_vocab, struct kv_err *e);
/* Prints a note if windows lack the BOS that the tokenizer puts before the
 * text's first. */
void kv_windows_note_bos(const struct kv_windows *w);
void kv_windows_clear(struct kv_windows *w);

/* Reads all tokens of the text, with BOS, to *ids [*n], which the caller frees.
 * hash may be NULL. */
int kv_text_tokens(const struct kv_tokenizer *t, const char *path, bool special,
                   size_t n_vocab, int32_t **ids, size_t *n, char hash[32],
                   struct kv_err *e);

/* How kv_windows_read() and kv_text_tokens() read a text, for the columns of a
 * row. */
struct kv_reading kv_text_reading(const struct kv_tokenizer *t, bool special);

#endif
