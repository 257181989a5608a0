#include "eval/prompts.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/base/text.h"
#include "lib/json_file.h"
#include "lib/windows.h"

#include <stdlib.h>
#include <string.h>

/* ---- fields -------------------------------------------------------------- */

static int read_tokens(const struct kv_prompt *p, const char *name, int least,
                       size_t *to, struct kv_err *e)
{
    const json_t *x = json_object_get(p->fields, name);
    const json_int_t n = json_integer_value(x);

    if (!x || json_is_null(x))
        return 0;
    if (!json_is_integer(x) || n < least || n > INT32_MAX)
        return kv_fail(e, "%s: expected a number from %d to %d", name, least,
                       INT32_MAX);
    *to = (size_t)n;
    return 0;
}

static int add_stop(struct kv_prompt *p, const json_t *x, struct kv_err *e)
{
    const char *text = json_string_value(x);

    if (!text)
        return kv_fail(e, "stop: expected a text, or a list of texts");
    if (!*text)
        return kv_fail(e, "stop: an empty text stops every answer");
    p->stop = kv_realloc(p->stop, p->n_stops + 1, sizeof(*p->stop));
    p->stop[p->n_stops++] = text;
    return 0;
}

static int read_stops(struct kv_prompt *p, struct kv_err *e)
{
    const json_t *x = json_object_get(p->fields, "stop"), *one;
    size_t i;

    if (!x || json_is_null(x))
        return 0;
    if (!json_is_array(x))
        return add_stop(p, x, e);
    json_array_foreach(x, i, one)
    {
        if (add_stop(p, one, e))
            return -1;
    }
    return 0;
}

static int check_part(const json_t *part, size_t i, size_t k, struct kv_err *e)
{
    const char *type = json_string_value(json_object_get(part, "type"));

    return type && !strcmp(type, "text") &&
                   json_is_string(json_object_get(part, "text"))
               ? 0
               : kv_fail(e,
                         "messages: number %zu: part %zu: expected {\"type\": "
                         "\"text\", \"text\": text}",
                         i + 1, k + 1);
}

/* Replaces a content that is a list of parts of type text, as OpenAI's clients
 * send it, by their texts, with a line feed between two. */
static int join_parts(json_t *x, size_t i, struct kv_err *e)
{
    const json_t *parts = json_object_get(x, "content"), *one;
    size_t n = 0, k;
    char *all, *to;

    json_array_foreach(parts, k, one)
    {
        if (check_part(one, i, k, e))
            return -1;
        n += 1 + json_string_length(json_object_get(one, "text"));
    }
    if (!n)
        return kv_fail(e, "messages: number %zu: the content has no parts",
                       i + 1);
    all = to = kv_alloc(n, 1);
    json_array_foreach(parts, k, one)
    {
        const json_t *text = json_object_get(one, "text");

        memcpy(to, json_string_value(text), json_string_length(text));
        to += json_string_length(text);
        *to++ = '\n';
    }
    json_object_set_new(x, "content", json_stringn(all, n - 1));
    free(all);
    return 0;
}

/* Checks one message; *turns: how many messages of user and assistant precede
 * it. */
static int check_message(json_t *x, size_t i, size_t *turns, struct kv_err *e)
{
    const char *role = json_string_value(json_object_get(x, "role"));
    const char *turn = *turns % 2 ? "assistant" : "user";

    if (json_is_array(json_object_get(x, "content")) && join_parts(x, i, e))
        return -1;
    if (!role || !json_is_string(json_object_get(x, "content")))
        return kv_fail(e,
                       "messages: number %zu: expected {\"role\": text, "
                       "\"content\": text}",
                       i + 1);
    if (!strcmp(role, "system") && i == 0)
        return 0;
    if (strcmp(role, turn) != 0)
        return kv_fail(e,
                       "messages: number %zu is of role '%.32s': expected %s "
                       "(a system's first, then user and assistant in turn)",
                       i + 1, role, turn);
    ++*turns;
    return 0;
}

int kv_prompt_take_messages(struct kv_prompt *p, json_t *x, struct kv_err *e)
{
    size_t turns = 0, i;
    json_t *one;

    if (!json_is_array(x))
        return kv_fail(e, "messages: expected a list");
    json_array_foreach(x, i, one)
    {
        if (check_message(one, i, &turns, e))
            return -1;
    }
    if (!turns)
        return kv_fail(e, "messages: none is of the user");
    p->messages = x;
    return 0;
}

