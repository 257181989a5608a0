/* Random tensors for a config without weights. */
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "lib/model/tensor_map.h"
#include "lib/model/tensor_parts.h"

static const struct kv_weight *make(struct kv_weight *w, size_t rows,
                                    size_t cols)
{
    *w = (struct kv_weight){.name = "random",
                            .dtype = "F16",
                            .type = KV_STORED_F16,
                            .n_dims = cols ? 2 : 1,
                            .dims = {rows, cols},
                            .n = rows * (cols ? cols : 1)};
    w->bytes = 2 * w->n;
    return w;
}

void kv_tensor_map_random(struct kv_model_weights *m, const struct kv_config *c,
                          uint64_t seed)
{
    const size_t n_layers = kv_config_layers_of(c);
    struct kv_weight *w = kv_alloc(n_layers * KV_PARTS + 2, sizeof(*w));

    *m = (struct kv_model_weights){.made = w, .seed = seed};
    m->layer = kv_alloc(n_layers, sizeof(*m->layer));
    m->norm = make(w++, c->hidden, 0);
    m->head = m->embed = make(w++, c->n_vocab, c->hidden);
    for (size_t i = 0; i < n_layers * KV_PARTS; i++) {
        const size_t p = i % KV_PARTS;
        const size_t layer = i / KV_PARTS;

        if (kv_part_is(c, layer, p))
            m->layer[layer].part[p] =
                make(w++, kv_part_rows(c, layer, p), kv_part_cols(c, layer, p));
    }
}

uint64_t kv_tensor_seed(const struct kv_model_weights *m, size_t layer,
                        size_t part)
{
    return kv_mix(m->seed, layer * KV_PARTS + part);
}
