/* The bytes and words of the text that a run scores, for bits per byte and
 * perplexity per word. */
#include "lib/base/alloc.h"
#include "tools/kvppl.h"

#include <ctype.h>
#include <stdlib.h>

/* The number of words that begin in text [at, end). */
static size_t words_behind(const char *text, size_t at, size_t end)
{
    size_t n = 0;

    for (size_t i = at; i < end; i++)
        n += !isspace((unsigned char)text[i]) &&
             (!i || isspace((unsigned char)text[i - 1]));
    return n;
}

/* Measures the text that tokens [first, n) add to the text of the tokens before
 * them. */
static int measure(const struct kvppl_run *r, const int32_t *tokens,
                   size_t first, size_t n, size_t *bytes, size_t *words)
{
    char *before, *all;
    struct kv_err none;
    size_t at, end;

    if (kv_tokenizer_decode(r->tokenizer, tokens, first, false, &before, &at,
                            &none))
        return -1;
    free(before);
    if (kv_tokenizer_decode(r->tokenizer, tokens, n, false, &all, &end, &none))
        return -1;
    at = at < end ? at : end;
    *bytes = end - at;
    *words = words_behind(all, at, end);
    free(all);
    return 0;
}

void kvppl_measure_text(struct kvppl_run *r)
{
    struct kvppl_extent *x = &r->extent;
    size_t first, last;

    kv_protocol_scored(&r->protocol, r->n_tokens, &first, &last);
    x->window = kv_alloc(r->text.n, sizeof(*x->window));
    for (size_t w = 0; w < r->text.n; w++) {
        size_t bytes, words;

        if (measure(r, r->tokens + w * r->n_tokens, first + 1, last + 1, &bytes,
                    &words)) {
            x->bytes = x->words = 0;
            return;
        }
        x->window[w] = (int32_t)bytes;
        x->bytes += (double)bytes;
        x->words += (double)words;
    }
}
