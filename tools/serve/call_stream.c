/* Events of a streamed reply: chunks of text that later tokens cannot
 * change. */
#include "lib/base/alloc.h"
#include "tools/serve/call.h"

#include <stdlib.h>
#include <string.h>

struct kv_sent {
    size_t bytes, tokens, offset; /* the sent part of the choice */
    bool begun, ended;
};

/* Adds an event; takes json's reference. */
static void put_event(struct kv_text *to, json_t *json)
{
    char *text = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9));

    kv_text_add(to, "data: ", 6);
    kv_text_add(to, text, strlen(text));
    kv_text_add(to, "\n\n", 2);
    free(text);
    json_decref(json);
}

static void put_chunk(struct kv_call *c, struct kv_text *to, json_t *choice)
{
    put_event(to,
              kv_envelope_close(&c->envelope, json_pack("[o]", choice), NULL));
}

/* Adds a chunk with the new part of a choice. */
static int put_choice(struct kv_call *c, struct kv_text *to, size_t i,
                      struct kv_err *e)
{
    struct kv_sent *s = &c->sent[i];
    const struct kv_choice x = kv_call_choice(c, i);
    const size_t n = c->request.log_probs ? kv_choice_scored(&x) : 0;
    const bool ends = x.made.ended && !s->ended;
    json_t *log_probs = NULL;
    size_t bytes, sure;
    char *text;

    if (s->ended || (!x.made.tokens && !ends))
        return 0;
    if (c->request.chat && !s->begun)
        put_chunk(c, to, kv_envelope_role(i));
    s->begun = true;
    if (kv_choice_text(&x, &text, &bytes, &sure, e))
        return -1;
    sure = sure > s->bytes ? sure : s->bytes;
    if (n > s->tokens) {
        log_probs = kv_choice_log_probs(&x, s->tokens, &s->offset, e);
        if (!log_probs) {
            free(text);
            return -1;
        }
    }
    if (sure > s->bytes || log_probs)
        put_chunk(c, to,
                  kv_envelope_choice(&c->request, i, text + s->bytes,
                                     sure - s->bytes, log_probs, NULL));
    if (ends)
        put_chunk(c, to,
                  kv_envelope_choice(&c->request, i, NULL, 0, NULL,
                                     kv_choice_finish(&x)));
    s->bytes = sure;
    s->tokens = n;
    s->ended = x.made.ended;
    free(text);
    return 0;
}

static void put_last(struct kv_call *c, struct kv_text *to)
{
    static const char done[] = "data: [DONE]\n\n";

    if (c->request.usage)
        put_event(to, kv_envelope_close(&c->envelope, json_array(),
                                        kv_call_usage(c)));
    kv_text_add(to, done, strlen(done));
    c->is_closed = true;
}

static void put_error(struct kv_call *c, struct kv_text *to,
                      const struct kv_text *body)
{
    kv_text_add(to, "data: ", 6);
    kv_text_add(to, body->s, body->n);
    kv_text_add(to, "\n\n", 2);
    c->is_closed = true;
}

static int put_news(struct kv_call *c, struct kv_text *to)
{
    struct kv_http_reply fault = {0};
    struct kv_err e;
    int rc = 0;

    for (size_t i = 0; i < c->job.n && !rc; i++)
        rc = put_choice(c, to, i, &e);
    if (rc) {
        kv_http_refuse(&fault, 500, NULL, NULL, "%s", e.msg);
        put_error(c, to, &fault.body);
        kv_text_clear(&fault.body);
    } else if (c->job.over) {
        put_last(c, to);
    }
    return c->is_closed ? 0 : 1;
}

static int more(void *arg, struct kv_text *to)
{
    struct kv_call *c = arg;
    struct kv_http_reply fault = {0};

    if (c->is_closed)
        return 0;
    if (!kv_call_wait(c, &fault))
        return put_news(c, to);
    if (fault.status)
        put_error(c, to, &fault.body);
    kv_text_clear(&fault.body);
    return fault.status ? 0 : -1;
}

static void end(void *arg)
{
    struct kv_call *c = arg;

    kv_job_leave(c->service->queue, &c->job);
    kv_call_free(c);
}

void kv_call_stream(struct kv_call *c, struct kv_http_reply *to)
{
    c->sent = kv_alloc(c->job.n, sizeof(*c->sent));
    to->status = 200;
    to->type = "text/event-stream";
    to->more = more;
    to->end = end;
    to->arg = c;
    put_news(c, &to->body);
}
