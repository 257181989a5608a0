/* The processes of an exec scheme's command, which speak the protocol of
 * docs/exec.md.  There are as many processes as threads that ask at the same
 * time.  A process ends with the program, or when it fails. */
#ifndef KV_EXEC_POOL_H
#define KV_EXEC_POOL_H

#include "lib/exec.h"

#include <stddef.h>
#include <stdint.h>

enum kv_exec_kind {
    KV_EXEC_ERROR, /* only in answers: an error sentence */
    KV_EXEC_HELLO,
    KV_EXEC_OPEN,
    KV_EXEC_TRAIN,
    KV_EXEC_ENCODE,
    KV_EXEC_DECODE,
    KV_EXEC_CLOSE /* has no answer */
};

/* The pool of this command's processes, kept until the program ends; no process
 * is started yet. */
struct kv_exec_pool *kv_exec_pool_of(const char *command);

/* The process's answer to an OPEN request. */
struct kv_exec_layout {
    size_t block, bytes; /* tokens of a block; its bytes, or their maximum */
    double declared;     /* bits per value that the process declares; 0:
                          * counted */
    bool varies;         /* blocks differ in size */
    bool pre_rope, batched, trains;
};

/* A layer and side that is open in the processes. */
struct kv_exec_place;

/* Opens a layer and side in one process; other processes open it at their first
 * request.  tables: trained values, f32 [n]; NULL: none. */
int kv_exec_place_new(struct kv_exec_place **p, const struct kv_spec *spec,
                      const struct kv_shape *shape, size_t layer,
                      enum kv_side side, const float *tables, size_t n,
                      struct kv_err *e);
void kv_exec_place_free(struct kv_exec_place *p); /* NULL is fine */
const struct kv_exec_layout *kv_exec_layout(const struct kv_exec_place *p);

/* Sends a request (a head of head_bytes, then data) and returns its answer in
 * *answer [*n], the caller's to free.  Any number of threads may call it.
 * Fails if the process fails, or with the process's own error sentence. */
struct kv_exec_request {
    enum kv_exec_kind kind;
    const void *head, *data;
    size_t head_bytes, bytes;
    size_t at_most; /* bytes of the answer */
};
int kv_exec_ask(const struct kv_exec_place *p, const struct kv_exec_request *r,
                void **answer, size_t *n, struct kv_err *e);

/* Fails with a sentence that says that the answer to a request is wrong. */
int kv_exec_wrong(const struct kv_exec_place *p, enum kv_exec_kind kind,
                  struct kv_err *e, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
