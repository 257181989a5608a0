/* A chat template, up to a zero byte, around a conversation that is always the
 * same: it is rendered, or refused in a sentence. */
#include "lib/base/alloc.h"
#include "lib/tokenizer/chat_template.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"},"
    " {\"role\": \"user\", \"content\": \" Hi \\u00e9 \"},"
    " {\"role\": \"assistant\", \"content\": \"<think>a</think>b\"},"
    " {\"role\": \"user\", \"content\": [{\"type\": \"text\","
    " \"text\": \"C\"}]}],"
    " \"add_generation_prompt\": true, \"bos_token\": \"<s>\","
    " \"eos_token\": \"</s>\", \"tools\": null, \"n\": -3, \"x\": 0.5}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static json_t *values;
    struct kv_chat_clock clock = {.now = 1738324800}; /* 2025-01-31T12:00:00 */
    char *template = kv_strndup((const char *)data, n), *text;
    struct kv_err e = {""};
    size_t n_text;
    int rc;

    if (!values)
        values = json_loads(conversation, 0, NULL);
    fuzz_expect(values != NULL, "a conversation");
    rc = kv_chat_render("fuzz", template, values, &clock, &text, &n_text, &e);
    fuzz_expect_sentence(rc, &e);
    if (!rc) {
        fuzz_expect(strlen(text) == n_text, "text without zero bytes");
        free(text);
    }
    free(template);
    return 0;
}

static void seed(const char *name, const char *template)
{
    fuzz_seed(name, template, strlen(template));
}

/* Written as models of these families have theirs. */
static void make_families(void)
{
    seed("chatml",
         "{%- if messages[0]['role'] != 'system' -%}\n"
         "    {{- '<|im_start|>system\\nBe kind.<|im_end|>\\n' -}}\n"
         "{%- endif -%}\n"
         "{% for message in messages %}{{ '<|im_start|>' + message['role'] + "
         "'\\n' + (message['content'] if message['content'] is string else "
         "message['content'][0]['text']) + '<|im_end|>' + '\\n' }}"
         "{% endfor %}{% if add_generation_prompt is defined and "
         "add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
         "{% endif %}\n");
    seed("headers",
         "{# turns #}{{ bos_token }}\n"
         "{% set turns = messages if messages[0].role != 'system' else "
         "messages[1:] %}\n"
         "{% for m in turns if m.content %}\n"
         "  {% set content = '<|start|>' ~ m.role ~ '<|end|>\\n\\n' ~ "
         "(m.content | trim if m.content is string else "
         "m.content[0]['text']) ~ '<|eot|>' %}\n"
         "  {% if loop.first and not loop.last %}{{ loop.length - 1 }}"
         "{% elif loop.index0 % 2 == 1 and m.role not in ['user', 'tool'] %}"
         "{{- content.upper() -}}{% else %}{{+ content }}{% endif %}\n"
         "{% else %}{{ raise_exception('no turns') }}\n"
         "{% endfor %}\n");
    seed("turns",
         "{%- macro show(text, n=0) %}{{ text | trim }}{% endmacro %}\n"
         "{%- set ns = namespace(last=-1, found=false, text='') %}\n"
         "{%- for m in messages[::-1] %}\n"
         "    {%- set index = (messages | length - 1) - loop.index0 %}\n"
         "    {%- if not ns.found and m.role == \"user\" and not "
         "(m.content is string and m.content.startswith('<tool>')) %}\n"
         "        {%- set ns.found = true %}{%- set ns.last = index %}\n"
         "    {%- endif %}\n"
         "{%- endfor %}\n"
         "{%- for m in messages %}\n"
         "    {%- if m.content is string %}\n"
         "        {%- set ns.text = m.content.split('</think>')[-1]"
         ".lstrip('\\n') | default('', true) %}\n"
         "    {%- else %}{%- set ns.text = m.content | tojson %}\n"
         "    {%- endif %}\n"
         "    {{- '<|im_start|>' ~ m.role ~ '\\n' ~ ns.text }}\n"
         "{%- endfor %}{{ ns.last }}\n");
}

