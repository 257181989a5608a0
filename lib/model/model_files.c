#include "lib/model/model_files.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/file_hash.h"
#include "lib/model/gguf.h"
#include "lib/tokenizer/tokenizer_folder.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Files of a model other than the weights and the vocabulary. */
static const char *const others[] = {"config.json",
                                     "adapter_config.json",
                                     "tokenizer_config.json",
                                     "added_tokens.json",
                                     "special_tokens_map.json",
                                     "chat_template.jinja",
                                     "generation_config.json",
                                     "hf_quant_config.json",
                                     "quantize_config.json",
                                     "quant_config.json"};
enum { N_OTHERS = sizeof(others) / sizeof(*others) };

bool kv_model_holds(const char *name)
{
    static const char *const patterns[] = {
        "*.json",     "*.safetensors", "*.bin",   "*.gguf",
        "*.pt",       "*.pth",         "*.model", "*.tiktoken",
        "merges.txt", "vocab.txt",     "*.jinja",
    };

    for (size_t i = 0; i < sizeof(patterns) / sizeof(*patterns); i++)
        if (!fnmatch(patterns[i], name, 0))
            return true;
    return false;
}

static bool is_known(const char *name)
{
    for (size_t i = 0; i < N_OTHERS; i++)
        if (!strcmp(others[i], name))
            return true;
    return kv_tokenizer_reads(name);
}

char *kv_model_file(const char *dir, const char *name)
{
    if (!is_known(name))
        abort();
    return kv_path_join(dir, name);
}

static int add_file(struct kv_hash *h, const char *dir, const char *name,
                    struct kv_err *e)
{
    char *path = kv_model_file(dir, name);
    int rc = 0;

    if (kv_file_exists(path)) {
        kv_hash_add(h, name, strlen(name) + 1);
        rc = kv_hash_add_file(h, path, KV_FILE_MAX, e);
    }
    free(path);
    return rc;
}

int kv_model_files_hash(struct kv_hash *h, const char *path, struct kv_err *e)
{
    if (!kv_is_dir(path))
        return 0;
    for (size_t i = 0; i < N_OTHERS; i++)
        if (add_file(h, path, others[i], e))
            return -1;
    for (const char *const *name = kv_tokenizer_kind(path)->files; *name;
         name++)
        if (add_file(h, path, *name, e))
            return -1;
    return 0;
}

/* The first GGUF file of a folder by name, in a new string, *n files in all;
 * NULL: none. */
static char *first_gguf(const char *dir, size_t *n)
{
    DIR *d = opendir(dir);
    char *first = NULL;

    *n = 0;
    if (!d)
        return NULL;
    for (const struct dirent *f; (f = readdir(d));) {
        if (fnmatch("*.gguf", f->d_name, 0))
            continue;
        ++*n;
        if (first && strcmp(first, f->d_name) < 0)
            continue;
        free(first);
        first = kv_strdup(f->d_name);
    }
    closedir(d);
    return first;
}

static int check_folder(const char *path, struct kv_err *e)
{
    char *config = kv_model_file(path, "config.json");
    size_t n = 0;
    char *gguf = kv_file_exists(config) ? NULL : first_gguf(path, &n);

    free(config);
    if (!gguf)
        return 0;
    kv_fail(e, "%s has no config.json but %zu GGUF file%s: name %s, %s/%s",
            path, n, n > 1 ? "s" : "", n > 1 ? "one" : "it", path, gguf);
    free(gguf);
    return -1;
}

int kv_model_check_path(const char *path, struct kv_err *e)
{
    const char *name;
    char *folder;
    int rc = 0;

    if (kv_is_dir(path))
        return check_folder(path, e);
    if (!kv_file_exists(path))
        return access(path, F_OK)
                   ? kv_fail(e, "%s: no such file or folder", path)
                   : kv_fail(e, "%s is neither a model folder nor a GGUF file",
                             path);
    folder = kv_path_folder(path, &name);
    if (!kv_gguf_is(path) && kv_model_holds(name) && fnmatch("*.gguf", name, 0))
        rc = kv_fail(e,
                     "%s is a file of a model's folder: expected the folder, "
                     "%s, or a GGUF file",
                     path, folder);
    free(folder);
    return rc;
}
