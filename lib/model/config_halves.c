/* Nemotron-H: a layer is only one of Mamba-2, attention, an MLP or experts.
 * hybrid_override_pattern has a letter for each, layers_block_type a name; both
 * must say the same. */
#include "lib/model/config_parts.h"

#include <string.h>

static const char TYPES[] = "layers_block_type",
                  PATTERN[] = "hybrid_override_pattern";

static const struct {
    char letter;
    const char *name, *old_name; /* the name before transformers 5; NULL: the
                                  * same name */
} kinds[] = {{'M', "linear_attention", "mamba"},
             {'*', "full_attention", "attention"},
             {'-', "mlp", NULL},
             {'E', "moe", NULL}};

/* The letter of layer i; 0: an unknown kind. */
static char letter_of(const json_t *list, const char *pattern, size_t i)
{
    const char *type = json_string_value(json_array_get(list, i));

    for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++) {
        const char *old = kinds[k].old_name;

        if (list ? type && (!strcmp(type, kinds[k].name) ||
                            (old && !strcmp(type, old)))
                 : pattern[i] == kinds[k].letter)
            return kinds[k].letter;
    }
    return 0;
}

static void set_layer(struct kv_config *c, size_t layer, char letter)
{
    const bool bare = letter == '-' || letter == 'E';

    kv_layer_set(c->shape.stateful, layer, letter != '*');
    kv_layer_set(c->bare, layer, bare);
    kv_layer_set(c->dense, layer, letter != 'E');
    c->shape.n_bare += bare;
}

/* Checks the list; if it is NULL, the pattern. */
static int check(const struct kv_fields *f, const json_t *list,
                 const char *pattern, struct kv_err *e)
{
    const size_t n = list ? json_array_size(list) : strlen(pattern);
    const char *name = list ? TYPES : PATTERN;
    size_t given = n;

    if (n < 1 || n > KV_MAX_LAYERS)
        return kv_fail(e, "%s: field %s does not name 1 to %d layers", f->path,
                       name, KV_MAX_LAYERS);
    if (kv_fields_size_if(f, "num_hidden_layers", 1, KV_MAX_LAYERS, &given, e))
        return -1;
    if (given != n)
        return kv_fail(e,
                       "%s: field %s names %zu layers, num_hidden_layers %zu",
                       f->path, name, n, given);
    for (size_t i = 0; i < n; i++) {
        if (!letter_of(list, pattern, i))
            return kv_fail(e,
                           "%s: field %s: layer %zu is neither Mamba, "
                           "attention, an MLP nor experts",
                           f->path, name, i);
        if (list && pattern &&
            letter_of(list, NULL, i) != letter_of(NULL, pattern, i))
            return kv_fail(e, "%s: fields %s and %s contradict each other",
                           f->path, name, PATTERN);
    }
    return 0;
}

int kv_config_halves(const struct kv_fields *f, struct kv_config *c,
                     struct kv_err *e)
{
    const json_t *list = kv_fields_get(f, TYPES);
    const char *pattern = json_string_value(kv_fields_get(f, PATTERN));

    if (!json_is_array(list))
        list = NULL;
    if (!list && !pattern)
        return kv_fail(e, "%s: neither field %s nor %s names the layers",
                       f->path, TYPES, PATTERN);
    if (list && pattern && strlen(pattern) != json_array_size(list))
        return kv_fail(e, "%s: fields %s and %s contradict each other", f->path,
                       TYPES, PATTERN);
    if (check(f, list, pattern, e))
        return -1;
    c->shape.n_layers = list ? json_array_size(list) : strlen(pattern);
    for (size_t i = 0; i < c->shape.n_layers; i++)
        set_layer(c, i, letter_of(list, pattern, i));
    return 0;
}
