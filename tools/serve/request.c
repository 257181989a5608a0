#include "tools/serve/request.h"
#include "lib/base/alloc.h"
#include "tools/serve/fields.h"

#include <stdlib.h>
#include <string.h>

bool kv_request_scores(const struct kv_request *r)
{
    return r->echo && r->log_probs;
}

/* ---- fields that are taken ----------------------------------------------- */

static int read_stops(struct kv_request *r, const json_t *body,
                      struct kv_request_fault *f)
{
    const json_t *x = kv_field(body, "stop", f);
    const size_t n = json_is_array(x) ? json_array_size(x) : x != NULL;

    if (n > KV_REQUEST_STOPS)
        return kv_fail(&f->e, "stop: expected at most %d texts",
                       KV_REQUEST_STOPS);
    r->stop = kv_alloc(n, sizeof(*r->stop));
    for (size_t i = 0; i < n; i++) {
        const char *text =
            json_string_value(json_is_array(x) ? json_array_get(x, i) : x);

        if (!text || !*text)
            return kv_fail(&f->e,
                           "stop: expected a text, or a list of texts, none "
                           "empty");
        r->stop[r->n_stops++] = kv_strdup(text);
    }
    return 0;
}

static int read_sampling(struct kv_request *r, const json_t *body,
                         struct kv_request_fault *f)
{
    struct kv_sampling *s = &r->sampling;

    *s = (struct kv_sampling)KV_SAMPLING_GREEDY;
    s->temperature = 1;
    if (kv_field_real(body, "temperature", 0, 100, &s->temperature, f) ||
        kv_field_real(body, "top_p", 0, 1, &s->top_p, f) ||
        kv_field_real(body, "repetition_penalty", 0, 100,
                      &s->repetition_penalty, f) ||
        kv_field_size(body, "top_k", 0, INT32_MAX, &s->top_k, f))
        return -1;
    if (s->temperature == 0) {
        s->top_p = 1;
        s->top_k = 0;
    }
    return s->top_p == 0 || s->repetition_penalty == 0
               ? kv_fail(&f->e, "%s 0: expected more",
                         s->top_p == 0 ? "top_p" : "repetition_penalty")
               : 0;
}

static int read_seed(struct kv_request *r, const json_t *body,
                     struct kv_request_fault *f)
{
    const json_t *x = kv_field(body, "seed", f);

    r->seeded = x != NULL;
    r->seed = (uint64_t)json_integer_value(x);
    return x && !json_is_integer(x)
               ? kv_fail(&f->e, "seed: expected a whole number")
               : 0;
}

/* In requests for texts logprobs is a number; in chats it is true or false, and
 * top_logprobs is the number. */
static int read_log_probs(struct kv_request *r, const json_t *body,
                          struct kv_request_fault *f)
{
    const char *number = r->chat ? "top_logprobs" : "logprobs";

    r->log_probs = !r->chat && kv_field(body, "logprobs", f);
    if ((r->chat && kv_field_bool(body, "logprobs", &r->log_probs, f)) ||
        kv_field_size(body, number, 0, KV_REQUEST_TOP, &r->n_top, f))
        return -1;
    return r->n_top && !r->log_probs
               ? kv_fail(&f->e, "top_logprobs goes with logprobs")
               : 0;
}

static int read_stream(struct kv_request *r, const json_t *body,
                       struct kv_request_fault *f)
{
    const json_t *options;

    if (kv_field_bool(body, "stream", &r->stream, f))
        return -1;
    options = kv_field(body, "stream_options", f);
    if (options && (!json_is_object(options) || !r->stream))
        return kv_fail(&f->e, "stream_options: expected an object, with "
                              "stream");
    return kv_field_bool(options, "include_usage", &r->usage, f);
}

static int read_limits(struct kv_request *r, const struct kv_request_rules *how,
                       const json_t *body, struct kv_request_fault *f)
{
    enum { TEXT_TOKENS = 16 }; /* OpenAI's default */

    r->n = 1;
    r->max_tokens = r->chat ? how->chat_tokens : TEXT_TOKENS;
    if (kv_field_size(body, "n", 1, KV_REQUEST_CHOICES, &r->n, f) ||
        (!r->chat && kv_field_bool(body, "echo", &r->echo, f)) ||
        kv_field_size(body, "max_tokens", !r->echo, INT32_MAX, &r->max_tokens,
                      f))
        return -1;
    if (r->chat && kv_field_size(body, "max_completion_tokens", 1, INT32_MAX,
                                 &r->max_tokens, f))
        return -1;
    return kv_field_size(body, "min_tokens", 0, r->max_tokens, &r->min_tokens,
                         f);
}

/* ---- prompts ------------------------------------------------------------- */

static int encode(struct kv_request *r, const struct kv_prompt_encoder *how,
                  struct kv_prompt *p, struct kv_request_fault *f)
{
    struct kv_request_prompt *to = &r->prompt[r->n_prompts];
    struct kv_named named = {0};
    const int rc = kv_prompt_encode(p, how, &named, &f->e);

    to->ids = p->ids;
    to->n = p->n;
    to->text = r->echo ? kv_strdup(p->text) : NULL;
    r->n_prompts++;
    return rc;
}

static int read_text(struct kv_request *r, const struct kv_prompt_encoder *how,
                     const json_t *x, struct kv_request_fault *f)
{
    struct kv_prompt p = {.text = json_string_value(x)};

    if (!*p.text)
        return kv_fail(&f->e, "the prompt is empty");
    return encode(r, how, &p, f);
}

