#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/text.h"
#include "lib/json_file.h"
#include "lib/model/gguf_model.h"
#include "lib/model/model_files.h"
#include "lib/tokenizer/chat_template.h"
#include "lib/tokenizer/gguf_ends.h"

#include <stdlib.h>
#include <string.h>

static void add_end(struct kv_chat_model *m, json_int_t id)
{
    if (id < 0 || id > INT32_MAX)
        return;
    m->end = kv_realloc(m->end, m->n_ends + 1, sizeof(*m->end));
    m->end[m->n_ends++] = (int32_t)id;
}

/* ---- Hugging Face -------------------------------------------------------- */

/* A JSON file of the folder; NULL, without a failure, where it is not there. */
static int read_json(const char *dir, const char *name, json_t **json,
                     struct kv_err *e)
{
    char *path = kv_model_file(dir, name);
    const bool there = kv_file_exists(path);

    *json = there ? kv_json_read(path, e) : NULL;
    free(path);
    return there && !*json ? -1 : 0;
}

/* "<s>", or {"content": "<s>"} */
static const char *token_text(const json_t *config, const char *name)
{
    const json_t *x = json_object_get(config, name);
    const char *text = json_string_value(
        json_is_object(x) ? json_object_get(x, "content") : x);

    return text ? text : "";
}

/* One text, or a list of named ones: then "default". */
static const char *template_of(const json_t *config)
{
    const json_t *x = json_object_get(config, "chat_template"), *one;
    size_t i;

    json_array_foreach(x, i, one)
    {
        const char *name = json_string_value(json_object_get(one, "name"));

        if (name && !strcmp(name, "default"))
            return json_string_value(json_object_get(one, "template"));
    }
    return json_string_value(x);
}

static int read_template(struct kv_chat_model *m, const char *dir,
                         struct kv_err *e)
{
    char *path = kv_model_file(dir, "chat_template.jinja");
    json_t *config = NULL;
    const char *text;
    size_t bytes;
    int rc = read_json(dir, "tokenizer_config.json", &config, e);

    if (!rc) {
        m->bos = kv_strdup(token_text(config, "bos_token"));
        m->eos = kv_strdup(token_text(config, "eos_token"));
        text = template_of(config);
        if (kv_file_exists(path))
            rc = kv_text_read(path, KV_FILE_MAX, &m->template, &bytes, e);
        else if (text)
            m->template = kv_strdup(text);
    }
    json_decref(config);
    free(path);
    return rc;
}

/* One id, or a list of them. */
static bool read_ends(struct kv_chat_model *m, const json_t *config)
{
    const json_t *x = json_object_get(config, "eos_token_id"), *one;
    size_t i;

    json_array_foreach(x, i, one)
    {
        add_end(m, json_is_integer(one) ? json_integer_value(one) : -1);
    }
    if (json_is_integer(x))
        add_end(m, json_integer_value(x));
    return m->n_ends;
}

static int read_folder(struct kv_chat_model *m, const char *dir,
                       struct kv_err *e)
{
    static const char *const files[] = {"generation_config.json",
                                        "config.json"};
    bool done = false;

    for (size_t i = 0; i < 2 && !done; i++) {
        json_t *config;

        if (read_json(dir, files[i], &config, e))
            return -1;
        done = read_ends(m, config);
        json_decref(config);
    }
    return read_template(m, dir, e);
}

/* ---- GGUF ---------------------------------------------------------------- */

static char *text_of(const struct kv_gguf_value *v, size_t i)
{
    const bool there = v && v->kind == KV_GGUF_TEXT && i < v->n;
    size_t bytes = 0;
    const char *text = there ? kv_gguf_text(v, i, &bytes) : "";
    char *copy = kv_alloc(bytes + 1, 1);

    memcpy(copy, text, bytes);
    return copy;
}

static size_t id_of(const struct kv_gguf *g, const char *key)
{
    const struct kv_gguf_value *v = kv_gguf_find(g, key);

    return v && v->kind == KV_GGUF_INT && !v->array ? (size_t)kv_gguf_int(v, 0)
                                                    : SIZE_MAX;
}

static int read_gguf(struct kv_chat_model *m, const char *path,
                     struct kv_err *e)
{
    const struct kv_gguf_value *v, *tokens;
    struct kv_gguf g;

    if (kv_gguf_open(&g, path, e))
        return -1;
    tokens = kv_gguf_find(&g, "tokenizer.ggml.tokens");
    m->bos = text_of(tokens, id_of(&g, "tokenizer.ggml.bos_token_id"));
    m->eos = text_of(tokens, id_of(&g, "tokenizer.ggml.eos_token_id"));
    m->n_ends = kv_gguf_ends(&g, &m->end);
    v = kv_gguf_find(&g, "tokenizer.chat_template");
    if (v && v->kind == KV_GGUF_TEXT && !v->array)
        m->template = text_of(v, 0);
    kv_gguf_clear(&g);
    return 0;
}

int kv_chat_model_read(struct kv_chat_model *m, const char *path,
                       struct kv_err *e)
{
    int rc;

    *m = (struct kv_chat_model){0};
    rc = kv_is_dir(path) ? read_folder(m, path, e) : read_gguf(m, path, e);
    if (rc)
        kv_chat_model_clear(m);
    return rc;
}

void kv_chat_model_clear(struct kv_chat_model *m)
{
    free(m->template);
    free(m->bos);
    free(m->eos);
    free(m->end);
    *m = (struct kv_chat_model){0};
}

/* ---- a prompt ------------------------------------------------------------ */

int kv_chat_prompt(const struct kv_chat_model *m, const char *path,
                   const char *name, const char *message, size_t bytes,
                   char **text, size_t *n, struct kv_err *e)
{
    const char *template = m->template;
    json_t *values, *content;
    int rc;

    if (strcmp(name, "model") && kv_chat_template_named(&template, name, e))
        return -1;
    if (!template)
        return kv_fail(e,
                       "%s has no chat template: name one, as in "
                       "--chat-template chatml",
                       path);
    content = json_stringn(message, bytes);
    if (!content)
        return kv_fail(e, "a message is UTF-8 without the zero character");
    values = json_pack("{s:[{s:s,s:o}],s:b,s:s,s:s}", "messages", "role",
                       "user", "content", content, "add_generation_prompt", 1,
                       "bos_token", m->bos, "eos_token", m->eos);
    rc = kv_chat_render(path, template, values, text, n, e);
    json_decref(values);
    return rc;
}
