#include "tools/serve/envelope.h"

#include <stdio.h>

json_t *kv_envelope_choice(const struct kv_request *r, size_t index,
                           const char *text, size_t bytes, json_t *log_probs,
                           const char *finish)
{
    json_t *x;

    if (!r->chat)
        x = json_pack("{s:s%}", "text", text ? text : "", bytes);
    else if (r->stream)
        x = text ? json_pack("{s:{s:s%}}", "delta", "content", text, bytes)
                 : json_pack("{s:{}}", "delta");
    else
        x = json_pack("{s:{s:s, s:s%}}", "message", "role", "assistant",
                      "content", text, bytes);
    json_object_set_new(x, "index", json_integer((json_int_t)index));
    json_object_set_new(x, "logprobs", log_probs ? log_probs : json_null());
    json_object_set_new(x, "finish_reason",
                        finish ? json_string(finish) : json_null());
    return x;
}

json_t *kv_envelope_role(size_t index)
{
    return json_pack("{s:{s:s, s:s}, s:I, s:n, s:n}", "delta", "role",
                     "assistant", "content", "", "index", (json_int_t)index,
                     "logprobs", "finish_reason");
}

json_t *kv_envelope_close(const struct kv_envelope *v, json_t *choices,
                          json_t *usage)
{
    const struct kv_request *r = v->request;
    char id[40];
    json_t *x;

    snprintf(id, sizeof(id), "%s-%lu", r->chat ? "chatcmpl" : "cmpl",
             v->number);
    x = json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", id, "object",
                  !r->chat    ? "text_completion"
                  : r->stream ? "chat.completion.chunk"
                              : "chat.completion",
                  "created", (json_int_t)v->created, "model", v->model,
                  "choices", choices);
    if (usage)
        json_object_set_new(x, "usage", usage);
    return x;
}

json_t *kv_envelope_usage(size_t prompt_tokens, size_t tokens)
{
    return json_pack("{s:I, s:I, s:I}", "prompt_tokens",
                     (json_int_t)prompt_tokens, "completion_tokens",
                     (json_int_t)tokens, "total_tokens",
                     (json_int_t)(prompt_tokens + tokens));
}
