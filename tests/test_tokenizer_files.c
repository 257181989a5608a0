/* The files beside tokenizer.json: their additions and contradictions; any
 * value of any field ends in a sentence at worst. */
#include "lib/json_file.h"
#include "tests/tokenizer_setup.h"

#define VOCAB                                                          \
    "'model': {'type': 'BPE', 'vocab': {'a': 0, 'b': 1, 'ab': 2, '<':" \
    " 3, '>': 4, 'q': 5}, 'merges': ['a b']}"
#define PLAIN "{" VOCAB "}"
#define LISTED                                                        \
    "{" VOCAB                                                         \
    ", 'added_tokens': [{'id': 6, 'content': '<q>', 'special': true," \
    " 'normalized': false}]}"
#define TEMPLATE                                                            \
    "{" VOCAB                                                               \
    ", 'added_tokens': [{'id': 6, 'content': '<q>', 'special': true}],"     \
    " 'post_processor': {'type': 'TemplateProcessing', 'single':"           \
    " [{'SpecialToken': {'id': '<q>', 'type_id': 0}}, {'Sequence': {'id':"  \
    " 'A', 'type_id': 0}}], 'special_tokens': {'<q>': {'id': '<q>', 'ids':" \
    " [6]}}}}"

struct folder {
    const char *main, *config, *added, *map; /* NULL: no such file */
};

static int open_folder(struct kv_tokenizer **t, const struct folder *f,
                       struct kv_err *e)
{
    const char *dir = test_folder();
    const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                 "added_tokens.json",
                                 "special_tokens_map.json"};
    const char *const texts[] = {f->main, f->config, f->added, f->map};
    int rc;

    for (size_t i = 0; i < COUNT(names); i++) {
        char *text = texts[i] ? quoted(texts[i]) : NULL;

        if (text)
            write_file(dir, names[i], text);
        free(text);
    }
    rc = kv_tokenizer_open(t, dir, e);
    remove_folder(dir);
    return rc;
}

/* Ids of "ab<q>q", verbatim and with special tokens read as such: the result of
 * transformers 5.24 for the same folder. */
