#include "eval/answer_text.h"
#include "lib/base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* The number of the prompt's last tokens that are decoded together with an
 * answer, because tokenizers treat the start of a text differently. */
enum { BEFORE = 5 };

/* Leaves out ids that have no token: models have more ids than their
 * tokenizers. */
static int decode(const struct kv_tokenizer *t, const int32_t *ids, size_t n,
                  char **text, size_t *bytes, struct kv_err *e)
{
    const int32_t end = (int32_t)kv_tokenizer_vocab(t);
    int32_t *known = kv_alloc(n, sizeof(*known));
    size_t n_known = 0;
    int rc;

    for (size_t i = 0; i < n; i++)
        if (ids[i] < end)
            known[n_known++] = ids[i];
    rc = kv_tokenizer_decode(t, known, n_known, false, text, bytes, e);
    free(known);
    return rc;
}

int kv_answer_text(const struct kv_tokenizer *t, const int32_t *prompt,
                   size_t n_prompt, const int32_t *ids, size_t n, char **text,
                   size_t *bytes, struct kv_err *e)
{
    const size_t before = n_prompt < BEFORE ? n_prompt : BEFORE;
    int32_t *both = kv_alloc(before + n, sizeof(*both));
    char *start = NULL;
    size_t skip;
    int rc = -1;

    memcpy(both, prompt + n_prompt - before, before * sizeof(*both));
    memcpy(both + before, ids, n * sizeof(*both));
    if (decode(t, both, before, &start, &skip, e) ||
        decode(t, both, before + n, text, bytes, e))
        goto out;
    if (*bytes < skip || memcmp(*text, start, skip)) {
        /* the prompt ends within a character */
        free(*text);
        if (decode(t, ids, n, text, bytes, e))
            goto out;
        skip = 0;
    }
    *bytes -= skip;
    memmove(*text, *text + skip, *bytes + 1);
    rc = 0;
out:
    free(start);
    free(both);
    return rc;
}

size_t kv_stops_find(const struct kv_stops *s, const char *text, size_t bytes)
{
    size_t first = bytes;

    for (size_t i = 0; i < s->n; i++) {
        const char *at = memmem(text, bytes, s->text[i], strlen(s->text[i]));

        if (at && (size_t)(at - text) < first)
            first = (size_t)(at - text);
    }
    return first;
}

int kv_answer_cut(const struct kv_tokenizer *t, const int32_t *prompt,
                  size_t n_prompt, const int32_t *ids, size_t n,
                  const struct kv_stops *s, size_t least, char **text,
                  size_t *bytes, struct kv_err *e)
{
    const size_t first = least < n ? least : n;
    size_t skip = 0, held = 0;
    char *start = NULL;

    if (first &&
        kv_answer_text(t, prompt, n_prompt, ids, first, &start, &held, e))
        return -1;
    if (kv_answer_text(t, prompt, n_prompt, ids, n, text, bytes, e)) {
        free(start);
        return -1;
    }
    /* The first tokens may end within a character, which only the whole text
     * has in full. */
    while (skip < held && skip < *bytes && start[skip] == (*text)[skip])
        skip++;
    free(start);
    *bytes = skip + kv_stops_find(s, *text + skip, *bytes - skip);
    return 0;
}

int kv_stops_ids(const struct kv_stops *s, const struct kv_tokenizer *t,
                 int32_t *id, size_t *n, struct kv_err *e)
{
    *n = 0;
    for (size_t i = 0; i < s->n; i++) {
        const size_t want = strlen(s->text[i]);
        int32_t *ids = NULL;
        size_t n_ids, bytes = 0;
        char *text = NULL;
        int rc = kv_tokenizer_encode(t, s->text[i], want, false, &ids, &n_ids,
                                     NULL, e);

        if (!rc && n_ids) /* a token may stand for the text's start */
            rc = decode(t, ids + n_ids - 1, 1, &text, &bytes, e);
        if (!rc && bytes == want && !memcmp(text, s->text[i], want))
            id[(*n)++] = ids[n_ids - 1];
        free(text);
        free(ids);
        if (rc)
            return -1;
    }
    return 0;
}

int kv_stops_check(const struct kv_stops *s, const struct kv_tokenizer *t,
                   const int32_t *ids, size_t n, bool *stopped,
                   struct kv_err *e)
{
    enum { SPARE = 16 }; /* more tokens, in case some have no text */
    size_t longest = 0, bytes, tail;
    char *text;

    *stopped = false;
    if (!s->n)
        return 0;
    for (size_t i = 0; i < s->n; i++)
        if (strlen(s->text[i]) > longest)
            longest = strlen(s->text[i]);
    tail = n < longest + SPARE ? n : longest + SPARE;
    if (decode(t, ids + n - tail, tail, &text, &bytes, e))
        return -1;
    *stopped = kv_stops_find(s, text, bytes) < bytes;
    free(text);
    return 0;
}
