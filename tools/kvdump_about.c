#include "tools/kvdump_about.h"

static const char *const columns[] = {"model",
                                      "model_hash",
                                      "arch",
                                      "weights",
                                      "n_layers",
                                      "n_heads",
                                      "n_kv_heads",
                                      "head_dim",
                                      "hidden",
                                      "n_vocab",
                                      "n_ctx",
                                      "weight_bytes",
                                      "kv_bytes_per_token",
                                      "ctx",
                                      "batch",
                                      "kv_bytes",
                                      "kv_share",
                                      NULL};

/* Of one token in one layer. */
static size_t token_bytes(const struct kv_shape *s)
{
    return 2 * sizeof(uint16_t) * s->n_kv_heads * s->head_dim;
}

/* Of one sequence of ctx tokens: of a layer that slides, its window. */
static size_t cache_bytes(const struct kv_shape *s, size_t ctx)
{
    size_t tokens = 0;

    for (size_t i = 0; i < s->n_layers; i++) {
        const struct kv_shape layer = kv_shape_layer(s, i);

        tokens += kv_shape_seen(&layer, ctx);
    }
    return tokens * token_bytes(s);
}

static int put_row(struct kv_results *r, const struct kv_model_info *info,
                   size_t ctx, size_t batch, struct kv_err *e)
{
    const struct kv_shape *s = &info->shape;
    const size_t per_token = s->n_layers * token_bytes(s);
    const size_t kv_bytes = batch * cache_bytes(s, ctx);

    kv_results_text(r, "model", info->name);
    kv_results_text(r, "model_hash", info->hash);
    kv_results_text(r, "arch", info->arch);
    kv_results_text(r, "weights", info->weights);
    kv_results_size(r, "n_layers", s->n_layers);
    kv_results_size(r, "n_heads", s->n_heads);
    kv_results_size(r, "n_kv_heads", s->n_kv_heads);
    kv_results_size(r, "head_dim", s->head_dim);
    kv_results_size(r, "hidden", info->hidden);
    kv_results_size(r, "n_vocab", info->n_vocab);
    kv_results_size(r, "n_ctx", info->n_ctx);
    kv_results_size(r, "weight_bytes", info->weight_bytes);
    kv_results_size(r, "kv_bytes_per_token", per_token);
    kv_results_size(r, "ctx", ctx);
    kv_results_size(r, "batch", batch);
    kv_results_size(r, "kv_bytes", kv_bytes);
    kv_results_real(r, "kv_share",
                    (double)kv_bytes /
                        ((double)kv_bytes + (double)info->weight_bytes));
    return kv_results_row(r, e);
}

int kv_footprint_print(const struct kv_model_info *info, size_t ctx,
                       size_t batch, const struct kv_common *common,
                       struct kv_err *e)
{
    struct kv_results *r;
    size_t bytes;

    if (__builtin_mul_overflow(batch, cache_bytes(&info->shape, ctx), &bytes))
        return kv_fail(e,
                       "--batch %zu: so many caches are more bytes than can "
                       "be counted",
                       batch);
    if (kv_results_open(&r, common->output, common->format, columns, e))
        return -1;
    if (put_row(r, info, ctx, 1, e) ||
        (batch > 1 && put_row(r, info, ctx, batch, e))) {
        kv_results_discard(r);
        return -1;
    }
    return kv_results_close(r, e);
}
