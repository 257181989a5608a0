/* kvgen --serve: starts a server from the options, and ends it. */
#include "tools/kvgen_serve.h"
#include "eval/calib_check.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "tools/kvgen.h"
#include "tools/serve/completions.h"
#include "tools/serve/decoder.h"

#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    GRACE = 10,
    IDLE = 30,
    SPARE = 32,
    TOKEN_MAX = 4096,
    REQUESTS_MAX = 10000,
    BATCH_MAX = 1024
};

struct server {
    struct kv_service service;
    struct kv_http *http;
    pthread_mutex_t one;
    char *token;
    pthread_t ending;
    atomic_bool serving;
};

/* Refuses options of --serve if --serve is not given. */
static int check_none(const struct kvgen_serve *s, struct kv_err *e)
{
    const struct kvgen_serve usual = KVGEN_SERVE_DEFAULT;
    const char *said = s->token                        ? "token"
                       : s->name                       ? "name"
                       : s->body != usual.body         ? "body"
                       : s->requests != usual.requests ? "requests"
                       : s->seconds != usual.seconds   ? "seconds"
                                                       : NULL;

    return said ? kv_fail(e, "--serve-%s goes with --serve", said) : 0;
}

static int check_limits(const struct kvgen_args *a, struct kv_err *e)
{
    const struct kvgen_serve *s = &a->serve;

    if (!s->body)
        return kv_fail(e, "--serve-body 0: expected more than 0");
    if (!s->requests || s->requests > REQUESTS_MAX)
        return kv_fail(e, "--serve-requests %zu: expected 1 to %d", s->requests,
                       REQUESTS_MAX);
    if (!s->seconds)
        return kv_fail(e, "--serve-seconds 0: expected more than 0");
    if (a->batch > BATCH_MAX)
        return kv_fail(e, "--batch %zu: expected at most %d with --serve",
                       a->batch, BATCH_MAX);
    return 0;
}

static int check_table(const struct kv_common *c, struct kv_err *e)
{
    const char *said = c->columns    ? "--columns"
                       : c->format   ? "--format"
                       : c->safe_csv ? "--safe-csv"
                                     : NULL;

    return said ? kv_fail(e,
                          "%s does not go with --serve, which writes no table",
                          said)
                : 0;
}

int kvgen_serve_check(const struct kvgen_args *a, struct kv_err *e)
{
    const struct kvgen_serve *s = &a->serve;
    const struct kv_sampling *p = &a->sampling;
    const char *with_file = a->prompts            ? "-f"
                            : a->score            ? "--score"
                            : a->resume           ? "--resume"
                            : a->append           ? "--append"
                            : a->common.output    ? "-o"
                            : a->shard.n > 1      ? "--shard"
                            : a->stops.n          ? "--stop"
                            : a->min_tokens       ? "--min-tokens"
                            : a->samples > 1      ? "--samples"
                            : p->temperature != 0 ? "--temperature"
                            : p->top_k            ? "--top-k"
                            : p->top_p != 1       ? "--top-p"
                            : p->repetition_penalty != 1
                                ? "--repetition-penalty"
                                : NULL;

    if (!s->address)
        return check_none(s, e);
    if (with_file)
        return kv_fail(e, "%s does not go with --serve, whose requests say it",
                       with_file);
    if (!a->max_tokens ||
        (a->max_tokens > INT32_MAX && a->max_tokens != KVGEN_NOT_SAID))
        return kv_fail(e, "--max-tokens %zu: expected 1 to %d tokens",
                       a->max_tokens, INT32_MAX);
    if (s->name && (!*s->name || strchr(s->name, ',')))
        return kv_fail(e, "--serve-name '%s': expected a name without a comma",
                       s->name);
    return check_table(&a->common, e) || check_limits(a, e) ? -1 : 0;
}

/* ---- the end ------------------------------------------------------------- */

static void ends(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
}

static void never(int number)
{
    (void)number;
}

/* Blocks the signals in all threads; one thread waits for them.  Their handler
 * never runs; it only keeps kv_catch_signals() from taking them. */
