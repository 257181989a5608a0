/* Options that take several values, separated by commas or by repeating the
 * option. */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/opt_impl.h"

#include <stdlib.h>
#include <string.h>

/* Copies of arguments that were cut at commas; they live as long as the
 * program. */
static struct {
    char **text;
    size_t n;
} cut;

static char *keep(const char *arg)
{
    cut.text = kv_realloc(cut.text, cut.n + 1, sizeof(*cut.text));
    cut.text[cut.n++] = kv_strdup(arg);
    return cut.text[cut.n - 1];
}

void kv_opt_add_string(struct kv_strings *s, const char *item)
{
    s->item = kv_realloc(s->item, s->n + 1, sizeof(*s->item));
    s->item[s->n++] = item;
}

void kv_strings_clear(struct kv_strings *s)
{
    free(s->item);
    *s = (struct kv_strings){0};
}

void kv_sizes_clear(struct kv_sizes *s)
{
    free(s->item);
    *s = (struct kv_sizes){0};
}

static void add_word(const struct kv_opt *o, const char *word)
{
    struct kv_strings *s = o->at;

    if (!*word)
        kv_die("--%s: a value is missing: expected values with commas between",
               o->name);
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->item[i], word))
            kv_die("--%s %s is given twice", o->name, word);
    kv_opt_add_string(s, word);
}

static void add_size(const struct kv_opt *o, const char *word)
{
    struct kv_sizes *s = o->at;
    const size_t x = kv_opt_size(o, word);

    for (size_t i = 0; i < s->n; i++)
        if (s->item[i] == x)
            kv_die("--%s %s is given twice", o->name, word);
    s->item = kv_realloc(s->item, s->n + 1, sizeof(*s->item));
    s->item[s->n++] = x;
}

/* A file whose name contains a comma is one item. */
void kv_opt_add_values(const struct kv_opt *o, const char *arg)
{
    const bool whole =
        !strchr(arg, ',') || (o->file != KV_NO_FILE && kv_file_exists(arg));
    char *at = whole ? NULL : keep(arg);

    if (whole && o->kind == KV_OPT_WORDS)
        add_word(o, arg);
    else if (whole)
        add_size(o, arg);
    for (char *word; (word = strsep(&at, ","));)
        if (o->kind == KV_OPT_WORDS)
            add_word(o, word);
        else
            add_size(o, word);
}
