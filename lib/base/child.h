/* A child process: a shell command with which the program talks over the
 * command's stdin and stdout.
 *
 * Its stderr is passed on to ours as it comes, unless -q is given; the last
 * line is kept for error messages.  The child leads a process group of its own.
 * The whole group ends no later than the program: kv_children_end() runs at
 * exit and when a signal ends the program.  If the program is killed (SIGKILL),
 * its children see the end of their stdin. */
#ifndef KV_BASE_CHILD_H
#define KV_BASE_CHILD_H

#include "lib/base/err.h"

#include <stddef.h>

struct kv_child;

/* Starts `sh -c command`.  Fails when the system has no pipe or process
 * left. */
int kv_child_start(struct kv_child **c, const char *command, struct kv_err *e);
void kv_child_free(struct kv_child *c); /* kills it; NULL is fine */

/* Writes all n bytes, or reads the next n.  silence: seconds without a byte in
 * any direction after which the functions fail; 0: they wait for ever.  They
 * also fail when the child has closed its end.  The sentence gives the reason,
 * how the child ended, and the last line of its stderr; the child is then
 * dead. */
int kv_child_send(struct kv_child *c, const void *data, size_t n,
                  double silence, struct kv_err *e);
int kv_child_read(struct kv_child *c, void *data, size_t n, double silence,
                  struct kv_err *e);

/* Writes an error message about the child, with the last line of its stderr
 * after it, and kills the child.  Returns -1. */
int kv_child_fail(struct kv_child *c, struct kv_err *e, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Ends all children: closes their stdin, and kills the children that are still
 * running after a moment.  Called at the program's end. */
void kv_children_end(void);
/* Kills all children.  Safe in a signal handler. */
void kv_children_kill(void);

#endif
