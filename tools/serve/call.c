#include "tools/serve/call.h"
#include "lib/base/progress.h"

#include <stdlib.h>
#include <string.h>

static const double look_after = 0.2; /* seconds between checks whether the
                                       * client is still there */

struct kv_choice kv_call_choice(const struct kv_call *c, size_t i)
{
    return (struct kv_choice){.tokenizer = c->service->rules.encoder.tokenizer,
                              .request = &c->request,
                              .prompt = &c->request.prompt[i / c->request.n],
                              .answer = &c->job.answer[i],
                              .made = c->job.seen[i]};
}

static size_t prompt_tokens(const struct kv_call *c)
{
    size_t n = 0;

    for (size_t i = 0; i < c->request.n_prompts; i++)
        n += c->request.prompt[i].n;
    return n;
}

static size_t new_tokens(const struct kv_call *c)
{
    size_t n = 0;

    for (size_t i = 0; i < c->job.n; i++) {
        const struct kv_choice x = kv_call_choice(c, i);

        n += kv_choice_tokens(&x);
    }
    return n;
}

json_t *kv_call_usage(const struct kv_call *c)
{
    return kv_envelope_usage(prompt_tokens(c), new_tokens(c));
}

int kv_call_wait(struct kv_call *c, struct kv_http_reply *to)
{
    struct kv_queue *q = c->service->queue;

    for (;;) {
        const bool news = kv_job_wait(q, &c->job, look_after);
        const bool late = !c->job.over && kv_seconds() > c->deadline;

        if (news && !late)
            break;
        if (!late && !kv_http_gone(c->http))
            continue;
        kv_job_leave(q, &c->job);
        if (late)
            kv_http_refuse(to, 503, NULL, "timeout",
                           "the request took more than %g s",
                           c->service->limit);
        return -1;
    }
    if (!c->job.over || c->job.status == 200)
        return 0;
    kv_http_refuse(to, c->job.status, c->job.status == 400 ? "model" : NULL,
                   NULL, "%s", c->job.why.msg);
    return -1;
}

void kv_call_free(struct kv_call *c)
{
    if (c->job.over)
        kv_metrics_tokens(c->service->metrics, prompt_tokens(c), new_tokens(c));
    kv_job_clear(&c->job);
    kv_request_clear(&c->request);
    free(c->sent);
    free(c);
}
