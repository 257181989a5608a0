/* Members of a JSON object, with checked types.
 *
 * Each function returns 0, or -1 with a sentence that names the key; callers
 * put the object's name before it.  Returned values belong to the JSON. */
#ifndef KV_MODEL_TOKENIZER_JSON_H
#define KV_MODEL_TOKENIZER_JSON_H

#include "lib/base/err.h"

#include <jansson.h>
#include <stdbool.h>

/* Fails on a member that is not among the names (one string, separated by
 * spaces), since an ignored member could change ids.  Members that are null are
 * accepted. */
int kv_field_only(const json_t *o, const char *names, struct kv_err *e);

/* The member must exist. */
int kv_field_string(const json_t *o, const char *key, const char **value,
                    struct kv_err *e);
int kv_field_array(const json_t *o, const char *key, json_t **value,
                   struct kv_err *e);
int kv_field_object(const json_t *o, const char *key, json_t **value,
                    struct kv_err *e);

/* If the member is absent or null, the value is `otherwise`. */
int kv_field_flag(const json_t *o, const char *key, bool otherwise, bool *value,
                  struct kv_err *e);
int kv_field_string_or(const json_t *o, const char *key, const char *otherwise,
                       const char **value, struct kv_err *e);

/* An integer from 0 to limit - 1. */
int kv_field_count(const json_t *o, const char *key, size_t limit,
                   size_t *value, struct kv_err *e);

#endif
