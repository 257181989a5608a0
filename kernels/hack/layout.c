#include "kernels/hack/layout.h"
#include "lib/base/half.h"

#include <string.h>

static const struct kv_tile_hack *params_of(const struct kv_store *s)
{
    return s->params;
}

/* Of a token of keys. */
static size_t n_parts(const struct kv_store *s)
{
    const size_t part = params_of(s)->part;

    return (s->head_dim + part - 1) / part;
}

static size_t n_ranges(const struct kv_store *s)
{
    const size_t part = params_of(s)->part, tokens = KV_TILE_TOKENS;

    if (!s->values)
        return tokens * n_parts(s);
    return (part < tokens ? tokens / part : 1) * s->head_dim;
}

uint8_t *kv_store_hack_codes(const struct kv_store *s, uint8_t *tile, size_t t)
{
    return tile + t * s->head_dim;
}

size_t kv_store_hack_range(const struct kv_store *s, size_t t, size_t c)
{
    const size_t part = params_of(s)->part;

    return s->values ? t / part * s->head_dim + c : t * n_parts(s) + c / part;
}

static size_t range_at(const struct kv_store *s, size_t range)
{
    return KV_TILE_TOKENS * s->head_dim + range * sizeof(uint16_t);
}

void kv_store_put_range(const struct kv_store *s, size_t range, uint16_t scale,
                        uint16_t min, uint8_t *tile)
{
    memcpy(tile + range_at(s, range), &scale, sizeof(scale));
    memcpy(tile + range_at(s, n_ranges(s) + range), &min, sizeof(min));
}

void kv_store_get_range(const struct kv_store *s, const uint8_t *tile,
                        size_t range, uint16_t *scale, uint16_t *min)
{
    memcpy(scale, tile + range_at(s, range), sizeof(*scale));
    memcpy(min, tile + range_at(s, n_ranges(s) + range), sizeof(*min));
}

static float value(const struct kv_store *s, const uint8_t *tile, size_t t,
                   size_t c)
{
    uint16_t scale, min;

    kv_store_get_range(s, tile, kv_store_hack_range(s, t, c), &scale, &min);
    return kv_f16_to_f32(min) +
           kv_f16_to_f32(scale) * (float)tile[t * s->head_dim + c];
}

static void expand(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t part, float *x)
{
    const size_t padded = kv_padded(s->head_dim);

    (void)head;
    for (size_t t = 0; t < KV_TILE_PART; t++)
        for (size_t c = 0; c < (s->values ? padded : s->head_dim); c++)
            x[s->values ? t * padded + c : c * KV_TILE_PART + t] =
                c < s->head_dim ? value(s, tile, part * KV_TILE_PART + t, c)
                                : 0;
}

static const struct kv_tile_ops *ops(const struct kv_store *s,
                                     enum kv_path path)
{
    (void)s;
    (void)path;
    return NULL;
}

const struct kv_family kv_family_hack = {
    .name = "hack", .ops = ops, .expand = expand};

void kv_store_hack(struct kv_store *s, const struct kv_tile_hack *h)
{
    s->family = &kv_family_hack;
    s->params = h;
    s->tile_bytes = (range_at(s, 2 * n_ranges(s)) + 63) / 64 * 64;
}
