/* Shared by input.c, input_read.c, output.c, opt_files.c, signals.c and
 * waits.c. */
#ifndef KV_BASE_FILE_IMPL_H
#define KV_BASE_FILE_IMPL_H

#include "lib/base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct kv_input {
    struct kv_input *next;
    char *path; /* NULL: the entry is free for reuse */
    struct stat was;
    int fd;                      /* the descriptor while the file is open, else
                                  * -1 */
    bool changed;                /* the file was changed before it was closed */
    const uint8_t *_Atomic data; /* [was.st_size], the mapping, or NULL */
};

/* Makes an input from an open regular file.  The input owns fd from now on; on
 * failure fd is closed. */
int kv_input_add(struct kv_input **in, const char *path, int fd,
                 const struct stat *st, struct kv_err *e);
int kv_input_fail_changed(const char *path, struct kv_err *e);

/* The name of the input that is this file; NULL when no input is, or no inputs
 * are guarded. */
const char *kv_input_that_is(const struct stat *st);

/* The name of the input that is mapped at this address, NULL without one;
 * *shortened: the file no longer reaches so far.  Safe in a signal handler. */
const char *kv_input_at(const void *address, bool *shortened);

/* The target of an output of this name: the end of its links, which need not
 * exist, or a link of /proc to an open descriptor.  The caller's to free; NULL,
 * with errno, if links are circular. */
char *kv_out_target(const char *path);

/* Fails, before anything is opened, when an output of this name is impossible:
 * circular links, a closed descriptor. */
int kv_out_check(const char *path, struct kv_err *e);

/* Removes all unfinished outputs.  Safe in a signal handler. */
void kv_temporaries_remove(void);

extern atomic_int kv_stop;     /* the signal that asked to end, or 0 */
extern atomic_uint kv_waiting; /* calls that wait for others now */

#endif
