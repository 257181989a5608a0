/* Gemma 3n: streams, the learned residual, and which MLPs are sparse. */
#include "lib/base/rng.h"
#include "lib/model/config_parts.h"

static const char SPARSE[] = "activation_sparsity_pattern",
                  WIDTHS[] = "intermediate_size";

/* Reads, for each layer, the share of gates that are 0; all layers with a share
 * above 0 must have the same share. */
static int read_sparse(const struct kv_fields *f, struct kv_config *c,
                       size_t n_layers, struct kv_err *e)
{
    const json_t *list = kv_fields_get(f, SPARSE);
    double share = 0.95;
    bool first = true;

    for (size_t i = 0; i < 10 && n_layers > 10 && !list; i++)
        kv_layer_set(c->sparse, i, true);
    if (list && json_array_size(list) != n_layers)
        return kv_fail(e,
                       "%s: field %s%s is not a list of %zu numbers, one for "
                       "each layer",
                       f->path, f->in, SPARSE, n_layers);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *j = json_array_get(list, i);
        const double x = json_number_value(j);

        if (!json_is_number(j) || !(x >= 0 && x < 1))
            return kv_fail(e,
                           "%s: field %s%s: entry %zu is no share from 0 to "
                           "below 1",
                           f->path, f->in, SPARSE, i);
        if (!(x > 0))
            continue;
        if (!first && x != share)
            return kv_fail(e,
                           "%s: field %s%s has %g and %g: one share and 0 are "
                           "implemented",
                           f->path, f->in, SPARSE, share, x);
        share = x;
        first = false;
        kv_layer_set(c->sparse, i, true);
    }
    c->sparse_cut = (float)kv_normal_quantile(share);
    return 0;
}

int kv_config_width(const struct kv_fields *f, const struct kv_config *c,
                    size_t *inter, struct kv_err *e)
{
    const json_t *list = kv_fields_get(f, WIDTHS), *first;

    if (!json_is_array(list))
        return kv_fields_size(f, WIDTHS, 1, 1 << 22, inter, e);
    first = json_array_get(list, 0);
    if (json_array_size(list) != c->shape.n_layers)
        return kv_fail(e,
                       "%s: field %s%s is not a list of %zu numbers, one for "
                       "each layer",
                       f->path, f->in, WIDTHS, c->shape.n_layers);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_integer(first) || json_integer_value(first) < 1 ||
            json_integer_value(first) > 1 << 22 ||
            !json_equal(first, json_array_get(list, i)))
            return kv_fail(e,
                           "%s: field %s%s: entry %zu is not as the first, or "
                           "no whole number from 1: MLPs of one width are "
                           "implemented",
                           f->path, f->in, WIDTHS, i);
    *inter = (size_t)json_integer_value(first);
    return 0;
}

int kv_config_altup(const struct kv_fields *f, struct kv_config *c,
                    struct kv_err *e)
{
    if (!c->arch->altup)
        return 0;
    c->n_streams = 4;
    c->laurel_rank = c->hidden < 64 ? c->hidden : 64;
    return kv_fields_size_if(f, "altup_num_inputs", 2, KV_MAX_STREAMS,
                             &c->n_streams, e) ||
                   kv_fields_size_if(f, "laurel_rank", 1, c->hidden,
                                     &c->laurel_rank, e) ||
                   read_sparse(f, c, kv_config_layers_of(c), e)
               ? -1
               : 0;
}
