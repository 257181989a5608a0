#include "lib/windows.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/hash.h"
#include "lib/base/progress.h"
#include "lib/base/rng.h"
#include "lib/base/text.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_vocab(const int32_t *ids, size_t n, size_t n_vocab,
                       const char *path, struct kv_err *e)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= n_vocab)
            return kv_fail(e,
                           "%s: token %zu has id %d, past the model's "
                           "vocabulary of %zu",
                           path, i, (int)ids[i], n_vocab);
    return 0;
}

static void say_named(const char *path, const struct kv_named *named)
{
    if (named->n)
        kv_note(
            "%zu place%s of %s name%s special tokens (such as %s): they are "
            "read as plain text; --parse-special reads them as tokens",
            named->n, named->n > 1 ? "s" : "", path, named->n > 1 ? "" : "s",
            named->first);
}

struct kv_reading kv_text_reading(const struct kv_tokenizer *t, bool special)
{
    return (struct kv_reading){.known = true,
                               .bos = kv_tokenizer_adds_bos(t) ? KV_BOS_TEXT
                                                               : KV_BOS_NONE,
                               .special = special};
}

int kv_text_tokens(const struct kv_tokenizer *t, const char *path, bool special,
                   size_t n_vocab, int32_t **ids, size_t *n,
                   char hash[KV_HASH_CHARS], struct kv_err *e)
{
    const size_t bos = kv_tokenizer_adds_bos(t);
    const char *name = kv_input_name(path);
    int32_t *text_ids = NULL;
    size_t bytes, good, n_ids;
    struct kv_named named;
    char *text;
    int rc = -1;

    if (kv_text_read_stream(path, KV_TEXT_MAX_BYTES, &text, &bytes, hash, e))
        return -1;
    if (!bytes) {
        kv_fail(e, "%s is empty", name);
        goto out;
    }
    good = kv_utf8_valid(text, bytes);
    if (good < bytes)
        kv_note("%s: not UTF-8 at byte %zu: such bytes are read as U+FFFD",
                name, good);
    if (kv_tokenizer_encode(t, text, bytes, special, &text_ids, &n_ids, &named,
                            e)) {
        kv_fail_in(e, "%s", name);
        goto out;
    }
    say_named(name, &named);
    if (bos) {
        text_ids = kv_realloc(text_ids, n_ids + 1, sizeof(*text_ids));
        memmove(text_ids + 1, text_ids, n_ids * sizeof(*text_ids));
        text_ids[0] = kv_tokenizer_bos(t);
        n_ids++;
    }
    rc = check_vocab(text_ids, n_ids, n_vocab, name, e);
out:
    free(text);
    if (rc) {
        free(text_ids);
        return -1;
    }
    *ids = text_ids;
    *n = n_ids;
    return 0;
}

/* Cuts the tokens after the text's BOS (its first token) into windows of n
 * tokens, and puts the BOS before each. */
static void put_bos(struct kv_windows *w, size_t n)
{
    const size_t n_windows = (w->n_tokens - 1) / n;
    int32_t *tokens = kv_alloc(n_windows * (n + 1), sizeof(*tokens));

    for (size_t i = 0; i < n_windows; i++) {
        tokens[i * (n + 1)] = w->tokens[0];
        memcpy(tokens + i * (n + 1) + 1, w->tokens + 1 + i * n,
               n * sizeof(*tokens));
    }
    free(w->tokens);
    w->tokens = tokens;
}

/* Keeps w->n of `have` windows.  Every set of as many is as probable: a window
 * is kept with the probability (still wanted) / (still there). */
static void draw(struct kv_windows *w, size_t have, uint64_t seed)
{
    size_t n = 0;

    for (size_t i = 0; i < have; i++)
        if (kv_random(seed, i) % (have - i) < w->n - n)
            memmove(w->tokens + n++ * w->ctx, w->tokens + i * w->ctx,
                    w->ctx * sizeof(*w->tokens));
}

int kv_windows_read(struct kv_windows *w, const struct kv_tokenizer *t,
                    const char *path, const struct kv_windows_wanted *wanted,
                    size_t n_vocab, struct kv_err *e)
{
    const char *slash = strrchr(path, '/');
    const size_t ctx = wanted->ctx;
    size_t have;

    *w = (struct kv_windows){.ctx = ctx,
                             .random = wanted->random,
                             .reading = kv_text_reading(t, wanted->special)};
    if (!ctx)
        return kv_fail(e, "a window of 0 tokens was asked for");
    if (wanted->bos && w->reading.bos == KV_BOS_NONE)
        return kv_fail(e, "--bos: the model's tokenizer puts no BOS before a "
                          "text");
    if (wanted->bos && ctx == 1)
        return kv_fail(e, "--bos: a window of 1 token has no room for text");
    if (kv_text_tokens(t, path, wanted->special, n_vocab, &w->tokens,
                       &w->n_tokens, w->text_hash, e))
        return -1;
    snprintf(w->text, sizeof(w->text), "%s", slash ? slash + 1 : path);
    have = wanted->bos ? (w->n_tokens - 1) / (ctx - 1) : w->n_tokens / ctx;
    w->n = wanted->n ? wanted->n : have;
    if (!have)
        kv_fail(e, "%s has %zu token%s, less than one window of %zu",
                kv_input_name(path), w->n_tokens, w->n_tokens == 1 ? "" : "s",
                ctx);
    else if (w->n > have)
        kv_fail(e, "%s has %zu window%s of %zu tokens, %zu were asked for",
                kv_input_name(path), have, have == 1 ? "" : "s", ctx, w->n);
    if (!have || w->n > have) {
        kv_windows_clear(w);
        return -1;
    }
    if (wanted->bos) {
        put_bos(w, ctx - 1);
        w->reading.bos = KV_BOS_WINDOWS;
    }
    if (wanted->random)
        draw(w, have, wanted->seed);
    w->tokens = kv_realloc(w->tokens, w->n * ctx, sizeof(*w->tokens));
    return 0;
}

void kv_windows_note_bos(const struct kv_windows *w)
{
    if (w->reading.bos == KV_BOS_TEXT && (w->n > 1 || w->random) && w->ctx > 1)
        kv_note("a BOS stands before the text's first window alone; --bos puts "
                "one at each");
}

void kv_windows_clear(struct kv_windows *w)
{
    free(w->tokens);
    *w = (struct kv_windows){0};
}
