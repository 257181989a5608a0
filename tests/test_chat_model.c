/* The chat settings of a model's folder: special tokens, and the space after
 * them, both as in transformers 5.24 for the same folder. */
#include "lib/tokenizer/chat_template.h"
#include "tests/tokenizer_setup.h"

struct file {
    const char *name, *text; /* NULL: none */
};

static const char *folder_of(const struct file *f, size_t n)
{
    const char *dir = test_folder();

    for (size_t i = 0; i < n; i++) {
        char *text = f[i].name ? quoted(f[i].text) : NULL;

        if (text)
            write_file(dir, f[i].name, text);
        free(text);
    }
    return dir;
}

static void reads(const struct file f[2], const char *tokens, const char *asked)
{
    const char *dir = folder_of(f, 2);
    struct kv_chat_model m;
    struct kv_err e = {""};
    char *text;

    if (kv_chat_model_read(&m, dir, &e))
        fail_msg("%s", e.msg);
    text = json_dumps(m.tokens, JSON_SORT_KEYS | JSON_COMPACT);
    assert_string_equal(text, tokens);
    if (asked)
        assert_string_equal(m.asked, asked);
    else
        assert_null(m.asked);
    free(text);
    kv_chat_model_clear(&m);
    remove_folder(dir);
}

#define CONFIG "tokenizer_config.json"
#define MAP "special_tokens_map.json"

static void special_tokens(void **state)
{
    (void)state;
    reads((const struct file[]){{CONFIG, "{'bos_token': 'a', 'pad_token': null,"
                                         " 'add_bos_token': true}"},
                                {NULL, NULL}},
          "{\"bos_token\":\"a\"}", NULL);
    /* the map's names count, unless there is a list of added tokens */
    reads(
        (const struct file[]){
            {CONFIG, "{'bos_token': 'a', 'image_token': 'i'}"},
            {MAP, "{'bos_token': {'content': 'b'}, 'unk_token': 'u'}"}},
        "{\"bos_token\":\"b\",\"image_token\":\"i\",\"unk_token\":\"u\"}",
        NULL);
    reads(
        (const struct file[]){
            {CONFIG, "{'added_tokens_decoder': {}, 'eos_token': 'e'}"},
            {MAP, "{'bos_token': 'b'}"}},
        "{\"eos_token\":\"e\"}", NULL);
    /* a class has names of its own; null is none */
    reads(
        (const struct file[]){
            {CONFIG, "{'tokenizer_class': 'LlamaTokenizerFast', 'unk_token':"
                     " null, 'eos_token': 'e'}"},
            {NULL, NULL}},
        "{\"bos_token\":\"<s>\",\"eos_token\":\"e\"}", NULL);
}

static void what_is_asked_for(void **state)
{
    static const char generation[] = "generation_config.json";

    (void)state;
    reads(
        (const struct file[]){
            {generation,
             "{'repetition_penalty': 1.05, 'no_repeat_ngram_size': 3,"
             " 'suppress_tokens': [1, 2], 'num_beams': 1, 'min_length': 0,"
             " 'bad_words_ids': null, 'temperature': 0.7, 'do_sample': true,"
             " 'forced_bos_token_id': 0}"},
            {NULL, NULL}},
        "{}",
        "forced_bos_token_id 0, no_repeat_ngram_size 3, repetition_penalty "
        "1.05, suppress_tokens [1, 2]");
    /* older folders have them in config.json, which is then the only source */
    reads((const struct file[]){{"config.json", "{'num_beams': 4}"},
                                {NULL, NULL}},
          "{}", "num_beams 4");
    reads((const struct file[]){{"config.json", "{'num_beams': 4}"},
                                {generation, "{'repetition_penalty': 1.0}"}},
          "{}", NULL);
}

/* ---- "legacy" ------------------------------------------------------------ */

#define SPACE "\xe2\x96\x81"
#define TOKENIZER(spaces)                                                      \
    "{'added_tokens': [{'id': 1, 'content': '<s>', 'special': true,"           \
    " 'normalized': false}, {'id': 2, 'content': '</s>', 'special': true,"     \
    " 'normalized': false}], " spaces ", 'model': {'type': 'BPE', 'vocab': {"  \
    "'<unk>': 0, '<s>': 1, '</s>': 2, '" SPACE "': 3, 'a': 4, 'b': 5, '" SPACE \
    "a': 6, '" SPACE "b': 7, 'c': 8, '" SPACE "c': 9}, 'merges': ['" SPACE     \
    " a', '" SPACE " b', '" SPACE " c']}}"
#define PREPEND                                                             \
    TOKENIZER("'normalizer': {'type': 'Sequence', 'normalizers': [{'type':" \
              " 'Prepend', 'prepend': '" SPACE "'}, {'type': 'Replace',"    \
              " 'pattern': {'String': ' '}, 'content': '" SPACE "'}]}")
#define METASPACE(scheme)                                                     \
    TOKENIZER("'pre_tokenizer': {'type': 'Metaspace', 'replacement': '" SPACE \
              "', 'prepend_scheme': '" scheme "', 'split': false}")

/* Ids of "a<s>b</s> c". */
static void space_behind_special_tokens(void **state)
{
    static const struct {
        const char *main, *config, *model, *ids;
    } rows[] = {
        {PREPEND, "{'tokenizer_class': 'LlamaTokenizer'}", "{}", "6 1 5 2 9 "},
        {PREPEND, "{'tokenizer_class': 'LlamaTokenizerFast', 'legacy': false}",
         "{}", "6 1 5 2 9 "},
        {PREPEND, "{'tokenizer_class': 'LlamaTokenizer', 'legacy': true}", "{}",
         "6 1 7 2 9 "},
        {METASPACE("always"), "{'tokenizer_class': 'LlamaTokenizer'}", "{}",
         "6 1 5 2 9 "},
        {METASPACE("first"),
         "{'tokenizer_class': 'LlamaTokenizer', 'legacy': true}", "{}",
         "6 1 7 2 9 "},
        /* other classes and models: as tokenizer.json has it */
        {PREPEND,
         "{'tokenizer_class': 'PreTrainedTokenizerFast', 'legacy': false}",
         "{}", "6 1 7 2 3 9 "},
        {METASPACE("always"), "{'legacy': false}", "{}", "6 1 7 2 9 "},
        {METASPACE("first"),
         "{'tokenizer_class': 'PreTrainedTokenizerFast', 'legacy': true}", "{}",
         "6 1 5 2 9 "},
        {PREPEND, "{'tokenizer_class': 'LlamaTokenizer', 'legacy': false}",
         "{'model_type': 'phi3'}", "6 1 7 2 3 9 "},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct file f[] = {{"tokenizer.json", rows[i].main},
                                 {CONFIG, rows[i].config},
                                 {"config.json", rows[i].model}};
        const char *dir = folder_of(f, COUNT(f));
        struct kv_tokenizer *t = NULL;
        struct kv_err e = {""};

        if (kv_tokenizer_open(&t, dir, &e))
            fail_msg("row %zu: %s", i, e.msg);
        check_ids(t, "a<s>b</s> c", true, rows[i].ids);
        kv_tokenizer_free(t);
        remove_folder(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(what_is_asked_for),
        cmocka_unit_test(space_behind_special_tokens),
    };

    return cmocka_run_group_tests_name("chat_model", tests, NULL, NULL);
}
