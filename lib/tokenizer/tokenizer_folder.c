#include "lib/tokenizer/tokenizer_folder.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/json_file.h"
#include "lib/tokenizer/tokenizer_lists.h"
#include "lib/tokenizer/tokenizer_sentencepiece.h"

#include <stdlib.h>

static json_t *read_json(const char *dir, struct kv_err *e)
{
    char *path = kv_path_join(dir, "tokenizer.json");
    json_t *j = kv_json_read(path, e);

    free(path);
    return j;
}

static const struct kind {
    const char *files[3];
    json_t *(*read)(const char *dir, struct kv_err *e);
} kinds[] = {
    {{"tokenizer.json"}, read_json},
    {{"tokenizer.model"}, kv_tokenizer_of_sentencepiece},
    {{"vocab.json", "merges.txt"}, kv_tokenizer_of_lists},
};

/* By its first file: one without the second is refused. */
static const struct kind *find(const char *dir)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        char *path = kv_path_join(dir, kinds[i].files[0]);
        const bool there = kv_file_exists(path);

        free(path);
        if (there)
            return &kinds[i];
    }
    return &kinds[0];
}

const char *const *kv_tokenizer_files(const char *dir)
{
    return find(dir)->files;
}

json_t *kv_tokenizer_folder_read(const char *dir, struct kv_err *e)
{
    return find(dir)->read(dir, e);
}
