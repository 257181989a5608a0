/* kvgen --serve: a server, in place of -f and -o. */
#ifndef KV_TOOL_KVGEN_SERVE_H
#define KV_TOOL_KVGEN_SERVE_H

#include "lib/base/opt.h"

struct kvgen_serve {
    const char *address, *token, *name; /* address NULL: no server */
    size_t body, requests, seconds;
};

#define KVGEN_SERVE_DEFAULT                                      \
    {                                                            \
        .body = (size_t)4 << 20, .requests = 256, .seconds = 600 \
    }

#define KVGEN_SERVE_OPTS(s)                                       \
    KV_STR(0, "serve", &(s).address, "ADDR:PORT",                 \
           "answers requests of OpenAI's API, in place of -f\n"   \
           "and -o (below)"),                                     \
        KV_STR(0, "serve-name", &(s).name, "NAME",                \
               "the model's name in requests (its file's)"),      \
        KV_IN(0, "serve-token", &(s).token, "FILE",               \
              "a token that requests must bear; without one, a\n" \
              "loopback address"),                                \
        KV_BYTES(0, "serve-body", &(s).body, "SIZE",              \
                 "of a request at most (4M)"),                    \
        KV_SIZE(0, "serve-requests", &(s).requests, "N",          \
                "requests open at most, beyond it 429 (256)"),    \
        KV_SIZE(0, "serve-seconds", &(s).seconds, "S",            \
                "of a request at most (600)")

struct kv_err;
struct kvgen_args;
struct kvgen_run;

/* Checks the options, with or without --serve, before anything is read. */
int kvgen_serve_check(const struct kvgen_args *a, struct kv_err *e);
/* Called before kv_common_start(), so that SIGINT and SIGTERM reach
 * kvgen_serve(). */
void kvgen_serve_signals(void);
/* Serves until SIGINT or SIGTERM. */
int kvgen_serve(struct kvgen_run *r, const struct kvgen_args *a,
                struct kv_err *e);

#endif
