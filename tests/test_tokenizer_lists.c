/* vocab.json and merges.txt without a tokenizer.json. */
#include "tests/tokenizer_setup.h"

static const char vocab[] =
    "{'a': 0, 'b': 1, '1': 2, '2': 3, 'ab': 4, '12': 5, '\\u0120': 6,"
    " '\\u0120a': 7, '<|endoftext|>': 8, '</s>': 9, '\\u00c3': 10,"
    " '\\u00a9': 11, '\\u00c3\\u00a9': 12, 'e': 13, '\\u00cc': 14,"
    " '\\u0123': 15}";
static const char merges[] =
    "#version: 0.2\na b\n1 2\n\xc4\xa0 a\r\n\n\xc3\x83 \xc2\xa9\n";

/* JSON with ' for ", or NULL for no such file. */
struct folder {
    const char *vocab, *merges, *config, *map, *model;
};

static int open_folder(struct kv_tokenizer **t, const struct folder *f,
                       struct kv_err *e)
{
    const struct {
        const char *name, *text;
    } files[] = {{"vocab.json", f->vocab ? f->vocab : vocab},
                 {"tokenizer_config.json", f->config},
                 {"special_tokens_map.json", f->map},
                 {"config.json", f->model}};
    const char *dir = test_folder();
    int rc;

    for (size_t i = 0; i < COUNT(files); i++) {
        if (!files[i].text)
            continue;
        char *text = quoted(files[i].text);

        write_file(dir, files[i].name, text);
        free(text);
    }
    write_file(dir, "merges.txt", f->merges ? f->merges : merges);
    rc = kv_tokenizer_open(t, dir, e);
    remove_folder(dir);
    return rc;
}

static struct kv_tokenizer *must(struct folder f)
{
    struct kv_tokenizer *t = NULL;
    struct kv_err e = {""};

    if (open_folder(&t, &f, &e))
        fail_msg("%s", e.msg);
    return t;
}

static void refused(struct folder f, const char *why)
{
    struct kv_tokenizer *t;
    struct kv_err e = {""};

    assert_int_equal(open_folder(&t, &f, &e), -1);
    assert_says(e, why);
}

static void gpt2(void **state)
{
    const int32_t ids[] = {4, 7, 12, 8};
    struct kv_tokenizer *t =
        must((struct folder){.config = "{'tokenizer_class': 'GPT2Tokenizer',"
                                       " 'add_prefix_space': false}"});

    (void)state;
    assert_int_equal(kv_tokenizer_vocab(t), 16);
    assert_false(kv_tokenizer_adds_bos(t));
    check_ids(t, "ab a12", false, "4 7 5 ");
    check_ids(t, "e\xcc\x81", false, "13 14 15 "); /* left as it is */
    check_ids(t, "a<|endoftext|>", true, "0 8 ");
    check_text(t, ids, COUNT(ids), false, "ab a\xc3\xa9");
    kv_tokenizer_free(t);
}

static void prefixed(void **state)
{
    struct kv_tokenizer *t =
        must((struct folder){.config = "{'tokenizer_class':"
                                       " 'GPT2TokenizerFast',"
                                       " 'add_prefix_space': true}"});

    (void)state;
    check_ids(t, "a", false, "7 ");
    kv_tokenizer_free(t);
}

/* OPT's: GPT-2's class, and a BOS that the files name. */
static void opt(void **state)
{
    struct kv_tokenizer *t = must((struct folder){
        .config = "{'tokenizer_class': 'GPT2Tokenizer', 'add_bos_token': true,"
                  " 'bos_token': {'__type': 'AddedToken', 'content': '</s>',"
                  " 'normalized': true}}",
        .map = "{'bos_token': '</s>'}"});

    (void)state;
    assert_int_equal(kv_tokenizer_bos(t), 9);
    assert_true(kv_tokenizer_adds_bos(t));
    check_ids(t, "</s>a", true, "9 0 ");
    kv_tokenizer_free(t);
}

/* Digits are separate pieces, and a text is normalized to NFC. */
static void qwen2(void **state)
{
    struct kv_tokenizer *t = must((struct folder){
        .model = "{'model_type': 'qwen2'}",
        .config = "{'added_tokens_decoder': {'8': {'content': '<|endoftext|>',"
                  " 'special': true}, '16': {'content': '<|im_start|>',"
                  " 'special': true}}}"});

    (void)state;
    check_ids(t, "12", false, "2 3 ");
    check_ids(t, "e\xcc\x81", false, "12 ");
    check_ids(t, "<|im_start|>a", true, "16 0 ");
    assert_int_equal(kv_tokenizer_vocab(t), 17);
    kv_tokenizer_free(t);
}

static void neox(void **state)
{
    struct kv_tokenizer *t =
        must((struct folder){.model = "{'model_type': 'gpt_neox'}"});

    (void)state;
    check_ids(t, "12e\xcc\x81", false, "5 12 ");
    kv_tokenizer_free(t);
}

static void refuses(void **state)
{
    static const char gpt2_class[] = "{'tokenizer_class': 'GPT2Tokenizer'}";

    (void)state;
    refused((struct folder){0}, "do not say how a text is cut");
    refused((struct folder){.config = "{'tokenizer_class': 'Cohere'}"},
            "tokenizer_config.json: \"tokenizer_class\" is \"Cohere\", whose");
    refused((struct folder){.model = "{'model_type': 'bart'}"},
            "config.json: \"model_type\" is \"bart\", whose vocab.json");
    refused((struct folder){.config = "{'tokenizer_class': 'GPT2Tokenizer',"
                                      " 'add_bos_token': true,"
                                      " 'bos_token': '<s>'}"},
            "vocab.json has no \"bos_token\" \"<s>\"");
    refused((struct folder){.config = "{'tokenizer_class': 'GPT2Tokenizer',"
                                      " 'add_eos_token': true}"},
            "\"add_eos_token\" is true, which is not supported");
    refused((struct folder){.config = "{'tokenizer_class': 'Qwen2Tokenizer',"
                                      " 'add_prefix_space': true}"},
            "\"add_prefix_space\" is true, which is not supported");
    refused((struct folder){.config = gpt2_class, .vocab = "[]"},
            "vocab.json: not an object");
    refused((struct folder){.config = gpt2_class, .vocab = "{'a': 'b'}"},
            "vocab.json and merges.txt: model: ");
    refused((struct folder){.config = gpt2_class, .merges = "a b\nab\n"},
            "merges.txt: line 2 is not two tokens with a space between");
    refused((struct folder){.config = gpt2_class, .merges = "a b c"},
            "merges.txt: line 1 is not two tokens");
    refused((struct folder){.config = gpt2_class, .merges = "a \xff\n"},
            "merges.txt: line 1 is not UTF-8");
    refused((struct folder){.config = gpt2_class, .merges = ""},
            "merges.txt: no merges");
    refused((struct folder){.config = gpt2_class, .merges = "b a\n"},
            "vocab.json and merges.txt: model: merge 0: \"ba\" is not in the "
            "vocabulary");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2), cmocka_unit_test(prefixed),
        cmocka_unit_test(opt),  cmocka_unit_test(qwen2),
        cmocka_unit_test(neox), cmocka_unit_test(refuses),
    };

    return cmocka_run_group_tests_name("tokenizer_lists", tests, NULL, NULL);
}
