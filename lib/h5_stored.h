/* Checks an HDF5 file's storage before reading.  Only files that kvtools wrote,
 * or copies by h5repack or h5py, pass.  For h5.c and h5_attr.c alone. */
#ifndef KV_H5_STORED_H
#define KV_H5_STORED_H

#include "lib/base/err.h"

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

/* Whether every link of the path `name` exists, even if its kind cannot be
 * read. */
bool kv_h5_linked(hid_t file, const char *name);

/* Fails when a link of the path is missing, soft, external or user-defined,
 * since such links may lead out of the file.  No link is followed. */
int kv_h5_check_links(hid_t file, const char *path, const char *name,
                      struct kv_err *e);

/* Fails when the dataset's values are not all in this file, which has
 * file_bytes: it must be contiguous or chunked, and allocated in full; chunks
 * of at most 1 MiB (HDF5's cache), with no filters but Fletcher-32, shuffle and
 * deflate; and no larger than the file or, deflated, than 64 times its stored
 * size.  Checked before allocating or reading anything. */
int kv_h5_check_stored(hid_t set, const char *path, const char *name,
                       uint64_t file_bytes, struct kv_err *e);

#endif
