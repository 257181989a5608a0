/* Answers whose prompts run on some ranks and whose tokens are decoded on
 * others: the cache of a prompt is sent between them, layer by layer, as the
 * messages of lib/seq/cache_bytes.h.
 *
 * Ranks [0, n_prefill) run prompts, the next n_decode ranks decode.  Rank 0
 * also dispatches: an answer that has arrived goes to the rank of each kind
 * with the fewest tokens.
 *
 *   rank 0 --PROMPT--> prefill --ASK--> decode       may its cache come?
 *                      prefill <-GRANT- decode       there is room for it
 *                      prefill -LAYER-> decode       each as it is ready
 *                      prefill <-AGAIN- decode       it was damaged
 *                      prefill -FIRST-> decode       the first new token
 *   rank 0 <-PREFILLED- prefill                      its prompt has run
 *                      prefill <-LOADED- decode      nothing is sent again
 *   rank 0 <----------DONE----------- decode         the answer
 *   rank 0 <--FAILED-- either                        it cannot be
 *   rank 0 --DROP--> either                          another rank makes it
 *   rank 0 --END--> all
 *
 * If a rank was silent too long or has no room for an answer, the answer is
 * made again, twice at most; a damaged layer is sent again, three times at
 * most.  The answers equal kv_generate()'s. */
#ifndef KV_TRANSFER_H
#define KV_TRANSFER_H

#include "eval/generate.h"
#include "eval/transfer/transport.h"
#include "lib/base/hash.h"

/* Faults for tests: alter: changes a byte of the n-th layer that this rank
 * sends, counted from 1; 0: none.  end: the rank ends at the n-th layer that it
 * sends or receives. */
struct kv_transfer_fault {
    size_t alter, end;
};

/* Reads "alter:N" or "end:N"; text NULL: no fault. */
int kv_transfer_fault_parse(struct kv_transfer_fault *f, const char *text,
                            struct kv_err *e);

struct kv_transfer {
    struct kv_transport *transport;
    size_t n_prefill, n_decode;
    struct kv_generation generation; /* its members ended, layer and arg are
                                      * ignored */
    size_t memory;  /* limit for the caches that a rank decodes, and for the
                     * messages that a rank holds back */
    double silence; /* seconds after which a silent rank is lost */
    struct kv_transfer_fault fault;
};

/* Times of an answer, in seconds.  queue to seconds sum to jct. */
struct kv_transferred {
    double jct;           /* from its arrival to its last token */
    double queue;         /* until its prompt begins */
    double prompt;        /* until its first token */
    double wait;          /* until the decoding rank has room */
    double communication; /* until the last byte arrives */
    double join;          /* until it is loaded and decoded */
    double seconds;       /* until its last token */
    double encode; /* part of prompt: quantizing and writing the messages; NaN
                    * if the prompt attends on codes */
    double load;   /* time of reading the messages and checking their hashes */
    double transfer; /* from the first layer's release to the last byte */
    double code_bytes, wire_bytes; /* of the caches; of all messages from the
                                    * prompt's rank to the decoding rank */
    double values;                 /* values in the prompt's cache */
    size_t again;                  /* layers that were sent again */
    size_t attempts;               /* times that the prompt was run */
};

/* An answer to be made; all ranks have the same list of jobs. */
struct kv_transfer_job {
    struct kv_answer *answer;
    size_t group;   /* a group begins when the previous group is done;
                     * ascending */
    double arrival; /* seconds after its group's beginning; ascending in the
                     * group */
    struct kv_transferred done; /* out, on rank 0 */
};

/* Each rank reports that it is ready, with a key that must be the same on all
 * ranks, or why it is not.  Returns 0 if all are ready, -1 on failure, and 1 on
 * a rank that rank 0 has told of the failure. */
int kv_transfer_meet(const struct kv_transfer *t, const char key[KV_HASH_CHARS],
                     const struct kv_err *why_not, struct kv_err *e);

/* Makes the answers; rank 0 gets all results.  Returns as kv_transfer_meet()
 * does; fails if an answer cannot be made, naming the answer and the rank.
 * *lost: whether a rank was lost, for kv_transport_stop(). */
int kv_transfer_run(const struct kv_transfer *t, struct kv_transfer_job *job,
                    size_t n, bool *lost, struct kv_err *e);

/* Ends the other ranks, after either function, on rank 0.  lost: a rank was
 * lost, so each rank leaves by itself; why: NULL, or the sentence of the
 * failure. */
void kv_transfer_end(const struct kv_transfer *t, bool lost, const char *why);

#endif
