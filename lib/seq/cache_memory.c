/* Estimates the memory of a cache before the cache is made. */
#include "lib/scheme.h"
#include "lib/seq/cache.h"

double kv_cache_memory(const struct kv_codec *c, size_t n)
{
    const size_t coded = kv_quantized(c, n), blocks = coded / c->block;
    const size_t sinks = kv_spec_size(&c->spec, c->side, "s");
    const double halves = (double)(n - coded > sinks ? n - coded : sinks);
    const double row = (double)kv_codec_row(c) * sizeof(uint16_t);
    double bytes = (double)blocks * (double)c->block_bytes + halves * row;

    if (c->variable)
        bytes += (double)blocks * sizeof(uint32_t);
    if (c->history)
        bytes += (double)c->block_bytes;
    if (c->scheme->probe && c->side == KV_K)
        bytes +=
            halves * row * (double)(c->shape.n_heads / c->shape.n_kv_heads);
    return bytes + (c->massive ? (double)n * sizeof(bool) : 0);
}

double kv_append_memory(const struct kv_codec *c, size_t n, size_t piece)
{
    const size_t most = piece + kv_spec_size(&c->spec, c->side, "r") + c->block;
    const double some = (double)(n < most ? n : most);

    /* queries, a copy of K and a copy of V, to score a block's tokens */
    const double scored =
        c->scheme->anchors && c->side == KV_K
            ? (double)(c->shape.n_heads / c->shape.n_kv_heads) + 2
            : 0;

    return ((c->less_bias ? 3 : 2) + scored) * some * (double)kv_codec_row(c) *
           sizeof(float);
}
