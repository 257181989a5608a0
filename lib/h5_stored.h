/* How things must lie in an HDF5 file to be read: as kvtools writes them, give
 * or take what h5repack and h5py do to a copy.  For h5.c and h5_attr.c alone.
 */
#ifndef KV_H5_STORED_H
#define KV_H5_STORED_H

#include "lib/base/err.h"

#include <hdf5.h>
#include <stdbool.h>
#include <stdint.h>

/* Whether every link of the path `name` is there; what it leads to may be
 * another kind of link than can be read. */
bool kv_h5_linked(hid_t file, const char *name);

/* Fails when a link on the way is missing, or soft, external or of a kind of
 * its own: such lead elsewhere, also out of the file.  None is followed. */
int kv_h5_check_links(hid_t file, const char *path, const char *name,
                      struct kv_err *e);

/* Fails when the dataset's values are not all in this file, which has
 * file_bytes: it must be contiguous or chunked, and allocated in full; chunks
 * of at most 1 MiB (HDF5's cache), with no filters but Fletcher-32, shuffle and
 * deflate; and no larger than the file, or than 64 times what it takes there
 * where it is deflated.  Nothing is allocated or read before. */
int kv_h5_check_stored(hid_t set, const char *path, const char *name,
                       uint64_t file_bytes, struct kv_err *e);

#endif
