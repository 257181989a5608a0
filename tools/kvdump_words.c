#include "tools/kvdump_words.h"
#include "lib/base/opt.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with a list of the words that the option knows. */
static _Noreturn void die_word(const char *option, const char *list,
                               const char *word, const char *const *words)
{
    char known[32] = "";
    size_t n = 0;

    for (size_t i = 0; words[i]; i++)
        n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%s",
                              i ? ", " : "", words[i]);
    kv_die("%s %s: '%.*s' is not one of %s", option, list,
           (int)strcspn(word, ","), word, known);
}

unsigned kvdump_words(const char *option, const char *list,
                      const char *const *words)
{
    unsigned bits = 0;

    for (const char *p = list; p; p = strchr(p, ',')) {
        size_t n, i = 0;

        p += *p == ',';
        n = strcspn(p, ",");
        while (words[i] && (strlen(words[i]) != n || strncmp(p, words[i], n)))
            i++;
        if (!words[i])
            die_word(option, list, p, words);
        bits |= 1u << i;
    }
    return bits;
}

enum kv_dtype kvdump_dtype(const char *name)
{
    for (enum kv_dtype t = KV_F32; t <= KV_BF16; t++)
        if (!strcmp(name, kv_dtype_name(t)))
            return t;
    kv_die("--dtype %s: expected f32, f16 or bf16", name);
}

void kvdump_layers(const char *text, size_t n_layers, bool some, size_t *first,
                   size_t *last)
{
    char *end;

    *first = 0;
    *last = n_layers - 1;
    if (!text)
        return;
    *first = *last = strtoull(text, &end, 10);
    if (*end == '-' && isdigit((unsigned char)end[1]))
        *last = strtoull(end + 1, &end, 10);
    if (!isdigit((unsigned char)*text) || *end)
        kv_die("--layers %s: expected A-B or one number", text);
    if (*first > *last)
        kv_die("--layers %s: the first is behind the last", text);
    if (*last >= n_layers)
        kv_die("--layers %s: the model has layers 0 to %zu%s", text,
               n_layers - 1, some ? " with attention" : "");
}
