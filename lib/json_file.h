/* The one reader of JSON files, JSON lines and request bodies. */
#ifndef KV_MODEL_JSON_FILE_H
#define KV_MODEL_JSON_FILE_H

#include "lib/base/err.h"

#include <jansson.h>

/* The whole file as JSON; the caller calls json_decref().  NULL with a sentence
 * when the file is not text (lib/base/text.h) or not JSON, and when an object
 * has a key twice. */
json_t *kv_json_read(const char *path, struct kv_err *e);

/* kv_json_read() for one line of a JSON-lines file.  text: [bytes], may be
 * changed.  line: the line's number, from 1 on, for error messages. */
json_t *kv_json_line(const char *path, size_t line, char *text, size_t bytes,
                     struct kv_err *e);

#endif