static void taken_in(void **state)
{
    static const struct {
        struct folder f;
        const char *plain, *special;
    } rows[] = {
        {{PLAIN, NULL, NULL, NULL}, "2 3 5 4 5 ", "2 3 5 4 5 "},
        {{LISTED, NULL, NULL, NULL}, "2 3 5 4 5 ", "2 6 5 "},
        /* the config's list */
        {{PLAIN, "{'added_tokens_decoder': {'6': {'content': '<q>'}}}", NULL,
          NULL},
         "2 6 5 ",
         "2 6 5 "},
        {{PLAIN,
          "{'added_tokens_decoder': {'6': {'content': '<q>', 'special':"
          " true}}}",
          NULL, NULL},
         "2 3 5 4 5 ",
         "2 6 5 "},
        {{PLAIN,
          "{'added_tokens_decoder': {'7': {'content': '<q>'}, '6': {'content':"
          " '>q'}, '2': {'content': 'ab', 'lstrip': true}}}",
          NULL, NULL},
         "2 7 5 ",
         "2 7 5 "},
        {{LISTED,
          "{'added_tokens_decoder': {'6': {'content': '<q>', 'special': true,"
          " 'normalized': false}, '7': {'content': 'b<'}}}",
          NULL, NULL},
         "0 7 5 4 5 ",
         "2 6 5 "}, /* tokens that are not normalized go first */
        /* added_tokens.json */
        {{PLAIN, NULL, "{'<q>': 6}", NULL}, "2 6 5 ", "2 6 5 "},
        {{LISTED, NULL, "{'<q>': 6, 'q': 5}", NULL}, "2 3 5 4 5 ", "2 6 5 "},
        {{PLAIN, "{'pad_token': '<q>'}", "{'<q>': 6}", NULL},
         "2 3 5 4 5 ",
         "2 6 5 "},
        {{PLAIN, NULL, "{'<q>': 6}", "{'unk_token': {'content': '<q>'}}"},
         "2 3 5 4 5 ",
         "2 6 5 "},
        /* only names: bos before pad before others, extra ones last */
        {{PLAIN, "{'pad_token': '<q>', 'bos_token': 'x'}", NULL, NULL},
         "2 3 5 4 5 ",
         "2 7 5 "},
        {{PLAIN, "{'odd_token': '<q>', 'mask_token': 'x'}", NULL, NULL},
         "2 3 5 4 5 ",
         "2 7 5 "},
        {{PLAIN, "{'extra_special_tokens': ['x', '<q>']}", NULL, NULL},
         "2 3 5 4 5 ",
         "2 7 5 "},
        {{PLAIN, "{'additional_special_tokens': ['<q>'], 'odd_token': 'x'}",
          NULL, NULL},
         "2 3 5 4 5 ",
         "2 7 5 "},
        {{PLAIN, "{'bos_token': 'x'}", NULL,
          "{'pad_token': '<q>', 'bos_token': {'content': 'x'}}"},
         "2 3 5 4 5 ",
         "2 7 5 "},
        {{PLAIN, "{'pad_token': 'q'}", NULL, NULL}, "2 3 5 4 5 ", "2 3 5 4 5 "},
        /* two names for one token: the map's counts, unless a list exists */
        {{PLAIN, "{'pad_token': '<q>'}", NULL, "{'pad_token': 'x'}"},
         "2 3 5 4 5 ",
         "2 3 5 4 5 "},
        {{PLAIN, "{'pad_token': 'x'}", NULL, "{'pad_token': '<q>'}"},
         "2 3 5 4 5 ",
         "2 6 5 "},
        {{PLAIN, "{'odd_token': '<q>'}", NULL, "{'odd_token': 'x'}"},
         "2 3 5 4 5 ",
         "2 3 5 4 5 "},
        {{PLAIN,
          "{'added_tokens_decoder': {'6': {'content': '<q>', 'special': true}},"
          " 'unk_token': '<q>'}",
          NULL, "{'unk_token': 'q'}"},
         "2 3 5 4 5 ",
         "2 6 5 "},
        /* no token at all */
        {{PLAIN,
          "{'bos_token': '', 'unk_token': {'content': ''}, 'pad_token': '<q>',"
          " 'add_bos_token': false}",
          NULL, NULL},
         "2 3 5 4 5 ",
         "2 6 5 "},
        {{PLAIN, "{'bos_token': '<q>'}", NULL, "{'bos_token': ''}"},
         "2 3 5 4 5 ",
         "2 3 5 4 5 "},
        /* transformers applies these when asked to, or never */
        {{"{" VOCAB ", 'truncation': {'max_length': 1, 'stride': 0,"
          " 'strategy': 'LongestFirst', 'direction': 'Right'}, 'padding':"
          " {'pad_id': 0}}",
          "{'model_max_length': 1000000000000000019884624838656,"
          " 'tokenizer_class': 'Any', 'odd': [1], 'chat_template':"
          " '99999999999999999999\\'99999999999999999999'}",
          NULL, NULL},
         "2 3 5 4 5 ",
         "2 3 5 4 5 "},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kv_tokenizer *t = NULL;
        struct kv_err e = {""};

        if (open_folder(&t, &rows[i].f, &e))
            fail_msg("row %d: %s", (int)i, e.msg);
        check_ids(t, "ab<q>q", false, rows[i].plain);
        check_ids(t, "ab<q>q", true, rows[i].special);
        kv_tokenizer_free(t);
    }
}

/* A BOS is put where the template has one, for classes without their own. */
static void bos_of_template(void **state)
{
    static const struct {
        struct folder f;
        int32_t bos; /* -1: no BOS is put */
    } rows[] = {
        {{TEMPLATE, NULL, NULL, NULL}, 6},
        {{TEMPLATE, "{'add_bos_token': true}", NULL, NULL}, 6},
        {{TEMPLATE,
          "{'tokenizer_class': 'PreTrainedTokenizerFast', 'bos_token': 'a',"
          " 'add_bos_token': false, 'add_eos_token': true}",
          NULL, NULL},
         6},
        {{PLAIN,
          "{'tokenizer_class': 'Qwen2Tokenizer', 'bos_token': 'a',"
          " 'add_bos_token': true}",
          NULL, NULL},
         -1},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kv_tokenizer *t = NULL;
        struct kv_err e = {""};

        if (open_folder(&t, &rows[i].f, &e))
            fail_msg("row %d: %s", (int)i, e.msg);
        assert_int_equal(kv_tokenizer_adds_bos(t), rows[i].bos >= 0);
        if (rows[i].bos >= 0)
            assert_int_equal(kv_tokenizer_bos(t), rows[i].bos);
        kv_tokenizer_free(t);
    }
}

