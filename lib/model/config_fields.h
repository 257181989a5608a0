/* The fields of config.json and of the objects in it: read with their range,
 * and none passed over.
 *
 * null is as if the field were absent.  Each returns 0, or -1 with a sentence
 * that names file, field and what was expected. */
#ifndef KV_MODEL_CONFIG_FIELDS_H
#define KV_MODEL_CONFIG_FIELDS_H

#include "lib/model/config.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* A JSON object and where it stands. */
struct kv_fields {
    const char *path; /* of the file */
    const char *in;   /* "rope_scaling."; "" at the top */
    const json_t *json;
    const struct kv_own_field *own; /* of the architecture; or NULL */
    bool wrapped;                   /* of a part of a model */
    bool derived; /* a class that is none of transformers', which may read what
                   * no class of transformers does */
};

/* The field's name in this file: the first name present among the names that
 * the architecture reads; when none is present, the first of them. */
const char *kv_fields_name(const struct kv_fields *f, const char *name);

/* Whether the field is present, null or not. */
bool kv_fields_has(const struct kv_fields *f, const char *name);

/* The field's value, NULL when it is absent or null.  Here and below, where the
 * architecture has another name for the field, the lookup and sentences use the
 * other name. */
const json_t *kv_fields_get(const struct kv_fields *f, const char *name);

/* A whole number from min to max.  The field must be there; with _if it may be
 * absent, and *out then stays as it is. */
int kv_fields_size(const struct kv_fields *f, const char *name, size_t min,
                   size_t max, size_t *out, struct kv_err *e);
int kv_fields_size_if(const struct kv_fields *f, const char *name, size_t min,
                      size_t max, size_t *out, struct kv_err *e);

/* A number above 0 that an f32 holds; must be there. */
int kv_fields_real(const struct kv_fields *f, const char *name, double *out,
                   struct kv_err *e);

/* May be absent: *out is left alone then. */
int kv_fields_flag_if(const struct kv_fields *f, const char *name, bool *out,
                      struct kv_err *e);

/* Fails on a value other than its only one; must be there. */
int kv_fields_only(const struct kv_fields *f, const struct kv_field *field,
                   struct kv_err *e);

/* Fails when two names of one field have different values, and on a name that
 * the architecture does not read without one that it reads. */
int kv_fields_check_aliases(const struct kv_fields *f, struct kv_err *e);

/* The names of fields that some causal language model of transformers reads,
 * with a space before and after each. */
extern const char kv_config_elsewhere[];

/* Fails on a value other than the field's only one.  A field that is neither in
 * known[] (ends with name NULL) nor one of the architecture's own could change
 * the numbers: fails on it.  But at the top, where no class of transformers
 * reads it, it is ignored; one note names all such fields. */
int kv_fields_check(const struct kv_fields *f, const struct kv_field *known,
                    struct kv_err *e);

#endif
