#include "tools/kvdump_files.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool kvdump_files_holds(const char *name)
{
    enum kv_arrays_kind kind;
    struct kv_err ignored;

    return !kv_arrays_kind(&kind, name, &ignored);
}

/* Whether the name is of a PyTorch file, for which kv_arrays_open() has an
 * error sentence. */
static bool is_dump(const char *name)
{
    const char *suffix = strrchr(name, '.');

    return suffix && (!strcmp(suffix, ".pt") || !strcmp(suffix, ".bin"));
}

static void add_file(struct kvdump_files *f, char *path)
{
    f->file = kv_realloc(f->file, f->n_files + 1, sizeof(*f->file));
    f->file[f->n_files++] = path;
}

/* Lists the folder's files and, if deep, those of its subfolders. */
static int list_folder(struct kvdump_files *f, const char *path, bool deep,
                       struct kv_err *e)
{
    DIR *d = opendir(path);
    int rc = 0;

    if (!d)
        return kv_fail(e, "%s: the folder cannot be read", path);
    for (const struct dirent *at; !rc && (at = readdir(d));) {
        char *name = *at->d_name == '.' ? NULL : kv_path_join(path, at->d_name);

        if (name && deep && kv_is_dir(name)) {
            rc = list_folder(f, name, false, e);
        } else if (name && kvdump_files_holds(at->d_name)) {
            add_file(f, name);
            name = NULL;
        } else if (name && !f->other && is_dump(at->d_name)) {
            f->other = name;
            name = NULL;
        }
        free(name);
    }
    closedir(d);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The prefix of array names: "chunk_0/layer_3." for PATH/chunk_0/layer_3.npz,
 * empty if PATH is the file itself. */
static int stem_of(const struct kvdump_files *f, const char *file,
                   char stem[KV_ARRAY_NAME], struct kv_err *e)
{
    const size_t n = strlen(f->path);

    *stem = 0;
    if (!strcmp(file, f->path))
        return 0;
    file += n + strspn(file + n, "/");
    if (snprintf(stem, KV_ARRAY_NAME, "%.*s.", (int)(strrchr(file, '.') - file),
                 file) >= KV_ARRAY_NAME)
        return kv_fail(e, "%s: %s: a name of more than %d characters", f->path,
                       file, KV_ARRAY_NAME - 2);
    return 0;
}

static int open_file(struct kvdump_files *f, size_t which, struct kv_err *e)
{
    if (f->open && f->which == which)
        return 0;
    kv_arrays_close(f->open);
    f->open = NULL;
    f->which = which;
    return kv_arrays_open(&f->open, f->file[which], e);
}

static int add_arrays(struct kvdump_files *f, size_t which, struct kv_err *e)
{
    char stem[KV_ARRAY_NAME];
    const struct kv_array *list;
    size_t n;

    if (stem_of(f, f->file[which], stem, e) || open_file(f, which, e))
        return -1;
    n = kv_arrays_list(f->open, &list);
    f->list = kv_realloc(f->list, f->n + n, sizeof(*f->list));
    f->file_of = kv_realloc(f->file_of, f->n + n, sizeof(*f->file_of));
    f->index = kv_realloc(f->index, f->n + n, sizeof(*f->index));
    for (size_t i = 0; i < n; i++, f->n++) {
        struct kv_array *a = &f->list[f->n];

        *a = list[i];
        if (snprintf(a->name, sizeof(a->name), "%s%s", stem, list[i].name) >=
            (int)sizeof(a->name))
            return kv_fail(e, "%s: %s: a name of more than %zu characters",
                           f->file[which], list[i].name,
                           sizeof(a->name) - 1 - strlen(stem));
        f->file_of[f->n] = which;
        f->index[f->n] = i;
    }
    return 0;
}

int kvdump_files_open(struct kvdump_files *f, const char *path,
                      struct kv_err *e)
{
    *f = (struct kvdump_files){.path = path};
    if (!kv_is_dir(path))
        add_file(f, kv_strdup(path));
    else if (list_folder(f, path, true, e))
        return -1;
    if (!f->n_files)
        return f->other ? kv_arrays_open(&f->open, f->other, e)
                        : kv_fail(e, "%s: no file in .npz, .safetensors or .h5",
                                  path);
    qsort(f->file, f->n_files, sizeof(*f->file), by_name);
    for (size_t i = 0; i < f->n_files; i++)
        if (add_arrays(f, i, e))
            return -1;
    return 0;
}

void kvdump_files_clear(struct kvdump_files *f)
{
    kv_arrays_close(f->open);
    for (size_t i = 0; i < f->n_files; i++)
        free(f->file[i]);
    free(f->file);
    free(f->other);
    free(f->list);
    free(f->file_of);
    free(f->index);
    *f = (struct kvdump_files){.path = NULL};
}

int kvdump_files_read(struct kvdump_files *f, size_t i, size_t first, size_t n,
                      float *x, struct kv_err *e)
{
    return open_file(f, f->file_of[i], e) ||
                   kv_arrays_read(f->open, f->index[i], first, n, x, e)
               ? -1
               : 0;
}

int kvdump_files_ids(struct kvdump_files *f, size_t i, size_t first, size_t n,
                     int32_t *id, struct kv_err *e)
{
    return open_file(f, f->file_of[i], e) ||
                   kv_arrays_read_ids(f->open, f->index[i], first, n, id, e)
               ? -1
               : 0;
}
