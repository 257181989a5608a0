/* The fields of config.json and of the objects in it: each is read with its
 * range, and none is overlooked.
 *
 * null counts as an absent field.  Each function returns 0, or -1 with a
 * sentence that names the file, the field and the expected value. */
#ifndef KV_MODEL_CONFIG_FIELDS_H
#define KV_MODEL_CONFIG_FIELDS_H

#include "lib/model/config.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* A JSON object and its place in the file. */
struct kv_fields {
    const char *path; /* path of the file */
    const char *in;   /* "rope_scaling."; "" at the top */
    const json_t *json;
    const struct kv_own_field *own; /* fields of the architecture; or NULL */
    bool wrapped;                   /* these are the fields of one part of a
                                     * model */
    bool derived; /* a class outside transformers, which may read fields that no
                   * class of transformers reads */
};

/* The field's name in this file: the first name present among the names that
 * the architecture reads; when none is present, the first of them. */
const char *kv_fields_name(const struct kv_fields *f, const char *name);

/* Whether the field is present, null or not. */
bool kv_fields_has(const struct kv_fields *f, const char *name);

/* The field's value, NULL when it is absent or null.  Here and below, if the
 * architecture has another name for the field, lookups and sentences use that
 * name. */
const json_t *kv_fields_get(const struct kv_fields *f, const char *name);

/* Reads a whole number from min to max.  The field must be there; for the _if
 * function it may be absent, and *out is then unchanged. */
int kv_fields_size(const struct kv_fields *f, const char *name, size_t min,
                   size_t max, size_t *out, struct kv_err *e);
int kv_fields_size_if(const struct kv_fields *f, const char *name, size_t min,
                      size_t max, size_t *out, struct kv_err *e);

/* Reads a positive number in the range of f32; the field must be there. */
int kv_fields_real(const struct kv_fields *f, const char *name, double *out,
                   struct kv_err *e);

/* Reads true or false; if the field is absent, *out is unchanged. */
int kv_fields_flag_if(const struct kv_fields *f, const char *name, bool *out,
                      struct kv_err *e);

/* Fails unless the field is there and has its only accepted value. */
int kv_fields_only(const struct kv_fields *f, const struct kv_field *field,
                   struct kv_err *e);

/* Fails if two names of one field have different values, and if a name that the
 * architecture does not read appears without one that it reads. */
int kv_fields_check_aliases(const struct kv_fields *f, struct kv_err *e);

/* The names of all fields that any causal language model of transformers reads;
 * a space stands before and after each name. */
extern const char kv_config_elsewhere[];

/* Fails if a field with only one accepted value has another value.  Fails on a
 * field that is neither in known[] (ends with name NULL) nor one of the
 * architecture's own, since it could change the numbers.  At the top level,
 * however, a field that no class of transformers reads is ignored; one note
 * names all such fields. */
int kv_fields_check(const struct kv_fields *f, const struct kv_field *known,
                    struct kv_err *e);

#endif
