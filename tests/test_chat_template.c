/* Chat templates against what Jinja, set as transformers sets it, makes of
 * them: their language.  chat_values is about values. */
#include "tests/chat_setup.h"

static const char user[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \" Hi \\u00e9 \"}],"
    " \"add_generation_prompt\": true, \"bos_token\": \"<s>\","
    " \"eos_token\": \"</s>\"}";
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
    gives("{{ 1 < 2 <= 2 }}{{ 1 < 2 > 2 }}{{ not not 1 }}{{ - -2 }}"
          "{{ 'a' in nothing }}{{ {'a': nothing}.a is defined }}",
          "TrueFalseTrue2FalseFalse");
    gives("{{ 3 is odd }}{{ 2 is in [1, 2] }}{{ 4 is divisibleby 2 }}"
          "{{ 1 is eq(1) }}{{ nothing | selectattr('x') | list | length }}"
          "{{ messages | map(attribute='role') | join('+') }}"
          "{{ '7' | int + 1 }}{{ 'abc' | last }}{{ ('a', 'b') | first }}",
          "TrueTrueTrueTrue0system+user+assistant+user8ca");
    gives("{{ 'x'.startswith(('a', 'x')) }}{{ 'ab'.removesuffix('b') }}"
          "{{ '-'.join(['a', 'b']) }}{{ messages[0].get('z', 'd') }}"
          "{{ messages[0].keys() | join }}{{ messages[::2] | length }}",
          "Trueaa-bdrolecontent2");
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
    gives("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
          "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"
          "{% for i in [1, 2] %}{{ i }}{% endfor %}",
          "0212");
    gives("{% for x in 'a\xc3\xa9' %}{{ x }},{% endfor %}"
          "{% for x in nothing %}{% else %}none{% endfor %}"
          "{% for i in range(3, 0, -2) %}{% for j in [i] %}{{ j }}{{ "
          "loop.depth }}"
          "{% endfor %}{% endfor %}{{ {'items': 1}['items'] }}",
          "a,\xc3\xa9,none31111");
}

/* A macro sees variables set outside of it and its own arguments, but no
 * variable of the loop that calls it. */
static void macros_are_jinja_s(void **state)
{
    (void)state;
    gives("{% macro f(x) %}{{ x }}{% endmacro %}ok", "ok");
    gives("{% set out = 1 %}{% macro f(a, b='d', c=a) %}"
          "{{ a }}{{ b }}{{ c }}{{ out }}{{ i }}{% endmacro %}"
          "{% for i in [7] %}{{ f(2) }}|{{ f(2, c='x') }}|{{ f(b=3) }}"
          "{% endfor %}",
          "2d21|2dx1|31");
    gives("{% macro down(n) %}{{ n }}{% if n %}{{ down(n - 1) }}{% endif %}"
          "{% endmacro %}{{ down(3) | upper ~ '.' }}",
          "3210.");
    gives("{% macro f(m) %}{% set x = m.role %}{% for c in x %}{% if c == 's' "
          "%}{% break %}{% endif %}{{ c }}{% endfor %}{% endmacro %}"
          "{% for m in messages %}{{ f(m) }}{% endfor %}{{ x }}",
          "uau");
    gives("{% set ns = namespace(n=0) %}{% macro f(s) %}{% set s.n = s.n + 1 %}"
          "{% set ns.n = ns.n + 1 %}{% endmacro %}{{ f(ns) }}{{ ns.n }}",
          "2");
    refuses("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
            "macros call each other more than 16 deep");
    refuses("{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}",
            "arguments that it does not have");
    refuses("{% macro f(a) %}{% endmacro %}{{ f(z=2) }}",
            "arguments that it does not have");
    refuses("{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}",
            "is given 'a' twice");
    gives("{{ f is defined }}{% macro f(x) %}{% endmacro %}{{ f is defined }}"
          "{{ f is mapping }}",
          "FalseTrueFalse");
    refuses("{% for i in [1] %}{% macro f() %}{% endmacro %}{% endfor %}",
            "a macro in a loop or in a macro");
    refuses("{% macro f() %}{% endmacro %}{% set f = 1 %}{{ f() }}",
            "the function f() is not implemented");
    refuses("{% break %}", "a loop is left where there is none");
}

/* CR LF and CR are line ends, as Jinja reads files. */
static void line_ends_are_lf(void **state)
{
    (void)state;
    gives("a\r\n{% if 1 %}\r\nb\r\n  {% endif %}\r\nc\r\n", "a\nb\nc");
    gives("a\rb\r\r", "a\nb\n");
    gives("{{ 'a\r\nb' }}\r\n\r\n", "a\nb\n");
}

/* The expected texts are those of str's methods in CPython 3.11 (ss, final
 * sigma, dotted I, ligatures, iota below, white space that is not ASCII). */
