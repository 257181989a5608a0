/* Values of chat templates: what Python makes of them. */
#include "tests/chat_setup.h"

/* The results of map(), select() and the like are true, have no length and can
 * be read once; the results of keys() and the like have the object's truth
 * value and length. */
static void iterators_are_python_s(void **state)
{
    (void)state;
    gives("{% set some = messages | selectattr('role', 'equalto', 'tool') %}"
          "{{ 'y' if some else 'n' }}{{ 'y' if some | list else 'n' }}"
          "{{ some is iterable }}{{ some is sequence }}{{ some is mapping }}"
          "{{ some[0] is defined }}",
          "ynTrueFalseFalseFalse");
    gives("{% set roles = messages | map(attribute='role') %}"
          "{{ roles | first }},{{ roles | join('+') }},{{ roles | join }},"
          "{{ roles | first }}.{% for r in roles %}{% else %}none{% endfor %}",
          "system,user+assistant+user,,.none");
    gives("{{ [1, 2] | reverse | list | tojson }}"
          "{{ 1 if [] | reverse else 0 }}{{ {'a': 1} | items | first | tojson "
          "}}",
          "[2, 1]1[\"a\", 1]");
    gives("{% set keys = {'a': 1, 'b': 2}.keys() %}{{ keys | join }}"
          "{{ keys | join }}{{ keys | length }}{{ 'b' in keys }}"
          "{{ keys[0] is defined }}{{ 1 if {}.items() else 0 }}"
          "{% for k, v in {'a': 1}.items() %}{{ k ~ v }}{% endfor %}",
          "abab2TrueFalse0a1");
    refuses("{{ messages | select | length }}", "the filter length");
    refuses("{{ messages | select | last }}", "the filter last");
    refuses("{{ messages | select | tojson }}", "tojson of what is no list");
    refuses("{{ {}.keys() | tojson }}", "tojson of what is no list");
    refuses("{{ messages | select }}", "neither a list nor an object");
    refuses("{{ messages | select == [] }}", "'==' between these values");
    gives("{% set r = range(5) %}{{ r[1] }}{{ r[-1] }}{{ r[1:3] | join }}"
          "{{ r | length }}{{ 3 in r }}{{ r is sequence }}{{ r | last }}"
          "{{ 1 if range(0) else 0 }}",
          "1412"
          "5TrueTrue40");
    refuses("{{ range(3) | tojson }}", "tojson of what is no list");
    refuses("{{ range(3) + [1] }}", "'+' between these values");
    refuses("{{ range(3) }}", "neither a list nor an object nor a text");
}

static void keys_may_be_numbers(void **state)
{
    (void)state;
    gives("{% set x = {0: 'a', -512: 'b', '0': 'c'} %}{{ x[0] ~ x[-512] ~ "
          "x['0'] ~ x.get(0) ~ x.get(7) }}{{ 0 in x }}{{ 1 in x }}"
          "{{ '-512' in x }}{% for k in x %}{{ k - 1 if k is number else k }},"
          "{% endfor %}{{ x | tojson }}",
          "abcaNoneTrueFalseFalse-1,-513,0,"
          "{\"0\": \"a\", \"-512\": \"b\", \"0\": \"c\"}");
    gives("{{ messages.0.role }}{{ messages.1.role[0] }}{{ messages.9 }}",
          "systemu");
    refuses("{{ {1: 2} | tojson(sort_keys=true) }}", "sorted keys");
    refuses("{{ {true: 2} | length }}", "neither a text nor a whole number");
    refuses("{{ messages.0.5 }}", "numbers other than plain whole ones");
}