/* Differing flags of a special token: plain text has the ids of transformers
 * 5.24 with split_special_tokens, which follows the config; the token itself is
 * never matched. */
static void flags_that_differ(void **state)
{
    static const char main_json[] =
        "{" VOCAB ", 'added_tokens': [{'id': 6, 'content': '<q>', 'special':"
        " true, 'normalized': false}, {'id': 7, 'content': 'q>'}]}";
    static const struct {
        const char *flags, *plain;
        bool differ;
    } rows[] = {
        {"'normalized': false", "2 3 7 5 ", false},
        {"'normalized': false, 'lstrip': true", "2 3 7 5 ", true},
        {"'normalized': false, 'rstrip': true", "2 3 7 5 ", true},
        {"'normalized': false, 'single_word': true", "2 3 7 5 ", true},
        {"'normalized': true", "2 3 5 4 5 ", true}, /* found before q> */
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kv_tokenizer *t = NULL;
        struct kv_err e = {""};
        char config[256];
        int32_t *ids;
        size_t n;

        snprintf(config, sizeof(config),
                 "{'added_tokens_decoder': {'6': {'content': '<q>',"
                 " 'special': true, %s}}}",
                 rows[i].flags);
        if (open_json(&t, main_json, config, &e))
            fail_msg("row %d: %s", (int)i, e.msg);
        check_ids(t, "ab<q>q", false, rows[i].plain);
        if (rows[i].differ) {
            assert_int_equal(
                kv_tokenizer_encode(t, "ab", 2, true, &ids, &n, NULL, &e), -1);
            assert_says(e, "of \"<q>\" differ in tokenizer.json and");
        } else {
            check_ids(t, "ab<q>q", true, "2 6 5 ");
        }
        kv_tokenizer_free(t);
    }
}

