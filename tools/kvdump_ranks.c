#include "tools/kvdump_ranks.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/leftovers.h"
#include "lib/base/release.h"
#include "lib/base/shard.h"
#include "lib/h5.h"
#include "lib/model/relay.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The settings that must agree on all ranks, a line each. */
static char *make_key(const struct kv_dump_info *i, bool by_layers,
                      const char *path)
{
    char *key = NULL;
    size_t n;
    FILE *f = open_memstream(&key, &n);

    if (!f)
        return kv_strdup("");
    fprintf(f, "version %s\nmodel's hash %s\ntext's hash %s\n", kv_version(),
            i->model_hash, i->text_hash);
    fprintf(f, "windows' tokens %zu\nnumber of windows %zu\n", i->ctx,
            i->n_windows);
    fprintf(f, "BOS %d\nspecial tokens %d\n", (int)i->reading.bos,
            (int)i->reading.special);
    fprintf(f, "layers %zu to %zu\n--dtype %s\n", i->first_layer, i->last_layer,
            kv_dtype_name(i->dtype));
    for (enum kv_tensor t = 0; t < KV_TENSORS; t++)
        fprintf(f, "%s %d\n", kv_tensor_name(t), (int)i->have[t]);
    fprintf(f, "--split %s\n", by_layers ? "layers" : "windows");
    if (by_layers) /* these decide which windows are grouped */
        fprintf(f, "--threads %d\n", omp_get_max_threads());
    fprintf(f, "--gemm %s\n--device %s\n-o %s\n", i->gemm, i->device, path);
    fclose(f);
    return key;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static int check(const struct kvdump_out *o, size_t n_windows, struct kv_err *e)
{
    if (o->ranks->n > n_windows && !o->ranks->by_layers)
        return kv_fail(e,
                       "--ranks: %zu ranks for %zu window%s: expected a window "
                       "for each",
                       o->ranks->n, n_windows, n_windows == 1 ? "" : "s");
    /* HDF5 would expand % to a number */
    if (strchr(base_name(o->path), '%') ||
        strlen(base_name(o->part[0])) >= KV_H5_NAME_CHARS)
        return kv_fail(e,
                       "-o %s: expected a name without %% and of fewer than "
                       "%d bytes with --ranks, whose files the dump names",
                       o->path, KV_H5_NAME_CHARS - 24);
    return 0;
}

static int meet(const struct kvdump_out *o, const struct kv_dump_info *info,
                struct kv_err *e)
{
    char *key = make_key(info, o->ranks->by_layers, o->path);
    const int rc = kv_ranks_meet(o->ranks, key, NULL, 0, e);

    free(key);
    return rc;
}

static size_t later(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Sets the output of rank i: *first, its first window, and *part. */
static int place(const struct kvdump_out *o, const struct kv_model *m,
                 const struct kv_dump_info *info, size_t i, size_t *first,
                 struct kv_dump_part *part, struct kv_err *e)
{
    const struct kv_ranks *r = o->ranks;
    const struct kv_shape *s = &info->shape;
    size_t begin, end;

    *first = r->by_layers ? 0 : kv_ranks_first(r, i, info->n_windows);
    *part = (struct kv_dump_part){base_name(o->part[i]), info->n_windows,
                                  info->first_layer, info->last_layer};
    if (!r->by_layers) {
        part->n_windows = kv_ranks_first(r, i + 1, info->n_windows) - *first;
        return 0;
    }
    if (kv_model_split(m, i, r->n, &begin, &end, e))
        return -1;
    begin -= kv_shape_states(s, begin);
    end -= kv_shape_states(s, end);
    part->first_layer = later(begin, info->first_layer);
    part->last_layer = end - 1 < info->last_layer ? end - 1 : info->last_layer;
    return begin < end && part->first_layer <= part->last_layer
               ? 0
               : kv_fail(e,
                         "--split layers: rank %zu has none of layers %zu to "
                         "%zu",
                         i, info->first_layer, info->last_layer);
}

/* Describes the dump of all ranks; opens the index on the first rank. */
static int place_all(struct kvdump_out *o, const struct kv_model *m,
                     const struct kv_dump_info *info,
                     const struct kv_windows *w, struct kv_err *e)
{
    const size_t n = o->ranks->n, self = o->ranks->self;
    struct kv_dump_part *part = kv_alloc(n, sizeof(*part));
    int rc = 0;

    for (size_t i = 0; i < n && !rc; i++) {
        size_t first;

        rc = place(o, m, info, i, &first, &part[i], e);
        if (i == self)
            o->windows.tokens = w->tokens + first * w->ctx;
    }
    o->windows.n = o->info.n_windows = part[self].n_windows;
    o->info.first_layer = part[self].first_layer;
    o->info.last_layer = part[self].last_layer;
    if (!rc && !self)
        rc = kv_dump_create_index(&o->index, o->path, info, part, n, e);
    free(part);
    return rc;
}

int kvdump_out_open(struct kvdump_out *o, struct kv_ranks *r,
                    const struct kv_model *m, const char *path,
                    const struct kv_dump_info *info, const struct kv_windows *w,
                    struct kv_err *e)
{
    *o = (struct kvdump_out){.ranks = r,
                             .whole = *info,
                             .info = *info,
                             .windows = *w,
                             .path = kv_strdup(path),
                             .part = kv_alloc(r->n, sizeof(*o->part))};
    if (r->n == 1)
        return kv_dump_create(&o->writer, path, info, e);
    for (size_t i = 0; i < r->n; i++)
        o->part[i] = kv_shard_path(&(struct kv_shard){i + 1, r->n}, path);
    if (check(o, w->n, e) || meet(o, info, e) || place_all(o, m, info, w, e))
        return -1;
    return kv_dump_create(&o->writer, o->part[r->self], &o->info, e);
}

struct kv_dump_writer *kvdump_out_whole(const struct kvdump_out *o)
{
    return o->index ? o->index : o->writer;
}

static void clear(struct kvdump_out *o)
{
    for (size_t i = 0; i < o->ranks->n; i++)
        free(o->part[i]);
    free(o->part);
    free(o->path);
}

static int commit_own(struct kvdump_out *o, struct kv_err *e)
{
    struct kv_dump_writer *w = o->writer;

    o->writer = NULL;
    return kv_dump_commit(w, e);
}

/* Commits the index, if the first rank can see the parts of all ranks. */
static int commit_index(struct kvdump_out *o, struct kv_err *e)
{
    struct kv_dump_writer *index = o->index;

    for (size_t i = 0; i < o->ranks->n; i++)
        if (!kv_file_exists(o->part[i]))
            return kv_fail(e,
                           "%s: rank %zu wrote it, but not here: expected a "
                           "folder that all ranks share",
                           o->part[i], i);
    o->index = NULL;
    return kv_dump_commit(index, e);
}

/* Commits all files.  Removes an earlier run's index before its parts are
 * replaced. */
static int commit_all(struct kvdump_out *o, const struct kv_windows *w,
                      struct kv_err *e)
{
    const bool first = !o->ranks->self;

    if ((first && kv_dump_put_tokens(o->index, 0, w->n, w->tokens, e)) ||
        kv_ranks_wait(o->ranks, e))
        return -1;
    o->renaming = true;
    if (first)
        unlink(o->path);
    if (kv_ranks_wait(o->ranks, e) || commit_own(o, e) ||
        kv_ranks_wait(o->ranks, e) || (first && commit_index(o, e)))
        return -1;
    o->renaming = false;
    return kv_ranks_wait(o->ranks, e);
}

int kvdump_out_commit(struct kvdump_out *o, const struct kv_windows *w,
                      struct kv_err *e)
{
    if (o->ranks->n == 1 ? commit_own(o, e) : commit_all(o, w, e)) {
        kvdump_out_discard(o);
        return -1;
    }
    clear(o);
    return 0;
}

void kvdump_out_discard(struct kvdump_out *o)
{
    kv_dump_discard(o->writer);
    kv_dump_discard(o->index);
    for (size_t i = 0; i < o->ranks->n && o->part[i]; i++) {
        if (o->renaming && !o->ranks->self)
            unlink(o->part[i]);
        kv_leftovers_remove(o->part[i]);
    }
    if (o->ranks->n > 1)
        kv_leftovers_remove(o->path);
    clear(o);
}
