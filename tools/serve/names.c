#include "tools/serve/names.h"
#include "lib/mixed.h"
#include "lib/policy.h"

#include <stdlib.h>
#include <string.h>

enum { SPEC_CHARS = 256 };

int kv_names_check(const struct kv_names *n, const struct kv_spec *specs,
                   size_t n_specs, struct kv_err *e)
{
    if (n->on_gpu && kv_policy_on_device(specs, n_specs, e))
        return -1;
    return kv_spec_in_place(specs, n_specs, "kvgen", e);
}

static int parse(const struct kv_names *n, const char *text,
                 struct kv_spec *spec, struct kv_err *e)
{
    const struct kv_protocol protocol = {.kind = KV_PREFILL, .step = 1};
    const struct kv_sweep sweep = {.specs = &(struct kv_strings){&text, 1},
                                   .shape = n->shape,
                                   .protocol = &protocol,
                                   .shard = {1, 1}};
    struct kv_spec *list;
    size_t n_specs, all;

    if (strlen(text) >= SPEC_CHARS || strchr(text, '{'))
        return kv_fail(e, "expected one spec of less than %d characters",
                       SPEC_CHARS);
    if (kv_sweep_list(&sweep, &list, &n_specs, &all, e))
        return -1;
    *spec = *list;
    free(list);
    return kv_calib_adopt(n->calib, spec, 1, e) || kv_names_check(n, spec, 1, e)
               ? -1
               : 0;
}

/* Finds a spec by its text in -s, or by its canonical text. */
static bool find_listed(const struct kv_names *n, const char *text,
                        struct kv_spec *spec)
{
    for (size_t i = 0; i < n->n_listed; i++)
        if (!strcmp(n->listed[i].text, text) ||
            !strcmp(n->listed[i].given, text)) {
            *spec = n->listed[i];
            return true;
        }
    return false;
}

int kv_names_find(const struct kv_names *n, const char *model,
                  struct kv_spec *spec, const char **code, struct kv_err *e)
{
    const size_t bytes = strlen(n->name);
    const bool named = !strncmp(model, n->name, bytes) &&
                       (!model[bytes] || model[bytes] == ',');
    const char *text = named ? model + bytes + (model[bytes] == ',') : model;

    if (named && !model[bytes]) {
        *spec = n->listed[0];
        return 0;
    }
    if (find_listed(n, text, spec))
        return 0;
    /* specs of several schemes or with a command are kept until the program
     * ends (lib/mixed.h, lib/exec.h) */
    if (strstr(text, "file=") || strstr(text, "/V-") || strstr(text, "cmd="))
        kv_fail(e, "a spec of a file, of a command, or for each side, is "
                   "served where -s gives it");
    else if (!parse(n, text, spec, e))
        return 0;
    *code = "model_not_found";
    return named ? kv_fail_in(e, "%.200s", model)
                 : kv_fail_in(e,
                              "there is no model %.200s here, it is %s or "
                              "%s,SPEC",
                              model, n->name, n->name);
}
