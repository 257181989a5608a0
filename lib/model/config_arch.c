#include "lib/model/arch_names.h"
#include "lib/model/config_parts.h"

#include <string.h>

static int check_type(const struct kv_fields *f, const char *name,
                      const char *should, struct kv_err *e)
{
    const json_t *type = kv_fields_get(f, "model_type");
    const char *is = type ? json_string_value(type) : NULL;

    return !type || (is && !strcmp(is, should))
               ? 0
               : kv_fail(e,
                         "%s: field %smodel_type is %s, but architectures is "
                         "%s, whose model_type is %s",
                         f->path, f->in, is ? is : "no name", name, should);
}

/* Makes f the fields of the language model.  Fields of other parts are not
 * read, since these parts see no text; the top level says whether the head is
 * tied. */
static int unwrap(struct kv_fields *f, const struct kv_wrapper *w,
                  struct kv_config *c, struct kv_err *e)
{
    static const char tied[] = "tie_word_embeddings";
    const json_t *text = kv_fields_get(f, "text_config");
    struct kv_fields part = *f;

    if (check_type(f, w->name, w->model_type, e) ||
        kv_fields_flag_if(f, tied, &c->tied, e))
        return -1;
    c->wrapped = true;
    c->tied_unless = !kv_fields_get(f, tied);
    if (!text && !w->flat)
        return kv_fail(e, "%s: field text_config is missing", f->path);
    if (text) {
        part.in = "text_config.";
        part.json = text;
        if (!json_is_object(text))
            return kv_fail(e, "%s: field text_config is not an object",
                           f->path);
        if (check_type(&part, w->name, w->text, e))
            return -1;
    }
    part.own = w->fields ? w->fields : kv_fields_of_wrapped;
    part.wrapped = true;
    *f = part;
    return kv_arch_find(&c->arch, w->arch, f->json, e);
}

int kv_config_arch(struct kv_fields *f, struct kv_config *c, struct kv_err *e)
{
    const json_t *list = kv_fields_get(f, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    const struct kv_wrapper *wrapper;

    if (!list)
        return kv_fail(e, "%s: field architectures is missing", f->path);
    if (!name || json_array_size(list) != 1)
        return kv_fail(e, "%s: field architectures is not a list of one name",
                       f->path);
    wrapper = kv_arch_wrapper(
        name, json_string_value(json_object_get(kv_fields_get(f, "text_config"),
                                                "model_type")));
    if (wrapper)
        return unwrap(f, wrapper, c, e);
    if (kv_arch_find(&c->arch, name, f->json, e))
        return kv_fail_in(e, "%s", f->path);
    f->own = c->arch->fields;
    f->derived = strcmp(name, c->arch->name) != 0;
    if (c->arch->other_type && !check_type(f, name, c->arch->other_type, NULL))
        return 0;
    return check_type(f, name, c->arch->model_type, e);
}
