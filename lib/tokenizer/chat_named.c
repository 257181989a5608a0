#include "lib/tokenizer/chat_template.h"

#include <stdio.h>
#include <string.h>

/* Templates that render messages of system, user and assistant as the models'
 * own templates do, without tools. */
static const struct {
    const char *name, *text, *tokens[4];
} named[] = {
    {"chatml",
     "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
     "<|im_end|>\n{% endfor %}"
     "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
     {"<|im_start|>", "<|im_end|>"}},
    {"gemma",
     "{{ bos_token }}{% for m in messages %}<start_of_turn>"
     "{{ 'model' if m.role == 'assistant' else m.role }}\n"
     "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
     "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
     {"<start_of_turn>", "<end_of_turn>"}},
    {"llama2",
     "{% for m in messages %}{% if m.role == 'system' %}"
     "{{ bos_token }}[INST] <<SYS>>\n{{ m.content }}\n<</SYS>>\n\n"
     "{% elif m.role == 'user' %}"
     "{% if loop.first or messages[loop.index0 - 1].role != 'system' %}"
     "{{ bos_token }}[INST] {% endif %}{{ m.content | trim }} [/INST]"
     "{% else %} {{ m.content | trim }} {{ eos_token }}{% endif %}"
     "{% endfor %}",
     {NULL}},
    {"llama3",
     "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}"
     "<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}"
     "{% if add_generation_prompt %}<|start_header_id|>assistant"
     "<|end_header_id|>\n\n{% endif %}",
     {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
    {"mistral",
     "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
     " {{ m.content | trim }}{{ eos_token }}{% else %}"
     "[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}",
     {NULL}},
    {"phi3",
     "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n"
     "{% endfor %}"
     "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
     {"<|user|>", "<|assistant|>", "<|end|>"}},
    {"zephyr",
     "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ "
     "eos_token }}\n"
     "{% endfor %}"
     "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
     {NULL}},
};

const char *const *kv_chat_named_tokens(const char *name)
{
    static const char *const none[] = {NULL};

    for (size_t i = 0; i < sizeof(named) / sizeof(*named); i++)
        if (!strcmp(named[i].name, name))
            return named[i].tokens;
    return none;
}

int kv_chat_template_named(const char **template, const char *name,
                           struct kv_err *e)
{
    char known[128] = "";

    for (size_t i = 0; i < sizeof(named) / sizeof(*named); i++) {
        const size_t n = strlen(known);

        if (!strcmp(named[i].name, name)) {
            *template = named[i].text;
            return 0;
        }
        snprintf(known + n, sizeof(known) - n, "%s%s", i ? ", " : "",
                 named[i].name);
    }
    return kv_fail(e,
                   "unknown chat template %s (known: %s, and model, its "
                   "own)",
                   name, known);
}
