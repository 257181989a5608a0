#include "kernels/levels/levels.h"
#include "kernels/scaled/impl.h"
#include "kernels/tiles/impl.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/half.h"

#include <stdlib.h>
#include <string.h>

static const struct kv_levels_tiles *levels_of(const struct kv_store *s)
{
    return s->params;
}

bool kv_levels_tiles_init(struct kv_levels_tiles *n, int values, unsigned bits,
                          const float *level, size_t head_dim)
{
    return bits <= 4 && kv_scaled_init(&n->scaled, bits, level, NULL,
                                       values ? KV_SCALE_F16 : KV_SCALE_NONE, 1,
                                       head_dim, head_dim);
}

void kv_store_levels(struct kv_store *s, const struct kv_levels_tiles *n)
{
    kv_store_scaled(s, &n->scaled);
    s->family = &kv_family_levels;
    s->params = n;
    s->tile_bytes += KV_LEVELS_LINE + (s->values ? KV_LEVELS_OFFSETS : 0);
}

/* ---- scales and outliers, behind the codes ------------------------------- */

static size_t offsets_at(const struct kv_store *s)
{
    return s->tile_bytes - KV_LEVELS_LINE - KV_LEVELS_OFFSETS;
}

struct kv_levels_outliers *kv_store_outliers(const struct kv_store *s,
                                             const uint8_t *tile)
{
    struct kv_levels_outliers *o;

    memcpy(&o, tile + s->tile_bytes - KV_LEVELS_LINE, sizeof(o));
    return o;
}

static size_t owned(const struct kv_store *s, const uint8_t *tile)
{
    const struct kv_levels_outliers *o = kv_store_outliers(s, tile);

    return o ? sizeof(*o) + o->n * sizeof(*o->x) : 0;
}

static void release(const struct kv_store *s, uint8_t *tile)
{
    free(kv_store_outliers(s, tile));
}

void kv_store_put_levels(const struct kv_store *s, size_t t,
                         const uint16_t *code, const uint16_t *range,
                         uint8_t *tile)
{
    const uint8_t *half = s->values ? (const uint8_t *)&range[1] : NULL;

    kv_store_put_scaled(s, t, code, half, tile);
    if (s->values)
        memcpy(tile + offsets_at(s) + t * sizeof(*range), range,
               sizeof(*range));
}

void kv_store_put_outliers(const struct kv_store *s,
                           const struct kv_levels_outlier *x, size_t n,
                           uint8_t *tile)
{
    struct kv_levels_outliers *o = kv_alloc(1, sizeof(*o) + n * sizeof(*x));

    o->n = n;
    memcpy(o->x, x, n * sizeof(*x));
    for (o->first = 0; o->first < n; o->first++)
        if (x[o->first].place / KV_LEVELS_CHANNELS >= KV_TILE_PART)
            break;
    memcpy(tile + s->tile_bytes - KV_LEVELS_LINE, &o, sizeof(o));
}

static float offset_of(const struct kv_store *s, const uint8_t *tile, size_t t)
{
    uint16_t half;

    memcpy(&half, tile + offsets_at(s) + t * sizeof(half), sizeof(half));
    return kv_f16_to_f32(half);
}

/* ---- values of a part ---------------------------------------------------- */

/* x: [head_dim][32] levels, which become keys before RoPE. */
static void to_keys(const struct kv_store *s, size_t head, float *x)
{
    const struct kv_levels_tiles *n = levels_of(s);
    const size_t d = s->head_dim;

    for (size_t c = 0; c < d; c++, x += KV_TILE_PART) {
        const float offset = n->offset[head * d + c];
        const float half = n->half[head * d + c];

        for (size_t t = 0; t < KV_TILE_PART; t++)
            x[t] = offset + half * x[t];
    }
}

/* x: [32][padded] levels times halves, which become values. */
static void to_values(const struct kv_store *s, const uint8_t *tile,
                      size_t part, float *x)
{
    for (size_t t = 0; t < KV_TILE_PART; t++, x += kv_padded(s->head_dim)) {
        const float offset = offset_of(s, tile, part * KV_TILE_PART + t);

        for (size_t c = 0; c < s->head_dim; c++)
            x[c] += offset;
    }
}

static void put_outliers(const struct kv_store *s, const uint8_t *tile,
                         size_t part, float *x)
{
    const struct kv_levels_outliers *o = kv_store_outliers(s, tile);
    const size_t by_token = s->values ? kv_padded(s->head_dim) : 1;
    const size_t by_channel = s->values ? 1 : KV_TILE_PART;

    if (!o)
        return;
    for (size_t i = part ? o->first : 0; i < (part ? o->n : o->first); i++) {
        const size_t t = o->x[i].place / KV_LEVELS_CHANNELS % KV_TILE_PART;
        const size_t c = o->x[i].place % KV_LEVELS_CHANNELS;

        x[t * by_token + c * by_channel] = kv_f16_to_f32(o->x[i].value);
    }
}