/* Like Markup: text added to it is escaped. */
static void safe_texts_are_markupsafe_s(void **state)
{
    (void)state;
    gives("{{ '<a>' | safe }}{{ '<' ~ ('<a>' | safe) ~ '>' }}"
          "{{ messages[0] | tojson | safe }}",
          "<a><<a>>{\"role\": \"system\", \"content\": \"Be brief.\"}");
    gives("{{ '&<>' + ('<a>' | safe) + '\\'\"' }}{{ '<\xc3\xa9' | e }}"
          "{{ '<' | safe | e }}{{ ('a' | safe) + ('<' | safe) }}",
          "&amp;&lt;&gt;<a>&#39;&#34;&lt;\xc3\xa9<a<");
    gives("{{ 'y' if '' | safe else 'n' }}{{ ('a' | safe) is string }}"
          "{{ ('a' | safe) is mapping }}",
          "nTrueFalse");
    refuses("{{ 'a' | safe | trim }}", "the filter trim after safe");
    refuses("{{ ('a' | safe)[0] }}", "an item of a text after safe");
    refuses("{{ ('a' | safe).strip() }}", "the method strip()");
    refuses("{{ 'a' in ('a' | safe) }}", "'in' between these values");
}

static void filters_put_in_order(void **state)
{
    (void)state;
    gives("{% for k, v in {'b': 1, 'C': 0, 'a': 2} | dictsort %}{{ k ~ v }}"
          "{% endfor %} {% for k, v in {'b': 1, 'C': 0} | dictsort("
          "case_sensitive=true, by='value', reverse=true) %}{{ k ~ v }}"
          "{% endfor %} {{ {9: 1, 10: 2} | dictsort | first | last }}",
          "a2b1C0 b1C0 1");
    gives("{{ ['b', 'A', 'a', 'B'] | sort | join }}"
          "{{ ['b', 'A', 'a', 'B'] | sort(case_sensitive=true) | join }}"
          "{{ ['b', 'A', 'a', 'B'] | sort(reverse=true) | join }}"
          "{{ messages | sort(attribute='role') | map(attribute='content') | "
          "join(' ') }}",
          "AabBABabbBAaB Be brief. A C");
    gives("{{ ['a', 'A', 'b'] | unique | join }}{{ [3, 1, 2] | min }}"
          "{{ ['a', 'B'] | max }}{{ [] | max }}{{ [2, 2, 3] | unique | list | "
          "length }}",
          "ab1B2");
    gives_of("{{ x | sort | join(' ') }}", "{\"x\": [2.5, 1, 10]}", "1 2.5 10");
    refuses("{{ ['a', 1] | sort }}", "'<' between these values");
    refuses("{{ messages | sort }}", "'<' between these values");
    refuses("{{ [[1]] | unique | list }}", "the filter unique of lists");
    refuses("{{ {} | dictsort(by='x') }}", "the filter dictsort");
}

static void format_is_python_s(void **state)
{
    (void)state;
    gives("{{ '{} {{}} {}'.format('a', 1) }}|{{ '{1}{0}{1}'.format('a', none) "
          "}}|{{ '{x}<{y_2}>'.format(x=true, y_2=nothing) }}|"
          "{{ ''.format(1) }}",
          "a {} 1|NoneaNone|True<>|");
    gives("{{ 'ab' * 3 }}{{ 'ab' * 0 }}{{ 'ab' * -1 }}", "ababab");
    refuses("{{ '{}'.format() }}", "no value for place 0");
    refuses("{{ '{x}'.format(1) }}", "no value for '{x}'");
    refuses("{{ '{0}{}'.format(1, 2) }}", "counts its places");
    refuses("{{ '{:d}'.format(1) }}", "format() of '{:d}'");
    refuses("{{ '{0.real}'.format(1) }}", "format() of '{0.real}'");
    refuses("{{ '{'.format(1) }}", "format() of '{'");
    refuses("{{ '}'.format(1) }}", "has no '{'");
    refuses("{{ 'aaaaaaaaaaaaaaaa' * 99999999 }}", "steps");
}

