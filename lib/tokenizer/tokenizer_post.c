#include "lib/tokenizer/tokenizer_post.h"
#include "lib/tokenizer/tokenizer_json.h"

#include <string.h>

/* Reads the id in a member of "special_tokens": {"id": "<s>", "ids": [1],
 * "tokens": ["<s>"]}. */
static int token_id(const json_t *known, const char *name, size_t n_vocab,
                    int32_t *id, struct kv_err *e)
{
    const json_t *token = json_object_get(known, name), *number;
    json_t *ids;

    if (kv_field_array(token, "ids", &ids, e) ||
        kv_field_only(token, "id ids tokens", e))
        return kv_fail_in(e, "\"%s\"", name);
    number = json_array_get(ids, 0);
    if (json_array_size(ids) != 1 || !json_is_integer(number) ||
        json_integer_value(number) < 0 ||
        json_integer_value(number) >= (json_int_t)n_vocab)
        return kv_fail(e, "\"%s\" is not one token of the vocabulary", name);
    *id = (int32_t)json_integer_value(number);
    return 0;
}

/* Whether an item is the single text, {"Sequence": {"id": "A"}}. */
static int is_text(const json_t *item)
{
    const char *id = json_string_value(
        json_object_get(json_object_get(item, "Sequence"), "id"));

    return id && !strcmp(id, "A");
}

/* Parses [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], or the
 * text alone.  The template for pairs of texts is not used. */
static int parse_template(const json_t *j, size_t n_vocab, int32_t *bos,
                          struct kv_err *e)
{
    json_t *single, *known;
    const json_t *token;
    const char *name;
    size_t n;

    if (kv_field_only(j, "type single pair special_tokens", e) ||
        kv_field_array(j, "single", &single, e) ||
        kv_field_object(j, "special_tokens", &known, e))
        return -1;
    n = json_array_size(single);
    token = json_object_get(json_array_get(single, 0), "SpecialToken");
    if (n != 1u + (token != NULL) || !is_text(json_array_get(single, n - 1)))
        return kv_fail(e, "\"single\" is not a text after at most one token");
    if (!token)
        return 0;
    if (*bos >= 0)
        return kv_fail(e, "a second token before the text");
    return kv_field_string(token, "id", &name, e) ||
                   token_id(known, name, n_vocab, bos, e)
               ? kv_fail_in(e, "\"single\"")
               : 0;
}

static int parse(const json_t *j, size_t n_vocab, int32_t *bos,
                 struct kv_err *e)
{
    const char *type;
    json_t *list;

    if (kv_field_string(j, "type", &type, e))
        return -1;
    if (!strcmp(type, "ByteLevel"))
        return kv_field_only(j, "type add_prefix_space trim_offsets use_regex",
                             e);
    if (!strcmp(type, "TemplateProcessing"))
        return parse_template(j, n_vocab, bos, e) ? kv_fail_in(e, "%s", type)
                                                  : 0;
    if (strcmp(type, "Sequence"))
        return kv_fail(e, "type \"%s\" is not supported", type);
    if (kv_field_only(j, "type processors", e) ||
        kv_field_array(j, "processors", &list, e))
        return kv_fail_in(e, "Sequence");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (parse(json_array_get(list, i), n_vocab, bos, e))
            return -1;
    return 0;
}

int kv_post_parse(const json_t *j, size_t n_vocab, int32_t *bos,
                  struct kv_err *e)
{
    *bos = -1;
    if (j && !json_is_null(j) && parse(j, n_vocab, bos, e))
        return kv_fail_in(e, "post_processor");
    return 0;
}