/* The server takes these fields of a request; lines have the options. */
static void note_sampling(const struct kv_prompts *p,
                          const struct kv_prompt *one)
{
    static const char *const names[] = {
        "temperature",           "top_p", "top_k", "repetition_penalty", "seed",
        "max_completion_tokens", "n"};
    size_t i = 0;

    while (i < sizeof(names) / sizeof(*names) &&
           !json_object_get(one->fields, names[i]))
        i++;
    if (i < sizeof(names) / sizeof(*names))
        kv_note("%s: fields such as '%s' are repeated in answers and change "
                "nothing: options say how all prompts are sampled",
                kv_input_name(p->path), names[i]);
}

/* Reads the fields of a line whose prompt the model continues. */
static int read_prompt(struct kv_prompt *p, struct kv_err *e)
{
    json_t *prompt = json_object_get(p->fields, "prompt");
    json_t *messages = json_object_get(p->fields, "messages");

    if (!prompt == !messages)
        return kv_fail(e, "%s: expected a prompt or messages",
                       prompt ? "both are there" : "neither is there");
    if (prompt && !json_is_string(prompt))
        return kv_fail(e, "prompt: expected a text");
    if (prompt && !json_string_length(prompt))
        return kv_fail(e, "the prompt is empty");
    p->text = json_string_value(prompt);
    return (messages && kv_prompt_take_messages(p, messages, e)) ||
                   read_tokens(p, "max_tokens", 1, &p->max_tokens, e) ||
                   read_tokens(p, "min_tokens", 0, &p->min_tokens, e) ||
                   read_stops(p, e)
               ? -1
               : 0;
}

static int read_continuation(struct kv_prompt *p, struct kv_err *e)
{
    p->text = json_string_value(json_object_get(p->fields, "context"));
    p->continuation =
        json_string_value(json_object_get(p->fields, "continuation"));
    if (!p->text || !p->continuation)
        return kv_fail(e, "%s: expected a text",
                       p->text ? "continuation" : "context");
    return *p->continuation ? 0 : kv_fail(e, "the continuation is empty");
}

static int read_fields(struct kv_prompt *p, bool continued,
                       const char *const *taken, struct kv_err *e)
{
    const json_t *id = json_object_get(p->fields, "id");

    for (; *taken; taken++)
        if (json_object_get(p->fields, *taken))
            return kv_fail(e,
                           "an answer has a field '%s' of its own: give "
                           "this one another name",
                           *taken);
    if (id && !json_is_string(id) && !json_is_integer(id))
        return kv_fail(e, "id: expected a text or an integer");
    return continued ? read_continuation(p, e) : read_prompt(p, e);
}

/* ---- lines --------------------------------------------------------------- */

static int read_line(struct kv_prompts *p, size_t line, char *text,
                     size_t bytes, bool continued, const char *const *taken,
                     struct kv_err *e)
{
    const char *name = kv_input_name(p->path);
    struct kv_prompt *one;

    p->at = kv_realloc(p->at, p->n + 1, sizeof(*p->at));
    one = &p->at[p->n];
    *one = (struct kv_prompt){.line = line, .min_tokens = SIZE_MAX};
    one->fields = kv_json_line(name, line, text, bytes, e);
    if (!one->fields)
        return -1;
    p->n++;
    if (!json_is_object(one->fields))
        return kv_fail(e, "%s: line %zu: expected an object, {..}", name, line);
    if (read_fields(one, continued, taken, e))
        return kv_fail_in(e, "%s: line %zu", name, line);
    if (!continued)
        note_sampling(p, one);
    return 0;
}

int kv_prompts_read(struct kv_prompts *p, const char *path, bool continued,
                    const char *const *taken, struct kv_err *e)
{
    size_t bytes, n, line = 1;
    char *text;
    int rc = 0;

    *p = (struct kv_prompts){.path = path};
    if (kv_text_read_stream(path, KV_TEXT_MAX_BYTES, &text, &bytes, p->hash, e))
        return -1;
    for (char *at = text; at < text + bytes && !rc; at += n + 1, line++) {
        const char *end = memchr(at, '\n', (size_t)(text + bytes - at));

        n = end ? (size_t)(end - at) : (size_t)(text + bytes - at);
        if (strspn(at, " \t\r") < n)
            rc = read_line(p, line, at, n, continued, taken, e);
    }
    free(text);
    if (!rc && !p->n)
        rc = kv_fail(e, "%s has no prompts", kv_input_name(path));
    if (rc)
        kv_prompts_clear(p);
    return rc ? -1 : 0;
}

void kv_prompts_clear(struct kv_prompts *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free(p->at[i].ids);
        free(p->at[i].stop);
        json_decref(p->at[i].fields);
    }
    free(p->at);
    *p = (struct kv_prompts){0};
}

