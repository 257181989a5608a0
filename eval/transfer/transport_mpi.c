#include "eval/transfer/transport.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <mpi.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BEAT_TAG = 0, START_SECONDS = 60, LEAVE_SECONDS = 30 };
static const double beat_seconds = 1, last_seconds = 0.3;
static const long least_nap = 50000, longest_nap = 1000000; /* ns */

/* A message in transit; for an incoming message `to` is the sender. */
struct parcel {
    struct parcel *next;
    struct kv_message m;
    size_t to;
    MPI_Request request;
};

struct list {
    struct parcel *first, **end;
};

struct kv_transport {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t self, n_ranks;
    bool started, failed, leaving, together, left;
    double leaving_since;
    struct list out, in; /* messages to send; messages that have arrived */
    double *heard;       /* [n_ranks]; -INFINITY: its link is broken */
};

static void append(struct list *l, struct parcel *p)
{
    p->next = NULL;
    *l->end = p;
    l->end = &p->next;
}

static struct parcel *take_first(struct list *l)
{
    struct parcel *p = l->first;

    if (p && !(l->first = p->next))
        l->end = &l->first;
    return p;
}

static void drop_all(struct list *l)
{
    struct parcel *p;

    while ((p = take_first(l))) {
        free(p->m.bytes);
        free(p);
    }
}

/* ---- the thread ---------------------------------------------------------- */

/* The lists of parcels that only the thread uses. */
struct moving {
    struct list sent, coming;
    double beaten;
};

static void forget(struct kv_transport *t, struct parcel *p)
{
    (void)t;
    free(p->m.bytes);
    free(p);
}

/* Drops a parcel that MPI cannot move; its rank counts as silent from here
 * on. */
static void give_up(struct kv_transport *t, struct parcel *p)
{
    pthread_mutex_lock(&t->lock);
    t->heard[p->to] = -INFINITY;
    pthread_mutex_unlock(&t->lock);
    forget(t, p);
}

static void start_send(struct kv_transport *t, struct moving *w,
                       struct parcel *p)
{
    if (MPI_Isend(p->m.bytes, (int)p->m.n, MPI_BYTE, (int)p->to, p->m.tag,
                  MPI_COMM_WORLD, &p->request))
        give_up(t, p);
    else
        append(&w->sent, p);
}

static void beat(struct kv_transport *t, struct moving *w)
{
    const double now = kv_seconds();

    if (now - w->beaten < beat_seconds)
        return;
    w->beaten = now;
    for (size_t i = 0; i < t->n_ranks; i++) {
        struct parcel *p;

        if (i == t->self)
            continue;
        p = kv_alloc(1, sizeof(*p));
        *p = (struct parcel){.to = i, .m = {.tag = BEAT_TAG}};
        start_send(t, w, p);
    }
}

/* Posts the caller's messages. */
static bool post(struct kv_transport *t, struct moving *w)
{
    struct list out = {NULL, &out.first};
    struct parcel *p;
    bool any;

    pthread_mutex_lock(&t->lock);
    while ((p = take_first(&t->out)))
        append(&out, p);
    pthread_mutex_unlock(&t->lock);
    any = out.first;
    while ((p = take_first(&out)))
        start_send(t, w, p);
    return any;
}

/* Starts receiving a message whose beginning has arrived. */
static bool accept(struct kv_transport *t, struct moving *w)
{
    MPI_Message handle;
    MPI_Status status;
    struct parcel *p;
    int there = 0, n = 0;

    if (MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there,
                    &handle, &status) ||
        !there)
        return false;
    MPI_Get_count(&status, MPI_BYTE, &n);
    p = kv_alloc(1, sizeof(*p));
    *p = (struct parcel){.to = (size_t)status.MPI_SOURCE,
                         .m = {.from = (size_t)status.MPI_SOURCE,
                               .tag = status.MPI_TAG,
                               .n = (size_t)n,
                               .bytes = kv_alloc((size_t)n, 1)}};
    if (MPI_Imrecv(p->m.bytes, n, MPI_BYTE, &handle, &p->request))
        give_up(t, p);
    else
        append(&w->coming, p);
    return true;
}

static void arrive(struct kv_transport *t, struct parcel *p)
{
    p->m.at = kv_seconds();
    pthread_mutex_lock(&t->lock);
    if (t->heard[p->m.from] > -INFINITY)
        t->heard[p->m.from] = p->m.at;
    if (p->m.tag != BEAT_TAG) {
        append(&t->in, p);
        pthread_cond_signal(&t->changed);
        p = NULL;
    }
    pthread_mutex_unlock(&t->lock);
    if (p)
        free(p->m.bytes);
    free(p);
}

/* Calls done() for each parcel whose MPI request is complete. */
static bool advance(struct kv_transport *t, struct list *l,
                    void (*done)(struct kv_transport *t, struct parcel *p))
{
    struct list rest = {NULL, &rest.first};
    struct parcel *p;
    bool any = false;

    while ((p = take_first(l))) {
        int through = 0;

        const bool broken =
            MPI_Test(&p->request, &through, MPI_STATUS_IGNORE) != 0;

        any = any || through || broken;
        if (broken)
            give_up(t, p);
        else if (through)
            done(t, p);
        else
            append(&rest, p);
    }
    while ((p = take_first(&rest)))
        append(l, p);
    return any;
}

/* Whether the thread may leave.  If some messages are not yet sent, MPI still
 * uses their memory, so it is not freed. */
static bool may_leave(struct kv_transport *t, const struct moving *w)
{
    bool may;

    pthread_mutex_lock(&t->lock);
    may = t->leaving && !t->out.first &&
          ((!w->sent.first && !w->coming.first) ||
           (!t->together && kv_seconds() - t->leaving_since > last_seconds));
    pthread_mutex_unlock(&t->lock);
    return may;
}

