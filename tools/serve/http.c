#include "tools/serve/http.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "tools/serve/http_listen.h"

#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    STREAM_BLOCK = 1 << 14,
    LAST_REPLIES_MS = 2000,
    SPARE = 1000 /* keeps below libmicrohttpd's own limit, at which
                  * MHD_add_connection() leaves a mutex locked (0.9.75); a
                  * connection counts for a moment after its end */
};

struct kv_http {
    struct kv_http_plan p;
    struct MHD_Daemon *daemon;
    int listening;
    pthread_t accepting;
    pthread_mutex_t lock;
    pthread_cond_t fewer; /* fewer connections, or quiet */
    bool quiet;           /* takes no more connections */
    size_t n_open;        /* requests */
    size_t n_connections;
};

struct kv_http_request {
    struct kv_http *h;
    struct MHD_Connection *connection;
    const struct kv_http_route *route;
    struct kv_text body;
    bool too_long;
    double start;
    struct kv_http_reply reply;
    size_t sent; /* bytes sent of a streamed reply.body */
    bool is_last;
};

const char *kv_http_body(const struct kv_http_request *r, size_t *bytes)
{
    *bytes = r->body.n;
    return r->body.s;
}

bool kv_http_gone(const struct kv_http_request *r)
{
    const int fd = MHD_get_connection_info(r->connection,
                                           MHD_CONNECTION_INFO_CONNECTION_FD)
                       ->connect_fd;
    char c;
    const ssize_t n = recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);

    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

/* Stops the client's timeout while the client waits for us. */
static void hold_clock(const struct kv_http_request *r, bool held)
{
    MHD_set_connection_option(r->connection, MHD_CONNECTION_OPTION_TIMEOUT,
                              held ? 0u : (unsigned)r->h->p.idle);
}

/* ---- replies ------------------------------------------------------------- */

static ssize_t read_stream(void *arg, uint64_t at, char *to, size_t max)
{
    struct kv_http_request *r = arg;
    struct kv_text *text = &r->reply.body;
    size_t n;

    (void)at;
    while (r->sent == text->n && !r->is_last) {
        int rc;

        text->n = r->sent = 0;
        hold_clock(r, true);
        rc = r->reply.more(r->reply.arg, text);
        hold_clock(r, false);
        if (rc < 0)
            return MHD_CONTENT_READER_END_WITH_ERROR;
        r->is_last = !rc;
    }
    n = text->n - r->sent < max ? text->n - r->sent : max;
    if (!n)
        return MHD_CONTENT_READER_END_OF_STREAM;
    memcpy(to, text->s + r->sent, n);
    r->sent += n;
    return (ssize_t)n;
}

static struct MHD_Response *make_response(struct kv_http_request *r)
{
    struct kv_http_reply *to = &r->reply;

    if (to->more)
        return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK,
                                                 read_stream, r, NULL);
    return MHD_create_response_from_buffer(to->body.n, to->body.s,
                                           MHD_RESPMEM_PERSISTENT);
}

static enum MHD_Result send_reply(struct kv_http_request *r)
{
    struct kv_http_reply *to = &r->reply;
    struct MHD_Response *x;
    enum MHD_Result rc;
    char wait[16];

