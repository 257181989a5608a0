#include "tools/serve/completions.h"
#include "eval/calib_check.h"
#include "eval/generate.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/base/rng.h"
#include "lib/mixed.h"
#include "tools/serve/call.h"

#include <stdlib.h>
#include <string.h>

/* Frees json after use. */
static void put_json(struct kv_http_reply *to, json_t *json)
{
    char *text = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9));

    to->status = 200;
    kv_text_add(&to->body, text, strlen(text));
    free(text);
    json_decref(json);
}

/* ---- what a request asks for --------------------------------------------- */

/* A prompt's log-probabilities need its tokens decoded one by one, which
 * policies do not allow. */
static int check_scores(const struct kv_call *c, struct kv_http_reply *to)
{
    if (!kv_request_scores(&c->request) || !c->job.spec.policy.policy)
        return 0;
    kv_http_refuse(to, 400, "echo", NULL,
                   "%s: a prompt's log-probabilities (echo with logprobs) go "
                   "with specs without a policy",
                   c->job.spec.text);
    return -1;
}

static int check_leakage(const struct kv_call *c, struct kv_http_reply *to)
{
    const struct kv_service *s = c->service;
    struct kv_sketch sketch = {0};
    struct kv_err e;
    int rc;

    if (!s->names.calib || s->allow_leakage ||
        !kv_spec_calibrated(&c->job.spec))
        return 0;
    for (size_t i = 0; i < c->request.n_prompts; i++)
        kv_sketch_add(&sketch, c->request.prompt[i].ids,
                      c->request.prompt[i].n);
    kv_sketch_sort(&sketch);
    rc = kv_calibration_apart(s->names.calib, &sketch, &e);
    kv_sketch_clear(&sketch);
    if (rc)
        kv_http_refuse(to, 400, "prompt", NULL, "%s", e.msg);
    return rc;
}

static int check_memory(const struct kv_call *c, struct kv_http_reply *to)
{
    const struct kv_service *s = c->service;

    for (size_t i = 0; i < c->job.n; i++) {
        const struct kv_answer *a = &c->job.answer[i];
        const size_t bytes =
            kv_generate_cache_bytes(s->names.shape, a->n_prompt + a->most);

        if (bytes > s->memory) {
            kv_http_refuse(to, 400, "max_tokens", NULL,
                           "a cache of %zu tokens takes up to %.3g MB, and "
                           "this server has room for %.3g MB (--memory)",
                           a->n_prompt + a->most, (double)bytes * 1e-6,
                           (double)s->memory * 1e-6);
            return -1;
        }
    }
    return 0;
}

/* Sets up an answer for each prompt and sample; with the same seed it draws
 * kvgen's random numbers. */
static void ask(struct kv_call *c)
{
    const struct kv_request *r = &c->request;
    const uint64_t key =
        r->seeded ? kv_mix(0, r->seed)
                  : kv_mix(kv_mix(0, c->service->seed), c->envelope.number);

    for (size_t i = 0; i < c->job.n; i++) {
        struct kv_answer *a = &c->job.answer[i];

        kv_choice_ask(a, r, &r->prompt[i / r->n], c->service->rules.ctx);
        a->key = kv_mix(kv_mix(key, i / r->n), i % r->n);
    }
    c->job.each_token = r->stream;
}

static int read_call(struct kv_call *c, bool chat, struct kv_http_reply *to)
{
    struct kv_service *s = c->service;
    struct kv_request_fault f;
    struct kv_spec spec;
    const char *code = NULL, *body;
    size_t bytes;

    body = kv_http_body(c->http, &bytes);
    if (kv_request_read(&c->request, &s->rules, chat, body, bytes, &f)) {
        kv_http_refuse(to, 400, *f.field ? f.field : NULL, f.code, "%s",
                       f.e.msg);
        return -1;
    }
    if (kv_names_find(&s->names, c->request.model, &spec, &code, &f.e)) {
        kv_http_refuse(to, 404, "model", code, "%s", f.e.msg);
        return -1;
    }
    kv_job_init(&c->job, c->request.n_prompts * c->request.n);
    c->job.spec = spec;
    snprintf(c->model, sizeof(c->model), "%s,%s", s->names.name, spec.text);
    c->envelope = (struct kv_envelope){
        &c->request, c->model, atomic_fetch_add(&s->n_requests, 1), time(NULL)};
    ask(c);
    return check_scores(c, to) || check_leakage(c, to) || check_memory(c, to)
               ? -1
               : 0;
}

/* ---- the answers --------------------------------------------------------- */