/* ---- tokens -------------------------------------------------------------- */

static int encode_text(const struct kv_prompt_encoder *r, const char *text,
                       size_t bytes, bool special, int32_t **ids, size_t *n,
                       struct kv_named *named, struct kv_err *e)
{
    struct kv_named mine = {0};

    if (kv_tokenizer_encode(r->tokenizer, text, bytes, special, ids, n,
                            special ? NULL : &mine, e))
        return -1;
    if (mine.n)
        *named = (struct kv_named){named->n + mine.n, mine.first};
    return 0;
}

static int encode_messages(struct kv_prompt *p,
                           const struct kv_prompt_encoder *r, struct kv_err *e)
{
    char *text;
    size_t bytes;
    int rc;

    if (kv_chat_messages(r->chat, r->model, r->template, p->messages, r->clock,
                         &text, &bytes, e))
        return -1;
    rc = encode_text(r, text, bytes, true, &p->ids, &p->n, NULL, e);
    free(text);
    return rc;
}

/* Sets ids to the tokens of the context, then of the continuation. */
static int encode_continuation(struct kv_prompt *p,
                               const struct kv_prompt_encoder *r,
                               struct kv_named *named, struct kv_err *e)
{
    const size_t bytes = strlen(p->text), more = strlen(p->continuation);
    char *both = kv_alloc(bytes + more + 1, 1);
    struct kv_named again = {0};
    size_t context = bytes, all = 0;
    int32_t *alone = NULL;
    int rc;

    memcpy(both, p->text, bytes);
    memcpy(both + bytes, p->continuation, more);
    while (context && strchr(" \t\n\v\f\r", both[context - 1]))
        context--;
    rc =
        encode_text(r, both, context, r->special, &alone, &p->n, &again, e) ||
        encode_text(r, both, bytes + more, r->special, &p->ids, &all, named, e);
    free(both);
    free(alone);
    if (rc)
        return -1;
    if (all <= p->n)
        return kv_fail(e, "the continuation adds no token to its context");
    p->n_continuation = all - p->n;
    return 0;
}

/* Puts a BOS before a text if the tokenizer adds one, and in place of an empty
 * context. */
static int put_bos(struct kv_prompt *p, const struct kv_tokenizer *t,
                   struct kv_err *e)
{
    const size_t n = p->n + p->n_continuation;

    if (!kv_tokenizer_adds_bos(t) && !(p->continuation && !p->n))
        return 0;
    if (kv_tokenizer_bos(t) < 0)
        return kv_fail(e, "the context has no tokens, and the tokenizer no BOS "
                          "to stand for it");
    p->ids = kv_realloc(p->ids, n + 1, sizeof(*p->ids));
    memmove(p->ids + 1, p->ids, n * sizeof(*p->ids));
    p->ids[0] = kv_tokenizer_bos(t);
    p->n++;
    return 0;
}

int kv_prompt_encode(struct kv_prompt *p, const struct kv_prompt_encoder *r,
                     struct kv_named *named, struct kv_err *e)
{
    int rc;

    if (p->messages)
        rc = encode_messages(p, r, e);
    else if (p->continuation)
        rc = encode_continuation(p, r, named, e);
    else
        rc = encode_text(r, p->text, strlen(p->text), r->special, &p->ids,
                         &p->n, named, e);
    if (rc || (!p->messages && put_bos(p, r->tokenizer, e)))
        return -1;
    if (!p->n)
        return kv_fail(e, "the prompt has no tokens");
    for (size_t i = 0; i < p->n + p->n_continuation; i++)
        if (p->ids[i] < 0 || (size_t)p->ids[i] >= r->n_vocab)
            return kv_fail(e,
                           "token %zu has id %d, past the model's vocabulary "
                           "of %zu",
                           i, (int)p->ids[i], r->n_vocab);
    return 0;
}

int kv_prompts_encode(struct kv_prompts *p, const struct kv_prompt_encoder *r,
                      struct kv_err *e)
{
    const char *name = kv_input_name(p->path);
    struct kv_named named = {0};

    for (size_t i = 0; i < p->n; i++)
        if (kv_prompt_encode(&p->at[i], r, &named, e))
            return kv_fail_in(e, "%s: line %zu", name, p->at[i].line);
    if (named.n)
        kv_note("%s: %zu name%s of special tokens in prompts (such as %s) %s "
                "read as plain text; --parse-special reads them as tokens",
                name, named.n, named.n > 1 ? "s" : "", named.first,
                named.n > 1 ? "are" : "is");
    return 0;
}