    if (!to->status)
        return MHD_NO;
    x = make_response(r);
    if (!x)
        return MHD_NO;
    MHD_add_response_header(x, "Content-Type",
                            to->type ? to->type : "application/json");
    if (to->status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(x, "WWW-Authenticate", "Bearer");
    if (to->status == MHD_HTTP_METHOD_NOT_ALLOWED && r->route)
        MHD_add_response_header(x, "Allow", r->route->method);
    if (to->more)
        MHD_add_response_header(x, "Cache-Control", "no-cache");
    if (to->retry_after) {
        snprintf(wait, sizeof(wait), "%d", to->retry_after);
        MHD_add_response_header(x, "Retry-After", wait);
    }
    rc = MHD_queue_response(r->connection, (unsigned)to->status, x);
    MHD_destroy_response(x);
    return rc;
}

/* ---- requests ------------------------------------------------------------ */

static const struct kv_http_route *find_route(const struct kv_http *h,
                                              const char *path)
{
    const struct kv_http_route *r = h->p.routes;

    while (r->path && strcmp(r->path, path) != 0)
        r++;
    return r->path ? r : NULL;
}

/* Compares tokens in a time that does not depend on where they differ. */
static bool is_token(const char *given, const char *token)
{
    const size_t n = strlen(given), m = strlen(token);
    unsigned differ = n != m;

    for (size_t i = 0; i < n; i++)
        differ |= (unsigned char)given[i] ^ (unsigned char)token[i % m];
    return !differ;
}

static bool may(const struct kv_http_request *r)
{
    static const char bearer[] = "Bearer ";
    const char *given = MHD_lookup_connection_value(
        r->connection, MHD_HEADER_KIND, "Authorization");

    if (!r->h->p.token || (r->route && r->route->open))
        return true;
    return given && !strncasecmp(given, bearer, strlen(bearer)) &&
           is_token(given + strlen(bearer), r->h->p.token);
}

static bool allows(const struct kv_http_route *r, const char *method)
{
    return !strcmp(method, r->method) ||
           (!strcmp(method, "HEAD") && !strcmp(r->method, "GET"));
}

static void refuse_length(struct kv_http_request *r)
{
    kv_http_refuse(&r->reply, 413, NULL, NULL,
                   "the body is longer than %zu bytes", r->h->p.max_body);
}

/* Refuses a request by its head alone; returns whether it did. */
static bool refuse_head(struct kv_http_request *r, const char *path,
                        const char *method)
{
    const char *length = MHD_lookup_connection_value(
        r->connection, MHD_HEADER_KIND, "Content-Length");

    if (!may(r))
        kv_http_refuse(&r->reply, 401, NULL, "invalid_api_key",
                       "expected the header Authorization: Bearer TOKEN with "
                       "the server's token");
    else if (!r->route)
        kv_http_refuse(&r->reply, 404, NULL, "unknown_url",
                       "there is no %.200s here", path);
    else if (!allows(r->route, method))
        kv_http_refuse(&r->reply, 405, NULL, "method_not_supported",
                       "%.20s %s: expected %s", method, path, r->route->method);
    else if (length && strtoull(length, NULL, 10) > r->h->p.max_body)
        refuse_length(r);
    return r->reply.status != 0;
}

static void count(struct kv_http *h, int by)
{
    pthread_mutex_lock(&h->lock);
    h->n_open += (size_t)by;
    pthread_mutex_unlock(&h->lock);
}

static struct kv_http_request *
begin(struct kv_http *h, struct MHD_Connection *connection, const char *path)
{
    struct kv_http_request *r = kv_alloc(1, sizeof(*r));

    *r = (struct kv_http_request){.h = h,
                                  .connection = connection,
                                  .route = find_route(h, path),
                                  .start = kv_seconds()};
    count(h, 1);
    return r;
}

static void take_body(struct kv_http_request *r, const char *data, size_t n)
{
    r->too_long = r->too_long || r->body.n + n > r->h->p.max_body;
    if (r->too_long)
        kv_text_clear(&r->body);
    else
        kv_text_add(&r->body, data, n);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection,
                                  const char *path, const char *method,
                                  const char *version, const char *data,
                                  size_t *n, void **state)
{
    struct kv_http *h = arg;
    struct kv_http_request *r = *state;

    (void)version;
    if (!r) {
        *state = r = begin(h, connection, path);
        return refuse_head(r, path, method) ? send_reply(r) : MHD_YES;
    }
    if (*n) {
        take_body(r, data, *n);
        *n = 0;
        /* drops a client that sends its body too slowly */
        return kv_seconds() - r->start > 4 * h->p.idle ? MHD_NO : MHD_YES;
    }
    if (r->too_long) {
        refuse_length(r);
    } else {
        hold_clock(r, true);
        r->route->answer(h->p.arg, r, &r->reply);
        hold_clock(r, false);
    }
    return send_reply(r);
}

static void on_end(void *arg, struct MHD_Connection *connection, void **state,
                   enum MHD_RequestTerminationCode why)
{
    struct kv_http *h = arg;
    struct kv_http_request *r = *state;
    int status;