static int read_ids(struct kv_request *r, const struct kv_prompt_encoder *how,
                    const json_t *x, struct kv_request_fault *f)
{
    struct kv_request_prompt *p = &r->prompt[r->n_prompts++];
    const json_t *one;
    size_t i, bytes;

    p->ids = kv_alloc(json_array_size(x), sizeof(*p->ids));
    json_array_foreach(x, i, one)
    {
        const json_int_t id = json_integer_value(one);

        if (!json_is_integer(one) || id < 0 || (size_t)id >= how->n_vocab)
            return kv_fail(&f->e,
                           "the prompt's token %zu: expected an id below %zu",
                           i, how->n_vocab);
        p->ids[p->n++] = (int32_t)id;
    }
    if (!p->n)
        return kv_fail(&f->e, "the prompt is empty");
    return r->echo ? kv_answer_text(how->tokenizer, p->ids, 0, p->ids, p->n,
                                    &p->text, &bytes, &f->e)
                   : 0;
}

/* Reads the prompt: a text, a list of ids, or a list of texts or of lists of
 * ids. */
static int read_prompts(struct kv_request *r,
                        const struct kv_prompt_encoder *how, const json_t *body,
                        struct kv_request_fault *f)
{
    const json_t *x = kv_field(body, "prompt", f), *one;
    const bool many = json_is_array(x) && json_array_size(x) &&
                      !json_is_number(json_array_get(x, 0));
    const size_t n = many ? json_array_size(x) : 1;

    if (!x)
        return kv_fail(&f->e, "there is no prompt");
    if (n > KV_REQUEST_CHOICES / r->n)
        return kv_fail(&f->e, "expected at most %d answers, n to each prompt",
                       KV_REQUEST_CHOICES);
    r->prompt = kv_alloc(n, sizeof(*r->prompt));
    for (size_t i = 0; i < n; i++) {
        one = many ? json_array_get(x, i) : x;
        if (!json_is_string(one) && !json_is_array(one))
            return kv_fail(&f->e, "prompt: expected a text, a list of token "
                                  "ids, or a list of one of them");
        if (json_is_string(one) ? read_text(r, how, one, f)
                                : read_ids(r, how, one, f))
            return -1;
    }
    return 0;
}

static int read_messages(struct kv_request *r, struct kv_prompt_encoder *how,
                         const json_t *body, struct kv_request_fault *f)
{
    struct kv_prompt p = {0};
    const json_t *template = kv_field(body, "chat_template", f);
    json_t *messages;

    if (template && !json_is_string(template))
        return kv_fail(&f->e, "chat_template: expected a template's name");
    if (template)
        how->template = json_string_value(template);
    messages = kv_field(body, "messages", f);
    if (!messages)
        return kv_fail(&f->e, "there are no messages");
    r->prompt = kv_alloc(1, sizeof(*r->prompt));
    return kv_prompt_take_messages(&p, messages, &f->e) || encode(r, how, &p, f)
               ? -1
               : 0;
}

static int check_room(struct kv_request *r, size_t ctx,
                      struct kv_request_fault *f)
{
    for (size_t i = 0; i < r->n_prompts; i++)
        if (r->prompt[i].n >= ctx) {
            f->code = "context_length_exceeded";
            return kv_fail(&f->e,
                           "a prompt of %zu tokens leaves no room for an "
                           "answer in a context of %zu",
                           r->prompt[i].n, ctx);
        }
    return 0;
}

/* ---- the request --------------------------------------------------------- */

static int read_fields(struct kv_request *r,
                       const struct kv_request_rules *rules, json_t *body,
                       struct kv_request_fault *f)
{
    struct kv_prompt_encoder how = rules->encoder;
    struct kv_chat_clock clock;
    const json_t *model;

    if (!json_is_object(body))
        return kv_fail(&f->e, "the body: expected an object, {..}");
    if (kv_fields_known(body, r->chat, f))
        return -1;
    model = kv_field(body, "model", f);
    if (!json_is_string(model))
        return kv_fail(&f->e, "model: expected a name that /v1/models lists");
    r->model = kv_strdup(json_string_value(model));
    if (rules->clock)
        clock = *rules->clock;
    else
        kv_chat_clock_local(&clock);
    how.clock = &clock;
    return read_limits(r, rules, body, f) || read_sampling(r, body, f) ||
                   read_seed(r, body, f) || read_stops(r, body, f) ||
                   read_log_probs(r, body, f) || read_stream(r, body, f) ||
                   (r->chat ? read_messages(r, &how, body, f)
                            : read_prompts(r, &how, body, f)) ||
                   check_room(r, rules->ctx, f)
               ? -1
               : 0;
}

int kv_request_read(struct kv_request *r, const struct kv_request_rules *rules,
                    bool chat, const char *body, size_t bytes,
                    struct kv_request_fault *f)
{
    char *text = kv_alloc(bytes + 1, 1);
    json_t *json;
    int rc = -1;

    if (bytes)
        memcpy(text, body, bytes);
    *r = (struct kv_request){.chat = chat};
    *f = (struct kv_request_fault){0};
    pthread_mutex_lock(rules->one);
    json = kv_json_line("the body", 1, text, bytes, &f->e);
    free(text);
    if (json)
        rc = read_fields(r, rules, json, f);
    json_decref(json);
    pthread_mutex_unlock(rules->one);
    return rc;
}

void kv_request_clear(struct kv_request *r)
{
    for (size_t i = 0; i < r->n_prompts; i++) {
        free(r->prompt[i].ids);
        free(r->prompt[i].text);
    }
    for (size_t i = 0; i < r->n_stops; i++)
        free(r->stop[i]);
    free(r->prompt);
    free(r->stop);
    free(r->model);
}
