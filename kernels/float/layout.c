/* Family "float": unquantized values in f32, f16 or bf16.
 *
 * A tile of keys:   | tokens 0-31: [head_dim][32] | tokens 32-63: same |
 * A tile of values: | [64][head_dim padded to 16] | */
#include "kernels/tiles/impl.h"
#include "kernels/vecops/vecops.h"

#include <string.h>

static const enum kv_float kinds[] = {KV_FLOAT_32, KV_FLOAT_16, KV_FLOAT_BF16};

static enum kv_float kind_of(const struct kv_store *s)
{
    return *(const enum kv_float *)s->params;
}

static size_t value_bytes(const struct kv_store *s)
{
    return kind_of(s) == KV_FLOAT_32 ? 4 : 2;
}

static void qk(const struct kv_store *s, size_t head, const uint8_t *tile,
               const void *query, size_t rows, float *score, size_t stride)
{
    const enum kv_float kind = kind_of(s);
    const size_t part = s->head_dim * KV_TILE_PART * value_bytes(s);
    /* f32 waits for memory, which is slower at two places at once */
    const size_t some = kind == KV_FLOAT_32 ? 1 : 2;

    (void)head;
    for (size_t i = 0; i < KV_TILE_TOKENS / KV_TILE_PART; i += some)
        kv_tile_loops()->dot(kind, true, tile + i * part, some, s->head_dim,
                             query, rows, score + i * KV_TILE_PART, stride);
}

static void pv(const struct kv_store *s, size_t head, const uint8_t *tile,
               const float *p, size_t stride, size_t rows, float *acc)
{
    (void)head;
    kv_tile_loops()->add(kind_of(s), true, tile, KV_TILE_TOKENS,
                         kv_padded(s->head_dim), p, stride, rows, acc);
}

static const struct kv_tile_ops *ops(const struct kv_store *s,
                                     enum kv_path path)
{
    static const struct kv_tile_ops exact = {
        .query_bytes = kv_exact_query_bytes,
        .prepare = kv_exact_prepare,
        .qk = qk,
        .acc_floats = kv_exact_acc_floats,
        .pv = pv,
        .finish = kv_exact_finish,
    };

    (void)s;
    return path == KV_PATH_EXACT ? &exact : NULL;
}

/* The index of value c of token t in a tile. */
static size_t place(const struct kv_store *s, size_t t, size_t c)
{
    if (s->values)
        return t * kv_padded(s->head_dim) + c;
    return (t / KV_TILE_PART * s->head_dim + c) * KV_TILE_PART +
           t % KV_TILE_PART;
}

/* A part has the order that expand() must return. */
static void expand(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t part, float *x)
{
    const size_t row = s->values ? kv_padded(s->head_dim) : s->head_dim;
    const size_t n = row * KV_TILE_PART;
    const uint8_t *from = tile + part * n * value_bytes(s);

    (void)head;
    switch (kind_of(s)) {
    case KV_FLOAT_32:
        memcpy(x, from, n * sizeof(*x));
        break;
    case KV_FLOAT_16:
        kv_dequantize_f16(from, n, x);
        break;
    case KV_FLOAT_BF16:
        kv_dequantize_bf16(from, n, x);
        break;
    }
}

const struct kv_family kv_family_float = {
    .name = "float", .ops = ops, .expand = expand};

void kv_store_floats(struct kv_store *s, enum kv_float kind, int values,
                     size_t n_heads, size_t head_dim)
{
    const size_t row = values ? kv_padded(head_dim) : head_dim;

    *s = (struct kv_store){.family = &kv_family_float,
                           .params = &kinds[kind],
                           .values = values,
                           .n_heads = n_heads,
                           .head_dim = head_dim};
    s->tile_bytes = KV_TILE_TOKENS * row * value_bytes(s);
}

void kv_store_put_float_row(const struct kv_store *s, size_t t,
                            const void *from, uint8_t *tile)
{
    const size_t bytes = value_bytes(s);

    if (s->values) { /* side by side */
        memcpy(tile + bytes * place(s, t, 0), from, bytes * s->head_dim);
        return;
    }
    for (size_t c = 0; c < s->head_dim; c++)
        memcpy(tile + bytes * place(s, t, c), (const uint8_t *)from + c * bytes,
               bytes);
}

void kv_store_put_floats(struct kv_store *s, size_t at, const void *from,
                         size_t n)
{
    const size_t row = s->head_dim * value_bytes(s);
    const uint8_t *x = from;

    for (size_t t = at; t < at + n; t++)
        for (size_t h = 0; h < s->n_heads; h++, x += row)
            kv_store_put_float_row(s, t % KV_TILE_TOKENS, x,
                                   kv_store_tile(s, h, t / KV_TILE_TOKENS));
}
