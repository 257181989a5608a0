/* Whole tokenizers by hand-made goldens, and BPE against its definition. */
#include "lib/base/rng.h"
#include "tests/tokenizer_setup.h"

/* U+0120 is a space; U+00EF U+00BF U+00BD are the bytes of U+FFFD, U+00C3
 * U+00A9 those of e-acute. */
#define BYTES_VOCAB                                                   \
    "'vocab': {'h': 0, 'e': 1, 'l': 2, 'o': 3, '\\u0120': 4, 'w': 5," \
    " 'r': 6, 'd': 7, 'he': 8, 'll': 9, 'hell': 10, 'hello': 11,"     \
    " '\\u0120w': 12, 'or': 13, '\\u00ef': 14, '\\u00bf': 15,"        \
    " '\\u00bd': 16, '\\u00c3': 17, '\\u00a9': 18}"
#define BYTES_REST                                                        \
    "'added_tokens': [{'id': 19, 'content': '<|end|>', 'special': true}," \
    " {'id': 20, 'content': 'wow', 'special': false}],"                   \
    " 'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': false}," \
    " 'decoder': {'type': 'ByteLevel'}"

static void check_byte_level(const char *json)
{
    static const int32_t world[] = {11, 12, 13, 2, 7};
    static const int32_t half[] = {17, 0, 19, 17, 18};
    struct kv_tokenizer *t = must_open(json);

    check_ids(t, "", true, "");
    check_ids(t, "h", true, "0 ");
    check_ids(t, "hello world", true, "11 12 13 2 7 ");
    check_ids(t, "  hello", true, "4 4 11 ");
    check_ids(t, "hellohello", true, "11 11 ");
    check_ids(t, "hel\xc3\xa9", true, "8 2 17 18 ");
    check_ids(t, "h\xff\xc3", true, "0 14 15 16 14 15 16 ");
    check_ids(t, "hello<|end|>he", true, "11 19 8 ");
    check_ids(t, "hello<|end|>he", false, "11 1 7 8 "); /* no <, |, n, > */
    check_ids(t, "hellowow", false, "11 20 ");
    check_ids(t, "hello wow", false, "11 4 20 ");

    check_text(t, world, 0, true, "");
    check_text(t, world, 5, true, "hello world");
    check_text(t, half, 5, true, "\xef\xbf\xbdh<|end|>\xc3\xa9");
    check_text(t, half, 5, false, "\xef\xbf\xbdh\xc3\xa9");
    assert_int_equal(kv_tokenizer_vocab(t), 21);
    assert_int_equal(kv_tokenizer_bos(t), -1);
    assert_false(kv_tokenizer_adds_bos(t));
    kv_tokenizer_free(t);
}

static void byte_level(void **state)
{
    (void)state;
    check_byte_level("{'model': {'type': 'BPE', " BYTES_VOCAB ","
                     " 'merges': ['#version: 0.2', 'h e', 'l l', 'he ll',"
                     " 'hell o', '\\u0120 w', 'o r']}, " BYTES_REST "}");
    check_byte_level(
        "{'model': {'dropout': null, 'unk_token': null,"
        " 'end_of_word_suffix': '', " BYTES_VOCAB ","
        " 'merges': [['h', 'e'], ['l', 'l'], ['he', 'll'],"
        " ['hell', 'o'], ['\\u0120', 'w'], ['o', 'r']]}, " BYTES_REST "}");
}

/* The merges of "hell" are missing: it is found whole, or not at all. */
static void ignore_merges(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        char json[2048];
        struct kv_tokenizer *t;

        snprintf(json, sizeof(json),
                 "{'model': {" BYTES_VOCAB ", 'merges': ['h e'],"
                 " 'ignore_merges': %s}, " BYTES_REST "}",
                 i ? "true" : "false");
        t = must_open(json);
        check_ids(t, "hell", true, i ? "10 " : "8 2 2 ");
        check_ids(t, "hell hell", true, i ? "10 4 8 2 2 " : "8 2 2 4 8 2 2 ");
        kv_tokenizer_free(t);
    }
}

