#include "lib/tokenizer/gguf_ends.h"
#include "lib/base/alloc.h"

#include <string.h>

#define KEY "tokenizer.ggml."

static const char *const keys[] = {
    KEY "eos_token_id",     KEY "eot_token_id",     KEY "eom_token_id",
    KEY "fim_pad_token_id", KEY "fim_rep_token_id", KEY "fim_sep_token_id"};

/* Texts of tokens that end a text.  without: the entry counts only if the GGUF
 * file lacks this key. */
static const struct {
    const char *text, *without;
} texts[] = {
    {"<|eot_id|>", NULL},
    {"<|im_end|>", NULL},
    {"<|end|>", NULL},
    {"<|return|>", NULL},
    {"<|call|>", NULL},
    {"<|flush|>", NULL},
    {"<|calls|>", NULL},
    {"<end_of_turn>", NULL},
    {"<|endoftext|>", NULL},
    {"</s>", NULL},
    {"<|eom_id|>", NULL},
    {"<EOT>", NULL},
    {"_<EOT>", NULL},
    {"[EOT]", NULL},
    {"[EOS]", NULL},
    {"<|end_of_text|>", NULL},
    {"<end_of_utterance>", NULL},
    {"<eos>", NULL},
    {"<turn|>", NULL},
    {"<|tool_response>", NULL},
    {"<\uff5cend\u2581of\u2581sentence\uff5c>", KEY "eot_token_id"},
    {"<|fim_pad|>", KEY "fim_pad_token_id"},
    {"<fim-pad>", KEY "fim_pad_token_id"},
    {"<fim_pad>", KEY "fim_pad_token_id"},
    {"<PAD>", KEY "fim_pad_token_id"},
    {"[PAD]", KEY "fim_pad_token_id"},
    {"<|fim_repo|>", KEY "fim_rep_token_id"},
    {"<|repo_name|>", KEY "fim_rep_token_id"},
    {"<fim-repo>", KEY "fim_rep_token_id"},
    {"<REPO>", KEY "fim_rep_token_id"},
    {"<reponame>", KEY "fim_rep_token_id"},
    {"<|file_sep|>", KEY "fim_sep_token_id"},
};

/* If the vocabulary has all of `beside`, `text` does not end an answer. */
static const struct {
    const char *text, *beside[2];
} exceptions[] = {
    {"<|end|>", {"<|return|>", "<|call|>"}},
    {"<|end|>", {"<|return|>", "<|calls|>"}},
    {"<|end|>", {"<|flush|>", "<|call|>"}},
    {"<|end|>", {"<|flush|>", "<|calls|>"}},
    {"</s>", {"<|tool_response>", "<|tool_response>"}},
};

#define COUNT(x) (sizeof(x) / sizeof(*(x)))

struct ends {
    const struct kv_gguf_value *tokens; /* NULL: there are none */
    int32_t *id;
    size_t n;
};

static size_t n_tokens(const struct ends *s)
{
    return s->tokens && s->tokens->n < INT32_MAX ? s->tokens->n : 0;
}

static void add(struct ends *s, int64_t id)
{
    if (id < 0 || (size_t)id >= n_tokens(s))
        return;
    for (size_t i = 0; i < s->n; i++)
        if (s->id[i] == id)
            return;
    s->id = kv_realloc(s->id, s->n + 1, sizeof(*s->id));
    s->id[s->n++] = (int32_t)id;
}

static bool is(const struct ends *s, size_t id, const char *text)
{
    size_t n;
    const char *token = kv_gguf_text(s->tokens, id, &n);

    return n == strlen(text) && !memcmp(token, text, n);
}

/* The index in s of the token with this text; SIZE_MAX: there is none. */
static size_t find(const struct ends *s, const char *text)
{
    for (size_t i = 0; i < s->n; i++)
        if (is(s, (size_t)s->id[i], text))
            return i;
    return SIZE_MAX;
}

static void add_texts(struct ends *s, const struct kv_gguf *g)
{
    for (size_t id = 0; id < n_tokens(s); id++)
        for (size_t i = 0; i < COUNT(texts); i++)
            if (is(s, id, texts[i].text) &&
                !(texts[i].without && kv_gguf_find(g, texts[i].without)))
                add(s, (int64_t)id);
}

size_t kv_gguf_ends(const struct kv_gguf *g, int32_t **ids)
{
    const struct kv_gguf_value *v = kv_gguf_find(g, KEY "tokens");
    struct ends s = {.tokens =
                         v && v->kind == KV_GGUF_TEXT && v->array ? v : NULL};

    for (size_t i = 0; i < COUNT(keys); i++) {
        v = kv_gguf_find(g, keys[i]);
        if (v && v->kind == KV_GGUF_INT && !v->array)
            add(&s, kv_gguf_int(v, 0));
    }
    add_texts(&s, g);
    for (size_t i = 0; i < COUNT(exceptions); i++) {
        const size_t at = find(&s, exceptions[i].text);

        if (at < s.n && find(&s, exceptions[i].beside[0]) < s.n &&
            find(&s, exceptions[i].beside[1]) < s.n)
            s.id[at] = s.id[--s.n];
    }
    *ids = s.id;
    return s.n;
}
