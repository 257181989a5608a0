/* kvgen's input: prompts, and the model's files that shape them. */
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/windows.h"
#include "tools/kvgen.h"

#include <stdlib.h>
#include <string.h>

/* Notes special tokens of a named chat template that the tokenizer lacks: the
 * template may be another model's. */
static void note_tokens(const struct kvgen_run *r, const struct kvgen_args *a)
{
    const char *const *token = kv_chat_named_tokens(a->chat_template);

    for (; *token; token++) {
        int32_t *ids = NULL;
        size_t n = 0;
        struct kv_err e;

        if (!kv_tokenizer_encode(r->tokenizer, *token, strlen(*token), true,
                                 &ids, &n, NULL, &e) &&
            n > 1)
            kv_note("--chat-template %s: %s is no token of this model, it is "
                    "spelled in %zu",
                    a->chat_template, *token, n);
        free(ids);
    }
}

/* Sets the clock of chat templates: --chat-date, or now. */
static int start_clock(struct kvgen_run *r, const struct kvgen_args *a,
                       struct kv_err *e)
{
    if (!a->chat_date)
        kv_chat_clock_local(&r->clock);
    else if (kv_chat_clock_parse(&r->clock, a->chat_date, e))
        return kv_fail_in(e, "--chat-date");
    return 0;
}

static void note_date(const struct kvgen_run *r, const struct kvgen_args *a)
{
    char now[KV_CHAT_CLOCK_CHARS];

    if (!r->clock.asked || a->chat_date)
        return;
    kv_chat_clock_text(&r->clock, now);
    kv_note("the chat template writes the date: --chat-date %s makes these "
            "prompts again",
            now);
}

static size_t count_messages(const struct kv_prompts *p)
{
    size_t n = 0;

    for (size_t i = 0; i < p->n; i++)
        n += p->at[i].messages != NULL;
    return n;
}

static int encode(struct kvgen_run *r, const struct kvgen_args *a,
                  struct kv_err *e)
{
    const struct kv_prompt_encoder how = {.tokenizer = r->tokenizer,
                                          .n_vocab =
                                              kv_model_info(r->model)->n_vocab,
                                          .special = a->parse_special,
                                          .chat = &r->chat,
                                          .model = a->model,
                                          .template = a->chat_template,
                                          .clock = &r->clock};

    r->n_messages = count_messages(&r->prompts);
    if (start_clock(r, a, e) || kv_prompts_encode(&r->prompts, &how, e))
        return -1;
    if (r->n_messages)
        note_tokens(r, a);
    note_date(r, a);
    r->conditions.reading =
        r->n_messages < r->prompts.n
            ? kv_text_reading(r->tokenizer, a->parse_special)
            : (struct kv_reading){.known = true, .special = true};
    return 0;
}

size_t kvgen_most(const struct kvgen_run *r, const struct kvgen_args *a,
                  const struct kv_prompt *p)
{
    const size_t most = p->max_tokens ? p->max_tokens : a->max_tokens;

    if (p->continuation)
        return p->n_continuation;
    return most < r->ctx - p->n ? most : r->ctx - p->n;
}

size_t kvgen_least(const struct kvgen_args *a, const struct kv_prompt *p)
{
    return p->continuation            ? 0
           : p->min_tokens < SIZE_MAX ? p->min_tokens
                                      : a->min_tokens;
}

static int check_least(const struct kvgen_args *a, const struct kv_prompts *all,
                       const struct kv_prompt *p, struct kv_err *e)
{
    const size_t most = p->max_tokens ? p->max_tokens : a->max_tokens;

    return kvgen_least(a, p) <= most
               ? 0
               : kv_fail(e,
                         "%s: line %zu: a minimum of %zu tokens is more than "
                         "the maximum, %zu (max_tokens)",
                         kv_input_name(all->path), p->line, kvgen_least(a, p),
                         most);
}

/* Checks that each prompt leaves room for a token.  All prompts count, not only
 * the shard's, so that RoPE that depends on the length is the same in all
 * shards. */
static int check_lengths(struct kvgen_run *r, const struct kvgen_args *a,
                         struct kv_err *e)
{
    size_t longest = 0;

    r->ctx = a->ctx ? a->ctx : kv_model_info(r->model)->n_ctx;
    for (size_t i = 0; i < r->prompts.n; i++) {
        const struct kv_prompt *p = &r->prompts.at[i];
        size_t n;

        if (p->n + p->n_continuation > r->ctx)
            return kv_fail(e,
                           "%s: line %zu: %zu tokens are more than a context "
                           "of %zu%s",
                           kv_input_name(r->prompts.path), p->line,
                           p->n + p->n_continuation, r->ctx,
                           a->ctx ? "" : ", the model's (-c sets another)");
        if (p->n >= r->ctx)
            return kv_fail(e,
                           "%s: line %zu: a prompt of %zu tokens leaves no "
                           "room for an answer in a context of %zu%s",
                           kv_input_name(r->prompts.path), p->line, p->n,
                           r->ctx,
                           a->ctx ? "" : ", the model's (-c sets another)");
        if (check_least(a, &r->prompts, p, e))
            return -1;
        n = p->n + kvgen_most(r, a, p);
        longest = n > longest ? n : longest;
    }
    kv_model_context(r->model, longest);
    r->longest = kv_model_by_length(r->model) ? longest : 0;
    return 0;
}

static void take_shard(struct kvgen_run *r, const struct kv_shard *s)
{
    r->mine = kv_alloc(r->prompts.n, sizeof(*r->mine));
    for (size_t i = s->i - 1; i < r->prompts.n; i += s->n)
        r->mine[r->n_mine++] = i;
    if (!r->n_mine)
        kv_note("%s: --shard %zu/%zu has none of the %zu prompts",
                kv_input_name(r->prompts.path), s->i, s->n, r->prompts.n);
}

int kvgen_read_prompts(struct kvgen_run *r, const struct kvgen_args *a,
                       struct kv_err *e)
{
    const char *slash = strrchr(r->prompts.path, '/');

    if (encode(r, a, e) || check_lengths(r, a, e))
        return -1;
    take_shard(r, &a->shard);
    r->conditions.text = slash ? slash + 1 : r->prompts.path;
    r->conditions.text_hash = r->prompts.hash;
    r->conditions.ctx = r->ctx;
    return 0;
}
