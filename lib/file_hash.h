/* A hash of whole files, read by all threads at the rate of memory. */
#ifndef KV_FILE_HASH_H
#define KV_FILE_HASH_H

#include "lib/base/err.h"
#include "lib/base/hash.h"

#include <stdint.h>

/* Adds a file's content to h, as
 *
 *   | size: u64, little endian | code of leaf 0 | code of leaf 1 | ...
 *
 * A leaf is 256 KiB of the file, the last one the rest; its code is
 * kv_hash_leaf()'s, 16 bytes.  So every byte counts, in files of any size, and
 * the number of threads does not.  Keeps 256 KiB a thread; not from inside a
 * parallel region.  Fails when the file has more than max bytes, cannot be
 * read, was changed meanwhile, and on Ctrl-C. */
int kv_hash_add_file(struct kv_hash *h, const char *path, uint64_t max,
                     struct kv_err *e);

#endif
