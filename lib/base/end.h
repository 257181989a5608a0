/* Ends the program on an error that cannot be returned to the caller. */
#ifndef KV_BASE_END_H
#define KV_BASE_END_H

/* Prints the sentence on stderr and ends the program; if several threads call
 * it, the first one does.  The library calls abort(); a tool exits with 2
 * (lib/base/opt.h). */
_Noreturn void kv_end(const char *fmt, ...)
    __attribute__((format(printf, 1, 2)));

/* kv_end() calls `by` after it prints the sentence.  Call this once, before any
 * thread starts. */
void kv_end_by(void (*by)(void));

#endif
