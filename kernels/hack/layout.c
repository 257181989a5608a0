#include "kernels/hack/layout.h"

static const struct kv_tile_ops *ops(const struct kv_store *s,
                                     enum kv_path path)
{
    return kv_family_integers.ops(s, path);
}

static void expand(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t part, float *x)
{
    kv_family_integers.expand(s, head, tile, part, x);
}

const struct kv_family kv_family_hack = {
    .name = "hack", .ops = ops, .expand = expand};

void kv_store_hack(struct kv_store *s, const struct kv_tile_hack *h)
{
    kv_store_integers(s, &h->codes);
    s->family = &kv_family_hack;
    s->params = h;
}