/* Each error has all the words, which | separates. */
static void refused(void **state)
{
    static const struct {
        struct folder f;
        const char *words;
    } rows[] = {
        {{LISTED, "{'added_tokens_decoder': {'6': {'content': 'x'}}}", NULL,
          NULL},
         "tokenizer_config.json|added_tokens_decoder|\"x\" has id 6"},
        {{LISTED, "{'added_tokens_decoder': {'7': {'content': '<q>'}}}", NULL,
          NULL},
         "tokenizer_config.json|\"<q>\" has id 7, in tokenizer.json it is 6"},
        {{LISTED, "{'added_tokens_decoder': {'6': {'content': '<q>'}}}", NULL,
          NULL},
         "tokenizer_config.json|\"<q>\" is not as in tokenizer.json"},
        {{PLAIN, "{'added_tokens_decoder': {'1': {'content': 'a'}}}", NULL,
          NULL},
         "\"a\" has id 1, against the vocabulary's 0"},
        {{PLAIN, "{'added_tokens_decoder': {'9': {'content': 'x'}}}", NULL,
          NULL},
         "\"x\" has id 9: expected 6"},
        {{PLAIN, "{'added_tokens_decoder': {'6x': {'content': 'x'}}}", NULL,
          NULL},
         "\"6x\" is not an id"},
        {{PLAIN, "{'added_tokens_decoder': {'6': 'x'}}", NULL, NULL},
         "added_tokens_decoder|\"content\""},
        {{PLAIN, "{'added_tokens_decoder': [1]}", NULL, NULL},
         "\"added_tokens_decoder\" is not an object"},
        {{LISTED, NULL, "{'<q>': 7}", NULL},
         "added_tokens.json|\"<q>\" has id 7, in tokenizer.json it is 6"},
        {{LISTED, NULL, "{'x': 6}", NULL},
         "added_tokens.json|\"x\" has id 6: expected 7"},
        {{PLAIN, NULL, "{'x': 1000000000000000019884624838656}", NULL},
         "added_tokens.json|the id of \"x\""},
        {{PLAIN,
          "{'added_tokens_decoder': {'6': {'content': 'x', 'lstrip':"
          " -99999999999999999999}}}",
          NULL, NULL},
         "tokenizer_config.json|\"x\": \"lstrip\""},
        {{PLAIN, "{'model_max_length': NaN}", NULL, NULL},
         "tokenizer_config.json: line 1|near 'NaN'"},
        {{PLAIN, NULL, "{'x': '6'}", NULL},
         "added_tokens.json|the id of \"x\""},
        {{PLAIN, "{'added_tokens_decoder': {}}", "{'x': 6}", NULL},
         "added_tokens.json|\"x\"|tokenizer_config.json"},
        {{LISTED, "{'bos_token': '<q>'}", NULL, "{'bos_token': 'a'}"},
         "\"bos_token\" is \"a\" in special_tokens_map.json|tokenizer_config"},
        {{PLAIN, "{'bos_token': 'a', 'add_bos_token': true}", NULL, NULL},
         "tokenizer_config.json|\"add_bos_token\" is true|tokenizer.json|"
         "take the field out of tokenizer_config.json"},
        {{TEMPLATE,
          "{'add_bos_token': false, 'tokenizer_class': 'LlamaTokenizerFast'}",
          NULL, NULL},
         "\"add_bos_token\" is false|take the field out"},
        {{LISTED,
          "{'added_tokens_decoder': {'6': {'content': '<q>', 'special':"
          " false, 'normalized': false}}}",
          NULL, NULL},
         "\"<q>\" is not as in tokenizer.json"},
        {{"{" VOCAB ", 'added_tokens': [{'id': 6, 'content': 'x'}]}",
          "{'added_tokens_decoder': {'6': {'content': 'x', 'lstrip': true}}}",
          NULL, NULL},
         "\"x\" is not as in tokenizer.json"},
        {{TEMPLATE, "{'add_bos_token': false}", NULL, NULL},
         "tokenizer_config.json|\"add_bos_token\" is false|tokenizer.json"},
        {{TEMPLATE, "{'add_eos_token': true}", NULL, NULL},
         "tokenizer_config.json|\"add_eos_token\" is true|tokenizer.json"},
        {{TEMPLATE, "{'bos_token': 'a'}", NULL, NULL},
         "tokenizer_config.json|\"bos_token\" has id 0|tokenizer.json puts 6"},
        {{TEMPLATE, NULL, NULL, "{'bos_token': 'a'}"},
         "\"bos_token\" has id 0|tokenizer.json puts 6"},
        {{"{" VOCAB ", 'pre_tokenizer': {'type': 'ByteLevel',"
          " 'add_prefix_space': false}}",
          "{'add_prefix_space': true}", NULL, NULL},
         "\"add_prefix_space\" is true, but tokenizer.json puts no space|"
         "take the field out of tokenizer_config.json"},
        {{"{" VOCAB ", 'normalizer': {'type': 'Prepend', 'prepend': 'a'}}",
          "{'add_prefix_space': false}", NULL, NULL},
         "\"add_prefix_space\" is false, but tokenizer.json puts a space"},
        {{PLAIN, "{'fast_tokenizer_files': ['tokenizer.4.0.0.json']}", NULL,
          NULL},
         "\"fast_tokenizer_files\""},
        {{PLAIN, "{'auto_map': {'AutoTokenizer': ['x.Y', null]}}", NULL, NULL},
         "\"auto_map\""},
        {{PLAIN, "{'fix_mistral_regex': true}", NULL, NULL},
         "\"fix_mistral_regex\""},
        {{PLAIN, "[]", NULL, NULL}, "tokenizer_config.json: not an object"},
        {{PLAIN, NULL, "[]", NULL}, "added_tokens.json: not an object"},
        {{PLAIN, NULL, NULL, "3"}, "special_tokens_map.json: line 1"},
        {{PLAIN, "{'a': 1, 'a': 2}", NULL, NULL}, "tokenizer_config.json|line"},
        {{"{'model': {'vocab': {'a\\u0000b': 0}, 'merges': []}}", NULL, NULL,
          NULL},
         "tokenizer.json|zero character"},
        {{"version https://git-lfs.github.com/spec/v1\\noid sha256:0", NULL,
          NULL, NULL},
         "tokenizer.json is a Git LFS pointer"},
        {{"\xff\xfe{", NULL, NULL, NULL}, "tokenizer.json: byte 0|UTF-16"},
        {{"\xfe\xff{", NULL, NULL, NULL}, "tokenizer.json: byte 0|UTF-16"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kv_tokenizer *t = NULL;
        struct kv_err e = {""};
        char words[256], *rest = words;

        if (!open_folder(&t, &rows[i].f, &e))
            fail_msg("row %d was taken", (int)i);
        snprintf(words, sizeof(words), "%s", rows[i].words);
        for (char *w; (w = strsep(&rest, "|"));)
            assert_says(e, w);
    }
}

/* Every field of a tokenizer's files, one at a time, becomes each of these.
 * The first of them are valid in some field, the others nowhere: if one of
 * those is accepted, the field is not read. */
static const char *const values[] = {NULL /* absent */,
                                     "null",
                                     "''",
                                     "'a'",
                                     "true",
                                     "false",
                                     "[]",
                                     "{}",
                                     "0",
                                     "-1",
                                     "1e300",
                                     "99999999999999999",
                                     "[[]]",
                                     "{'x': -1}"};
enum { FIRST_WRONG = 8 };

static const char whole_main[] =
    "{'version': '1.0', 'truncation': null, 'padding': null, 'added_tokens':"
    " [{'id': 6, 'content': '<q>', 'single_word': false, 'lstrip': false,"
    " 'rstrip': false, 'normalized': false, 'special': true}],"
    " 'normalizer': {'type': 'Sequence', 'normalizers': [{'type': 'NFC'},"
    " {'type': 'Prepend', 'prepend': 'a'}, {'type': 'Replace', 'pattern':"
    " {'String': ' '}, 'content': 'b'}]}, 'pre_tokenizer': {'type':"
    " 'Sequence', 'pretokenizers': [{'type': 'Split', 'pattern': {'Regex':"
    " 'q'}, 'behavior': 'Isolated', 'invert': false}, {'type': 'Digits',"
    " 'individual_digits': false}, {'type': 'Punctuation', 'behavior':"
    " 'Isolated'}, {'type': 'Metaspace', 'replacement': 'b',"
    " 'prepend_scheme': 'never', 'split': false}, {'type': 'ByteLevel',"
    " 'add_prefix_space': false, 'trim_offsets': true, 'use_regex': false}]},"
    " 'post_processor': {'type': 'Sequence', 'processors': [{'type':"
    " 'ByteLevel', 'add_prefix_space': true, 'trim_offsets': true,"
    " 'use_regex': true}, {'type': 'TemplateProcessing', 'single':"
    " [{'SpecialToken': {'id': '<q>', 'type_id': 0}}, {'Sequence': {'id':"
    " 'A', 'type_id': 0}}], 'pair': [], 'special_tokens': {'<q>': {'id':"
    " '<q>', 'ids': [6], 'tokens': ['<q>']}}}]}, 'decoder': {'type':"
    " 'Sequence', 'decoders': [{'type': 'ByteLevel'}, {'type': 'Replace',"
    " 'pattern': {'String': 'b'}, 'content': ' '}, {'type': 'Strip',"
    " 'content': ' ', 'start': 1, 'stop': 0}]}, 'model': {'type': 'BPE',"
    " 'dropout': null, 'unk_token': 'q', 'continuing_subword_prefix': null,"
    " 'end_of_word_suffix': null, 'fuse_unk': false, 'byte_fallback': false,"
    " 'ignore_merges': false, 'vocab': {'a': 0, 'b': 1, 'ab': 2, '<': 3, '>':"
    " 4, 'q': 5}, 'merges': ['a b']}}";
static const char whole_config[] =
    "{'added_tokens_decoder': {'6': {'content': '<q>', 'single_word': false,"
    " 'lstrip': false, 'rstrip': false, 'normalized': false, 'special': true},"
    " '7': {'content': 'xx', 'special': false}}, 'bos_token': '<q>',"
    " 'eos_token': {'content': '<q>', 'lstrip': false}, 'pad_token': null,"
    " 'add_bos_token': true, 'add_eos_token': false, 'add_prefix_space': true,"
    " 'split_special_tokens': false, 'extra_special_tokens': ['zz'],"
    " 'auto_map': {}, 'fast_tokenizer_files': ['tokenizer.json'],"
    " 'fix_mistral_regex': false, 'model_max_length': 1e30}";
static const char whole_added[] = "{'<q>': 6, 'xx': 7}";
static const char whole_map[] =
    "{'bos_token': '<q>', 'eos_token': {'content': '<q>', 'lstrip': false}}";

struct walk {
    json_t *file[4];
    char ids[256]; /* ids with the unchanged files */
    size_t taken, refused;
};

static void encode(const struct kv_tokenizer *t, char ids[256])
{
    struct kv_err e = {""};
    size_t n, bytes, at = 0;
    int32_t *id;
    char *text;

    ids[0] = 0;
    if (kv_tokenizer_encode(t, "ab <q> 12xx", 11, true, &id, &n, NULL, &e))
        return;
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(ids + at, 256 - at, "%d ", (int)id[i]);
    if (!kv_tokenizer_decode(t, id, n, true, &text, &bytes, &e))
        free(text);
    free(id);
}

static void try_files(struct walk *w, const char *key, size_t value)
{
    const char *dir = test_folder();
    const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                 "added_tokens.json",
                                 "special_tokens_map.json"};
    struct kv_tokenizer *t = NULL;
    struct kv_err e = {""};
    char ids[256];

    for (size_t i = 0; i < 4; i++) {
        char *text = json_dumps(w->file[i], JSON_ENCODE_ANY);

        write_file(dir, names[i], text);
        free(text);
    }
    if (kv_tokenizer_open(&t, dir, &e)) {
        assert_says(e, ".json");
        w->refused++;
    } else {
        encode(t, ids);
        if (!w->taken++)
            strcpy(w->ids, ids);
        if (value >= FIRST_WRONG && strcmp(ids, w->ids))
            fail_msg("\"%s\": %s: %s instead of %s", key, values[value], ids,
                     w->ids);
        kv_tokenizer_free(t);
    }
    remove_folder(dir);
}

