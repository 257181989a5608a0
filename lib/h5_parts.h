/* Datasets whose values are in other files: HDF5's virtual datasets, restricted
 * to one form.  The parts are files in the same folder.  Each holds whole
 * datasets with the same name, type and dimensions except the first dimension,
 * along which the parts follow each other.  A part covers the same range, first
 * and n, in all its datasets.
 *
 * HDF5 itself gives fill values for a missing part, so values are read from the
 * parts, and each part is opened and checked like any file.  For h5.c and
 * h5_trial.c alone. */
#ifndef KV_H5_PARTS_H
#define KV_H5_PARTS_H

#include "lib/base/err.h"
#include "lib/h5.h"

#include <hdf5.h>

struct kv_h5_source {
    char name[KV_H5_NAME_CHARS]; /* of the file, without its folder */
    size_t first, n;             /* range of the first dimension */
    struct kv_h5 *file;          /* owned by struct kv_h5's part; NULL: not
                                  * opened */
};

bool kv_h5_is_virtual(hid_t set);

/* Sets *s [*n], the caller's to free, to the sources of a virtual dataset's
 * values.  Opens no file.  Fails on any other form. */
int kv_h5_sources(hid_t set, const char *path, const char *name,
                  struct kv_h5_source **s, size_t *n, struct kv_err *e);

/* kv_h5_parts_use(): finds the sources of the dataset in use, h->set, if it is
 * virtual, and opens the parts that are not open yet.  kv_h5_parts_leave() ends
 * its use. */
int kv_h5_parts_use(struct kv_h5 *h, const char *name, struct kv_err *e);

void kv_h5_parts_leave(struct kv_h5 *h);

/* Fails unless each part has the dataset, in the storage that lib/h5_stored.h
 * requires. */
int kv_h5_parts_check(struct kv_h5 *h, const char *name, struct kv_err *e);

/* As kv_h5_read(). */
int kv_h5_parts_read(struct kv_h5 *h, const char *name, enum kv_h5_type type,
                     const size_t *first, const size_t *count, void *x,
                     struct kv_err *e);

void kv_h5_parts_close(struct kv_h5 *h);

#endif
