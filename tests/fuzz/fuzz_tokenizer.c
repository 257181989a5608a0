/* A folder's tokenizer and a text:
 *
 *   | tokenizer.json | 0xFF | tokenizer_config.json | 0xFF | text |
 *
 * (no UTF-8 has the byte 0xFF); an empty second part is no file. */
#include "lib/base/file.h"
#include "tests/fuzz/read_text.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { END = 0xFF };

/* Bytes up to the next END; moves past it. */
static size_t part(const uint8_t **data, size_t *n, const uint8_t **at)
{
    const uint8_t *end = *n ? memchr(*data, END, *n) : NULL;
    const size_t size = end ? (size_t)(end - *data) : *n;

    *at = *data;
    *data += end ? size + 1 : size;
    *n -= end ? size + 1 : size;
    return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *tokenizer, *config;
    const size_t n_tokenizer = part(&data, &n, &tokenizer);
    const size_t n_config = part(&data, &n, &config);

    fuzz_file("tokenizer.json", tokenizer, n_tokenizer);
    if (n_config)
        fuzz_file("tokenizer_config.json", config, n_config);
    fuzz_text(fuzz_folder(), (const char *)data, n);
    if (n_config) {
        char *path = kv_path_join(fuzz_folder(), "tokenizer_config.json");

        unlink(path);
        free(path);
    }
    return 0;
}

static void seed(const char *name, const char *pieces, const char *vocab,
                 const char *config)
{
    static const char text[] =
        "<s>abba ab<unk> a bb  aab\n\xc3\xa9\xf0\x9f\x98\x80\xc3";
    char all[4096];
    int n = snprintf(
        all, sizeof(all),
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
        "\"added_tokens\":[{\"id\":9,\"content\":\"<s>\",\"single_word\":false,"
        "\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":"
        "true}],%s,\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":"
        "null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
        "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,%s"
        "}}%c%s%c",
        pieces, vocab, END, config, END);

    memcpy(all + n, text, sizeof(text) - 1);
    fuzz_seed(name, all, (size_t)n + sizeof(text) - 1);
}

void fuzz_make_seeds(void)
{
    seed("bytes",
         "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
         "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
         "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\","
         "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true}",
         "\"vocab\":{\"a\":0,\"b\":1,\"\xc4\xa0\":2,\"ab\":3,\"bb\":4,"
         "\"abba\":5,\"\xc4\x8a\":6},\"merges\":[\"a b\",\"b b\"]",
         "{\"add_bos_token\": true, \"bos_token\": \"<s>\"}");
    seed("pieces",
         "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":"
         "\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},{\"type\":\"Replace\","
         "\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]},"
         "\"pre_tokenizer\":null,\"post_processor\":{\"type\":"
         "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\","
         "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"
         "\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[9],"
         "\"tokens\":[\"<s>\"]}}},\"decoder\":{\"type\":\"Sequence\","
         "\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
         "\"\xe2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},"
         "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":"
         "1,\"stop\":0}]}",
         "\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,\"\xe2\x96\x81\":3,\"ab\":4,"
         "\"<0xC3>\":5,\"bb\":6},\"merges\":[[\"a\",\"b\"],[\"b\",\"b\"]]",
         "");
    seed("split",
         "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":"
         "\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":"
         "{\"Regex\":\"[a-z]+|\\\\s+(?!\\\\S)\"},\"behavior\":\"Isolated\","
         "\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
         "\"trim_offsets\":true,\"use_regex\":false}]},\"post_processor\":null,"
         "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
         "\"trim_offsets\":true,\"use_regex\":true}",
         "\"vocab\":{\"a\":0,\"b\":1,\"\xc4\xa0\":2,\"ab\":3},\"merges\":"
         "[\"a b\"]",
         "");
}