static void texts_go_by_unicode(void **state)
{
    (void)state;
    gives("{{ 'stra\xc3\x9f"
          "e \xef\xac\x81 \xe1\xbe\xb3'.upper() }}",
          "STRASSE FI \xce\x91\xce\x99");
    gives("{{ '\xce\x9f\xce\x94\xce\x9f\xce\xa3 \xce\xa3\xce\x91 "
          "\xce\x91\xce\xa3.'.lower() }}",
          "\xce\xbf\xce\xb4\xce\xbf\xcf\x82 \xcf\x83\xce\xb1 "
          "\xce\xb1\xcf\x82.");
    gives("{{ '\xc4\xb0' | lower }}", "i\xcc\x87");
    gives("{{ ('\xc3\x9f"
          "a it' ~ \"'s \xc7\x86\").title() }}|"
          "{{ \"\xc3\xa9t\xc3\x89 it's (x-y\" | title }}|"
          "{{ '\xef\xac\x81X' | capitalize }}|{{ true | upper }}",
          "Ssa It'S \xc7\x85|\xc3\x89t\xc3\xa9 It's (X-Y|Fix|TRUE");
    gives("[{{ '\xe3\x80\x80 a\xc2\xa0\x1c' | trim }}]"
          "[{{ '\xc2\x85"
          "a\xe2\x80\x8b'.strip() }}]"
          "[{{ '\xc3\xa9"
          "a\xc3\xa9\xc3\xa8'.rstrip('\xc3\xa8\xc3\xa9') }}]"
          "[{{ 'xxay' | trim('xy') }}]",
          "[a][a\xe2\x80\x8b][\xc3\xa9"
          "a][a]");
    gives("a\xc2\xa0{{- 'x' -}}\xe3\x80\x80 b", "axb");
    gives("{{ '\xc3\xa9"
          "a'[0] }}{{ '\xc3\xa9"
          "ab'[::-1] }}"
          "{{ '\xc3\xa9"
          "ab'[1:] }}{{ '\xc3\xa9' | length }}"
          "{{ 'a\xc3\xa9"
          "b'.find('b') }}",
          "\xc3\xa9"
          "ba\xc3\xa9"
          "ab12");
    gives("{{ ' a  b '.split() | join(',') }}|{{ 'a-b-c'.split('-', 1)[1] }}|"
          "{{ 'a\xe2\x80\xa8"
          "b\n'.splitlines() | length }}",
          "a,b|b-c|2");
    gives("{{ 'a\\u00e9\\x41\\q' 'b' }}", "a\xc3\xa9"
                                          "A\\qb");
}

/* Results of json.dumps() in CPython 3.11, called as in transformers. */
static void tojson_is_python_s(void **state)
{
    (void)state;
    gives("{{ {'b': '<&\\'\xc3\xa9\x1b\\n/\x7f', 'a': [1, true, none, []]} "
          "| tojson }}",
          "{\"b\": \"<&'\xc3\xa9\\u001b\\n/\x7f\", \"a\": [1, true, null, "
          "[]]}");
    gives("{{ {'b': [1, {}], 'a': {'c': 2}} | tojson(indent=2, "
          "sort_keys=true) }}",
          "{\n  \"a\": {\n    \"c\": 2\n  },\n  \"b\": [\n    1,\n    {}\n"
          "  ]\n}");
    gives("{{ '\xc3\xa9\xf0\x9f\x98\x80\x7f' | tojson(ensure_ascii=true) }}"
          "{{ [1, {'a': 2}] | tojson(separators=(',', ':')) }}",
          "\"\\u00e9\\ud83d\\ude00\\u007f\"[1,{\"a\":2}]");
    gives("{{ [1] | tojson(indent='\t') }}", "[\n\t1\n]");
    gives_of("{{ x | tojson }}|{{ x[0] }}",
             "{\"x\": [0.1, 1e22, -2.0, 1e-7, 123456.789, 1e15, 0.0001]}",
             "[0.1, 1e+22, -2.0, 1e-07, 123456.789, 1000000000000000.0, "
             "0.0001]|0.1");
    refuses("{{ nothing | tojson }}", "tojson of an undefined value");
    refuses("{{ {'a': nothing} | tojson }}", "tojson of an undefined value");
    refuses("{{ [] | tojson(1, 2, 3, 4, 5) }}", "with these arguments");
    refuses("{{ [] | tojson(cls=1) }}", "with these arguments");
}

