/* Chat templates against what Jinja, set as transformers sets it, makes of
 * them. */
#include "tests/test.h"

#include "lib/base/alloc.h"
#include "lib/tokenizer/chat_template.h"

#include <string.h>

static const char user[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \" Hi \\u00e9 \"}],"
    " \"add_generation_prompt\": true, \"bos_token\": \"<s>\","
    " \"eos_token\": \"</s>\"}";
static const char talk[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"},"
    " {\"role\": \"user\", \"content\": \"A\"},"
    " {\"role\": \"assistant\", \"content\": \"B\"},"
    " {\"role\": \"user\", \"content\": \"C\"}],"
    " \"add_generation_prompt\": true, \"bos_token\": \"<s>\","
    " \"eos_token\": \"</s>\"}";

static char *render(const char *template, const char *values, struct kv_err *e)
{
    json_t *v = json_loads(values, 0, NULL);
    char *text = NULL;
    size_t n = 0;

    assert_non_null(v);
    if (!kv_chat_render("m", template, v, &text, &n, e))
        assert_int_equal(strlen(text), n);
    json_decref(v);
    return text;
}

static void gives(const char *template, const char *want)
{
    struct kv_err e = {""};
    char *text = render(template, talk, &e);

    if (!text)
        fail_msg("%s: %s", template, e.msg);
    assert_string_equal(text, want);
    free(text);
}

static void refuses(const char *template, const char *words)
{
    struct kv_err e = {""};

    assert_null(render(template, talk, &e));
    assert_says(e, words);
    assert_says(e, "m: the chat template, line ");
}

static void expressions_are_python_s(void **state)
{
    (void)state;
    gives("{{ 1 + 2 * 3 - 7 // 2 - 7 % 4 }}|{{ -7 // 2 }}|{{ -7 % 3 }}",
          "1|-4|2");
    gives("{{ -2147483648 * 4294967296 % 3 }}|"
          "{{ -2147483648 * 4294967296 // 3 }}",
          "1|-3074457345618258603");
    gives("{{ 'a' + \"b\\n\" ~ 1 ~ true ~ none }}", "ab\n1TrueNone");
    gives("{{ 'a\\'b\\\\' ~ \"\\\"\\t\" }}", "a'b\\\"\t");
    gives("{{ messages[1].content }}{{ messages[-1]['content'] }}"
          "{{ messages[9] }}{{ nothing }}{{ 'abc'[1] }}{{ 'abc'[-1] }}"
          "{{ 'abc'[3] }}",
          "ACbc");
    gives("{{ messages | length }}{{ 'abc'[1:] }}{{ 'abc'[:-1] }}"
          "{{ messages[1:][0].content }}{{ messages[::-1][0].content }}",
          "4bcabAC");
    gives("{{ 'x' if messages else 'y' }}{{ 'x' if not messages }}"
          "{{ 'x' if 0 else 'y' if '' else 'z' }}",
          "xz");
    gives("{{ 1 == true and 'a' in 'cat' and 'z' not in ['y'] }}|"
          "{{ none or 'b' }}|{{ '' and 1 }}|{{ 3 > 2 }}{{ 'a' < 'b' }}"
          "{{ 2 <= 1 }}",
          "True|b||TrueTrueFalse");
    gives("{{ nothing is defined }}{{ messages is not none }}"
          "{{ 'a' is string }}{{ messages is mapping }}{{ nothing is iterable "
          "}}{{ true is number }}",
          "FalseTrueTrueFalseTrueTrue");
    gives("{{ ' a '.strip() ~ 'xax'.lstrip('x') ~ 'a-b'.split('-')[1] ~ "
          "'aXa'.lower().replace('a', 'b') ~ 'ab'.startswith('a') }}"
          "{{ ' t ' | trim | upper }}{{ x | default('d') }}",
          "aaxbbxbTrueTd");
    gives("{{ messages[0] | tojson }}",
          "{\"role\": \"system\", \"content\": \"Be brief.\"}");
    gives("{{ (messages | selectattr('role', 'equalto', 'user') | list)[1]"
          ".content }}",
          "C");
}

static void statements_are_jinja_s(void **state)
{
    (void)state;
    gives("{% for m in messages %}{{ loop.index }}{{ m.content }}"
          "{% if not loop.last %},{% endif %}{% endfor %}",
          "1Be brief.,2A,3B,4C");
    gives("{% for m in messages if m.role == 'user' %}{{ loop.length }}"
          "{{ m.content }}{% else %}none{% endfor %}",
          "2A2C");
    gives("{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
          "role=system;content=Be brief.;");
    gives("{% set ns = namespace(n=0) %}{% for m in messages %}"
          "{% set ns.n = ns.n + 1 %}{% set x = 1 %}{% endfor %}"
          "{{ ns.n }}{{ x }}",
          "4");
    gives("{% set x %}a{{ 1 }}{% endset %}{{ x ~ x }}", "a1a1");
    gives("{% set x = 1 %}{% set x = nothing %}{{ x }}{{ x is defined }}"
          "{% set ns = namespace(x=1) %}{% set ns.x = nothing %}{{ ns.x }}",
          "False");
    gives("{% if 0 %}a{% elif 1 %}b{% else %}c{% endif %}", "b");
    gives("{% macro f(x) %}{{ x }}{% endmacro %}ok", "ok");
}

static void space_goes_as_in_transformers(void **state)
{
    (void)state;
    gives("a\n  {% if 1 %}\nb\n  {% endif %}\nc\n", "a\nb\nc");
    gives("a {%- if 1 -%} b {%- endif %} c", "ab c");
    gives("a\n {{- 'x' -}} \n b", "axb");
    gives("{# no #}\na {# no #} b", "a  b");
    gives("  {%+ if 1 %}a{% endif %}", "  a");
    gives("{{ '%}' }}{% if '%}' %}y{% endif %}", "%}y");
}

static void what_is_not_known_is_refused(void **state)
{
    char deep[4096] = "{{ ";

    (void)state;
    refuses("a\n{% include 'x' %}", "line 2: the statement 'include'");
    refuses("{{ f(1) }}", "the function f() is not implemented");
    refuses("{% macro f() %}{% endmacro %}{{ f() }}", "the function f()");
    refuses("{{ 'a' | md5 }}", "the filter md5");
    refuses("{{ 'a'.title() }}", "the method title()");
    refuses("{{ 1 is prime }}", "the test 'is prime'");
    refuses("{{ raise_exception('no system role') }}", "no system role");
    refuses("{% if 1 %}", "an 'if' has no 'endif'");
    refuses("{% endif %}", "an end without its beginning");
    refuses("{{ 'a }}", "'{{' has no '}}'");
    refuses("{% set x = 1 %}{% for m in messages %}{% set x = y %}{% endfor %}",
            "'x' is set, and in a loop not defined");
    refuses("{{ 'abc'[:'1'] }}", "a bound of a slice");
    refuses("{{ '\xc3\xa9'[0] }}", "a character of what is not ASCII");
    refuses("{{ messages[true] }}", "an item true of a value");
    refuses("{{ 'a\\q' }}", "'\\q' in a text");
    refuses("{{ 1.5 }}", "real numbers");
    refuses("{{ messages }}", "a list or an object");
    refuses("{{ nothing.x }}", "out of an undefined value");
    refuses("{{ 1 // 0 }}", "a division by 0");
    refuses("{{ 'a'.strip('\xc3\xa9') }}", "the method strip()");
    refuses("{{ messages | tojson(indent=2) }}", "the argument 'indent='");
    refuses("{{ [nothing] }}", "an undefined value in a list");
    refuses("{{ {1: 2} }}", "the key of an object is no text");
    refuses("{% set x %}\xff{% endset %}", "not UTF-8");
    refuses("{% for i in range(99999999) %}x{% endfor %}", "steps");
    refuses("{% for a in range(5000) %}{% for b in range(5000) %}"
            "{% endfor %}{% endfor %}",
            "steps");
    for (size_t i = 0; i < 2000; i++)
        strcat(deep, "(");
    refuses(deep, "has no '}}'");
    strcat(deep, "}}");
    refuses(deep, "nested more than");
}

/* Nothing made by a template outgrows what its steps allow, holds itself or is
 * deeper than what frees it goes. */
static void values_have_an_end(void **state)
{
    (void)state;
    refuses("{% set ns = namespace(x='ab') %}{% for i in range(60) %}"
            "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "steps");
    refuses("{% set ns = namespace(x=[1]) %}{% for i in range(60) %}"
            "{% set ns.x = ns.x + ns.x %}{% endfor %}",
            "steps");
    refuses("{% set ns = namespace(x='aa') %}{% for i in range(60) %}"
            "{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
            "steps");
    refuses("{% set ns = namespace(x=[1]) %}{% for i in range(60) %}"
            "{% set ns.x = [ns.x, ns.x] %}{% endfor %}",
            "steps");
    refuses("{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}"
            "{% set ns.x = [ns.x] %}{% endfor %}",
            "nested more than 64 deep");
    refuses("{% set ns = namespace() %}{% set ns.x = [ns] %}",
            "a namespace in another value");
    refuses("{% set a = namespace() %}{% set b = namespace(x={'y': a}) %}",
            "a namespace in another value");
    refuses("{% set ns = namespace() %}{{ ns | tojson }}", "of a namespace");
    refuses("{% set ns = namespace() %}{% for x in ns %}{% endfor %}",
            "neither a list nor an object");
    refuses("{% set m = {'a': 1} %}{% set m.a = 2 %}", "no namespace");
    gives("{% set ns = namespace(x=messages) %}{% set ns.x = ns.x[1:] + [{}] %}"
          "{{ ns.x | length }}{{ ns == ns }}",
          "4True");
}

/* Templates with a long text in them: what they do is counted in bytes too. */
static void long_texts_end_soon(void **state)
{
    enum { N = 1 << 19 };
    static const char *const around[][2] = {
        {"{% for i in range(200000) %}{{ '", "' | length }}{% endfor %}"},
        {"{% for i in range(200000) %}{% if 0 %}{{ [[[[[[[[[[[['",
         "']]]]]]]]]]]] }}{% endif %}{% endfor %}"},
        {"{% set x = '",
         "' %}{% for i in range(200000) %}{% if x.strip(x) == x or x in [x] or "
         "x < x or x.split('a') %}{% endif %}{% endfor %}"},
        {"{% set x = '", "' %}{% for i in range(200000) %}{% set y %}{{ x }}"
                         "{% endset %}{% endfor %}"},
    };
    char *template = kv_alloc(N + 512, 1), *at;

    (void)state;
    for (size_t i = 0; i < sizeof(around) / sizeof(*around); i++) {
        at = template + sprintf(template, "%s", around[i][0]);
        memset(at, 'a', N);
        strcpy(at + N, around[i][1]);
        refuses(template, "steps");
    }
    free(template);
    gives("{{ ((((((((((((((((((((((((1)))))))))))))))))))))))) }}", "1");
}

static void named_templates(void **state)
{
    static const struct {
        const char *name, *user, *talk;
    } all[] = {
        {"chatml",
         "<|im_start|>user\n Hi \xc3\xa9 <|im_end|>\n<|im_start|>assistant\n",
         "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nA"
         "<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC"
         "<|im_end|>\n<|im_start|>assistant\n"},
        {"gemma",
         "<s><start_of_turn>user\nHi \xc3\xa9<end_of_turn>\n<start_of_turn>"
         "model\n",
         NULL},
        {"llama2", "<s>[INST] Hi \xc3\xa9 [/INST]",
         "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nA [/INST] B </s>"
         "<s>[INST] C [/INST]"},
        {"llama3",
         "<s><|start_header_id|>user<|end_header_id|>\n\nHi \xc3\xa9"
         "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
         NULL},
        {"mistral", "<s>[INST]  Hi \xc3\xa9  [/INST]", NULL},
        {"phi3", "<|user|>\n Hi \xc3\xa9 <|end|>\n<|assistant|>\n", NULL},
        {"zephyr", "<|user|>\n Hi \xc3\xa9 </s>\n<|assistant|>\n", NULL},
    };
    const char *template;
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        char *text;

        assert_int_equal(kv_chat_template_named(&template, all[i].name, &e), 0);
        text = render(template, user, &e);
        assert_string_equal(text, all[i].user);
        free(text);
        if (all[i].talk)
            gives(template, all[i].talk);
    }
    assert_int_equal(kv_chat_template_named(&template, "alpaca", &e), -1);
    assert_says(e, "known: chatml, gemma, llama2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expressions_are_python_s),
        cmocka_unit_test(statements_are_jinja_s),
        cmocka_unit_test(space_goes_as_in_transformers),
        cmocka_unit_test(what_is_not_known_is_refused),
        cmocka_unit_test(values_have_an_end),
        cmocka_unit_test(long_texts_end_soon),
        cmocka_unit_test(named_templates),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
