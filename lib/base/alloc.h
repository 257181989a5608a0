/* Host memory.  Running out of it ends the program, as a research run cannot
 * recover; a sentence names the bytes asked for.  The library calls abort(); a
 * tool exits with 2 (lib/base/opt.h). */
#ifndef KV_BASE_ALLOC_H
#define KV_BASE_ALLOC_H

#include <stddef.h>

/* n * size zeroed bytes, the product checked; release with free().
 * n or size 0 gives a pointer that may be freed but not read. */
void *kv_alloc(size_t n, size_t size);

/* Resizes p (NULL is fine) to n * size bytes; new bytes are not cleared. */
void *kv_realloc(void *p, size_t n, size_t size);

/* n * size zeroed bytes at the start of a cache line, from 4 MiB on in huge
 * pages if the system gives them (a core reads twice as fast from huge pages);
 * release with free().  Returns NULL if n * size is 0. */
void *kv_lines(size_t n, size_t size);

/* kv_lines() without zeroing, so that a page is placed on the memory node
 * (NUMA) of the thread that first writes to it. */
void *kv_lines_unset(size_t n, size_t size);

/* Ends the program with the message that n * size bytes cannot be allocated;
 * for libraries that report this. */
_Noreturn void kv_memory_end(size_t n, size_t size);

/* kv_memory_end() calls `by` after it prints the sentence.  Call this once,
 * before any thread starts. */
void kv_memory_end_by(void (*by)(void));

/* Ends the program, as running out of memory does, unless these bytes are
 * available now.  Call it before a library that would crash, hang or exit
 * without them.  what: the library, for the sentence.  Costs nothing where
 * nothing limits the address space (ulimit -v, no overcommitting). */
void kv_memory_probe(size_t bytes, const char *what);

/* The number of items that fit in memory bytes (--memory), at most max.  If not
 * even one item fits, returns 1 and warns, once.  what: an item's name. */
size_t kv_memory_fit(size_t memory, size_t item_bytes, size_t max,
                     const char *what);

/* kv_memory_fit() where threads work on the items: the n_parts parts of each
 * item run side by side, and each thread takes busy_bytes for its part. */
size_t kv_memory_fit_threads(size_t memory, size_t item_bytes, size_t n_parts,
                             size_t busy_bytes, size_t threads, size_t max,
                             const char *what);

/* Returns a copy of the string, or of its first n bytes with a final zero. */
char *kv_strdup(const char *s);
char *kv_strndup(const char *s, size_t n);

#endif
