/* NumPy's .npz, a zip of .npy: the one door to minizip.
 *
 * A member NAME.npy is
 *   | \x93NUMPY | version: 2 bytes | n: u16, or u32 from version 2 on |
 *   | text [n]: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } |
 *   | data | */
#ifndef KV_NPZ_H
#define KV_NPZ_H

#include "lib/arrays/arrays.h"

#include <stdio.h>

struct kv_npz;
/* *list: [*n], its arrays, the caller's to free. */
int kv_npz_open(struct kv_npz **z, const char *path, struct kv_array **list,
                size_t *n, struct kv_err *e);
void kv_npz_close(struct kv_npz *z); /* NULL is fine */

/* Reads bytes [first, first + n) of the i-th array's data; name: the array's
 * name, for error messages. */
int kv_npz_read(struct kv_npz *z, size_t i, const char *name, size_t first,
                size_t n, void *to, struct kv_err *e);

/* Writes the arrays to the file temp.  data: the values of all arrays, one
 * after the other.  path: the output's name, for error messages. */
int kv_npz_write(const char *temp, const char *path,
                 const struct kv_array *list, size_t n, FILE *data,
                 struct kv_err *e);

#endif
