#include "lib/model/model_files.h"
#include "lib/base/file.h"
#include "lib/file_hash.h"
#include "lib/tokenizer/tokenizer_folder.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

/* Beside the weights and the vocabulary. */
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
        "*.json",     "*.safetensors", /* the only ones that are read here */
        "*.bin",      "*.gguf",        "*.pt",      "*.pth",   "*.model",
        "*.tiktoken", "merges.txt",    "vocab.txt", "*.jinja",
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