/* Llama-2's layout: U+2581 for a space, <0x..> for bytes without a token. */
#define SPM_REST                                                              \
    "'normalizer': {'type': 'Sequence', 'normalizers': ["                     \
    " {'type': 'Prepend', 'prepend': '\\u2581'}, {'type': 'Replace',"         \
    " 'pattern': {'String': ' '}, 'content': '\\u2581'}]},"                   \
    " 'pre_tokenizer': null, 'decoder': {'type': 'Sequence', 'decoders': ["   \
    " {'type': 'Replace', 'pattern': {'String': '\\u2581'}, 'content': ' '}," \
    " {'type': 'ByteFallback'}, {'type': 'Fuse'},"                            \
    " {'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}]},"            \
    " 'added_tokens': [{'id': 1, 'content': '<s>', 'special': true}],"        \
    " 'post_processor': {'type': 'TemplateProcessing', 'single': ["           \
    " {'SpecialToken': {'id': '<s>', 'type_id': 0}},"                         \
    " {'Sequence': {'id': 'A', 'type_id': 0}}],"                              \
    " 'special_tokens': {'<s>': {'id': '<s>', 'ids': [1]}}}"

static void sentencepiece(void **state)
{
    static const int32_t ids[] = {262, 263, 198, 172, 260, 1, 260};
    static const int32_t half[] = {198, 172, 198};
    static char json[16384];
    size_t at = 0;
    struct kv_tokenizer *t;

    (void)state;
    at += (size_t)sprintf(json, "{'model': {'type': 'BPE', 'unk_token':"
                                " '<unk>', 'fuse_unk': true, 'byte_fallback':"
                                " true, 'vocab': {'<unk>': 0, '<s>': 1");
    for (int i = 0; i < 256; i++)
        at +=
            (size_t)sprintf(json + at, ", '<0x%02X>': %d", (unsigned)i, i + 3);
    sprintf(json + at,
            ", '\\u2581': 259, 'a': 260, 'b': 261, '\\u2581a': 262,"
            " 'ab': 263, '\\u2581ab': 264, 'aa': 265}, 'merges':"
            " ['\\u2581 a', 'a b', '\\u2581a b', 'a a']}, " SPM_REST "}");
    t = must_open(json);
    check_ids(t, "", true, "");
    check_ids(t, "a", true, "262 ");
    check_ids(t, "ab", true, "264 ");
    check_ids(t, "ba  ab", true, "259 261 260 259 264 ");
    check_ids(t, "baaa", true, "259 261 265 260 ");
    check_ids(t, "b\xc3\xa9\n", true, "259 261 198 172 13 ");
    check_ids(t, "a<s>a", true, "262 1 262 ");
    check_ids(t, "a<s>a", false, "262 63 118 65 260 ");
    check_text(t, ids, 7, true, "aab\u00e9a<s>a");
    check_text(t, ids, 7, false, "aab\u00e9aa");
    check_text(t, half, 2, true, "\u00e9");
    check_text(t, half, 3, true, "\ufffd\ufffd\ufffd");
    assert_int_equal(kv_tokenizer_bos(t), 1);
    assert_true(kv_tokenizer_adds_bos(t));
    kv_tokenizer_free(t);
}

/* Without byte_fallback: unk, one for each character or one for a run. */
static void unknown(void **state)
{
    static const struct {
        const char *options, *text, *ids;
    } rows[] = {
        {"'unk_token': 'u', 'fuse_unk': true", "xxaxbxx", "2 0 2 1 2 "},
        {"'unk_token': 'u', 'fuse_unk': false", "xxaxbxx", "2 2 0 2 1 2 2 "},
        {"'unk_token': null", "xxaxbxx", "3 "},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char json[1024];
        struct kv_tokenizer *t;

        snprintf(json, sizeof(json),
                 "{'model': {%s, 'vocab': {'a': 0, 'b': 1, 'u': 2, 'ab': 3},"
                 " 'merges': ['a b']}}",
                 rows[i].options);
        t = must_open(json);
        check_ids(t, rows[i].text, true, rows[i].ids);
        kv_tokenizer_free(t);
    }
}

