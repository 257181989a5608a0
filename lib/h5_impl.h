/* The inside of an HDF5 file, shared by the h5_*.c files. */
#ifndef KV_H5_IMPL_H
#define KV_H5_IMPL_H

#include "lib/base/file.h"
#include "lib/h5.h"
#include "lib/h5_parts.h"

#include <hdf5.h>

struct kv_h5 {
    char *path;
    struct kv_out out;      /* out.path is NULL when reading */
    struct kv_input *input; /* NULL when writing */
    uint64_t bytes;         /* reading: the file's size */
    hid_t file;
    hid_t set; /* the dataset used last, kept open for its chunk cache */
    char set_name[KV_H5_NAME_CHARS];
    struct kv_h5_source *source; /* [n_sources], the files that hold the set's
                                  * values; NULL: this file (lib/h5_parts.h) */
    struct kv_h5_source *part;   /* [n_parts], parts of all sets used so far */
    size_t n_sources, n_parts;
    bool is_part; /* this file is a part, and cannot have parts */
    bool failed;  /* writing: error holds the first error */
    struct kv_err error;
};

/* Writes "dump.h5: cannot read /tokens: checksum wrong", from HDF5's last
 * error. */
int kv_h5_fail(const struct kv_h5 *h, const char *verb, const char *name,
               struct kv_err *e);
/* Keeps the sentence of kv_h5_fail() for the next kv_h5_write() or commit. */
void kv_h5_keep(struct kv_h5 *h, const char *verb, const char *name);

#endif