    (void)connection;
    if (!r)
        return;
    status = why == MHD_REQUEST_TERMINATED_COMPLETED_OK ? r->reply.status : 0;
    if (r->reply.end)
        r->reply.end(r->reply.arg);
    h->p.done(h->p.arg, r->route ? r->route->path : "", status,
              kv_seconds() - r->start);
    kv_text_clear(&r->body);
    kv_text_clear(&r->reply.body);
    free(r);
    *state = NULL;
    count(h, -1);
}

/* ---- connections --------------------------------------------------------- */

static void on_connection(void *arg, struct MHD_Connection *connection,
                          void **state, enum MHD_ConnectionNotificationCode why)
{
    struct kv_http *h = arg;

    (void)connection;
    (void)state;
    pthread_mutex_lock(&h->lock);
    if (why == MHD_CONNECTION_NOTIFY_STARTED)
        h->n_connections++;
    else
        h->n_connections--;
    pthread_cond_signal(&h->fewer);
    pthread_mutex_unlock(&h->lock);
}

/* Waits until another connection may come; false if none may come any more. */
static bool has_room(struct kv_http *h)
{
    bool quiet;

    pthread_mutex_lock(&h->lock);
    while (!h->quiet && h->n_connections >= h->p.connections)
        pthread_cond_wait(&h->fewer, &h->lock);
    quiet = h->quiet;
    pthread_mutex_unlock(&h->lock);
    return !quiet;
}

/* Accepts connections itself: libmicrohttpd would close connections beyond its
 * limit, but here they wait in the system's queue. */
static void *accept_connections(void *arg)
{
    const struct timespec moment = {.tv_nsec = 10000000};
    struct kv_http *h = arg;

    while (has_room(h)) {
        struct sockaddr_storage from;
        socklen_t n = sizeof(from);
        const int fd = accept4(h->listening, (struct sockaddr *)&from, &n,
                               SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0)
            MHD_add_connection(h->daemon, fd, (struct sockaddr *)&from, n);
        else if (errno != EINTR && errno != ECONNABORTED)
            nanosleep(&moment, NULL); /* no descriptor is free: tries again
                                       * soon */
    }
    return NULL;
}

/* ---- the server ---------------------------------------------------------- */

static int start(struct kv_http *h, struct kv_err *e)
{
    h->daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION |
            MHD_USE_POLL | MHD_USE_ITC | MHD_USE_NO_LISTEN_SOCKET,
        0, NULL, NULL, on_request, h, MHD_OPTION_NOTIFY_COMPLETED, on_end, h,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->p.connections + SPARE,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)h->p.idle, MHD_OPTION_END);
    if (!h->daemon)
        return kv_fail(e, "--serve %s: libmicrohttpd does not start: %s",
                       h->p.address, strerror(errno));
    if (!pthread_create(&h->accepting, NULL, accept_connections, h))
        return 0;
    MHD_stop_daemon(h->daemon);
    return kv_fail(e, "--serve %s: no thread can be started", h->p.address);
}

static void free_http(struct kv_http *h)
{
    close(h->listening);
    pthread_cond_destroy(&h->fewer);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

int kv_http_start(struct kv_http **out, const struct kv_http_plan *p,
                  unsigned *port, struct kv_err *e)
{
    const int fd = kv_http_listen(p->address, p->token != NULL, port, e);
    struct kv_http *h;

    if (fd < 0)
        return -1;
    h = kv_alloc(1, sizeof(*h));
    *h = (struct kv_http){.p = *p, .listening = fd};
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->fewer, NULL);
    if (start(h, e)) {
        free_http(h);
        return -1;
    }
    *out = h;
    return 0;
}

/* Accepts no more connections; open ones may go on. */
static void quiesce(struct kv_http *h)
{
    pthread_mutex_lock(&h->lock);
    h->quiet = true;
    pthread_cond_signal(&h->fewer);
    pthread_mutex_unlock(&h->lock);
    shutdown(h->listening, SHUT_RDWR);
    pthread_join(h->accepting, NULL);
}

void kv_http_stop(struct kv_http *h)
{
    const struct timespec ms = {.tv_nsec = 1000000};
    size_t n_open = 1;

    if (!h)
        return;
    quiesce(h);
    for (int i = 0; i < LAST_REPLIES_MS && n_open; i++) {
        pthread_mutex_lock(&h->lock);
        n_open = h->n_open;
        pthread_mutex_unlock(&h->lock);
        if (n_open)
            nanosleep(&ms, NULL);
    }
    MHD_stop_daemon(h->daemon);
    free_http(h);
}
