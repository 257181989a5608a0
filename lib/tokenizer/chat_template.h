/* Chat templates: the prompt that a model wants around a conversation.
 *
 * Models carry them in Jinja (tokenizer_config.json, GGUF's
 * tokenizer.chat_template).  A small part of it is understood, rendered as
 * transformers does (trim_blocks, lstrip_blocks):
 *
 *   text {{ expression }} {# comment #}, each with "-" or "+" at its ends
 *   {% if %} {% elif %} {% else %} {% endif %} {% for x in y if z %} {% endfor
 * %}
 *   {% set x = y %} {% set namespace.x = y %}
 *   or and not == != < <= > >= in is + - ~ * // % a if b else c
 *   x.y x[y] x[a:b] 'text' 1 true none [..] {..}
 *   filters, tests and methods of chat_value.c; namespace() range()
 *   raise_exception(): its sentence is the error
 *
 * Everything else is refused by name.  Templates are limited in steps and in
 * what they write: none runs for ever. */
#ifndef KV_CHAT_TEMPLATE_H
#define KV_CHAT_TEMPLATE_H

#include "lib/base/err.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* values: an object: messages [{"role": .., "content": ..}],
 * add_generation_prompt, bos_token and the like.  path: of the template, for
 * sentences.  *text is the caller's to free. */
int kv_chat_render(const char *path, const char *template, const json_t *values,
                   char **text, size_t *n, struct kv_err *e);

/* What a model's files say of conversations and of the end of a text: its
 * template (NULL: none), BOS and EOS as text, and the ids that end a text. */
struct kv_chat_model {
    char *template, *bos, *eos;
    int32_t *end;
    size_t n_ends;
};

/* path: a Hugging Face folder (chat_template.jinja, tokenizer_config.json,
 * generation_config.json, config.json, each where it is there) or a GGUF
 * file. */
int kv_chat_model_read(struct kv_chat_model *m, const char *path,
                       struct kv_err *e);
void kv_chat_model_clear(struct kv_chat_model *m);

/* A conversation of one message of the user, and the beginning of an answer, by
 * the template of this name ("model": the model's own).  *text is the caller's
 * to free.  path: of the model, for sentences. */
int kv_chat_prompt(const struct kv_chat_model *m, const char *path,
                   const char *name, const char *message, size_t bytes,
                   char **text, size_t *n, struct kv_err *e);

/* A template by its name, as llama.cpp calls them: chatml, llama2, llama3,
 * mistral, gemma, phi3, zephyr.  Fails with the list of them. */
int kv_chat_template_named(const char **template, const char *name,
                           struct kv_err *e);

#endif
