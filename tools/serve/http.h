/* HTTP/1.1 by libmicrohttpd: a thread for each connection, whole bodies in,
 * replies or streams out. */
#ifndef KV_SERVE_HTTP_H
#define KV_SERVE_HTTP_H

#include "lib/base/err.h"
#include "lib/tokenizer/tokenizer_text.h"

#include <stdbool.h>
#include <stddef.h>

struct kv_http_request;

/* The reply to a request: a body, or a stream, whose more() appends text of any
 * length and waits if there is none yet. */
struct kv_http_reply {
    int status;       /* 0: none, the connection is closed */
    const char *type; /* NULL: application/json */
    struct kv_text body;
    int retry_after; /* seconds; 0: no such header */

    /* Returns 1 if more may follow, 0 at the end, -1 to close the
     * connection. */
    int (*more)(void *arg, struct kv_text *text);
    void (*end)(void *arg); /* called once, in any case */
    void *arg;
};

struct kv_http_route {
    const char *method, *path;
    bool open; /* needs no token */
    /* Runs on the connection's thread and may block it. */
    void (*answer)(void *arg, struct kv_http_request *r,
                   struct kv_http_reply *to);
};

struct kv_http_plan {
    const char *address; /* ADDR:PORT, [ADDR]:PORT; port 0: any */
    const char *token;   /* NULL: none is asked for */
    const struct kv_http_route *routes; /* up to a path NULL */
    size_t max_body;
    size_t connections; /* most connections at a time; others wait */
    double idle; /* seconds that a client may stay connected without a byte */
    void *arg;   /* passed to routes and done */
    /* Called when a request is over.  path: its route's, or "" without a route;
     * status 0: the client left. */
    void (*done)(void *arg, const char *path, int status, double seconds);
};

struct kv_http;

/* Starts to listen; *port: the port in use.  Without a token the address must
 * be a loopback address. */
int kv_http_start(struct kv_http **h, const struct kv_http_plan *p,
                  unsigned *port, struct kv_err *e);
/* Takes no more connections, waits a moment for replies under way, and closes
 * all connections. */
void kv_http_stop(struct kv_http *h); /* NULL is fine */

const char *kv_http_body(const struct kv_http_request *r, size_t *bytes);
/* Whether the client has closed its end of the connection. */
bool kv_http_gone(const struct kv_http_request *r);

/* Makes the reply an error as OpenAI writes it.  param: the field at fault;
 * code: a word for programs; NULL becomes null. */
void kv_http_refuse(struct kv_http_reply *to, int status, const char *param,
                    const char *code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

#endif
