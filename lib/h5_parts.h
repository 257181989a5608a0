/* Datasets whose values are in other files: virtual datasets of HDF5, of one
 * form.  Parts, files beside this one, hold whole datasets of the same name,
 * type and dimensions but the first, along which they follow each other.  A
 * part has the same place, first and n, in all datasets that it holds.
 *
 * HDF5 itself gives fill values where a part is missing, so values are read
 * from the parts, each opened and checked as any file.  For h5.c and h5_trial.c
 * alone. */
#ifndef KV_H5_PARTS_H
#define KV_H5_PARTS_H

#include "lib/base/err.h"
#include "lib/h5.h"

#include <hdf5.h>

struct kv_h5_source {
    char name[KV_H5_NAME_CHARS]; /* of the file, without its folder */
    size_t first, n;             /* of the first dimension */
    struct kv_h5 *file;          /* NULL: not opened; the parts' */
};

bool kv_h5_is_virtual(hid_t set);

/* *s [*n], the caller's to free: where the values of a virtual dataset are.
 * Opens nothing.  Fails on any other form. */
int kv_h5_sources(hid_t set, const char *path, const char *name,
                  struct kv_h5_source **s, size_t *n, struct kv_err *e);

/* The dataset in use, h->set: finds its sources if it is virtual, and opens the
 * parts that are not open yet.  Then its end. */
int kv_h5_parts_use(struct kv_h5 *h, const char *name, struct kv_err *e);

void kv_h5_parts_leave(struct kv_h5 *h);

/* Whether each part has its dataset, stored as it must be (lib/h5_stored.h). */
int kv_h5_parts_check(struct kv_h5 *h, const char *name, struct kv_err *e);

/* As kv_h5_read(). */
int kv_h5_parts_read(struct kv_h5 *h, const char *name, enum kv_h5_type type,
                     const size_t *first, const size_t *count, void *x,
                     struct kv_err *e);

void kv_h5_parts_close(struct kv_h5 *h);

#endif
