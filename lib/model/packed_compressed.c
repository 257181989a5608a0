#include "lib/model/packed_impl.h"

#include <string.h>

/* The formats of compressed-tensors, and the packing that each means. */
static const struct format {
    const char *name, *type;
    size_t bits;       /* 0: 2, 4 or 8 */
    const char *group; /* required group_size as JSON, for floats of 4 bits */
    enum kv_packing packing;
} formats[] = {
    {"float-quantized", "float", 8, NULL, KV_PACKED_SCALED},
    {"naive-quantized", "float", 8, NULL, KV_PACKED_SCALED},
    {"int-quantized", "int", 8, NULL, KV_PACKED_SCALED},
    {"pack-quantized", "int", 0, NULL, KV_PACKED_WORDS},
    {"nvfp4-pack-quantized", "float", 4, "16", KV_PACKED_NVFP4},
    {"mxfp4-pack-quantized", "float", 4, "32", KV_PACKED_MXFP4},
};
enum { N_FORMATS = sizeof(formats) / sizeof(*formats) };

static const char *text_of(const struct kv_fields *f, const char *name)
{
    const char *text = json_string_value(kv_fields_get(f, name));

    return text ? text : "(none)";
}

static int find_format(const struct kv_fields *f, const char *name,
                       const struct format **format, struct kv_err *e)
{
    for (size_t i = 0; i < N_FORMATS; i++) {
        *format = &formats[i];
        if (!strcmp(formats[i].name, name))
            return 0;
    }
    return kv_fail(e, "%s: field %sformat is %s, which is not implemented",
                   f->path, f->in, name);
}

/* Reads the strategy, which says how many values share a scale. */
static int read_strategy(struct kv_packed_header *h, const struct format *t,
                         const struct kv_fields *f, struct kv_err *e)
{
    const char *strategy = text_of(f, "strategy");
    const json_t *block = kv_fields_get(f, "block_structure");
    const bool scaled = t->packing == KV_PACKED_SCALED;

    h->by_row = !strcmp(strategy, "channel");
    h->by_tensor = scaled && !strcmp(strategy, "tensor");
    if (!strcmp(strategy, "group") && t->packing == KV_PACKED_WORDS)
        return kv_fields_size(f, "group_size", 1, 1 << 20, &h->group, e);
    if (t->group &&
        (!strcmp(strategy, "group") || !strcmp(strategy, "tensor_group"))) {
        const struct kv_field group = {"group_size", t->group};

        return kv_fields_get(f, "group_size")
                   ? kv_fields_only(f, &group, e)
                   : kv_fail(e, "%s: field %sgroup_size is missing", f->path,
                             f->in);
    }
    if (!strcmp(strategy, "block") && scaled) {
        h->block_rows = (size_t)json_integer_value(json_array_get(block, 0));
        h->block_columns = (size_t)json_integer_value(json_array_get(block, 1));
        return json_array_size(block) == 2 && h->block_rows - 1 < 1 << 20 &&
                       h->block_columns - 1 < 1 << 20
                   ? 0
                   : kv_fail(e, "%s: field %sblock_structure is not two sizes",
                             f->path, f->in);
    }
    return (h->by_row && !t->group) || h->by_tensor
               ? 0
               : kv_fail(e,
                         "%s: field %sstrategy is %s, which is not implemented "
                         "of format %s",
                         f->path, f->in, strategy, t->name);
}

static int read_actorder(struct kv_packed_header *h, const struct kv_fields *f,
                         struct kv_err *e)
{
    const json_t *j = kv_fields_get(f, "actorder");
    const char *text = json_string_value(j);

    h->ordered = json_is_true(j) || (text && !strcmp(text, "group"));
    return !j || h->ordered || json_is_false(j) ||
                   (text &&
                    (!strcmp(text, "weight") || !strcmp(text, "static")))
               ? 0
               : kv_fail(e, "%s: field %sactorder is %s, which is not known",
                         f->path, f->in, text ? text : "no name");
}

