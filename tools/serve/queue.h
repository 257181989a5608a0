/* Requests on their way from connections, many threads, to the one that
 * decodes. */
#ifndef KV_SERVE_QUEUE_H
#define KV_SERVE_QUEUE_H

#include "eval/answer.h"

#include <pthread.h>
#include <stdbool.h>

/* How far an answer is. */
struct kv_made {
    size_t tokens;
    bool ended;
};

/* A request's answers, of one spec.  spec, answer's inputs and each_token are
 * the connection's to set; results of an answer may be read up to
 * seen[i].tokens, and in full where seen[i].ended. */
struct kv_job {
    struct kv_spec spec;
    struct kv_answer *answer; /* [n], cleared */
    size_t n;
    bool each_token; /* news at each token; else at the end alone */

    struct kv_made *seen; /* [n] the connection's copy, by kv_job_wait() */
    bool over;  /* the decoding thread is through with it: another copy */
    int status; /* then: HTTP status; 200, or why names the failure */
    struct kv_err why;

    struct kv_made *shared; /* [n] under the queue's lock */
    bool is_over, left, news;
    pthread_cond_t changed;
    struct kv_job *next;

    struct kv_made *mine; /* [n] the decoding thread's, until it publishes */
    size_t n_added;
    void *opened;
};

void kv_job_init(struct kv_job *j, size_t n);
/* Frees the answers too.  The job is not in a queue. */
void kv_job_clear(struct kv_job *j);

struct kv_queue;

/* most: jobs that are not over. */
struct kv_queue *kv_queue_new(size_t most);
void kv_queue_free(struct kv_queue *q);

/* ---- connections --------------------------------------------------------- */

enum kv_put { KV_PUT_DONE, KV_PUT_FULL, KV_PUT_ENDING };

/* j stays where it is until it is over. */
enum kv_put kv_queue_put(struct kv_queue *q, struct kv_job *j);
/* Waits for news at most this long; whether there are any.  A job that is over
 * is news again and again. */
bool kv_job_wait(struct kv_queue *q, struct kv_job *j, double seconds);
/* Nobody wants the rest.  Returns when the job is over. */
void kv_job_leave(struct kv_queue *q, struct kv_job *j);

/* Refuses further jobs; jobs in the queue may go on for `seconds`. */
void kv_queue_end(struct kv_queue *q, double seconds);

struct kv_queue_counts {
    size_t jobs;              /* unfinished jobs */
    size_t waiting, decoding; /* answers */
    bool ending;
};
struct kv_queue_counts kv_queue_counts(struct kv_queue *q);

/* ---- the decoding thread ------------------------------------------------- */

/* The next job that was put, or NULL. */
struct kv_job *kv_queue_take(struct kv_queue *q);
bool kv_queue_left(struct kv_queue *q, const struct kv_job *j);
/* j->mine becomes what the connection sees. */
void kv_queue_publish(struct kv_queue *q, struct kv_job *j);
/* The job is over, and from here on the connection's: 200, or another status
 * and why. */
void kv_queue_over(struct kv_queue *q, struct kv_job *j, int status,
                   const struct kv_err *why);
/* For kv_queue_counts(). */
void kv_queue_note(struct kv_queue *q, size_t waiting, size_t decoding);
/* Until something is put, left or ended, a moment at most. */
void kv_queue_sleep(struct kv_queue *q);
/* Seconds that are left after kv_queue_end(); infinite before. */
double kv_queue_rest(struct kv_queue *q);

#endif
