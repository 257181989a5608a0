/* A model's JSON files, read in one way. */
#ifndef KV_MODEL_JSON_FILE_H
#define KV_MODEL_JSON_FILE_H

#include "lib/base/err.h"

#include <jansson.h>

/* The whole file as JSON, the caller's to json_decref.  NULL with a sentence
 * when it is no text (lib/base/text.h), is not JSON, and when an object has a
 * key twice: which of the two was meant is not known. */
json_t *kv_json_read(const char *path, struct kv_err *e);

/* The same of a line of JSON lines, text [bytes], which may change; its number,
 * from 1 on, is in the sentence. */
json_t *kv_json_line(const char *path, size_t line, char *text, size_t bytes,
                     struct kv_err *e);

#endif
