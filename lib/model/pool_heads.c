#include "lib/model/pool_heads.h"
#include "lib/base/alloc.h"

static int check(const struct kv_config *c, size_t pool, struct kv_err *e)
{
    const size_t n = c->shape.n_kv_heads;

    if (c->qk_norm == KV_QK_WHOLE || c->qk_norm == KV_QK_HEADS)
        return kv_fail(e,
                       "--pool-heads: a %s has a norm over all heads of keys, "
                       "which is of heads that are not pooled",
                       c->arch->name);
    if (c->arch->by_kind)
        return kv_fail(e,
                       "--pool-heads: heads of a %s differ by the kind of "
                       "layer, which is not implemented",
                       c->arch->name);
    if (!pool || n % pool)
        return kv_fail(e,
                       "--pool-heads %zu does not divide the model's %zu KV "
                       "head%s",
                       pool, n, n == 1 ? "" : "s");
    return 0;
}

int kv_pool_heads(struct kv_model_weights *w, struct kv_config *c, size_t pool,
                  struct kv_err *e)
{
    static const enum kv_part parts[] = {KV_P_K, KV_P_V, KV_P_K_BIAS,
                                         KV_P_V_BIAS};
    enum { N = sizeof(parts) / sizeof(*parts) };
    const size_t n_layers = kv_config_layers_of(c);

    if (check(c, pool, e))
        return -1;
    w->pooled = kv_alloc(n_layers * N, sizeof(*w->pooled));
    for (size_t i = 0; i < n_layers * N; i++) {
        const struct kv_weight **part = &w->layer[i / N].part[parts[i % N]];
        struct kv_weight *mine = &w->pooled[i];

        if (!*part)
            continue;
        *mine = **part;
        mine->dims[0] /= pool;
        mine->n /= pool;
        mine->pool = pool;
        mine->pool_rows = c->shape.head_dim;
        *part = mine;
    }
    c->shape.n_kv_heads /= pool;
    return 0;
}
