/* The fields of a request, an object. */
#ifndef KV_SERVE_FIELDS_H
#define KV_SERVE_FIELDS_H

#include "lib/json_file.h"
#include "tools/serve/request.h"

/* Refuses a field that is neither read, nor without effect, nor set to what it
 * is here. */
int kv_fields_known(json_t *body, bool chat, struct kv_request_fault *f);

/* The field, NULL where it is null or not there; it is the one at fault from
 * here on. */
json_t *kv_field(const json_t *body, const char *name,
                 struct kv_request_fault *f);

/* *x keeps its value where there is no such field. */
int kv_field_bool(const json_t *body, const char *name, bool *x,
                  struct kv_request_fault *f);
int kv_field_size(const json_t *body, const char *name, size_t least,
                  size_t most, size_t *x, struct kv_request_fault *f);
int kv_field_real(const json_t *body, const char *name, double least,
                  double most, double *x, struct kv_request_fault *f);

#endif
