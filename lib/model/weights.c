#include "lib/model/weights.h"
#include "lib/base/alloc.h"
#include "lib/file_hash.h"
#include "lib/json_file.h"

#include <stdlib.h>
#include <string.h>

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

static int by_name(const void *a, const void *b)
{
    const struct kv_weight *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

static int name_is(const void *name, const void *element)
{
    const struct kv_weight *const *w = element;

    return strcmp(name, (*w)->name);
}

const struct kv_weight *kv_weights_find(const struct kv_weights *w,
                                        const char *name)
{
    const struct kv_weight **at = NULL;

    if (w->n_weights)
        at =
            bsearch(name, w->weight, w->n_weights, sizeof(*w->weight), name_is);
    return at ? *at : NULL;
}

/* Opens dir/name as the next shard. */
static int add_shard(struct kv_weights *w, const char *dir, const char *name,
                     struct kv_err *e)
{
    char *path = kv_path_join(dir, name);
    int rc;

    w->shard = kv_realloc(w->shard, w->n_shards + 1, sizeof(*w->shard));
    rc = kv_safetensors_open(&w->shard[w->n_shards], path, e);
    w->n_shards += !rc;
    free(path);
    return rc;
}

/* The shard of this file name, or NULL. */
static const struct kv_safetensors *find_shard(const struct kv_weights *w,
                                               const char *file)
{
    for (size_t i = 0; i < w->n_shards; i++)
        if (!strcmp(strrchr(w->shard[i].path, '/') + 1, file))
            return &w->shard[i];
    return NULL;
}

/* Opens every shard that the index names, in the index's order. */
static int add_shards(struct kv_weights *w, const char *dir,
                      const char *index_path, const json_t *map,
                      struct kv_err *e)
{
    const char *name;
    json_t *file;

    if (!json_is_object(map))
        return kv_fail(e, "%s: no weight_map", index_path);
    json_object_foreach((json_t *)(uintptr_t)map, name, file)
    {
        const char *text = json_string_value(file);

        if (!text || !*text || strchr(text, '/'))
            return kv_fail(e, "%s: tensor %s: its file is not a plain name",
                           index_path, name);
        if (!find_shard(w, text) && add_shard(w, dir, text, e))
            return kv_fail_in(e, "%s", index_path);
    }
    return 0;
}

/* Fails unless every tensor of the index is in the shard that the index
 * names. */
static int check_index(const struct kv_weights *w, const char *index_path,
                       const json_t *map, struct kv_err *e)
{
    const char *name;
    json_t *file;

    json_object_foreach((json_t *)(uintptr_t)map, name, file)
    {
        const struct kv_weight *found = kv_weights_find(w, name);
        const char *path = find_shard(w, json_string_value(file))->path;

        if (!found || strcmp(found->path, path))
            return kv_fail(e, "%s: tensor %s is not in %s", index_path, name,
                           json_string_value(file));
    }
    return 0;
}

/* Lists a file's tensors; a tensor without a name does not belong to the
 * model. */
static void add_weights(struct kv_weights *w, const struct kv_weight *weight,
                        size_t n)
{
    w->weight = kv_realloc(w->weight, w->n_weights + n, sizeof(*w->weight));
    for (size_t i = 0; i < n; i++)
        if (*weight[i].name) {
            w->weight[w->n_weights++] = &weight[i];
            w->bytes += weight[i].bytes;
        }
}

int kv_weights_sort(struct kv_weights *w, struct kv_err *e)
{
    const size_t n = w->n_weights;

    if (n)
        qsort(w->weight, n, sizeof(*w->weight), by_name);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(w->weight[i - 1]->name, w->weight[i]->name))
            return kv_fail(e, "tensor %s is both in %s and in %s",
                           w->weight[i]->name, w->weight[i - 1]->path,
                           w->weight[i]->path);
    return 0;
}

/* Lists the tensors of all files by name. */
static int sort_weights(struct kv_weights *w, struct kv_err *e)
{
    for (size_t s = 0; s < w->n_shards; s++)
        add_weights(w, w->shard[s].weight, w->shard[s].n_weights);
    for (size_t p = 0; p < w->gguf.n_parts; p++)
        add_weights(w, w->gguf.part[p].tensor, w->gguf.part[p].n_tensors);
    return kv_weights_sort(w, e);
}

static int open_index(struct kv_weights *w, const char *dir,
                      const char *index_path, struct kv_err *e)
{
    json_t *index = kv_json_read(index_path, e);
    const json_t *map = json_object_get(index, "weight_map");
    int rc = -1;

    w->index = kv_strdup(index_path);
    if (index && !add_shards(w, dir, index_path, map, e) && !sort_weights(w, e))
        rc = check_index(w, index_path, map, e);
    json_decref(index);
    return rc;
}

