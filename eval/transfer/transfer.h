/* Answers whose prompts run on some ranks and whose tokens are decoded on
 * others: the cache of a prompt is sent between them, layer by layer, as the
 * messages of lib/seq/cache_bytes.h.
 *
 * Ranks [0, n_prefill) run prompts, the n_decode after them decode.  Rank 0
 * also dispatches: an answer goes to the rank with the fewest tokens of its
 * kind, one after it arrives.
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
 * An answer is made again, twice at most, where a rank was silent too long or
 * has no room for it; a layer that was damaged is sent again, three times at
 * most.  The answers are those of kv_generate(). */
#ifndef KV_TRANSFER_H
#define KV_TRANSFER_H

#include "eval/generate.h"
#include "eval/transfer/transport.h"
#include "lib/base/hash.h"

/* What a test breaks: at the n-th layer (from 1 on; 0: nothing) that this rank
 * sends, a byte; at the n-th that it sends or receives, the rank itself. */
struct kv_transfer_fault {
    size_t alter, end;
};

/* "alter:N" or "end:N"; NULL: nothing. */
int kv_transfer_fault_parse(struct kv_transfer_fault *f, const char *text,
                            struct kv_err *e);

struct kv_transfer {
    struct kv_transport *transport;
    size_t n_prefill, n_decode;
    struct kv_generation generation; /* its ended, layer and arg are not
                                      * read */
    size_t memory;  /* of the caches that a rank decodes, and of the messages
                     * that a rank keeps back */
    double silence; /* seconds after which a silent rank is lost */
    struct kv_transfer_fault fault;
};

/* Times of an answer, in seconds.  queue to seconds sum to jct. */
struct kv_transferred {
    double jct;           /* from its arrival to its last token */
    double queue;         /* until its prompt begins */
    double prompt;        /* until its first token */
    double wait;          /* until there is room where it is decoded */
    double communication; /* until the last byte is there */
    double join;          /* until it is loaded and decoded */
    double seconds;       /* until its last token */
    double encode; /* of prompt: quantizing and writing the messages; NaN where
                    * the prompt attends on codes */
    double load;   /* reading the messages, checked by their hashes */
    double transfer; /* from the first layer that may go, to the last byte */
    double code_bytes, wire_bytes; /* of the caches; of all messages from the
                                    * rank of its prompt to the other */
    double values;                 /* of the prompt's keys and values */
    size_t again;                  /* layers that were sent again */
    size_t attempts;               /* 1: at once */
};

/* An answer to be made: the same list on all ranks. */
struct kv_transfer_job {
    struct kv_answer *answer;
    size_t group;   /* begins when the group before it is done; rising */
    double arrival; /* seconds after its group's beginning; rising in it */
    struct kv_transferred done; /* out, on rank 0 */
};

/* Each rank says that it is ready, and for what (key, which is to be the same
 * on all ranks), or why not.  0: all are.  -1: failed.  1: not on rank 0, which
 * said so to this rank. */
int kv_transfer_meet(const struct kv_transfer *t, const char key[KV_HASH_CHARS],
                     const struct kv_err *why_not, struct kv_err *e);

/* Makes the answers; rank 0 has the results of all.  Returns as
 * kv_transfer_meet() does; fails where an answer cannot be made, naming it and
 * the rank. *lost: whether a rank was lost, for kv_transport_stop(). */
int kv_transfer_run(const struct kv_transfer *t, struct kv_transfer_job *job,
                    size_t n, bool *lost, struct kv_err *e);

/* Ends the other ranks, after either function on rank 0.  lost: a rank is, so
 * that each leaves by itself; why: NULL, or what failed. */
void kv_transfer_end(const struct kv_transfer *t, bool lost, const char *why);

#endif
