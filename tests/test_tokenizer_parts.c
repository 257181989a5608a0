/* The parts of a tokenizer, each with its settings, and refusals. */
#include "lib/base/progress.h"
#include "lib/base/utf8.h"
#include "lib/tokenizer/tokenizer_normalizer.h"
#include "lib/tokenizer/tokenizer_pattern.h"
#include "lib/tokenizer/tokenizer_split.h"
#include "tests/tokenizer_setup.h"

static int add_piece(void *arg, const char *s, size_t n, struct kv_err *e)
{
    char *line = arg;

    (void)e;
    assert_true(n > 0);
    strncat(line, s, n);
    strcat(line, "|");
    return 0;
}

/* The pieces, each with a | after it. */
static void split(void **state)
{
    static const char words[] = "{'type': 'ByteLevel', 'add_prefix_space':"
                                " false, 'use_regex': true}";
    static const struct {
        const char *json, *text, *pieces;
    } rows[] = {
        {"null", "a b", "a b|"},
        {words, "I'm here, it's 42!",
         "I|'m|\u0120here|,|\u0120it|'s|\u0120"
         "42|!|"},
        {words, "a   b\n\n c  ",
         "a|\u0120\u0120|\u0120b|\u010a\u010a|"
         "\u0120c|\u0120\u0120|"},
        {words, "\u00e9\u180e!", "\u00c3\u00a9|\u00e1\u0142\u0130!|"},
        {"{'type': 'ByteLevel'}", "a b", "\u0120a|\u0120b|"},
        {"{'type': 'ByteLevel'}", " a", "\u0120a|"},
        {"{'type': 'ByteLevel', 'use_regex': false}", "a b", "\u0120a\u0120b|"},
        {"{'type': 'Split', 'pattern': {'String': '-'}, 'behavior':"
         " 'Removed'}",
         "-the-final--countdown", "the|final|countdown|"},
        {"{'type': 'Split', 'pattern': {'String': '-'}, 'behavior':"
         " 'Isolated'}",
         "the-final--countdown", "the|-|final|-|-|countdown|"},
        {"{'type': 'Split', 'pattern': {'String': '-'}, 'behavior':"
         " 'MergedWithPrevious'}",
         "the-final--countdown-", "the-|final-|-|countdown-|"},
        {"{'type': 'Split', 'pattern': {'String': '-'}, 'behavior':"
         " 'MergedWithNext'}",
         "the-final--countdown-", "the|-final|-|-countdown|-|"},
        {"{'type': 'Split', 'pattern': {'String': '-'}, 'behavior':"
         " 'Contiguous'}",
         "the-final--countdown", "the|-|final|--|countdown|"},
        {"{'type': 'Split', 'pattern': {'Regex': '[a-z]+'}, 'behavior':"
         " 'Removed', 'invert': true}",
         "the-final--countdown", "the|final|countdown|"},
        {"{'type': 'Split', 'pattern': {'String': '-'}, 'behavior':"
         " 'MergedWithNext', 'invert': true}",
         "a--b", "a-|-|b|"},
        {"{'type': 'Split', 'pattern': {'String': '-'}, 'behavior':"
         " 'MergedWithPrevious', 'invert': true}",
         "a--b", "a|-|-b|"},
        {"{'type': 'Digits', 'individual_digits': true}", "ab12\u00bdc",
         "ab|1|2|\u00bd|c|"},
        {"{'type': 'Digits', 'individual_digits': false}", "ab12\u00bdc",
         "ab|12\u00bd|c|"},
        {"{'type': 'Punctuation'}", "a.,$b", "a|.|,|$|b|"},
        {"{'type': 'Punctuation', 'behavior': 'Contiguous'}", "a.,$b",
         "a|.,$|b|"},
        {"{'type': 'Metaspace', 'replacement': '_'}", "a b  c", "_a|_b|_|_c|"},
        {"{'type': 'Metaspace', 'replacement': '_', 'prepend_scheme':"
         " 'never', 'split': false}",
         "a b", "a_b|"},
        {"{'type': 'Sequence', 'pretokenizers': [{'type': 'Split',"
         " 'pattern': {'String': '-'}, 'behavior': 'Removed'}, {'type':"
         " 'Metaspace', 'replacement': '_', 'prepend_scheme': 'first'}]}",
         "a-b c", "_a|b|_c|"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char *text = quoted(rows[i].json), line[256] = "";
        json_t *j = json_loads(text, JSON_DECODE_ANY, NULL);
        const struct kv_piece_sink sink = {add_piece, line};
        struct kv_splitter *x = NULL;
        struct kv_watch w;
        struct kv_err e = {""};

        kv_watch_init(&w, strlen(rows[i].text));
        if (kv_splitter_new(&x, j, &e) ||
            kv_splitter_run(x, rows[i].text, strlen(rows[i].text), true, &sink,
                            &w, &e))
            fail_msg("%s: %s", rows[i].json, e.msg);
        if (strcmp(line, rows[i].pieces))
            fail_msg("%s: %s", rows[i].json, line);
        kv_splitter_free(x);
        json_decref(j);
        free(text);
    }
}

/* One U+FFFD for every maximal part, as the Unicode standard recommends. */
static void ill_formed(void **state)
{
    static const struct {
        const char *bytes, *text;
    } rows[] = {
        {"", ""},
        {"a\u00e9\u20ac\U0001f999", "a\u00e9\u20ac\U0001f999"},
        {"\x80", "\ufffd"},
        {"\xc0\xaf", "\ufffd\ufffd"},
        {"\xc3", "\ufffd"},
        {"a\xe2\x82z", "a\ufffdz"},
        {"\xe0\x80\x80", "\ufffd\ufffd\ufffd"},
        {"\xe0\xa0", "\ufffd"},
        {"\xed\x9f\xbf", "\ud7ff"},
        {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
        {"\xf0\x9f\x92", "\ufffd"},
        {"\xf0\x8f\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
        {"\xf4\x8f\xbf\xbf", "\U0010ffff"},
        {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
        {"\xf5\xff\x41", "\ufffd\ufffd\x41"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        size_t n;
        char *out = kv_utf8_repair(rows[i].bytes, strlen(rows[i].bytes), &n);

        assert_string_equal(out, rows[i].text);
        assert_int_equal(n, strlen(rows[i].text));
        free(out);
    }
}

static void normalize(void **state)
{
    static const struct {
        const char *json, *text, *normal;
    } rows[] = {
        {"null", "e\u0301", "e\u0301"},
        {"{'type': 'NFC'}", "xe\u0301z\u0301 \u1100\u1161",
         "x\u00e9\u017a "
         "\uac00"},
        {"{'type': 'NFC'}", "\u0301", "\u0301"},
        {"{'type': 'NFD'}", "\u00e9", "e\u0301"},
        {"{'type': 'NFKC'}", "\ufb01 \uff21", "fi A"},
        {"{'type': 'NFKD'}", "\ufb01\u00e9", "fie\u0301"},
        {"{'type': 'Prepend', 'prepend': '_'}", "", ""},
        {"{'type': 'Prepend', 'prepend': '_'}", "_a", "__a"},
        {"{'type': 'Replace', 'pattern': {'String': 'aa'}, 'content': 'b'}",
         "aaaxa", "baxa"},
        {"{'type': 'Replace', 'pattern': {'Regex': ' {2,}'}, 'content':"
         " '_'}",
         "a  b c   ", "a_b c_"},
        {"{'type': 'Sequence', 'normalizers': [{'type': 'Prepend',"
         " 'prepend': ' '}, {'type': 'Sequence', 'normalizers': [{'type':"
         " 'Replace', 'pattern': {'String': ' '}, 'content': '__'}]}]}",
         "a b", "__a__b"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char *text = quoted(rows[i].json);
        json_t *j = json_loads(text, JSON_DECODE_ANY, NULL);
        struct kv_normalizer *z = NULL;
        struct kv_watch w;
        struct kv_text out = {0};
        struct kv_err e = {""};

        kv_watch_init(&w, strlen(rows[i].text));
        if (kv_normalizer_new(&z, j, &e) ||
            kv_normalizer_run(z, rows[i].text, strlen(rows[i].text), true, &out,
                              &w, &e))
            fail_msg("%s: %s", rows[i].json, e.msg);
        if (out.n != strlen(rows[i].normal) ||
            (out.n && memcmp(out.s, rows[i].normal, out.n)))
            fail_msg("%s: %.*s", rows[i].json, (int)out.n, out.s);
        kv_text_clear(&out);
        kv_normalizer_free(z);
        json_decref(j);
        free(text);
    }
}

static void decoders(void **state)
{
    static const int32_t ids[] = {0, 0, 1, 2, 3};
    static const struct {
        const char *json, *text;
    } rows[] = {
        {"null", "_a _a b_ <0x41> <0xC3>"},
        {"{'type': 'Fuse'}", "_a_ab_<0x41><0xC3>"},
        {"{'type': 'ByteFallback'}", "_a_ab_\ufffd\ufffd"},
        {"{'type': 'Metaspace', 'replacement': '_'}", "a ab <0x41><0xC3>"},
        {"{'type': 'Metaspace', 'replacement': '_', 'prepend_scheme':"
         " 'never'}",
         " a ab <0x41><0xC3>"},
        {"{'type': 'Strip', 'content': '_', 'start': 1, 'stop': 0}",
         "aab_<0x41><0xC3>"},
        {"{'type': 'Strip', 'content': '_', 'start': 0, 'stop': 9}",
         "_a_ab<0x41><0xC3>"},
        {"{'type': 'Replace', 'pattern': {'Regex': '[ab]'}, 'content':"
         " 'x'}",
         "_x_xx_<0x41><0xC3>"},
        {"{'type': 'Sequence', 'decoders': [{'type': 'Fuse'}, {'type':"
         " 'Strip', 'content': '_', 'start': 1, 'stop': 1}]}",
         "a_ab_<0x41><0xC3>"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char json[1024];
        struct kv_tokenizer *t;

        snprintf(json, sizeof(json),
                 "{'model': {'vocab': {'_a': 0, 'b_': 1, '<0x41>': 2,"
                 " '<0xC3>': 3}, 'merges': []}, 'decoder': %s}",
                 rows[i].json);
        t = must_open(json);
        check_text(t, ids, 5, true, rows[i].text);
        check_text(t, ids, 0, true, "");
        kv_tokenizer_free(t);
    }
}

/* Syntax that differs between Oniguruma and PCRE2 is refused. */
static void regex_refused(void **state)
{
    static const char *const sources[] = {
        "\\w+",   "\\bx",  "\\h",       "(?i)a", "(?<n>a)", "[a[bc]]",
        "[a&&b]", "[\\S]", "a{,2}",     "a{2}+", "a{2}?",   "a\\",
        "\\x41",  "\\u12", "\\p{Nope}", "(a",    "[a",      "a)",
    };
    static const char *const fine[] = {
        "\\p{N}{1,3}",     "(?i:'s|'t)", "[^\\s\\p{L}]+?",
        "\\s+(?!\\S)",     "[]a]",       "[^]a]",
        "\\u2581|\\x{41}", "\\p{^L}",    "(?:a|b)(?=c)",
        "\\[\\]\\-\\.",    "x++",
    };
    struct kv_pattern *p;

    (void)state;
    for (size_t i = 0; i < COUNT(sources); i++) {
        struct kv_err e = {""};

        if (!kv_pattern_new(&p, sources[i], true, &e))
            fail_msg("%s was taken", sources[i]);
        assert_says(e, sources[i]);
    }
    for (size_t i = 0; i < COUNT(fine); i++) {
        struct kv_err e = {""};

        if (kv_pattern_new(&p, fine[i], true, &e))
            fail_msg("%s", e.msg);
        kv_pattern_free(p);
    }
}

static void empty_match(void **state)
{
    struct kv_tokenizer *t = must_open(
        "{'model': {'vocab': {'a': 0}, 'merges': []}, 'pre_tokenizer':"
        " {'type': 'Split', 'pattern': {'Regex': 'b*'}, 'behavior':"
        " 'Isolated'}}");
    struct kv_err e = {""};
    int32_t *ids;
    size_t n;

    (void)state;
    assert_int_equal(kv_tokenizer_encode(t, "a", 1, true, &ids, &n, NULL, &e),
                     -1);
    assert_says(e, "\"b*\" matches an empty string");
    kv_tokenizer_free(t);
}

#define SPLIT_BY(regex)                                                      \
    "{'model': {'vocab': {'a': 0, 'b': 1, 'c': 2}, 'merges': []},"           \
    " 'pre_tokenizer': {'type': 'Split', 'pattern': {'Regex': '" regex "'}," \
    " 'behavior': 'Isolated'}}"
#define NORMALIZED_BY(steps)                                       \
    "{'model': {'vocab': {'a': 0, 'b': 1, 'c': 2}, 'merges': []}," \
    " 'normalizer': {'type': 'Sequence', 'normalizers': [" steps "]}}"
#define TWICE "{'type': 'Replace', 'pattern': {'String': 'a'}, 'content': 'aa'}"
#define TWICE_6 TWICE "," TWICE "," TWICE "," TWICE "," TWICE "," TWICE
#define BYTES "{'type': 'ByteLevel', 'use_regex': false}"
#define BYTES_4 BYTES "," BYTES "," BYTES "," BYTES

/* Whatever a tokenizer asks for, it ends: n times 'a' and then the end.  Each
 * place in the long texts takes little time, but the places are many. */
static void bounds(void **state)
{
    static const struct {
        const char *json;
        size_t n;
        const char *end, *words;
    } rows[] = {
        {SPLIT_BY("(a+)+$"), 40, "c", "\"(a+)+$\": match limit"},
        {SPLIT_BY("(?:a|a)+$"), 40, "c", "match limit"},
        {SPLIT_BY("(?=(a+)+$)a"), 40, "c", "match limit"},
        {SPLIT_BY("(?:a|b)+(?=c)"), 4000000, "", "limit"},
        {SPLIT_BY("(?:a|b)+(?=c)"), 40000, "", "takes too long"},
        {SPLIT_BY("a+a+(?=b)"), 1000, "c", NULL},
        {SPLIT_BY("a+a+(?=b)"), 40000, "c", "\"a+a+(?=b)\""},
        {NORMALIZED_BY(TWICE), 4000, "", NULL},
        {NORMALIZED_BY(TWICE_6 "," TWICE_6 "," TWICE_6), 4000, "",
         "make more than 64 times its 4000 bytes"},
        {"{" MODEL ", 'pre_tokenizer': {'type': 'Sequence', 'pretokenizers':"
         " [" BYTES_4 "," BYTES_4 "," BYTES_4 "," BYTES_4 "]}}",
         4000, "\xff\xff\xff\xff", "make more than 64 times"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kv_tokenizer *t = must_open(rows[i].json);
        const size_t n_end = strlen(rows[i].end);
        char *text = kv_alloc(rows[i].n + n_end + 1, 1);
        const double start = kv_seconds();
        struct kv_err e = {""};
        int32_t *ids;
        size_t n;

        memset(text, 'a', rows[i].n);
        strcpy(text + rows[i].n, rows[i].end);
        if (!kv_tokenizer_encode(t, text, rows[i].n + n_end, true, &ids, &n,
                                 NULL, &e)) {
            if (rows[i].words)
                fail_msg("row %d was taken", (int)i);
            free(ids);
        } else {
            if (!rows[i].words)
                fail_msg("row %d: %s", (int)i, e.msg);
            assert_says(e, "tokenizer.json");
            assert_says(e, rows[i].words);
        }
        print_message("row %zu: %.2f s\n", i, kv_seconds() - start);
        free(text);
        kv_tokenizer_free(t);
    }
}

static void too_much(void **state)
{
    static const char *const regexes[] = {"(?:(?:a{1,1000}){1,1000}){1,1000}",
                                          "(?:[a-z]{1,60000}){1,60000}"};
    struct kv_tokenizer *t;

    (void)state;
    for (size_t i = 0; i < COUNT(regexes); i++) {
        const double start = kv_seconds();
        struct kv_err e = {""};
        char json[1024];

        snprintf(json, sizeof(json), SPLIT_BY("%s"), regexes[i]);
        assert_int_equal(open_json(&t, json, NULL, &e), -1);
        assert_says(e, "tokenizer.json");
        print_message("%s: %.2f s\n", e.msg, kv_seconds() - start);
    }
}

/* The largest sum of scores, not the longest token; what is unknown is one. */
static void unigram(void **state)
{
    static const char vocab[] =
        "'vocab': [['<unk>', 0], ['a', -1], ['b', -1.5], ['ab', -3], ['abc', "
        "-9], ['c', -1], ['<0xC3>', 0], ['<0xA9>', 0], ['bc', -2.5]]";
    char json[512];
    struct kv_tokenizer *t;
    struct kv_err e = {""};
    int32_t *ids;
    size_t n;

    (void)state;
    snprintf(json, sizeof(json),
             "{'model': {'type': 'Unigram', 'unk_id': 0, %s}}", vocab);
    t = must_open(json);
    check_ids(t, "ab", false, "1 2 ");
    check_ids(t, "abc", false, "1 8 ");
    check_ids(t, "xyabz", false, "0 1 2 0 ");
    check_ids(t, "\xc3\xa9", false, "0 ");
    kv_tokenizer_free(t);
    snprintf(json, sizeof(json),
             "{'model': {'type': 'Unigram', 'unk_id': 0, 'byte_fallback': "
             "true, %s}}",
             vocab);
    t = must_open(json);
    check_ids(t, "a\xc3\xa9", false, "1 6 7 ");
    check_ids(t, "\xc3\xa9x", false, "0 ");
    kv_tokenizer_free(t);
    snprintf(json, sizeof(json),
             "{'added_tokens': [{'id': 8, 'content': 'bc', 'special': true}], "
             "'model': {'type': 'Unigram', 'unk_id': 0, %s}}",
             vocab);
    t = must_open(json);
    check_ids(t, "abc", false, "1 2 5 ");
    check_ids(t, "abc", true, "1 8 ");
    kv_tokenizer_free(t);
    snprintf(json, sizeof(json), "{'model': {'type': 'Unigram', %s}}", vocab);
    t = must_open(json);
    assert_int_equal(kv_tokenizer_encode(t, "ax", 2, false, &ids, &n, NULL, &e),
                     -1);
    assert_says(e, "\"x\" has no token, and the model no unk_id");
    kv_tokenizer_free(t);
}

static void bad_files(void **state)
{
    static const struct {
        const char *json, *words;
    } rows[] = {
        {"", "tokenizer.json: line 1"},
        {"{'model': {'vocab': {'a': 0", "tokenizer.json: line 1"},
        {"[]", "expected an object with \"model\""},
        {"{}", "no \"model\""},
        {"{'model': 3}", "\"model\" is not an object"},
        {"{'model': {}}", "model: no \"vocab\""},
        {"{'model': {'vocab': []}}", "\"vocab\" is not an object"},
        {"{'model': {'vocab': {'a': 0}}}", "no \"merges\""},
        {"{'model': {'vocab': {'a': 0}, 'merges': {}}}",
         "\"merges\" is not an array"},
        {"{'model': {'type': 'Unigram', 'vocab': {'a': 0}}}",
         "model: \"vocab\" is not an array"},
        {"{'model': {'type': 'Unigram', 'vocab': [['a', 0], ['b']]}}",
         "model: token 1 of \"vocab\": not [\"token\", score]"},
        {"{'model': {'type': 'Unigram', 'vocab': [['a', 0], ['a', 1]]}}",
         "\"a\" is there twice"},
        {"{'model': {'type': 'Unigram', 'vocab': [['a', 0]], 'unk_id': 1}}",
         "\"unk_id\" is not an integer from 0 to 0"},
        {"{'model': {'type': 'Unigram', 'vocab': [['a', 0]], 'alpha': 1}}",
         "\"alpha\" is not supported"},
        {"{'model': {'type': 'WordPiece', 'vocab': {}}}",
         "model: type \"WordPiece\" is not supported, only BPE and "
         "Unigram"},
        {"{'model': {'vocab': {'a': -1}, 'merges': []}}", "the id of \"a\""},
        {"{'model': {'vocab': {'a': 1.5}, 'merges': []}}", "the id of \"a\""},
        {"{'model': {'vocab': {'a': 99999999999}, 'merges': []}}",
         "the id of \"a\""},
        {"{'model': {'vocab': {'a': 1, 'b': 1}, 'merges': []}}",
         "id 1 is given to \"a\" and to \"b\""},
        {"{'model': {'vocab': {'a': 0}, 'merges': ['a z']}}",
         "merge 0: \"z\" is not in the vocabulary"},
        {"{'model': {'vocab': {'a': 0}, 'merges': ['a a']}}",
         "merge 0: \"aa\" is not in the vocabulary"},
        {"{'model': {'vocab': {'a': 0}, 'merges': ['a']}}", "merge 0: \"a\""},
        {"{'model': {'vocab': {'a': 0}, 'merges': ['a a a']}}", "merge 0"},
        {"{'model': {'vocab': {'a': 0}, 'merges': ['a ']}}", "is empty"},
        {"{'model': {'vocab': {'a': 0}, 'merges': [['a']]}}", "merge 0"},
        {"{'model': {'vocab': {'a': 0}, 'merges': [7]}}", "merge 0"},
        {"{'model': {'dropout': 0.1, 'vocab': {}, 'merges': []}}",
         "\"dropout\" is not supported"},
        {"{'model': {'end_of_word_suffix': '</w>', 'vocab': {}, 'merges':"
         " []}}",
         "\"end_of_word_suffix\" is not supported"},
        {"{'model': {'continuing_subword_prefix': '##', 'vocab': {},"
         " 'merges': []}}",
         "\"continuing_subword_prefix\" is not supported"},
        {"{'model': {'unk_token': 'u', 'vocab': {}, 'merges': []}}",
         "unk_token: \"u\" is not in the vocabulary"},
        {"{'model': {'byte_fallback': 'yes', 'vocab': {}, 'merges': []}}",
         "\"byte_fallback\" is neither true nor false"},
        {"{" MODEL ", 'normalizer': {'type': 'Lowercase'}}",
         "normalizer: Lowercase"},
        {"{" MODEL ", 'normalizer': 'NFC'}", "normalizer: expected an object"},
        {"{" MODEL ", 'normalizer': {'type': 'Replace', 'content': ''}}",
         "normalizer: Replace: \"pattern\""},
        {"{" MODEL ", 'pre_tokenizer': {'type': 'BertPreTokenizer'}}",
         "pre_tokenizer: BertPreTokenizer"},
        {"{" MODEL ", 'pre_tokenizer': {'type': 'Sequence'}}",
         "no \"pretokenizers\""},
        {"{" MODEL ", 'pre_tokenizer': {'type': 'Split', 'pattern':"
         " {'Regex': '('}, 'behavior': 'Isolated'}}",
         "regular expression \"(\""},
        {"{" MODEL ", 'pre_tokenizer': {'type': 'Split', 'pattern':"
         " {'String': 'a'}, 'behavior': 'Odd'}}",
         "behavior \"Odd\""},
        {"{" MODEL ", 'pre_tokenizer': {'type': 'Metaspace',"
         " 'replacement': 'ab'}}",
         "\"replacement\" is not one character"},
        {"{" MODEL ", 'decoder': {'type': 'WordPiece'}}", "decoder: WordPiece"},
        {"{" MODEL ", 'decoder': {'type': 'Strip', 'content': ' ', 'start':"
         " -1, 'stop': 0}}",
         "decoder: Strip: \"start\""},
        {"{" MODEL ", 'post_processor': {'type': 'BertProcessing'}}",
         "post_processor: type \"BertProcessing\""},
        {"{" MODEL ", 'post_processor': {'type': 'TemplateProcessing',"
         " 'single': [{'SpecialToken': {'id': 'z'}}, {'Sequence': {'id':"
         " 'A'}}], 'special_tokens': {'z': {'ids': [7]}}}}",
         "\"z\" is not one token of the vocabulary"},
        {"{" MODEL ", 'added_tokens': {}}", "added_tokens: not an array"},
        {"{" MODEL ", 'added_tokens': [{'id': 5}]}", "no \"content\""},
        {"{" MODEL ", 'added_tokens': [{'content': 'x'}]}", "\"id\""},
        {"{" MODEL ", 'added_tokens': [{'id': 1, 'content': 'a'}]}",
         "\"a\" has id 1, against the vocabulary"},
        {"{" MODEL ", 'added_tokens': [{'id': 1, 'content': 'x'}]}",
         "\"x\" has id 1: expected 2"},
        {"{" MODEL ", 'added_tokens': [{'id': 2, 'content': 'x'}, {'id': 2,"
         " 'content': 'y'}]}",
         "\"y\" has id 2: expected 3"},
        {"{" MODEL ", 'added_tokens': [{'id': 2, 'content': 'x'}, {'id': 3,"
         " 'content': 'x'}]}",
         "given twice"},
        {"{'model': {'vocab': {'a': 0, 'b': 2}, 'merges': []},"
         " 'added_tokens': [{'id': 2, 'content': 'x'}]}",
         "against the vocabulary's \"b\""},
        {"{" MODEL ", 'version': '2.0'}", "version \"2.0\""},
        {"{" MODEL ", 'charsmap': ''}", "\"charsmap\" is not supported"},
        {"{'model': {'vocab': {}, 'merges': [], 'odd': 1}}",
         "model: \"odd\" is not supported"},
        {"{" MODEL ", 'normalizer': {'type': 'NFC', 'odd': 1}}",
         "normalizer: NFC: \"odd\""},
        {"{" MODEL ", 'pre_tokenizer': {'type': 'ByteLevel', 'odd': 1}}",
         "pre_tokenizer: ByteLevel: \"odd\""},
        {"{" MODEL ", 'decoder': {'type': 'Fuse', 'odd': 1}}",
         "decoder: Fuse: \"odd\""},
        {"{" MODEL ", 'added_tokens': [{'id': 2, 'content': 'x', 'odd': 1}]}",
         "added_tokens: \"x\": \"odd\""},
        {"{" MODEL ", 'post_processor': {'type': 'TemplateProcessing',"
         " 'single': [{'Sequence': {'id': 'A'}}, {'SpecialToken': {'id':"
         " 'a'}}], 'special_tokens': {'a': {'ids': [0]}}}}",
         "\"single\" is not a text after at most one token"},
        {"{" MODEL ", 'post_processor': {'type': 'TemplateProcessing',"
         " 'single': [{'Sequence': {'id': 'B'}}], 'special_tokens': {}}}",
         "\"single\" is not a text"},
    };
    struct kv_tokenizer *t;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kv_err e = {""};

        if (!open_json(&t, rows[i].json, NULL, &e))
            fail_msg("%s was taken", rows[i].json);
        assert_says(e, rows[i].words);
        assert_says(e, "tokenizer.json");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split),         cmocka_unit_test(ill_formed),
        cmocka_unit_test(normalize),     cmocka_unit_test(decoders),
        cmocka_unit_test(regex_refused), cmocka_unit_test(empty_match),
        cmocka_unit_test(unigram),       cmocka_unit_test(bad_files),
        cmocka_unit_test(bounds),        cmocka_unit_test(too_much),
    };

    return cmocka_run_group_tests_name("tokenizer_parts", tests, NULL, NULL);
}