/* BPE by its definition: the first merge of the list that applies anywhere,
 * at its leftmost place, until none does. */
enum { N_CHARS = 5, N_MERGES = 20, MAX_TEXT = 500 };
static const char *const chars[N_CHARS] = {"a", "b", "c", "\xe2\x96\x81",
                                           "\xf0\x9f\xa6\x99"};

struct definition {
    char name[N_CHARS + N_MERGES][20];
    int n_tokens;
    int merge[N_MERGES][3]; /* left, right, whole */
    int n_merges;
};

static bool has_pair(const struct definition *d, int left, int right)
{
    for (int m = 0; m < d->n_merges; m++)
        if (d->merge[m][0] == left && d->merge[m][1] == right)
            return true;
    return false;
}

/* The last of the characters gets no token. */
static void random_merges(struct definition *d, uint64_t key)
{
    memset(d, 0, sizeof(*d));
    for (; d->n_tokens < N_CHARS - 1; d->n_tokens++)
        strcpy(d->name[d->n_tokens], chars[d->n_tokens]);
    for (uint64_t i = 0; d->n_merges < N_MERGES; i += 2) {
        const uint64_t n = (uint64_t)d->n_tokens;
        const int left = (int)(kv_random(key, i) % n);
        const int right = (int)(kv_random(key, i + 1) % n);
        char whole[40];
        int id = 0;

        strcpy(whole, d->name[left]);
        strcat(whole, d->name[right]);
        if (strlen(whole) > 12 || has_pair(d, left, right))
            continue;
        while (id < d->n_tokens && strcmp(d->name[id], whole))
            id++;
        strcpy(d->name[id], whole);
        d->n_tokens += id == d->n_tokens;
        d->merge[d->n_merges][0] = left;
        d->merge[d->n_merges][1] = right;
        d->merge[d->n_merges++][2] = id;
    }
}

static bool merge_once(const struct definition *d, int32_t *ids, size_t *n)
{
    for (int m = 0; m < d->n_merges; m++) {
        for (size_t i = 0; i + 1 < *n; i++) {
            if (ids[i] != d->merge[m][0] || ids[i + 1] != d->merge[m][1])
                continue;
            ids[i] = d->merge[m][2];
            memmove(ids + i + 1, ids + i + 2, (*n - i - 2) * sizeof(*ids));
            (*n)--;
            return true;
        }
    }
    return false;
}

static struct kv_tokenizer *open_definition(const struct definition *d)
{
    char json[4096];
    size_t at = 0;

    at += (size_t)sprintf(json, "{'model': {'vocab': {");
    for (int i = 0; i < d->n_tokens; i++)
        at += (size_t)sprintf(json + at, "%s'%s': %d", i ? ", " : "",
                              d->name[i], i);
    at += (size_t)sprintf(json + at, "}, 'merges': [");
    for (int m = 0; m < d->n_merges; m++)
        at += (size_t)sprintf(json + at, "%s'%s %s'", m ? ", " : "",
                              d->name[d->merge[m][0]], d->name[d->merge[m][1]]);
    sprintf(json + at, "]}}");
    return must_open(json);
}