static void move(struct kv_transport *t)
{
    struct moving w = {{NULL, &w.sent.first}, {NULL, &w.coming.first}, 0};
    long nap = least_nap;

    while (!may_leave(t, &w)) {
        bool any = post(t, &w);

        beat(t, &w);
        while (accept(t, &w))
            any = true;
        any = advance(t, &w.coming, arrive) || any;
        any = advance(t, &w.sent, forget) || any;
        nap = any ? least_nap : 2 * nap < longest_nap ? 2 * nap : longest_nap;
        if (!any)
            nanosleep(&(struct timespec){0, nap}, NULL);
    }
}

static void *work(void *arg)
{
    struct kv_transport *t = arg;
    int level, self, n;
    const bool failed =
        MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) ||
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN) ||
        MPI_Comm_rank(MPI_COMM_WORLD, &self) ||
        MPI_Comm_size(MPI_COMM_WORLD, &n);

    pthread_mutex_lock(&t->lock);
    t->started = true;
    t->failed = failed;
    if (!failed) {
        t->self = (size_t)self;
        t->n_ranks = (size_t)n;
        t->heard = kv_alloc(t->n_ranks, sizeof(*t->heard));
        for (size_t i = 0; i < t->n_ranks; i++)
            t->heard[i] = kv_seconds();
    }
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
    if (failed)
        return NULL;
    move(t);
    if (t->together)
        MPI_Finalize();
    pthread_mutex_lock(&t->lock);
    t->left = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* ---- the caller's side --------------------------------------------------- */

static struct timespec deadline_in(double seconds)
{
    struct timespec ts;
    const double whole = (double)(long)seconds;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    ts.tv_sec += (time_t)whole;
    ts.tv_nsec += (long)((seconds - whole) * 1e9);
    if (ts.tv_nsec >= 1000000000) {
        ts.tv_nsec -= 1000000000;
        ts.tv_sec++;
    }
    return ts;
}

static struct kv_transport *new_transport(void)
{
    struct kv_transport *t = kv_alloc(1, sizeof(*t));
    pthread_condattr_t attr;

    t->out.end = &t->out.first;
    t->in.end = &t->in.first;
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &attr);
    pthread_condattr_destroy(&attr);
    return t;
}

/* Waits until MPI has started, for a limited time: MPI itself would wait for
 * ever for a rank that has ended. */
static int wait_for_start(struct kv_transport *t, struct kv_err *e)
{
    const double begun = kv_seconds();
    bool started = false;

    while (!started && kv_seconds() - begun < START_SECONDS) {
        const struct timespec tick = deadline_in(0.1);

        if (kv_interrupted(e))
            return -1;
        pthread_mutex_lock(&t->lock);
        if (!t->started)
            pthread_cond_timedwait(&t->changed, &t->lock, &tick);
        started = t->started;
        pthread_mutex_unlock(&t->lock);
    }
    if (!started)
        return kv_fail(e, "MPI does not start within %d s: has a rank ended?",
                       START_SECONDS);
    return t->failed ? kv_fail(e, "MPI does not start") : 0;
}

int kv_transport_start(struct kv_transport **out, struct kv_err *e)
{
    struct kv_transport *t = new_transport();

    *out = NULL;
    if (pthread_create(&t->thread, NULL, work, t)) {
        free(t);
        return kv_fail(e, "no thread can be started");
    }
    if (wait_for_start(t, e))
        return -1; /* the thread keeps t */
    *out = t;
    return 0;
}

size_t kv_transport_ranks(const struct kv_transport *t)
{
    return t->n_ranks;
}

size_t kv_transport_self(const struct kv_transport *t)
{
    return t->self;
}

void kv_transport_send(struct kv_transport *t, size_t to, int tag,
                       uint8_t *bytes, size_t n)
{
    struct parcel *p = kv_alloc(1, sizeof(*p));

    assert(n <= INT_MAX && tag > BEAT_TAG && to < t->n_ranks);
    *p = (struct parcel){.to = to, .m = {.tag = tag, .bytes = bytes, .n = n}};
    pthread_mutex_lock(&t->lock);
    append(&t->out, p);
    pthread_mutex_unlock(&t->lock);
}

bool kv_transport_receive(struct kv_transport *t, struct kv_message *m,
                          double seconds)
{
    const struct timespec until = deadline_in(seconds);
    struct parcel *p;
    int rc = 0;

    pthread_mutex_lock(&t->lock);
    while (!(p = take_first(&t->in)) && seconds > 0 && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&t->changed, &t->lock, &until);
    pthread_mutex_unlock(&t->lock);
    if (p)
        *m = p->m;
    free(p);
    return p;
}

double kv_transport_silence(struct kv_transport *t, size_t rank)
{
    double heard;

    pthread_mutex_lock(&t->lock);
    heard = t->heard[rank];
    pthread_mutex_unlock(&t->lock);
    return kv_seconds() - heard;
}

void kv_transport_stop(struct kv_transport *t, bool together)
{
    const struct timespec until = deadline_in(LEAVE_SECONDS);
    bool left;

    pthread_mutex_lock(&t->lock);
    t->together = together;
    t->leaving_since = kv_seconds();
    t->leaving = true;
    while (!t->left &&
           pthread_cond_timedwait(&t->changed, &t->lock, &until) != ETIMEDOUT)
        ;
    left = t->left;
    pthread_mutex_unlock(&t->lock);
    if (!left)
        return; /* MPI waits for a rank that is gone: the thread keeps t */
    pthread_join(t->thread, NULL);
    drop_all(&t->in);
    drop_all(&t->out);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t->heard);
    free(t);
}
