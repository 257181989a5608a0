/* A request for completions while it is being answered. */
#ifndef KV_SERVE_CALL_H
#define KV_SERVE_CALL_H

#include "tools/serve/completions.h"
#include "tools/serve/envelope.h"

struct kv_sent; /* text sent of a streamed choice */

struct kv_call {
    struct kv_service *service;
    const struct kv_http_request *http;
    struct kv_request request;
    struct kv_job job;
    double deadline;
    char model[768];
    struct kv_envelope envelope;

    struct kv_sent *sent; /* [job.n] */
    bool is_closed;       /* the stream's last lines are out */
};

struct kv_choice kv_call_choice(const struct kv_call *c, size_t i);
json_t *kv_call_usage(const struct kv_call *c);

/* Waits until the job has news.  Returns -1 if the job ended without any
 * because it failed, its time is up, or the client left; the reply `to` says
 * which. */
int kv_call_wait(struct kv_call *c, struct kv_http_reply *to);

/* Frees the call; its job must not be in the queue. */
void kv_call_free(struct kv_call *c);

/* Makes the reply a stream of events, for a call that has news; the reply frees
 * the call. */
void kv_call_stream(struct kv_call *c, struct kv_http_reply *to);

#endif