static json_t *whole_choice(const struct kv_call *c, size_t i, struct kv_err *e)
{
    const struct kv_choice x = kv_call_choice(c, i);
    json_t *log_probs = NULL, *choice;
    size_t bytes, sure, offset = 0;
    char *text;

    if (kv_choice_text(&x, &text, &bytes, &sure, e))
        return NULL;
    if (c->request.log_probs) {
        log_probs = kv_choice_log_probs(&x, 0, &offset, e);
        if (!log_probs) {
            free(text);
            return NULL;
        }
    }
    choice = kv_envelope_choice(&c->request, i, text, bytes, log_probs,
                                kv_choice_finish(&x));
    free(text);
    return choice;
}

static void put_whole(const struct kv_call *c, struct kv_http_reply *to)
{
    json_t *choices = json_array();
    struct kv_err e;

    for (size_t i = 0; i < c->job.n; i++) {
        json_t *one = whole_choice(c, i, &e);

        if (!one) {
            json_decref(choices);
            kv_http_refuse(to, 500, NULL, NULL, "%s", e.msg);
            return;
        }
        json_array_append_new(choices, one);
    }
    put_json(to, kv_envelope_close(&c->envelope, choices, kv_call_usage(c)));
}

static int put_call(struct kv_call *c, struct kv_http_reply *to)
{
    switch (kv_queue_put(c->service->queue, &c->job)) {
    case KV_PUT_FULL:
        to->retry_after = 1;
        kv_http_refuse(to, 429, NULL, "too_many_requests",
                       "%zu requests are open, as many as may be: try again "
                       "later",
                       kv_queue_counts(c->service->queue).jobs);
        return -1;
    case KV_PUT_ENDING:
        kv_http_refuse(to, 503, NULL, NULL, "the server ends");
        return -1;
    default:
        return 0;
    }
}

static void answer_call(struct kv_service *s, struct kv_http_request *http,
                        struct kv_http_reply *to, bool chat)
{
    struct kv_call *c = kv_alloc(1, sizeof(*c));
    int rc;

    c->service = s;
    c->http = http;
    c->deadline = kv_seconds() + s->limit;
    rc = read_call(c, chat, to) || put_call(c, to) || kv_call_wait(c, to);
    if (!rc && c->request.stream) {
        kv_call_stream(c, to);
        return;
    }
    if (!rc)
        put_whole(c, to);
    kv_call_free(c);
}

/* ---- routes -------------------------------------------------------------- */

static void answer_texts(void *arg, struct kv_http_request *r,
                         struct kv_http_reply *to)
{
    answer_call(arg, r, to, false);
}

static void answer_chats(void *arg, struct kv_http_request *r,
                         struct kv_http_reply *to)
{
    answer_call(arg, r, to, true);
}

static json_t *model_named(const struct kv_names *n, const struct kv_spec *spec)
{
    return json_pack("{s:s++, s:s, s:i, s:s}", "id", n->name, spec ? "," : "",
                     spec ? spec->text : "", "object", "model", "created", 0,
                     "owned_by", "kvgen");
}

static void answer_models(void *arg, struct kv_http_request *r,
                          struct kv_http_reply *to)
{
    const struct kv_service *s = arg;
    json_t *list = json_array();

    (void)r;
    json_array_append_new(list, model_named(&s->names, NULL));
    for (size_t i = 0; i < s->names.n_listed; i++)
        json_array_append_new(list,
                              model_named(&s->names, &s->names.listed[i]));
    put_json(to, json_pack("{s:s, s:o}", "object", "list", "data", list));
}

static void answer_health(void *arg, struct kv_http_request *r,
                          struct kv_http_reply *to)
{
    struct kv_service *s = arg;

    (void)r;
    if (kv_queue_counts(s->queue).ending)
        kv_http_refuse(to, 503, NULL, NULL, "the server ends");
    else
        put_json(to, json_pack("{s:s}", "status", "ok"));
}

static void answer_metrics(void *arg, struct kv_http_request *r,
                           struct kv_http_reply *to)
{
    struct kv_service *s = arg;
    const struct kv_queue_counts now = kv_queue_counts(s->queue);

    (void)r;
    to->status = 200;
    to->type = "text/plain; version=0.0.4";
    kv_metrics_print(s->metrics, &now, &to->body);
}

const struct kv_http_route kv_service_routes[] = {
    {.method = "POST", .path = "/v1/completions", .answer = answer_texts},
    {.method = "POST", .path = "/v1/chat/completions", .answer = answer_chats},
    {.method = "GET", .path = "/v1/models", .answer = answer_models},
    {.method = "GET", .path = "/health", .open = true, .answer = answer_health},
    {.method = "GET", .path = "/metrics", .answer = answer_metrics},
    {.path = NULL},
};
