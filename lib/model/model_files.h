/* The files of a model's folder. */
#ifndef KV_MODEL_FILES_H
#define KV_MODEL_FILES_H

#include "lib/base/err.h"
#include "lib/base/hash.h"

#include <stdbool.h>

/* Whether a file of this name in a model's folder is one of the model: what is
 * looked for here, there or not, and what other programs read of such a folder.
 * Texts, results, layer files and dumps may lie there and are none.  (A shard
 * that the index gives a name of another kind is known once it is open.) */
bool kv_model_holds(const char *name);

/* dir/name, the caller's to free: the path of every file beside the weights
 * that is read or looked for (scripts/check_layers).  Aborts on a name that
 * kv_model_files_hash() does not know. */
char *kv_model_file(const char *dir, const char *name);

/* Adds name and content of each of these files that the folder has: config,
 * vocabulary (of several that one which is read), added and special tokens,
 * chat template, end tokens.  Nothing where path is a file, whose header has
 * all of that. */
int kv_model_files_hash(struct kv_hash *h, const char *path, struct kv_err *e);

#endif
