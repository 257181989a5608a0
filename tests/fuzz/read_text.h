/* A tokenizer and a text, for the drivers of every kind of tokenizer file. */
#ifndef KV_FUZZ_READ_TEXT_H
#define KV_FUZZ_READ_TEXT_H

#include "lib/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

/* Encodes the text; expects either a sentence, or ids of the vocabulary that
 * can be decoded. */
static void fuzz_encode(const struct kv_tokenizer *t, const char *text,
                        size_t n, bool special)
{
    struct kv_err e = {""};
    int32_t *ids;
    size_t n_ids, n_back;
    char *back;
    const int rc =
        kv_tokenizer_encode(t, text, n, special, &ids, &n_ids, NULL, &e);

    fuzz_expect_sentence(rc, &e);
    if (rc)
        return;
    for (size_t i = 0; i < n_ids; i++)
        fuzz_expect(ids[i] >= 0 && (size_t)ids[i] < kv_tokenizer_vocab(t),
                    "ids of the vocabulary");
    fuzz_expect(!kv_tokenizer_decode(t, ids, n_ids, true, &back, &n_back, &e),
                "what was encoded decodes");
    free(back);
    free(ids);
}

/* Opens the tokenizer of a folder or a file, and encodes the text twice: names
 * of special tokens are text, then tokens. */
static void fuzz_text(const char *path, const char *text, size_t n)
{
    struct kv_tokenizer *t;
    struct kv_err e = {""};
    const int rc = kv_tokenizer_open(&t, path, &e);

    fuzz_expect_sentence(rc, &e);
    if (rc)
        return;
    fuzz_encode(t, text, n, false);
    fuzz_encode(t, text, n, true);
    fuzz_expect(kv_tokenizer_bos(t) < (int32_t)kv_tokenizer_vocab(t),
                "BOS is of the vocabulary");
    kv_tokenizer_free(t);
}

#endif