/* Reads how the weights of a config group are quantized. */
static int read_weights(struct kv_packed_header *h, const struct format *t,
                        const struct kv_fields *f, struct kv_err *e)
{
    const struct kv_field type = {
        "type", !strcmp(t->type, "int") ? "\"int\"" : "\"float\""};
    static const struct kv_field still = {"dynamic", "false"};
    size_t bits = 0;

    h->compressed = true;
    h->packing = t->packing;
    h->int8 = t->packing == KV_PACKED_SCALED && !strcmp(t->type, "int");
    h->code_type = t->packing == KV_PACKED_SCALED && !h->int8
                       ? KV_STORED_F8_E4M3
                       : KV_STORED_OTHER;
    h->symmetric = true;
    if (!json_is_object(f->json))
        return kv_fail(e, "%s: field %.*s is not an object", f->path,
                       (int)strlen(f->in) - 1, f->in);
    if (kv_fields_only(f, &type, e) ||
        kv_fields_size(f, "num_bits", 1, 8, &bits, e) ||
        (kv_fields_get(f, "dynamic") && kv_fields_only(f, &still, e)) ||
        kv_fields_flag_if(f, "symmetric", &h->symmetric, e) ||
        read_strategy(h, t, f, e) || read_actorder(h, f, e))
        return -1;
    h->bits = (unsigned)bits;
    if (t->bits ? bits != t->bits : bits != 2 && bits != 4 && bits != 8)
        return kv_fail(e,
                       "%s: field %snum_bits is %zu, which is not "
                       "implemented of format %s",
                       f->path, f->in, bits, t->name);
    return h->symmetric || t->packing == KV_PACKED_WORDS
               ? 0
               : kv_fail(e,
                         "%s: field %ssymmetric is false, which is not "
                         "implemented of format %s",
                         f->path, f->in, t->name);
}

static bool same(const struct kv_packed_header *a,
                 const struct kv_packed_header *b)
{
    return a->packing == b->packing && a->int8 == b->int8 &&
           a->by_row == b->by_row && a->by_tensor == b->by_tensor &&
           a->bits == b->bits && a->group == b->group &&
           a->symmetric == b->symmetric && a->ordered == b->ordered &&
           a->block_rows == b->block_rows &&
           a->block_columns == b->block_columns;
}

/* Fails on sparsity and transforms, which are not implemented. */
static int check_rest(const struct kv_fields *f, struct kv_err *e)
{
    const json_t *sparse = kv_fields_get(f, "sparsity_config");
    const json_t *format = json_object_get(sparse, "format");
    const json_t *transform = kv_fields_get(f, "transform_config");

    if (format &&
        strcmp(json_string_value(format) ? json_string_value(format) : "",
               "dense"))
        return kv_fail(e,
                       "%s: field %ssparsity_config.format is not dense, which "
                       "is not implemented",
                       f->path, f->in);
    return json_object_size(transform)
               ? kv_fail(e,
                         "%s: field %stransform_config transforms weights, "
                         "which is not implemented",
                         f->path, f->in)
               : 0;
}

int kv_packed_compressed(struct kv_packed_header *h, const struct kv_fields *f,
                         struct kv_err *e)
{
    const json_t *groups = kv_fields_get(f, "config_groups");
    const struct kv_packed_header start = *h;
    struct kv_packed_header one;
    bool first = true;
    const char *name;
    json_t *group;

    if (check_rest(f, e))
        return -1;
    if (!json_object_size(groups))
        return kv_fail(e, "%s: field %sconfig_groups is no object of groups",
                       f->path, f->in);
    json_object_foreach((json_t *)(uintptr_t)groups, name, group)
    {
        const char *own = json_string_value(json_object_get(group, "format"));
        const struct kv_fields weights = {
            .path = f->path,
            .in = "quantization_config.config_groups.*.weights.",
            .json = json_object_get(group, "weights")};
        const struct format *format;

        one = start;
        if (find_format(f, own ? own : text_of(f, "format"), &format, e) ||
            read_weights(&one, format, &weights, e))
            return -1;
        if (!first && !same(&one, h))
            return kv_fail(e,
                           "%s: field %sconfig_groups: groups of weights that "
                           "differ are not implemented",
                           f->path, f->in);
        *h = one;
        first = false;
    }
    return 0;
}
