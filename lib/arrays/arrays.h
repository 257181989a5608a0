/* Files of named arrays of numbers: NumPy's .npz, .safetensors, HDF5's .h5.
 * The name's suffix says which.
 *
 * Arrays are little-endian and in C order.  Names are NumPy's and safetensors'
 * own; in HDF5 a name is the path without the first '/' ("layer_000/k"). */
#ifndef KV_ARRAYS_H
#define KV_ARRAYS_H

#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kv_arrays_kind { KV_NPZ, KV_SAFETENSORS, KV_HDF5 };

/* Fails on another suffix. */
int kv_arrays_kind(enum kv_arrays_kind *kind, const char *path,
                   struct kv_err *e);

enum { KV_ARRAY_DIMS = 5, KV_ARRAY_NAME = 128 };
struct kv_array {
    char name[KV_ARRAY_NAME];
    char type[16]; /* the value type, as the file names it: "<f4", "BF16",
                    * "f16" */
    bool floats;   /* 16, 32 or 64 bits each: kv_arrays_read() */
    bool wholes;   /* whole numbers of 32 or 64 bits: kv_arrays_read_ids() */
    size_t n_dims, dims[KV_ARRAY_DIMS];
    size_t n; /* product of dims */
};

/* ---- to read ------------------------------------------------------------- */

struct kv_arrays;
/* Fails, naming the file and the array, on a truncated or damaged file, on more
 * dimensions than above, and on arrays in Fortran's order.  For .pt, .pth and
 * .bin the error message has the command that converts a pickle, or names the
 * document with code that converts untyped bytes. */
int kv_arrays_open(struct kv_arrays **a, const char *path, struct kv_err *e);
void kv_arrays_close(struct kv_arrays *a); /* NULL is fine */
const char *kv_arrays_path(const struct kv_arrays *a);

/* Valid until a is closed. */
size_t kv_arrays_list(const struct kv_arrays *a, const struct kv_array **list);

/* Reads elements [first, first + n) of list[i], row-major.  Fails if the array
 * holds no floats, on a NaN, an infinity or a value beyond f32, and on a bad
 * checksum.  Compressed arrays are read fastest from the first element on.  Not
 * thread-safe. */
int kv_arrays_read(struct kv_arrays *a, size_t i, size_t first, size_t n,
                   float *x, struct kv_err *e);

/* Reads elements [first, first + n) of an array of whole numbers as token ids.
 * Fails on a negative number and on a number above 2^31 - 1. */
int kv_arrays_read_ids(struct kv_arrays *a, size_t i, size_t first, size_t n,
                       int32_t *id, struct kv_err *e);

/* ---- to write (arrays_write.c) ------------------------------------------- */

/* Arrays of f32 in a .npz or .safetensors; list: names and dims.  about:
 * safetensors' metadata, pairs of texts that end with {NULL, NULL}; or NULL.
 * Elements may be put in any order; an element never put is 0.  The file
 * appears at the commit. */
struct kv_arrays_out;
int kv_arrays_create(struct kv_arrays_out **a, const char *path,
                     const struct kv_array *list, size_t n,
                     const char *const (*about)[2], struct kv_err *e);
int kv_arrays_put(struct kv_arrays_out *a, size_t i, size_t first, size_t n,
                  const float *x, struct kv_err *e);
int kv_arrays_commit(struct kv_arrays_out *a, struct kv_err *e); /* frees a */
void kv_arrays_discard(struct kv_arrays_out *a); /* frees a; NULL is fine */

#endif
