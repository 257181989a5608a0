/* The parameters of specs as columns of a table: "b" where K and V have the
 * same value, "K.b" and "V.b" where a spec has two, "policy.name" and
 * "policy.b" of a policy. */
#ifndef KV_SPEC_COLUMNS_H
#define KV_SPEC_COLUMNS_H

#include "lib/spec.h"

#include <stdbool.h>
#include <stddef.h>

/* The columns that n specs need, in whatever order: those without a point, of
 * K, of V, each sorted, then of policies.  Ends with NULL; kv_spec_columns_free
 * frees it (NULL is fine). */
char **kv_spec_columns(const struct kv_spec *specs, size_t n);
void kv_spec_columns_free(char **columns);

/* Whether any scheme or policy has a parameter of this column. */
bool kv_spec_is_column(const char *column);

struct kv_spec_cell {
    char text[64];
    bool number;
};

/* False: the cell is blank.  A layer file's specs have no cells, but for r and
 * s that stand before it. */
bool kv_spec_cell(const struct kv_spec *s, const char *column,
                  struct kv_spec_cell *cell);

#endif