/* Two texts in one call's place: the second finds the first's words. */
static void against_definition(void **state)
{
    static const size_t sizes[] = {0,  1,  2,  3,  15,  31,
                                   62, 63, 64, 99, 250, MAX_TEXT};

    (void)state;
    for (uint64_t round = 0; round < 120; round++) {
        struct definition d;
        struct kv_tokenizer *t;
        struct kv_err e = {""};

        random_merges(&d, kv_mix(1, round));
        t = open_definition(&d);
        for (size_t k = 0; k < COUNT(sizes); k++) {
            const uint64_t key = kv_mix(kv_mix(2, round), k);
            /* with few unknown characters long pieces are cut, with many
             * they are not */
            const uint64_t kinds = round % 3 ? N_CHARS : N_CHARS - 1;
            int32_t expected[MAX_TEXT], *ids;
            char text[4 * MAX_TEXT + 1] = "";
            size_t n = 0, got;

            for (size_t i = 0; i < sizes[k]; i++) {
                const size_t c = kv_random(key, i) % kinds;

                strcat(text, chars[c]);
                if (c < N_CHARS - 1)
                    expected[n++] = (int32_t)c;
            }
            while (merge_once(&d, expected, &n))
                ;
            assert_int_equal(kv_tokenizer_encode(t, text, strlen(text), true,
                                                 &ids, &got, NULL, &e),
                             0);
            if (got != n || memcmp(ids, expected, n * sizeof(*ids)))
                fail_msg("round %d: \"%s\"", (int)round, text);
            free(ids);
        }
        kv_tokenizer_free(t);
    }
}

/* One piece of a megabyte with no place to cut: would take hours if each
 * merge looked at all of it. */
static void one_long_piece(void **state)
{
    const size_t n_bytes = 1 << 20;
    struct kv_tokenizer *t =
        must_open("{'model': {'vocab': {'a': 0, 'aa': 1, 'aaaa': 2},"
                  " 'merges': ['a a', 'aa aa']}}");
    char *text = kv_alloc(n_bytes + 1, 1);
    struct kv_err e = {""};
    int32_t *ids;
    size_t n;

    (void)state;
    memset(text, 'a', n_bytes);
    assert_int_equal(
        kv_tokenizer_encode(t, text, n_bytes - 1, true, &ids, &n, NULL, &e), 0);
    assert_int_equal(n, n_bytes / 4 + 1); /* ... aaaa aa a */
    assert_int_equal(ids[n - 3], 2);
    assert_int_equal(ids[n - 2], 1);
    assert_int_equal(ids[n - 1], 0);
    free(ids);
    free(text);
    kv_tokenizer_free(t);
}

static void added_tokens(void **state)
{
    static const char json[] =
        "{'model': {'vocab': {'a': 0, 'b': 1, ' ': 2, '<': 3, 'X': 4, '\u00e9':"
        " 5}, 'merges': []}, 'normalizer': {'type': 'NFKC'}, 'added_tokens': ["
        "{'id': 6, 'content': '<L>', 'special': true, 'lstrip': true},"
        "{'id': 7, 'content': '<R>', 'special': true, 'rstrip': true},"
        "{'id': 8, 'content': 'ab', 'special': true, 'single_word': true},"
        "{'id': 9, 'content': '<<', 'special': true},"
        "{'id': 10, 'content': '<<<', 'special': true},"
        "{'id': 11, 'content': '\uff38a', 'special': false},"
        "{'id': 4, 'content': 'X', 'normalized': false}]}";
    static const struct {
        const char *text, *ids;
    } rows[] = {
        {"a \t<L> b", "0 6 2 1 "},
        {"a <R> \u3000\nb", "0 2 7 1 "},
        {"<R>  <L>", "7 6 "},
        {"ab", "8 "},
        {" ab ", "2 8 2 "},
        {"<ab<", "3 8 3 "},
        {"aab", "0 0 1 "},
        {"ab\u00e9", "0 1 5 "},
        {"\u200dab", "0 1 "},
        {"<<<<<<a<", "10 10 0 3 "},
        {"<<<<<", "10 9 "},
        {"\uff38ab", "11 1 "}, /* found once normalized */
        {"Xa", "4 0 "},        /* X goes first, verbatim */
    };
    struct kv_tokenizer *t = must_open(json);

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        check_ids(t, rows[i].text, true, rows[i].ids);
    check_ids(t, "ab <L>X<<", false, "0 1 2 3 4 3 3 ");
    assert_int_equal(kv_tokenizer_vocab(t), 12);
    kv_tokenizer_free(t);
}

