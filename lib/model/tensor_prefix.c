/* The prefix of a file's tensor names. */
#include "lib/model/tensor_map.h"

#include <stdio.h>
#include <string.h>

/* The prefix in a model with several parts, where names have more words before
 * the usual prefix, or after its first word.  NULL: there are no such
 * tensors. */
static const char *find_part(const struct kv_weights *w, const char *embed)
{
    static const char *const prefix[] = {"language_model.model.",
                                         "model.language_model."};
    char name[160];

    for (size_t i = 0; i < sizeof(prefix) / sizeof(*prefix); i++) {
        snprintf(name, sizeof(name), "%s%s", prefix[i], embed);
        if (kv_weights_find(w, name))
            return prefix[i];
    }
    return NULL;
}

const char *kv_tensor_prefix(const struct kv_weights *w,
                             const struct kv_tensor_names *names, bool wrapped)
{
    const char *p = names->prefix;
    char name[160];

    if (wrapped && find_part(w, names->embed))
        return find_part(w, names->embed);
    while (snprintf(name, sizeof(name), "%s%s", p, names->embed),
           !kv_weights_find(w, name) && *p)
        p = strchr(p, '.') + 1;
    return kv_weights_find(w, name) ? p : names->prefix;
}
