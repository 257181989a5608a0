#include "lib/tokenizer/tokenizer_folder.h"
#include "lib/base/file.h"
#include "lib/json_file.h"
#include "lib/model/model_files.h"
#include "lib/tokenizer/tokenizer_lists.h"
#include "lib/tokenizer/tokenizer_ranks.h"
#include "lib/tokenizer/tokenizer_sentencepiece.h"

#include <stdlib.h>
#include <string.h>

static json_t *read_json(const char *dir, struct kv_err *e)
{
    char *path = kv_model_file(dir, "tokenizer.json");
    json_t *j = kv_json_read(path, e);

    free(path);
    return j;
}

/* SentencePiece's file and Llama 3's file have the same name. */
static json_t *read_model(const char *dir, struct kv_err *e)
{
    char *path = kv_model_file(dir, "tokenizer.model");
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

enum { N_KINDS = sizeof(kinds) / sizeof(*kinds) };

bool kv_tokenizer_reads(const char *name)
{
    for (size_t i = 0; i < N_KINDS; i++)
        for (const char *const *file = kinds[i].files; *file; file++)
            if (!strcmp(*file, name))
                return true;
    return false;
}

/* A kind is recognized by its first file; reading fails if the second is
 * missing. */
const struct kv_tokenizer_kind *kv_tokenizer_kind(const char *dir)
{
    for (size_t i = 0; i < N_KINDS; i++) {
        char *path = kv_model_file(dir, kinds[i].files[0]);
        const bool there = kv_file_exists(path);

        free(path);
        if (there)
            return &kinds[i];
    }
    return &kinds[0];
}