static json_t *value_of(const char *json)
{
    char *text = quoted(json);
    json_t *j = json_loads(text, JSON_DECODE_ANY, NULL);

    free(text);
    assert_non_null(j);
    return j;
}

static void walk_fields(struct walk *w, json_t *at);

static void walk_member(struct walk *w, json_t *at, const char *key)
{
    json_t *child = json_incref(json_object_get(at, key));

    for (size_t i = 0; i < COUNT(values); i++) {
        if (values[i])
            json_object_set_new(at, key, value_of(values[i]));
        else
            json_object_del(at, key);
        try_files(w, key, i);
        json_object_set(at, key, child);
    }
    walk_fields(w, child);
    json_decref(child);
}

/* By a copy: a member that was away comes back as the last. */
static void walk_fields(struct walk *w, json_t *at)
{
    json_t *before = json_copy(at), *child;
    const char *key;
    size_t i;

    json_object_foreach(before, key, child) walk_member(w, at, key);
    json_array_foreach(before, i, child)
    {
        for (size_t k = 1; k < COUNT(values); k++) {
            json_array_set_new(at, i, value_of(values[k]));
            try_files(w, "[]", k);
            json_array_set(at, i, child);
        }
        walk_fields(w, child);
    }
    json_decref(before);
}

static void every_field(void **state)
{
    const char *const texts[] = {whole_main, whole_config, whole_added,
                                 whole_map};
    struct walk w = {0};

    (void)state;
    for (size_t i = 0; i < 4; i++)
        w.file[i] = value_of(texts[i]);
    try_files(&w, "", 0);
    assert_int_equal(w.taken, 1);
    for (size_t i = 0; i < 4; i++)
        walk_fields(&w, w.file[i]);
    print_message("%zu taken, %zu refused\n", w.taken, w.refused);
    assert_true(w.refused > w.taken);
    for (size_t i = 0; i < 4; i++)
        json_decref(w.file[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(taken_in),          cmocka_unit_test(bos_of_template),
        cmocka_unit_test(flags_that_differ), cmocka_unit_test(refused),
        cmocka_unit_test(every_field),
    };

    return cmocka_run_group_tests_name("tokenizer_files", tests, NULL, NULL);
}
