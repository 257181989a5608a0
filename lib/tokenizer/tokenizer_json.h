/* Members of a JSON object, their types checked.
 *
 * Each returns 0, or -1 with a sentence naming the key; callers put before it
 * where the object stands.  What is returned belongs to the JSON. */
#ifndef KV_MODEL_TOKENIZER_JSON_H
#define KV_MODEL_TOKENIZER_JSON_H

#include "lib/base/err.h"

#include <jansson.h>
#include <stdbool.h>

/* Fails on a member that is none of the names, which stand in one string with
 * spaces between: it may change ids, and nobody would look at it.  What is null
 * says nothing. */
int kv_field_only(const json_t *o, const char *names, struct kv_err *e);

/* Must be there. */
int kv_field_string(const json_t *o, const char *key, const char **value,
                    struct kv_err *e);
int kv_field_array(const json_t *o, const char *key, json_t **value,
                   struct kv_err *e);
int kv_field_object(const json_t *o, const char *key, json_t **value,
                    struct kv_err *e);

/* May be absent or null: the value is then `otherwise`. */
int kv_field_flag(const json_t *o, const char *key, bool otherwise, bool *value,
                  struct kv_err *e);
int kv_field_string_or(const json_t *o, const char *key, const char *otherwise,
                       const char **value, struct kv_err *e);

/* An integer from 0 to limit - 1. */
int kv_field_count(const json_t *o, const char *key, size_t limit,
                   size_t *value, struct kv_err *e);

#endif
