/* Chat templates: the prompt that a model wants around a conversation.
 *
 * Models carry them in Jinja (tokenizer_config.json, GGUF's
 * tokenizer.chat_template).  The subset that most templates use is implemented,
 * and rendered as in transformers (trim_blocks, lstrip_blocks, CR LF read as
 * LF):
 *
 *   text {{ expression }} {# comment #}, each with "-" or "+" at its ends
 *   if elif else, for .. in .. if .. else, break, continue, set, macro
 *   or and not == != < <= > >= in is + - ~ * // % a if b else c
 *   x.y x[y] x[a:b:c] 'text' 1 true none [..] (..) {..}
 *   filters, methods and tests of chat_filter.c, chat_method.c, chat_test.c
 *   namespace() dict() range() strftime_now()
 *   raise_exception(): its sentence is the error
 *
 * Text is Python's: its methods go by Unicode (the installed utf8proc's),
 * tojson writes what json.dumps() writes, lists and objects are written as by
 * repr().  Everything else is refused by name.  Steps and output are limited,
 * so no template runs for ever. */
#ifndef KV_CHAT_TEMPLATE_H
#define KV_CHAT_TEMPLATE_H

#include "lib/base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The time that strftime_now() sees: seconds since 1970, in local time.  asked:
 * whether a template has called it. */
struct kv_chat_clock {
    int64_t now;
    bool asked;
};

enum { KV_CHAT_CLOCK_CHARS = 32 };

/* text: "2025-01-31", midnight, or "2025-01-31T12:00:00". */
int kv_chat_clock_parse(struct kv_chat_clock *clock, const char *text,
                        struct kv_err *e);
void kv_chat_clock_local(struct kv_chat_clock *clock); /* now */
/* Writes the time as "2025-01-31T12:00:00". */
void kv_chat_clock_text(const struct kv_chat_clock *clock,
                        char text[KV_CHAT_CLOCK_CHARS]);

/* values: an object: messages [{"role": .., "content": ..}],
 * add_generation_prompt, tools, bos_token and the like.  path: the template's
 * path, for errors.  clock: the time for strftime_now(), which is refused if
 * clock is NULL.  The caller frees *text. */
int kv_chat_render(const char *path, const char *template, const json_t *values,
                   struct kv_chat_clock *clock, char **text, size_t *n,
                   struct kv_err *e);

/* A model's settings for conversations and for the end of a text: its template
 * (NULL: none), its special tokens as text, {"bos_token": "<s>", ..}, the ids
 * that end a text, and the sampling options of generation_config.json
 * ("repetition_penalty 1.1, ..."; NULL: none). */
struct kv_chat_model {
    char *template, *asked;
    json_t *tokens;
    int32_t *end;
    size_t n_ends;
};

/* path: a Hugging Face folder (chat_template.jinja, tokenizer_config.json,
 * special_tokens_map.json, generation_config.json, config.json, all optional)
 * or a GGUF file. */
int kv_chat_model_read(struct kv_chat_model *m, const char *path,
                       struct kv_err *e);
void kv_chat_model_clear(struct kv_chat_model *m);

/* Renders the messages of a conversation as a prompt, up to the beginning of an
 * answer, by the template of this name ("model": the model's own).  If the last
 * message is the assistant's, the prompt ends with that message, without the
 * text that a template writes after it; this fails if the template leaves out a
 * part of the message.  messages: [{"role": .., "content": text}, ..].  *text
 * is the caller's to free.  path: the model's, for error messages. */
int kv_chat_messages(const struct kv_chat_model *m, const char *path,
                     const char *name, json_t *messages,
                     struct kv_chat_clock *clock, char **text, size_t *n,
                     struct kv_err *e);

/* A template by its name, as llama.cpp calls them: chatml, llama2, llama3,
 * mistral, gemma, phi3, zephyr.  Fails with the list of them. */
int kv_chat_template_named(const char **template, const char *name,
                           struct kv_err *e);

/* The tokens that a model must have for the template of this name, up to a
 * NULL.  None for "model" (the model's own template), and none for templates
 * whose marks are no single tokens of their models. */
const char *const *kv_chat_named_tokens(const char *name);

#endif
