/* The arrays of one file, or of all files of a folder and of its folders.
 *
 * In a folder, the file's name without its suffix precedes an array's name:
 * model.layers.0.self_attn.attn.kv_cache, chunk_0.layer_3.keys.  One file is
 * open at a time. */
#ifndef KV_KVDUMP_FILES_H
#define KV_KVDUMP_FILES_H

#include "lib/arrays/arrays.h"

struct kvdump_files {
    const char *path;
    char **file;
    size_t n_files;
    char *other; /* a file of the folder that is not read, or NULL */
    struct kv_array *list;
    size_t n;
    size_t *file_of, *index; /* for each array: its file, its index in the
                              * file */
    struct kv_arrays *open;
    size_t which; /* the file that is open */
};

/* Whether kvdump reads a file of this name in a folder. */
bool kvdump_files_holds(const char *name);

/* Fails on a folder without a file that kvdump reads.  f is cleared by
 * kvdump_files_clear(), also after a failure; path is not copied. */
int kvdump_files_open(struct kvdump_files *f, const char *path,
                      struct kv_err *e);
void kvdump_files_clear(struct kvdump_files *f);

/* Read from the list's i-th array as kv_arrays_read() and kv_arrays_read_ids()
 * do. */
int kvdump_files_read(struct kvdump_files *f, size_t i, size_t first, size_t n,
                      float *x, struct kv_err *e);
int kvdump_files_ids(struct kvdump_files *f, size_t i, size_t first, size_t n,
                     int32_t *id, struct kv_err *e);

#endif
