/* Prompts of JSON lines: what is read, and what is refused, with its line. */
#include "eval/prompts.h"
#include "tests/tokenizer_setup.h"

static const char *const taken[] = {"text", NULL};

/* text: ' stands for ". */
static int read_prompts(struct kv_prompts *p, const char *text,
                        struct kv_err *e)
{
    static char path[8192];
    const char *dir = test_folder();
    char *json = quoted(text);

    snprintf(path, sizeof(path), "%s/p.jsonl", dir);
    write_file(dir, "p.jsonl", json);
    free(json);
    return kv_prompts_read(p, path, false, taken, e);
}

static void test_fields(void **state)
{
    struct kv_prompts p;
    struct kv_err e = {""};

    (void)state;
    if (read_prompts(
            &p,
            "\n {'prompt': 'a b', 'id': 'x', 'max_tokens': 7,"
            " 'min_tokens': 0, 'stop': ['c', 'de'],"
            " 'answer': [1, 2]}\r\n \t\n"
            "{'messages': [{'role': 'system', 'content': ''},"
            " {'role': 'user', 'content': [{'type': 'text', 'text': 'b'},"
            " {'type': 'text', 'text': 'd'}]},"
            " {'role': 'assistant', 'content': 'c'}],"
            " 'stop': 'f', 'max_tokens': null, 'id': 3}",
            &e))
        fail_msg("%s", e.msg);
    assert_int_equal(p.n, 2);
    assert_int_equal(p.at[0].line, 2);
    assert_string_equal(p.at[0].text, "a b");
    assert_null(p.at[0].messages);
    assert_int_equal(p.at[0].max_tokens, 7);
    assert_int_equal(p.at[0].n_stops, 2);
    assert_string_equal(p.at[0].stop[1], "de");
    assert_non_null(json_object_get(p.at[0].fields, "answer"));
    assert_int_equal(p.at[1].line, 4);
    assert_null(p.at[1].text);
    assert_int_equal(json_array_size(p.at[1].messages), 3);
    assert_string_equal(json_string_value(json_object_get(
                            json_array_get(p.at[1].messages, 1), "content")),
                        "b\nd");
    assert_int_equal(p.at[1].max_tokens, 0);
    assert_int_equal(p.at[0].min_tokens, 0);
    assert_true(p.at[1].min_tokens == SIZE_MAX);
    assert_string_equal(p.at[1].stop[0], "f");
    kv_prompts_clear(&p);
}

#define TURN(role) "{'role': '" role "', 'content': 'c'}"
#define TALK(turns) "{'messages': [" turns "]}"

static void test_refused(void **state)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "has no prompts"},
        {" \n\n", "has no prompts"},
        {"{'prompt': 'a'}\n{'prompt': ", "p.jsonl: line 2: "},
        {"{'prompt': 'a'} 1", "line 1: end of file expected"},
        {"{'prompt': 'a', 'prompt': 'b'}", "line 1: duplicate object key"},
        {"{'prompt': '\\u0000'}", "line 1: a string with the zero character"},
        {"{'prompt': '\\ud800'}", "line 1: "},
        {"\n[1]", "line 2: expected an object"},
        {"5", "line 1: "},
        {"{}", "line 1: neither is there: expected a prompt or messages"},
        {"{'prompt': 'a', 'messages': []}", "both are there"},
        {"{'prompt': ''}", "the prompt is empty"},
        {"{'prompt': null}", "prompt: expected a text"},
        {"{'prompt': ['a']}", "prompt: expected a text"},
        {"{'prompt': 'a', 'text': 1}", "has a field 'text' of its own"},
        {"{'prompt': 'a', 'id': 1.5}", "id: expected a text or an integer"},
        {"{'prompt': 'a', 'max_tokens': 0}", "max_tokens: expected a number"},
        {"{'prompt': 'a', 'max_tokens': 1e3}", "max_tokens: expected"},
        {"{'prompt': 'a', 'max_tokens': 99999999999999999999}",
         "max_tokens: expected"},
        {"{'prompt': 'a', 'min_tokens': -1}",
         "min_tokens: expected a number from 0"},
        {"{'prompt': 'a', 'stop': ''}", "stop: an empty text stops every"},
        {"{'prompt': 'a', 'stop': ['b', '']}", "stop: an empty text"},
        {"{'prompt': 'a', 'stop': [1]}", "stop: expected a text"},
        {"{'messages': {}}", "messages: expected a list"},
        {TALK(""), "messages: none is of the user"},
        {TALK(TURN("system")), "messages: none is of the user"},
        {TALK("'a'"), "messages: number 1: expected {"},
        {TALK("{'role': 'user'}"), "messages: number 1: expected {"},
        {TALK("{'role': 'user', 'content': []}"), "the content has no parts"},
        {TALK("{'role': 'user', 'content': ['a']}"), "number 1: part 1: exp"},
        {TALK("{'role': 'user', 'content': [{'type': 'text', 'text': 'a'},"
              " {'type': 'image_url', 'image_url': 'b'}]}"),
         "number 1: part 2: exp"},
        {TALK(TURN("assistant")), "number 1 is of role 'assistant': expected "
                                  "user"},
        {TALK(TURN("user") "," TURN("user")), "number 2 is of role 'user': "
                                              "expected assistant"},
        {TALK(TURN("user") "," TURN("system")), "number 2 is of role 'system'"},
        {TALK(TURN("tool")), "number 1 is of role 'tool'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_prompts p;
        struct kv_err e = {""};

        if (!read_prompts(&p, cases[i].text, &e))
            fail_msg("%s is read", cases[i].text);
        if (!strstr(e.msg, cases[i].words))
            fail_msg("%s: \"%s\" has no \"%s\"", cases[i].text, e.msg,
                     cases[i].words);
    }
}

