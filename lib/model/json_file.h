/* A model's JSON files, read in one way. */
#ifndef KV_MODEL_JSON_FILE_H
#define KV_MODEL_JSON_FILE_H

#include "lib/base/err.h"

#include <jansson.h>
#include <stddef.h>

/* The whole file as JSON, the caller's to json_decref.  A UTF-8 byte order
 * mark is skipped.  NULL with a sentence when it cannot be read, is a Git LFS
 * pointer or UTF-16, is not JSON, and when an object has a key twice: which of
 * the two was meant is not known. */
json_t *kv_json_read(const char *path, struct kv_err *e);

/* Fails when this is what Git LFS leaves in the place of a large file that was
 * not fetched; for files of any kind. */
int kv_lfs_check(const char *path, const void *data, size_t bytes,
                 struct kv_err *e);

#endif
