/* HDF5 files: the one door to the library.
 *
 * Datasets are chunked (256 KiB) with Fletcher-32 checksums; metadata has
 * HDF5's own checksums (file format 1.10).  There are no timestamps, so the
 * same calls give the same bytes.  Numbers are little-endian, text is UTF-8 of
 * fixed length.
 *
 * Reading accepts only the storage that kvtools writes, and copies of it by
 * h5repack and h5py (lib/h5_stored.h): hard links, known filters, and values
 * inside the file and within its size, or in its parts, other files in the same
 * folder (kv_h5_virtual()).  An attribute may be text of any kind or a number
 * of any width.
 *
 * Names are paths inside the file: "/", "/layer_000/k".  Every failure names
 * the file and the thing in it.  HDF5 prints nothing.  Not thread-safe. */
#ifndef KV_H5_H
#define KV_H5_H

#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_h5;

/* The 16-bit floats are uint16_t in memory (lib/base/half.h); h5py reads them
 * as float16 and float32. */
enum kv_h5_type {
    KV_H5_U8,
    KV_H5_I32,
    KV_H5_I64,
    KV_H5_U64,
    KV_H5_F16,
    KV_H5_BF16,
    KV_H5_F32,
    KV_H5_F64
};
size_t kv_h5_type_bytes(enum kv_h5_type t);

enum { KV_H5_MAX_DIMS = 4, KV_H5_NAME_CHARS = 128 };

/* Writing goes to a temporary file beside path until commit renames it. */
int kv_h5_create(struct kv_h5 **h, const char *path, struct kv_err *e);
int kv_h5_commit(struct kv_h5 *h, struct kv_err *e); /* frees h either way */

int kv_h5_open(struct kv_h5 **h, const char *path, struct kv_err *e);

/* Frees h; removes a file that was created and not committed.  NULL is fine. */
void kv_h5_close(struct kv_h5 *h);

const char *kv_h5_path(const struct kv_h5 *h);
uint64_t kv_h5_bytes(const struct kv_h5 *h); /* size of a file opened to read */

/* Groups, datasets and attributes to write.  As in stdio, a failure is kept
 * until the next kv_h5_write() or the commit returns it.  "/" exists from the
 * start; a parent must exist before its child.  Datasets: dims [n_dims], n_dims
 * >= 1, any may be 0. */
void kv_h5_group(struct kv_h5 *h, const char *name);
void kv_h5_dataset(struct kv_h5 *h, const char *name, enum kv_h5_type type,
                   size_t n_dims, const size_t *dims);
/* A dataset whose values are in datasets of the same name in n_parts files of
 * the folder, which need not exist yet: part i has part[i].n entries of the
 * first dimension.  h5py reads it as one, with NaN or -1 where a part is
 * missing. */
struct kv_h5_part {
    const char *file; /* without its folder; shorter than KV_H5_NAME_CHARS */
    size_t n;
};
void kv_h5_virtual(struct kv_h5 *h, const char *name, enum kv_h5_type type,
                   size_t n_dims, const size_t *dims,
                   const struct kv_h5_part *part, size_t n_parts);
void kv_h5_put_text(struct kv_h5 *h, const char *object, const char *name,
                    const char *text);
void kv_h5_put_int(struct kv_h5 *h, const char *object, const char *name,
                   int64_t value);
void kv_h5_put_u64(struct kv_h5 *h, const char *object, const char *name,
                   uint64_t value);
void kv_h5_put_real(struct kv_h5 *h, const char *object, const char *name,
                    double value);

/* Whether the name exists (also as a dangling link, which fails when read). */
bool kv_h5_has(struct kv_h5 *h, const char *name);
/* The names of a group's members in order (strcmp), without the group's path:
 * *names [*n], freed by the caller, NULL if empty or on failure. */
int kv_h5_children(struct kv_h5 *h, const char *group,
                   char (**names)[KV_H5_NAME_CHARS], size_t *n,
                   struct kv_err *e);
/* Call kv_h5_dims() or kv_h5_check() once before reading a dataset's values.
 * Both also fail on storage that kvtools does not write. */
int kv_h5_dims(struct kv_h5 *h, const char *name, size_t *n_dims,
               size_t dims[KV_H5_MAX_DIMS], struct kv_err *e);
/* Fails when the dataset's type or shape is not this. */
int kv_h5_check(struct kv_h5 *h, const char *name, enum kv_h5_type type,
                size_t n_dims, const size_t *dims, struct kv_err *e);

/* The number of files (parts) that hold the values of the datasets used so far;
 * 0: none.  first: the index of a part's first entry, the same in all its
 * datasets. */
size_t kv_h5_n_parts(const struct kv_h5 *h);
const char *kv_h5_part_path(const struct kv_h5 *h, size_t i, size_t *first);

/* Attributes of a group or dataset.  Reading fails on a number outside [min,
 * max], on a fraction where a whole number is expected, and on text that does
 * not fit in capacity bytes with its final zero. */
bool kv_h5_has_attr(struct kv_h5 *h, const char *object, const char *name);
int kv_h5_get_text(struct kv_h5 *h, const char *object, const char *name,
                   char *text, size_t capacity, struct kv_err *e);
int kv_h5_get_int(struct kv_h5 *h, const char *object, const char *name,
                  int64_t min, int64_t max, int64_t *value, struct kv_err *e);
int kv_h5_get_size(struct kv_h5 *h, const char *object, const char *name,
                   size_t min, size_t max, size_t *value, struct kv_err *e);
int kv_h5_get_u64(struct kv_h5 *h, const char *object, const char *name,
                  uint64_t *value, struct kv_err *e);
int kv_h5_get_real(struct kv_h5 *h, const char *object, const char *name,
                   double *value, struct kv_err *e);

/* Write or read the box [first, first + count) of each dimension; both NULL:
 * the whole dataset.  x: product of count values, row-major.  Fails when the
 * dataset is of another type or smaller. */
int kv_h5_write(struct kv_h5 *h, const char *name, enum kv_h5_type type,
                const size_t *first, const size_t *count, const void *x,
                struct kv_err *e);
int kv_h5_read(struct kv_h5 *h, const char *name, enum kv_h5_type type,
               const size_t *first, const size_t *count, void *x,
               struct kv_err *e);

#endif