static void expand(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t part, float *x)
{
    kv_family_scaled.expand(s, head, tile, part, x);
    if (s->values)
        to_values(s, tile, part, x);
    else
        to_keys(s, head, x);
    put_outliers(s, tile, part, x);
    if (!s->values)
        kv_tiles_rope_rotate(
            levels_of(s)->rope,
            kv_store_position(s, head, tile) + part * KV_TILE_PART, x);
}

/* ---- values without expanding them --------------------------------------- */

static void add_offsets(const struct kv_store *s, const float *offset,
                        const float *p, size_t stride, size_t rows, float *acc)
{
    enum { LANES = 8 }; /* independent sums, else each waits for the last */

    for (size_t r = 0; r < rows; r++, p += stride) {
        float *row = acc + r * kv_padded(s->head_dim), lane[LANES] = {0};
        float sum = 0;

        for (size_t t = 0; t < KV_TILE_TOKENS; t += LANES)
            for (size_t i = 0; i < LANES; i++)
                lane[i] += p[t + i] * offset[t + i];
        for (size_t i = 0; i < LANES; i++)
            sum += lane[i];
        for (size_t c = 0; c < s->head_dim; c++)
            row[c] += sum;
    }
}

/* zero: the dequantized code 0 of a token; outliers have code 0. */
static void add_some_outliers(const struct kv_levels_outlier *o, size_t n,
                              const float *zero, const float *p, size_t stride,
                              size_t rows, size_t padded, float *acc)
{
    uint16_t token[KV_TILE_TOKENS], channel[KV_TILE_TOKENS];
    uint16_t half[KV_TILE_TOKENS];
    float more[KV_TILE_TOKENS];

    for (size_t i = 0; i < n; i++) {
        token[i] = o[i].place / KV_LEVELS_CHANNELS;
        channel[i] = o[i].place % KV_LEVELS_CHANNELS;
        half[i] = o[i].value;
    }
    kv_dequantize_f16(half, n, more);
    for (size_t i = 0; i < n; i++)
        more[i] -= zero[token[i]];
    for (size_t r = 0; r < rows; r++, p += stride, acc += padded)
        for (size_t i = 0; i < n; i++)
            acc[channel[i]] += p[token[i]] * more[i];
}

static void add_outliers(const struct kv_store *s, const uint8_t *tile,
                         const float *offset, const float *p, size_t stride,
                         size_t rows, float *acc)
{
    const struct kv_levels_outliers *o = kv_store_outliers(s, tile);
    const float level = levels_of(s)->scaled.table[0];
    float zero[KV_TILE_TOKENS];

    if (!o)
        return;
    kv_dequantize_f16(tile + KV_SCALED_PARTS * kv_scaled_part_bytes(s),
                      KV_TILE_TOKENS, zero);
    for (size_t t = 0; t < KV_TILE_TOKENS; t++)
        zero[t] = offset[t] + zero[t] * level;
    for (size_t i = 0; i < o->n; i += KV_TILE_TOKENS)
        add_some_outliers(o->x + i, kv_min(o->n - i, KV_TILE_TOKENS), zero, p,
                          stride, rows, kv_padded(s->head_dim), acc);
}

static void pv(const struct kv_store *s, size_t head, const uint8_t *tile,
               const float *p, size_t stride, size_t rows, float *acc)
{
    float offset[KV_TILE_TOKENS];

    kv_dequantize_f16(tile + offsets_at(s), KV_TILE_TOKENS, offset);
    kv_family_scaled.ops(s, KV_PATH_EXACT)
        ->pv(s, head, tile, p, stride, rows, acc);
    add_offsets(s, offset, p, stride, rows, acc);
    add_outliers(s, tile, offset, p, stride, rows, acc);
}

static const struct kv_tile_ops *ops(const struct kv_store *s,
                                     enum kv_path path)
{
    static const struct kv_tile_ops values = {
        .acc_floats = kv_exact_acc_floats,
        .pv = pv,
        .finish = kv_exact_finish,
    };

    if (path != KV_PATH_EXACT)
        return NULL;
    return s->values ? &values : kv_tiles_expanded(s); /* RoPE rotates keys */
}

const struct kv_family kv_family_levels = {.name = "levels",
                                           .ops = ops,
                                           .expand = expand,
                                           .owned = owned,
                                           .release = release};
