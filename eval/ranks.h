/* Ranks that share the windows of a perplexity run: mpirun starts the program
 * several times.  Each rank takes consecutive windows, and the first rank gets
 * all scores.  Only the first rank sums them, in order, so a row's numbers do
 * not depend on the number of ranks.
 *
 * Or the ranks share the layers: all windows pass the first rank's layers, then
 * the next rank's.  The last rank has the head and scores the windows. */
#ifndef KV_RANKS_H
#define KV_RANKS_H

#include "eval/transfer/transport.h"

struct kv_ranks {
    struct kv_transport *transport;
    size_t self, n;
    struct kv_message *arrived; /* [n]: a message from each rank, one at a time;
                                 * bytes NULL: none */
    bool told;                  /* the sentence of an error is printed */
    bool other_failed;          /* another rank has said that it failed */
    bool by_layers;
    struct kv_message states; /* the message from the previous rank; bytes NULL:
                               * none */
    bool untaken;             /* the next rank has not yet taken the last
                               * states */
    size_t messages, bytes;   /* sent and received */
};

/* Joins the run; without mpirun there is one rank. */
int kv_ranks_start(struct kv_ranks *r, struct kv_err *e);

/* Leaves the run; why: NULL, or the sentence of an error, which the other ranks
 * get.  The first rank prints it before any rank ends, since mpirun then ends
 * all.  A rank that gets no answer from the first rank in time prints its own
 * sentence, which the first rank may print too. */
void kv_ranks_stop(struct kv_ranks *r, const char *why);

/* Copies the first rank's row [n] to all ranks if all send the same key (lines
 * of "name value"); otherwise all fail, naming the first line that differs.
 */
int kv_ranks_meet(struct kv_ranks *r, const char *key, uint8_t *row, size_t n,
                  struct kv_err *e);

/* The first of n windows that a rank scores; for rank r->n: n. */
size_t kv_ranks_first(const struct kv_ranks *r, size_t rank, size_t n);

/* The first rank receives the parts of all ranks; rank i's bytes are all +
 * at[i] to all + at[i + 1].  The other ranks wait until the first rank has
 * them.  at: [r->n + 1]. */
int kv_ranks_gather(struct kv_ranks *r, void *all, const size_t *at,
                    struct kv_err *e);

/* The first rank receives bytes [n] of each other rank in part [r->n], whose
 * bytes the caller frees; the other ranks wait until the first rank has them.
 * Takes bytes (of kv_alloc()). */
int kv_ranks_collect(struct kv_ranks *r, uint8_t *bytes, size_t n,
                     struct kv_message *part, struct kv_err *e);

/* Makes the ranks share the layers of the model: each runs its own layers
 * (kv_model_split()).  Hidden states are sent one message ahead.  Fails with
 * more ranks than layers. */
struct kv_model;
int kv_ranks_by_layers(struct kv_ranks *r, struct kv_model *m,
                       struct kv_err *e);

/* Returns when all ranks have called it. */
int kv_ranks_wait(struct kv_ranks *r, struct kv_err *e);

/* Fails if another rank has failed, or has sent nothing for some seconds. */
int kv_ranks_check(struct kv_ranks *r, struct kv_err *e);

#endif