/* Macros, loops that are left, text by Unicode, JSON, the date. */
static void make_newer(void)
{
    seed("macros",
         "{%- macro show(m, sep='\\u2028', deep=true) -%}\r\n"
         "{{ m.content if m.content is string else m.content | map("
         "attribute='text') | join(sep) }}{% if deep %}{{ show(m, deep=false)"
         " }}{% endif %}{%- endmacro -%}\r\n"
         "{% for m in messages %}{% if loop.index is divisibleby 3 %}"
         "{% continue %}{% elif m.role is in ['tool'] %}{% break %}{% endif %}"
         "{{ show(m, sep=', ') }}{{ loop.depth }}{% endfor %}");
    seed("texts",
         "{% set t = '\xc3\x9f \xc3\x84\xce\xa3. \xe3\x80\x80' %}"
         "{{ t.upper() ~ t.lower() ~ t.title() ~ t | title ~ t | capitalize }}"
         "{{ t.strip('\xc3\x9f') ~ t[1] ~ t[::-2] ~ t | length }}"
         "{{ t.split() | last ~ 'a\\x41\\n'.splitlines() | first }}"
         "{{ 'ab'.removeprefix('a').find('b') ~ t.rstrip() }}"
         "{% for x in t %}{{ x }}{% endfor %}{{ 1 < 2 <= 2 != 3 }}");
    seed("json",
         "{{ messages | tojson(indent=2, sort_keys=true) }}"
         "{{ {'a': [x, n, nothing]} | tojson(ensure_ascii=true) }}"
         "{{ messages | tojson(separators=(',', ':')) }}"
         "{{ strftime_now('%d %b %Y') if strftime_now is defined }}"
         "{{ messages | selectattr('role', 'in', ['user']) | list | length }}"
         "{{ messages | rejectattr('content') | map('upper') | join }}");
}

/* Values with a kind of their own, and what orders or writes them. */
static void make_kinds(void)
{
    seed("iterators",
         "{% set some = messages | map(attribute='role') %}{{ some | first }}"
         "{{ some | list | unique | join }}{{ range(9)[2:7:2] | join }}"
         "{% for k in {1: 'a', 'b': n}.keys() %}{{ k }}{% endfor %}"
         "{{ messages.0.role ~ {1: 2}[1] }}{{ (1, 2) + (3,) == (1, 2, 3) }}");
    seed("order",
         "{{ {'b': 1, 'A': 2} | dictsort(by='value', reverse=true) | list }}"
         "{{ ['b', 'A'] | sort ~ messages | sort(attribute='role') | length }}"
         "{{ [2, 1] | min }}{{ [x, n] | max }}{{ 'ab' * 3 }}");
    seed("written", "{{ messages }}{{ ['it\\'s', (1,), {'a': none}, x] }}"
                    "{{ '{} {x}{{}}'.format(n, x=[1]) }}"
                    "{{ '<' + ('<a>' | safe) ~ ('&' | e) }}");
}

void fuzz_make_seeds(void)
{
    make_families();
    make_newer();
    make_kinds();
    seed("values",
         "{% for k, v in {'a': 1, 'b': [2, 3]}.items() %}{{ k }}{% set y %}"
         "{{ v | tojson }}{% endset %}{{ y }}{% endfor %}"
         "{{ (messages | selectattr('role', 'equalto', 'user') | list | "
         "last).content | length }}{{ messages[0].get('name', 'none') }}"
         "{{ 'a-b'.replace('-', '+') | upper }}{{ 'abc'[1:-1] }}"
         "{{ range(1, 4) | first }}{{ -7 // 2 * 3 - 7 % 4 }}"
         "{{ 1 < 2 and 'x' or 'y' }}{{ [1] + [n] == [1, -3] }}"
         "{{ 'z' in 'xyz' }}{{ x is number }}{{ nothing is undefined }}"
         "{{ true ~ none }}{% generation %}{% endgeneration %}");
}