/* A tuple is no list: it equals no list and cannot be added to one. */
static void tuples_are_no_lists(void **state)
{
    (void)state;
    gives("{{ (1, 2) == (1, 2) }}{{ (1, 2) == [1, 2] }}{{ [1, 2] != (1, 2) }}"
          "{{ (1,)[0] }}{{ ((1, 2) + (3,))[1:] | join }}{{ (1, 2) | tojson }}"
          "{{ () | length }}{{ 1 if () else 0 }}{{ 2 in (1, 2) }}"
          "{{ (1,) is sequence }}{{ (1,) is mapping }}",
          "TrueFalseTrue123[1, 2]00TrueTrueFalse");
    gives("{% for k, v in [(1, 2), [3, 4]] %}{{ k ~ v }}{% endfor %}"
          "{{ {'a': 1}.items() | first == ('a', 1) }}"
          "{{ ({'b': 1} | dictsort)[0] == ('b', 1) }}",
          "1234TrueTrue");
    gives("{{ (1, 2, 3)[1:] }}{{ (1,) + () }}{{ {'a': 1}.items() | list }}",
          "(2, 3)(1,)[('a', 1)]");
    refuses("{{ range(5)[1:3] | tojson }}", "tojson of what is no list");
    refuses("{{ (1,) + [2] }}", "'+' between these values");
    refuses("{{ 'a'.startswith(['a']) }}", "the method startswith()");
}

static void values_are_equal_as_in_python(void **state)
{
    (void)state;
    gives_of("{{ x == [1, true, {'a': [0]}] }}{{ x == [1, 1, {'a': [false]}] }}"
             "{{ x == [1, 1, {'a': []}] }}{{ x[2] == {'a': [0], 'b': 1} }}"
             "{{ 1 in [true] }}",
             "{\"x\": [1.0, 1, {\"a\": [0]}]}", "TrueTrueFalseFalseTrue");
    gives("{% for i in [1] %}{{ loop is mapping }}{{ loop.index }}{% endfor %}"
          "{{ namespace(a=1) == namespace(a=1) }}{{ {} == {'a': 1} }}",
          "False1FalseFalse");
}

/* Numbers like CPython 3.11's repr(). */
static void values_are_written_as_python_does(void **state)
{
    (void)state;
    gives("{{ [1, true, none, 'a', [], {}] }}{{ (1,) }}{{ (1, 'b') }}{{ () }}"
          "{{ {'a': [1], 2: {'b': none}} }}",
          "[1, True, None, 'a', [], {}](1,)(1, 'b')(){'a': [1], 2: {'b': "
          "None}}");
    gives("{{ [\"it's\", 'a\"b', '\\'\"', 'a\\\\b\\n\\t\\r\\x01\\x7f'] }}",
          "[\"it's\", 'a\"b', '\\'\"', 'a\\\\b\\n\\t\\r\\x01\\x7f']");
    gives("{{ ['\xc3\xa9\xc2\xa0\xe2\x80\x8b\xf0\x9f\x98\x80"
          "\xf3\xa0\x80\x81'] }}",
          "['\xc3\xa9\\xa0\\u200b\xf0\x9f\x98\x80\\U000e0001']");
    gives("{{ messages[1:2] ~ {'x': nothing} }}{{ [1] | upper }}",
          "[{'role': 'user', 'content': 'A'}]{'x': Undefined}[1]");
    gives_of("{{ x }}", "{\"x\": [0.1, 1e22, -2.0]}", "[0.1, 1e+22, -2.0]");
    refuses("{{ [namespace()] }}", "neither a list nor an object");
    refuses("{% for i in [1] %}{{ loop }}{% endfor %}", "neither a list nor");
    refuses("{{ ['a' | safe] }}", "neither a list nor an object");
    refuses("{% set ns = namespace(x=[1]) %}{% for i in range(30) %}"
            "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
            "steps");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(iterators_are_python_s),
        cmocka_unit_test(keys_may_be_numbers),
        cmocka_unit_test(safe_texts_are_markupsafe_s),
        cmocka_unit_test(filters_put_in_order),
        cmocka_unit_test(format_is_python_s),
        cmocka_unit_test(tuples_are_no_lists),
        cmocka_unit_test(values_are_equal_as_in_python),
        cmocka_unit_test(values_are_written_as_python_does),
    };

    return cmocka_run_group_tests_name("chat_values", tests, NULL, NULL);
}