static void the_date_is_the_clock_s(void **state)
{
    struct kv_chat_clock clock;
    struct kv_err e = {""};
    char text[KV_CHAT_CLOCK_CHARS];

    (void)state;
    noon.asked = false;
    gives("{{ strftime_now is defined }}", "True");
    assert_false(noon.asked);
    gives("{{ strftime_now('%d %B %Y, %A %-d %H:%M, %j') }}",
          "31 January 2025, Friday 31 12:00, 031");
    assert_true(noon.asked);
    refuses("{{ strftime_now('%s') }}", "strftime_now() of '%s'");
    refuses("{{ strftime_now('%') }}", "strftime_now() of '%'");
    refuses("{{ strftime_now() }}", "strftime_now() of 'no text'");
    assert_int_equal(kv_chat_clock_parse(&clock, "2024-02-29", &e), 0);
    kv_chat_clock_text(&clock, text);
    assert_string_equal(text, "2024-02-29T00:00:00");
    assert_int_equal(kv_chat_clock_parse(&clock, "2025-01-31T12:00:00", &e), 0);
    assert_int_equal(clock.now, 1738324800);
    for (size_t i = 0; i < 5; i++) {
        static const char *const wrong[] = {"2023-02-29", "today", "",
                                            "2025-01-31x", "0000-01-01"};

        assert_int_equal(kv_chat_clock_parse(&clock, wrong[i], &e), -1);
        assert_says(e, "is no date");
    }
}

static void space_goes_as_in_transformers(void **state)
{
    (void)state;
    gives("{{ {'a': {'b': '}}'}}['a']['b'] }}", "}}");
    gives("{#-#}a{# '%} #} b {#- #}", "a b");
    gives("\v\f {% if 1 %}\n\xc2\xa0{% endif %}x", "x");
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
    refuses("{{ 'a' | md5 }}", "the filter md5");
    refuses("{{ f(1) }}", "the function f() is not implemented");
    refuses("{{ 'a'.center(1) }}", "the method center()");
    refuses("{{ 'a\\777' }}", "'\\7' in a text is not implemented");
    refuses("{{ 'a\\ud800' }}", "'\\u' in a text names no character");
    refuses("{{ 1.5 }}", "numbers other than plain whole ones");
    refuses("{{ messages[0].items }}", "'.items' without a call");
    refuses("{{ messages[0]['items'] }}", "the method items of a value");
    refuses("{% if messages[0].content.format %}{% endif %}",
            "the method format of a value");
    refuses("{{ lipsum is defined }}", "Jinja's 'lipsum'");
    refuses("{{ 'abc'[::0] }}", "a slice has the step 0");
    refuses("{% call f() %}{% endcall %}", "the statement 'call'");
    refuses("{{ 1 is prime }}", "the test 'is prime'");
    refuses("{{ raise_exception('no system role') }}", "no system role");
    refuses("{% if 1 %}", "an 'if' has no 'endif'");
    refuses("{% if 1 if 1 else 0 %}{% endif %}", "'if 1 else 0 ' is not under");
    refuses("{% for x in [] if 1 else 0 %}{% endfor %}", "'else 0 ' is not");
    refuses("{{ 1 is odd is odd }}", "'is odd' is given something");
    refuses("{{ 1 is string 'a' }}", "'is string' is given something");
    refuses("{{ none | join(attribute='x') }}", "what has no items");
    refuses("{% endif %}", "an end without its beginning");
    refuses("{{ 'a }}", "'{{' has no '}}'");
    refuses("{{ 'abc'[:'1'] }}", "a bound of a slice");
    refuses("{{ messages[true] }}", "an item true of a value");
    refuses("{{ nothing.x }}", "out of an undefined value");
    refuses("{{ 1 // 0 }}", "a division by 0");
    refuses("{{ [nothing] }}", "an undefined value in a list");
    refuses("{{ {none: 2} }}", "the key of an object is neither a text nor");
    refuses("{% set x %}\xff{% endset %}", "not UTF-8");
    refuses("{% for i in range(99999999) %}x{% endfor %}", "steps");
    refuses("{% for a in range(5000) %}{% for b in range(5000) %}"
            "{% endfor %}{% endfor %}",
            "steps");
    for (size_t i = 0; i < 2000; i++)
        strcat(deep, "(");
    refuses(deep, "has no '}}'");
    for (size_t i = 0; i < 2000; i++)
        strcat(deep, ")");
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
            "a loop over what has no items");
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
        cmocka_unit_test(macros_are_jinja_s),
        cmocka_unit_test(line_ends_are_lf),
        cmocka_unit_test(texts_go_by_unicode),
        cmocka_unit_test(tojson_is_python_s),
        cmocka_unit_test(the_date_is_the_clock_s),
        cmocka_unit_test(space_goes_as_in_transformers),
        cmocka_unit_test(what_is_not_known_is_refused),
        cmocka_unit_test(values_have_an_end),
        cmocka_unit_test(long_texts_end_soon),
        cmocka_unit_test(named_templates),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
