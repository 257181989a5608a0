/* The queue of requests from many connection threads to the one decoding
 * thread. */
#ifndef KV_SERVE_QUEUE_H
#define KV_SERVE_QUEUE_H

#include "eval/answer.h"

#include <pthread.h>
#include <stdbool.h>

/* The progress of an answer: its tokens so far, and whether it has ended. */
struct kv_made {
    size_t tokens;
    bool ended;
};

/* The answers to one request, all with one spec.  The connection sets spec, the
 * answers' inputs and each_token.  It may read an answer's results up to
 * seen[i].tokens, and all of them if seen[i].ended. */
struct kv_job {
    struct kv_spec spec;
    struct kv_answer *answer; /* [n], cleared */
    size_t n;
    bool each_token; /* news at each token; else only at the end */

    struct kv_made *seen; /* [n] the connection's copy, by kv_job_wait() */
    bool over;  /* the connection's copy of is_over: the decoding thread is
                 * done */
    int status; /* HTTP status once over: 200, or why names the failure */
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
/* Frees the answers too.  The job must not be in a queue. */
void kv_job_clear(struct kv_job *j);

struct kv_queue;

/* most: the most jobs that are not over at a time. */
struct kv_queue *kv_queue_new(size_t most);
void kv_queue_free(struct kv_queue *q);

/* ---- connections --------------------------------------------------------- */

enum kv_put { KV_PUT_DONE, KV_PUT_FULL, KV_PUT_ENDING };

/* Puts a job into the queue, which keeps j by pointer until the job is over. */
enum kv_put kv_queue_put(struct kv_queue *q, struct kv_job *j);
/* Waits for news at most this long; returns whether there is any.  A job that
 * is over always has news. */
bool kv_job_wait(struct kv_queue *q, struct kv_job *j, double seconds);
/* Gives up the rest of the job's answers.  Returns when the job is over. */
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

/* Takes the next job from the queue, or returns NULL. */
struct kv_job *kv_queue_take(struct kv_queue *q);
bool kv_queue_left(struct kv_queue *q, const struct kv_job *j);
/* Publishes j->mine, so that the connection sees it. */
void kv_queue_publish(struct kv_queue *q, struct kv_job *j);
/* Ends the job with status 200, or with another status and why.  From here on
 * the job belongs to its connection. */
void kv_queue_over(struct kv_queue *q, struct kv_job *j, int status,
                   const struct kv_err *why);
/* Sets the counts of answers that kv_queue_counts() returns. */
void kv_queue_note(struct kv_queue *q, size_t waiting, size_t decoding);
/* Sleeps until a job is put or left or the queue ends, but only a moment. */
void kv_queue_sleep(struct kv_queue *q);
/* Seconds that are left after kv_queue_end(); infinite before. */
double kv_queue_rest(struct kv_queue *q);

#endif
