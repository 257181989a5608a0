/* Ranks that share the windows of a perplexity: mpirun starts one program
 * several times, each takes windows that follow each other, and the first has
 * the scores of all.  It alone sums them, in order, so that a row's numbers do
 * not depend on how many ranks there are.
 *
 * Or they share the layers: all windows pass the layers of one rank after the
 * other's, and the last, which has the head, scores them. */
#ifndef KV_RANKS_H
#define KV_RANKS_H

#include "eval/transfer/transport.h"

struct kv_ranks {
    struct kv_transport *transport;
    size_t self, n;
    struct kv_message *arrived; /* [n]: from each rank, one at a time; bytes
                                 * NULL: none */
    bool told;                  /* another rank says the sentence */
    bool by_layers;
    struct kv_message states; /* from the rank before; bytes NULL: none */
    bool untaken;             /* what was passed on last */
    size_t messages, bytes;   /* sent and received */
};

/* Joins the run; without mpirun there is one rank. */
int kv_ranks_start(struct kv_ranks *r, struct kv_err *e);

/* Leaves it; why: NULL, or the sentence of an error, which the others get. */
void kv_ranks_stop(struct kv_ranks *r, const char *why);

/* Copies the first rank's row [n] to all ranks if each sends the same key
 * (lines of "name value"); else all fail, naming the first line that differs.
 */
int kv_ranks_meet(struct kv_ranks *r, const char *key, uint8_t *row, size_t n,
                  struct kv_err *e);

/* Where the windows of n begin that a rank scores; rank r->n: n. */
size_t kv_ranks_first(const struct kv_ranks *r, size_t rank, size_t n);

/* The first gets the parts of all: rank i's is all + at[i] to all + at[i + 1],
 * in bytes.  The others wait until it has.  at: [r->n + 1]. */
int kv_ranks_gather(struct kv_ranks *r, void *all, const size_t *at,
                    struct kv_err *e);

/* The first gets bytes [n] of each other in part [r->n], whose bytes the caller
 * frees; the others wait until it has.  Takes bytes (of kv_alloc()). */
int kv_ranks_collect(struct kv_ranks *r, uint8_t *bytes, size_t n,
                     struct kv_message *part, struct kv_err *e);

/* From here on the ranks share the layers of the model: each runs its own (of
 * kv_model_split()).  Hidden states are passed on a message ahead.  Fails with
 * more ranks than layers. */
struct kv_model;
int kv_ranks_by_layers(struct kv_ranks *r, struct kv_model *m,
                       struct kv_err *e);

/* Returns when all ranks have called it. */
int kv_ranks_wait(struct kv_ranks *r, struct kv_err *e);

/* Fails when another rank has, or has said nothing for some seconds. */
int kv_ranks_check(struct kv_ranks *r, struct kv_err *e);

#endif
