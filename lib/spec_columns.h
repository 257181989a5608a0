/* The parameters of specs as columns of a table: "b" if K and V have the same
 * value, "K.b" and "V.b" if a spec has two, "policy.name" and "policy.b" for a
 * policy. */
#ifndef KV_SPEC_COLUMNS_H
#define KV_SPEC_COLUMNS_H

#include "lib/spec.h"

#include <stdbool.h>
#include <stddef.h>

/* The columns that n specs need; the order of specs does not matter.  Columns
 * for both sides together come first, then K's, V's and the policies' columns,
 * each group sorted.  Ends with NULL; kv_spec_columns_free() frees it (NULL is
 * fine). */
char **kv_spec_columns(const struct kv_spec *specs, size_t n);
void kv_spec_columns_free(char **columns);

/* Whether any scheme or policy has a parameter of this column. */
bool kv_spec_is_column(const char *column);

struct kv_spec_cell {
    char text[64];
    bool number;
};

/* The cell of a spec; false: it is blank.  A spec with a layer file has only
 * cells for the r and s before file=. */
bool kv_spec_cell(const struct kv_spec *s, const char *column,
                  struct kv_spec_cell *cell);

#endif
