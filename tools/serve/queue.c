#include "tools/serve/queue.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double moment = 0.2; /* seconds */

struct kv_queue {
    pthread_mutex_t lock;
    pthread_cond_t wake;         /* the decoding thread */
    struct kv_job *first, *last; /* jobs put and not yet taken */
    size_t most;
    double end; /* in kv_seconds() */
    bool woken;
    struct kv_queue_counts counts;
};

static void init_condition(pthread_cond_t *c)
{
    pthread_condattr_t a;

    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(c, &a);
    pthread_condattr_destroy(&a);
}

static struct timespec in(double seconds)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)seconds;
    t.tv_nsec += (long)((seconds - floor(seconds)) * 1e9);
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

void kv_job_init(struct kv_job *j, size_t n)
{
    *j = (struct kv_job){.n = n};
    j->answer = kv_alloc(n, sizeof(*j->answer));
    j->seen = kv_alloc(n, 3 * sizeof(*j->seen));
    j->shared = j->seen + n;
    j->mine = j->shared + n;
    init_condition(&j->changed);
}

void kv_job_clear(struct kv_job *j)
{
    if (!j->answer)
        return;
    for (size_t i = 0; i < j->n; i++)
        kv_answer_clear(&j->answer[i]);
    free(j->answer);
    free(j->seen);
    pthread_cond_destroy(&j->changed);
}

struct kv_queue *kv_queue_new(size_t most)
{
    struct kv_queue *q = kv_alloc(1, sizeof(*q));

    q->most = most;
    q->end = INFINITY;
    pthread_mutex_init(&q->lock, NULL);
    init_condition(&q->wake);
    return q;
}

void kv_queue_free(struct kv_queue *q)
{
    pthread_cond_destroy(&q->wake);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

/* Wakes the decoding thread; the caller holds the lock. */
static void wake(struct kv_queue *q)
{
    q->woken = true;
    pthread_cond_signal(&q->wake);
}

enum kv_put kv_queue_put(struct kv_queue *q, struct kv_job *j)
{
    enum kv_put put = KV_PUT_DONE;

    pthread_mutex_lock(&q->lock);
    if (q->counts.ending)
        put = KV_PUT_ENDING;
    else if (q->counts.jobs == q->most)
        put = KV_PUT_FULL;
    else {
        if (q->first)
            q->last->next = j;
        else
            q->first = j;
        q->last = j;
        q->counts.jobs++;
        wake(q);
    }
    pthread_mutex_unlock(&q->lock);
    return put;
}

bool kv_job_wait(struct kv_queue *q, struct kv_job *j, double seconds)
{
    const struct timespec until = in(seconds);
    bool news;

    pthread_mutex_lock(&q->lock);
    while (!j->news && !pthread_cond_timedwait(&j->changed, &q->lock, &until))
        ;
    news = j->news;
    j->news = j->over = j->is_over;
    memcpy(j->seen, j->shared, j->n * sizeof(*j->seen));
    pthread_mutex_unlock(&q->lock);
    return news;
}

void kv_job_leave(struct kv_queue *q, struct kv_job *j)
{
    pthread_mutex_lock(&q->lock);
    j->left = true;
    wake(q);
    while (!j->is_over)
        pthread_cond_wait(&j->changed, &q->lock);
    j->over = true;
    memcpy(j->seen, j->shared, j->n * sizeof(*j->seen));
    pthread_mutex_unlock(&q->lock);
}

void kv_queue_end(struct kv_queue *q, double seconds)
{
    pthread_mutex_lock(&q->lock);
    q->counts.ending = true;
    q->end = fmin(q->end, kv_seconds() + seconds);
    wake(q);
    pthread_mutex_unlock(&q->lock);
}

struct kv_queue_counts kv_queue_counts(struct kv_queue *q)
{
    struct kv_queue_counts c;

    pthread_mutex_lock(&q->lock);
    c = q->counts;
    pthread_mutex_unlock(&q->lock);
    return c;
}

struct kv_job *kv_queue_take(struct kv_queue *q)
{
    struct kv_job *j;

    pthread_mutex_lock(&q->lock);
    j = q->first;
    if (j)
        q->first = j->next;
    pthread_mutex_unlock(&q->lock);
    return j;
}

bool kv_queue_left(struct kv_queue *q, const struct kv_job *j)
{
    bool left;

    pthread_mutex_lock(&q->lock);
    left = j->left;
    pthread_mutex_unlock(&q->lock);
    return left;
}

void kv_queue_publish(struct kv_queue *q, struct kv_job *j)
{
    if (!j->each_token)
        return;
    pthread_mutex_lock(&q->lock);
    if (memcmp(j->shared, j->mine, j->n * sizeof(*j->mine)) != 0) {
        memcpy(j->shared, j->mine, j->n * sizeof(*j->mine));
        j->news = true;
        pthread_cond_signal(&j->changed);
    }
    pthread_mutex_unlock(&q->lock);
}

void kv_queue_over(struct kv_queue *q, struct kv_job *j, int status,
                   const struct kv_err *why)
{
    pthread_mutex_lock(&q->lock);
    memcpy(j->shared, j->mine, j->n * sizeof(*j->mine));
    j->status = status;
    if (why)
        j->why = *why;
    j->is_over = j->news = true;
    q->counts.jobs--;
    pthread_cond_signal(&j->changed);
    pthread_mutex_unlock(&q->lock);
}

void kv_queue_note(struct kv_queue *q, size_t waiting, size_t decoding)
{
    pthread_mutex_lock(&q->lock);
    q->counts.waiting = waiting;
    q->counts.decoding = decoding;
    pthread_mutex_unlock(&q->lock);
}

void kv_queue_sleep(struct kv_queue *q)
{
    const struct timespec until = in(moment);

    pthread_mutex_lock(&q->lock);
    while (!q->woken && !pthread_cond_timedwait(&q->wake, &q->lock, &until))
        ;
    q->woken = false;
    pthread_mutex_unlock(&q->lock);
}

double kv_queue_rest(struct kv_queue *q)
{
    double end;

    pthread_mutex_lock(&q->lock);
    end = q->end;
    pthread_mutex_unlock(&q->lock);
    return end - kv_seconds();
}