/* A last message of the assistant's is left open: as transformers'
 * continue_final_message has it. */
static void test_continued(void **state)
{
    static const struct {
        const char *template, *messages, *want; /* want NULL: refused */
    } cases[] = {
        {"{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n"
         "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
         "[{'role': 'user', 'content': 'a'}]", "<user>a</>\n<assistant>"},
        {"{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n"
         "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
         "[{'role': 'user', 'content': 'a'},"
         " {'role': 'assistant', 'content': 'b \\n'}]",
         "<user>a</>\n<assistant>b \n"},
        {"{% for m in messages %}[{{ m.content | trim }}]{% endfor %}",
         "[{'role': 'user', 'content': 'a'},"
         " {'role': 'assistant', 'content': ' b \\n'}]",
         "[a][b"},
        {"{% for m in messages %}[{{ m.content | trim }}]{% endfor %}",
         "[{'role': 'user', 'content': 'a'},"
         " {'role': 'assistant', 'content': 'b\\u00a0\\u3000'}]",
         "[a][b"},
        {"{{ messages[0].content }}",
         "[{'role': 'user', 'content': 'a'},"
         " {'role': 'assistant', 'content': 'b'}]",
         NULL},
        {"{{ messages[1].content.split('/')[-1] }}",
         "[{'role': 'user', 'content': 'a'},"
         " {'role': 'assistant', 'content': 'thought/b'}]",
         NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_chat_model m = {.template =
                                      (char *)(uintptr_t)cases[i].template,
                                  .tokens = json_object()};
        char *json = quoted(cases[i].messages), *text = NULL;
        json_t *messages = json_loads(json, 0, NULL);
        struct kv_chat_clock clock = {0};
        struct kv_err e = {""};
        size_t n;
        const int rc =
            kv_chat_messages(&m, "m", "model", messages, &clock, &text, &n, &e);

        if (cases[i].want) {
            if (rc)
                fail_msg("%s", e.msg);
            assert_string_equal(text, cases[i].want);
            assert_int_equal(n, strlen(text));
            free(text);
        } else {
            assert_int_equal(rc, -1);
            assert_non_null(strstr(e.msg, "cannot be continued"));
        }
        json_decref(messages);
        json_decref(m.tokens);
        free(json);
    }
}

static void test_stops(void **state)
{
    const char *const list[] = {"bc", "d", "\xc3\xa9"};
    const struct kv_stops s = {list, 3}, none = {NULL, 0};

    (void)state;
    assert_int_equal(kv_stops_find(&s, "a b c", 5), 5);
    assert_int_equal(kv_stops_find(&s, "aadbc", 5), 2);
    assert_int_equal(kv_stops_find(&s, "abcd", 4), 1);
    assert_int_equal(kv_stops_find(&s, "a\0d", 3), 2);
    assert_int_equal(kv_stops_find(&s, "x\xc3\xa9", 3), 1);
    assert_int_equal(kv_stops_find(&s, "", 0), 0);
    assert_int_equal(kv_stops_find(&none, "abc", 3), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_continued),
        cmocka_unit_test(test_stops),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
