/* The files of a model's folder. */
#ifndef KV_MODEL_FILES_H
#define KV_MODEL_FILES_H

#include "lib/base/err.h"
#include "lib/base/hash.h"

#include <stdbool.h>

/* Whether a file of this name in a model's folder belongs to the model: kvtools
 * looks for it, or other programs read it from such folders.  Texts, results,
 * layer files and dumps in the folder do not belong to it.  (A shard with an
 * unusual name in the index is known once it is open.) */
bool kv_model_holds(const char *name);

/* dir/name; the caller frees it.  Every path of a model's file except weights
 * comes from here (scripts/check_layers).  Aborts on a name that
 * kv_model_files_hash() does not know. */
char *kv_model_file(const char *dir, const char *name);

/* Adds to h the names and contents of the folder's files of these kinds:
 * config, the vocabulary that is read, added and special tokens, chat template,
 * end tokens.  Adds nothing if path is a GGUF file, since its header has all of
 * these. */
int kv_model_files_hash(struct kv_hash *h, const char *path, struct kv_err *e);

/* Fails if nothing is at path.  Also fails, with the path to use instead, on a
 * folder that has GGUF files and no config.json, and on a file inside a model's
 * folder. */
int kv_model_check_path(const char *path, struct kv_err *e);

#endif