void kvgen_serve_signals(void)
{
    sigset_t set;

    ends(&set);
    signal(SIGINT, never);
    signal(SIGTERM, never);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

/* Waits for signals.  The first one ends the queue; the second ends the
 * program, as does the first if the server does not serve yet. */
static void *wait_for_end(void *arg)
{
    struct server *s = arg;
    sigset_t set;
    int number;

    ends(&set);
    sigwait(&set, &number);
    if (s->serving) {
        kv_note("ending: answers under way have %d s", GRACE);
        kv_queue_end(s->service.queue, GRACE);
        sigwait(&set, &number);
    }
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(number);
    return NULL;
}

/* ---- the beginning ------------------------------------------------------- */

/* Reads the token: the file's text without white space at its end. */
static int read_token(char **token, const char *path, struct kv_err *e)
{
    size_t n;

    if (!path)
        return 0;
    if (kv_stream_read(path, TOKEN_MAX, token, &n, e))
        return -1;
    while (n && isspace((unsigned char)(*token)[n - 1]))
        (*token)[--n] = 0;
    for (size_t i = 0; i < n; i++)
        if (!isgraph((unsigned char)(*token)[i]))
            return kv_fail(e, "%s: expected a token of ASCII characters",
                           kv_input_name(path));
    return n ? 0 : kv_fail(e, "%s has no token", kv_input_name(path));
}

/* Loads the calibration and checks that it is for this model; prompts are
 * checked as they come. */
static int load_calibration(struct kvgen_run *r, const struct kvgen_args *a,
                            struct kv_err *e)
{
    const struct kv_model_info *info = kv_model_info(r->model);
    const struct kv_sketch nothing = {0};

    if (!a->calib)
        return 0;
    return kv_calibration_load(
               &r->calib, &r->leak, a->calib,
               &(struct kv_evaluated){info->hash, &info->shape, &nothing}, true,
               e) ||
                   kv_calib_adopt(r->calib, r->spec, r->n_specs, e)
               ? -1
               : 0;
}

/* Opens each spec once. */
static int try_specs(const struct kvgen_run *r, struct kv_err *e)
{
    const struct kv_shape *shape = &kv_model_info(r->model)->shape;
    struct kv_codecs *c;

    for (size_t i = 0; i < r->n_specs; i++) {
        if (kv_codecs_new(&c, &r->spec[i], shape, 0, shape->n_layers, r->calib,
                          e))
            return -1;
        kv_codecs_free(c);
    }
    return 0;
}

static int load(struct kvgen_run *r, const struct kvgen_args *a,
                struct server *s, struct kv_err *e)
{
    if (read_token(&s->token, a->serve.token, e) ||
        (a->chat_date && kv_chat_clock_parse(&r->clock, a->chat_date, e) &&
         kv_fail_in(e, "--chat-date")) ||
        kvgen_load_model(r, a, e) || kvgen_list_specs(r, a, e) ||
        load_calibration(r, a, e) || try_specs(r, e))
        return -1;
    r->ctx = kv_model_context(r->model, a->ctx);
    r->batch = a->batch ? a->batch : KV_FEW_ROWS;
    return 0;
}

static void fill(struct kv_service *s, const struct kvgen_run *r,
                 const struct kvgen_args *a, pthread_mutex_t *one)
{
    const struct kv_model_info *info = kv_model_info(r->model);
    const char *name = a->serve.name ? a->serve.name : info->name;

    s->names = (struct kv_names){name,    &info->shape, r->calib,
                                 r->spec, r->n_specs,   a->common.on_gpu};
    s->rules =
        (struct kv_request_rules){.encoder = {.tokenizer = r->tokenizer,
                                              .n_vocab = info->n_vocab,
                                              .special = a->parse_special,
                                              .chat = &r->chat,
                                              .model = name,
                                              .template = a->chat_template},
                                  .clock = a->chat_date ? &r->clock : NULL,
                                  .ctx = r->ctx,
                                  .chat_tokens = a->max_tokens,
                                  .one = one};
    s->memory = a->common.memory;
    s->limit = (double)a->serve.seconds;
    s->seed = a->common.seed;
    s->allow_leakage = a->allow_leakage;
}

static void note_request(void *arg, const char *path, int status,
                         double seconds)
{
    struct kv_service *s = arg;

    kv_metrics_request(s->metrics, path, status, seconds);
    kv_detail("%s: %d in %.3f s", path, status, seconds);
}

static int listen_for(struct server *s, const struct kvgen_args *a,
                      struct kv_err *e)
{
    const struct kv_http_plan plan = {.address = a->serve.address,
                                      .token = s->token,
                                      .routes = kv_service_routes,
                                      .max_body = a->serve.body,
                                      .connections = a->serve.requests + SPARE,
                                      .idle = IDLE,
                                      .arg = &s->service,
                                      .done = note_request};
    const char *colon = strrchr(a->serve.address, ':');
    unsigned port;

    if (kv_http_start(&s->http, &plan, &port, e))
        return -1;
    kv_note("serving %s at http://%.*s:%u", s->service.names.name,
            (int)(colon - a->serve.address), a->serve.address, port);
    return 0;
}

static void decode(struct server *s, const struct kvgen_run *r,
                   const struct kvgen_args *a)
{
    const struct kv_decoding d = {
        .generation = {.model = r->model,
                       .tokenizer = r->tokenizer,
                       .ends = {r->chat.end,
                                a->ignore_eos ? 0 : r->chat.n_ends},
                       .calib = r->calib,
                       .seed = a->common.seed,
                       .batch = r->batch},
        .memory = a->common.memory};

    kv_decode_queue(&d, s->service.queue);
}

static int serve(struct server *s, struct kvgen_run *r,
                 const struct kvgen_args *a, struct kv_err *e)
{
    if (load(r, a, s, e))
        return -1;
    fill(&s->service, r, a, &s->one);
    s->serving = true;
    if (listen_for(s, a, e))
        return -1;
    decode(s, r, a);
    kv_http_stop(s->http);
    return 0;
}

int kvgen_serve(struct kvgen_run *r, const struct kvgen_args *a,
                struct kv_err *e)
{
    struct server s = {.one = PTHREAD_MUTEX_INITIALIZER,
                       .service = {.queue = kv_queue_new(a->serve.requests),
                                   .metrics = kv_metrics_new()}};
    int rc = -1;

    if (pthread_create(&s.ending, NULL, wait_for_end, &s)) {
        kv_fail(e, "no thread can be started");
    } else {
        rc = serve(&s, r, a, e);
        pthread_cancel(s.ending);
        pthread_join(s.ending, NULL);
    }
    kv_queue_free(s.service.queue);
    kv_metrics_free(s.service.metrics);
    free(s.token);
    return rc;
}
