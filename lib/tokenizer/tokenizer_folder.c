#include "lib/tokenizer/tokenizer_folder.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/json_file.h"
#include "lib/tokenizer/tokenizer_lists.h"
#include "lib/tokenizer/tokenizer_ranks.h"
#include "lib/tokenizer/tokenizer_sentencepiece.h"

#include <stdlib.h>

static json_t *read_json(const char *dir, struct kv_err *e)
{
    char *path = kv_path_join(dir, "tokenizer.json");
    json_t *j = kv_json_read(path, e);

    free(path);
    return j;
}

/* SentencePiece's and Llama 3's have one name. */
static json_t *read_model(const char *dir, struct kv_err *e)
{
    char *path = kv_path_join(dir, "tokenizer.model");
    const bool ranks = kv_ranks_is(path);

    free(path);
    return ranks ? kv_tokenizer_of_llama_ranks(dir, e)
                 : kv_tokenizer_of_sentencepiece(dir, e);
}

static const struct kv_tokenizer_kind kinds[] = {
    {{"tokenizer.json"}, NULL, read_json},
    {{"tokenizer.model"}, NULL, read_model},
    {{"vocab.json", "merges.txt"}, NULL, kv_tokenizer_of_lists},
    {{"qwen.tiktoken"}, "QWenTokenizer", kv_tokenizer_of_qwen_ranks},
};

/* By its first file: one without the second is refused. */
const struct kv_tokenizer_kind *kv_tokenizer_kind(const char *dir)
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