static void no_file(void **state)
{
    struct kv_err e = {""};
    struct kv_tokenizer *t;

    (void)state;
    assert_int_equal(kv_tokenizer_open(&t, "/nowhere", &e), -1);
    assert_says(e, "/nowhere/tokenizer.json");
}

static void id_past_vocabulary(void **state)
{
    static const int32_t bad[] = {-1, 2, 3, 5, INT32_MAX};
    struct kv_tokenizer *t = must_open(
        "{'model': {'vocab': {'a': 0, 'b': 1, 'd': 4}, 'merges': []}}");
    char *text;
    size_t n;

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        const int32_t ids[] = {0, bad[i]};
        struct kv_err e = {""};
        char words[64];

        assert_int_equal(kv_tokenizer_decode(t, ids, 2, true, &text, &n, &e),
                         -1);
        snprintf(words, sizeof(words), "token id %d ", (int)bad[i]);
        assert_says(e, words);
    }
    kv_tokenizer_free(t);
}

/* A BOS precedes a text if the template has one; the config may name it, and
 * must not contradict. */
static void bos(void **state)
{
    static const char templated[] =
        "{" MODEL
        ", 'post_processor': {'type': 'Sequence', 'processors': [{'type':"
        " 'ByteLevel'}, {'type': 'TemplateProcessing', 'single':"
        " [{'SpecialToken': {'id': 'b', 'type_id': 0}}, {'Sequence': {'id':"
        " 'A', 'type_id': 0}}], 'special_tokens': {'b': {'id': 'b', 'ids':"
        " [1]}}}]}}";
    static const char plain[] = "{" MODEL "}";
    static const struct {
        const char *json, *config;
        int bos; /* -2: refused */
        bool adds;
    } rows[] = {
        {plain, NULL, -1, false},
        {plain, "{}", -1, false},
        {plain, "{'bos_token': 'a'}", 0, false},
        {plain, "{'bos_token': {'content': 'b'}, 'add_bos_token': false}", 1,
         false},
        {plain, "{'bos_token': 'b', 'add_bos_token': true}", -2, false},
        {plain, "{'bos_token': 'zz'}", 2, false}, /* a new token */
        {plain, "{'bos_token': null, 'add_bos_token': true}", -2, false},
        {plain, "{'bos_token': 3}", -2, false},
        {plain, "{'add_bos_token': 'no'}", -2, false},
        {plain, "{", -2, false},
        {templated, NULL, 1, true},
        {templated, "{'bos_token': 'b'}", 1, true},
        {templated, "{'bos_token': 'b', 'add_bos_token': true}", 1, true},
        {templated, "{'add_bos_token': null}", 1, true},
        {templated, "{'add_bos_token': false}", -2, false},
        {templated, "{'bos_token': 'a'}", -2, false},
        {templated, "{'add_eos_token': true}", -2, false},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct kv_tokenizer *t = NULL;
        struct kv_err e = {""};
        const int rc = open_json(&t, rows[i].json, rows[i].config, &e);

        assert_int_equal(rc, rows[i].bos == -2 ? -1 : 0);
        if (rc) {
            assert_says(e, "tokenizer_config.json");
            continue;
        }
        assert_int_equal(kv_tokenizer_bos(t), rows[i].bos);
        assert_int_equal(kv_tokenizer_adds_bos(t), rows[i].adds);
        kv_tokenizer_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_level),         cmocka_unit_test(ignore_merges),
        cmocka_unit_test(sentencepiece),      cmocka_unit_test(unknown),
        cmocka_unit_test(against_definition), cmocka_unit_test(one_long_piece),
        cmocka_unit_test(added_tokens),       cmocka_unit_test(no_file),
        cmocka_unit_test(id_past_vocabulary), cmocka_unit_test(bos),
    };

    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