static bool has_pickle(const char *dir)
{
    static const char *const names[] = {"pytorch_model.bin",
                                        "pytorch_model.bin.index.json"};
    bool has = false;

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        char *path = kv_path_join(dir, names[i]);

        has = has || kv_file_exists(path);
        free(path);
    }
    return has;
}

static int no_weights(const char *dir, struct kv_err *e)
{
    return has_pickle(dir)
               ? kv_fail(
                     e,
                     "%s: pytorch_model.bin is a pickle, which may run "
                     "code: not read (python3 -c \"from transformers import "
                     "AutoModelForCausalLM as M; M.from_pretrained('.')"
                     ".save_pretrained('.')\", run there, writes %s)",
                     dir, single_name)
               : kv_fail(e, "%s holds neither %s nor %s", dir, single_name,
                         index_name);
}

static int open_folder(struct kv_weights *w, const char *dir, struct kv_err *e)
{
    char *single_path = kv_path_join(dir, single_name);
    char *index_path = kv_path_join(dir, index_name);
    int rc;

    if (kv_file_exists(single_path))
        rc = add_shard(w, dir, single_name, e) || sort_weights(w, e) ? -1 : 0;
    else if (kv_file_exists(index_path))
        rc = open_index(w, dir, index_path, e);
    else
        rc = no_weights(dir, e);
    free(single_path);
    free(index_path);
    return rc;
}

static int open_gguf(struct kv_weights *w, const char *path, struct kv_err *e)
{
    if (kv_gguf_model_open(&w->gguf, path, e))
        return -1;
    w->config = kv_gguf_config(&w->gguf, e);
    return !w->config || kv_gguf_rename(&w->gguf, w->config, e) ||
                   sort_weights(w, e)
               ? -1
               : 0;
}

int kv_weights_open(struct kv_weights *w, const char *model, struct kv_err *e)
{
    int rc;

    *w = (struct kv_weights){0};
    rc = kv_is_dir(model) ? open_folder(w, model, e) : open_gguf(w, model, e);
    if (rc)
        kv_weights_clear(w);
    return rc;
}

void kv_weights_clear(struct kv_weights *w)
{
    for (size_t s = 0; s < w->n_shards; s++)
        kv_safetensors_clear(&w->shard[s]);
    for (struct kv_unpacked *u = w->unpacked, *next; u; u = next) {
        next = u->next;
        free(u);
    }
    kv_gguf_model_clear(&w->gguf);
    json_decref(w->config);
    free(w->index);
    free(w->shard);
    free(w->weight);
    *w = (struct kv_weights){0};
}

bool kv_weights_is_part(const struct kv_weights *w, const struct kv_weight *t)
{
    for (const struct kv_unpacked *u = w->unpacked; u; u = u->next)
        if (t->data == u->packed.scale || t->data == u->packed.zero ||
            t->data == u->packed.group || t->data == u->packed.level ||
            t->data == u->packed.nest_level || t->data == u->packed.nest_scale)
            return true;
    return false;
}

const char *kv_weights_type(const struct kv_weights *w)
{
    static const char *const packings[] = {
        [KV_PACKED_SCALED] = "fp8",  [KV_PACKED_GPTQ] = "gptq",
        [KV_PACKED_AWQ] = "awq",     [KV_PACKED_WORDS] = "packed",
        [KV_PACKED_NVFP4] = "nvfp4", [KV_PACKED_MXFP4] = "mxfp4",
        [KV_PACKED_LEVELS] = "nf4"};
    const char *mixture = w->gguf.n_parts ? kv_gguf_mixture(&w->gguf) : NULL;
    size_t bytes[KV_STORED_OTHER + 1] = {0};
    enum kv_stored max = 0;

    if (mixture)
        return mixture;
    if (w->unpacked && w->unpacked->packed.padded)
        return "awq";
    if (w->unpacked)
        return packings[w->unpacked->packed.packing];
    for (size_t i = 0; i < w->n_weights; i++)
        bytes[w->weight[i]->type] += w->weight[i]->bytes;
    for (enum kv_stored t = 1; t <= KV_STORED_OTHER; t++)
        max = bytes[t] > bytes[max] ? t : max;
    return max == KV_STORED_OTHER ? "other" : kv_stored_name(max);
}

int kv_weights_hash(const struct kv_weights *w, struct kv_hash *h,
                    struct kv_err *e)
{
    int rc = w->index ? kv_hash_add_file(h, w->index, UINT64_MAX, e) : 0;

    for (size_t s = 0; s < w->n_shards && !rc; s++)
        rc = kv_hash_add_file(h, w->shard[s].path, UINT64_MAX, e);
    for (size_t p = 0; p < w->gguf.n_parts && !rc; p++)
        rc = kv_hash_add_file(h, w->gguf.part[p].path, UINT64_MAX, e);
    return rc;
}
