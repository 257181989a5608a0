/* A hash of whole files, which all threads read at memory bandwidth. */
#ifndef KV_FILE_HASH_H
#define KV_FILE_HASH_H

#include "lib/base/err.h"
#include "lib/base/hash.h"

#include <stdint.h>

/* Adds a file's content to h, as
 *
 *   | size: u64, little endian | code of leaf 0 | code of leaf 1 | ...
 *
 * A leaf is 256 KiB of the file, the last leaf the rest; its code is the 16
 * bytes of kv_hash_leaf().  So the hash covers every byte, and does not depend
 * on the number of threads.  Needs 256 KiB a thread.  Not to be called inside a
 * parallel region.  Fails when the file has more than max bytes, cannot be
 * read or was changed meanwhile, and on Ctrl-C. */
int kv_hash_add_file(struct kv_hash *h, const char *path, uint64_t max,
                     struct kv_err *e);

#endif
