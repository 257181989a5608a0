/* Reads the fields of a request's JSON object. */
#ifndef KV_SERVE_FIELDS_H
#define KV_SERVE_FIELDS_H

#include "lib/json_file.h"
#include "tools/serve/request.h"

/* Refuses fields that are unknown or not implemented, unless their value asks
 * for nothing. */
int kv_fields_known(json_t *body, bool chat, struct kv_request_fault *f);

/* Returns the field; NULL if it is null or missing.  Notes it in f as the field
 * at fault for later errors. */
json_t *kv_field(const json_t *body, const char *name,
                 struct kv_request_fault *f);

/* Each reads a field into *x, which keeps its value if the field is missing. */
int kv_field_bool(const json_t *body, const char *name, bool *x,
                  struct kv_request_fault *f);
int kv_field_size(const json_t *body, const char *name, size_t least,
                  size_t most, size_t *x, struct kv_request_fault *f);
int kv_field_real(const json_t *body, const char *name, double least,
                  double most, double *x, struct kv_request_fault *f);

#endif
