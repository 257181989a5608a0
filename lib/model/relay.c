#include "lib/model/relay.h"
#include "lib/model/pass.h"

static size_t layer_bytes(const struct kv_model *m, size_t layer)
{
    const struct kv_weight *const *part = m->weights.layer[layer].part;
    size_t bytes = 0;

    for (enum kv_part p = 0; p < KV_PARTS; p++)
        for (const struct kv_weight *w = part[p]; w; w = w->next)
            bytes += w->bytes;
    return bytes;
}

size_t kv_model_part_bytes(const struct kv_model *m, size_t first, size_t end)
{
    size_t bytes = 0;

    for (size_t l = first; l < end; l++)
        bytes += layer_bytes(m, l);
    return end == kv_config_layers_of(&m->config)
               ? bytes + m->weights.head->bytes
               : bytes;
}

int kv_model_split(const struct kv_model *m, size_t i, size_t n, size_t *first,
                   size_t *end, struct kv_err *e)
{
    const size_t n_layers = kv_config_layers_of(&m->config);
    const double all = (double)kv_model_part_bytes(m, 0, n_layers);

    if (m->config.arch->by_kind)
        return kv_fail(e,
                       "%s: its layers share keys and values or have "
                       "embeddings of their own: they run in one part",
                       m->info.name);
    if (n > n_layers)
        return kv_fail(e, "%zu parts of %zu layers: expected a layer for each",
                       n, n_layers);
    *end = 0;
    for (size_t k = 0; k <= i; k++) { /* each part leaves at least a layer for
                                       * each later part */
        const double want = all * (double)(k + 1) / (double)n;

        *first = *end;
        do
            ++*end;
        while (*end + (n - 1 - k) < n_layers &&
               (k + 1 == n || (double)kv_model_part_bytes(m, 0, *end) +
                                      (double)layer_bytes(m, *end) / 2 <=
                                  want));
    }
    return 0;
}

void kv_model_relay(struct kv_model *m, const struct kv_relay *r)
{
    m->relay = *r;
}

bool kv_pass_is_last(const struct kv_model *m)
{
    return kv_pass_end(m) == kv_config_layers_of(&m->config);
}

size_t kv_pass_end(const struct kv_model *m)
{
    return m->relay.end ? m->relay.end : kv_config_layers_of(&m->config);
}

int kv_pass_begin(const struct kv_model *m, const int32_t *tokens,
                  size_t n_windows, size_t n, size_t first, float *x,
                  struct kv_err *e)
{
    if (m->relay.first)
        return m->relay.take(m->relay.arg, x, n_windows * n * m->config.hidden,
                             e);
    kv_pass_embed(m, tokens, n_windows, n, first, x);
    return 0;
}

int kv_pass_give(const struct kv_model *m, const float *x, size_t n,
                 struct kv_err *e)
{
    return kv_pass_is_last(m) ? 0 : m->relay.give(m->relay.arg, x, n, e);
}
