#include "lib/schemes/integers.h"
#include "kernels/bitpack.h"
#include "lib/base/alloc.h"

#include <stdlib.h>

int kv_integers_fit(struct kv_spec *s, enum kv_side side,
                    const struct kv_shape *shape, struct kv_err *e)
{
    const size_t d = shape->head_dim;

    if (kv_spec_size(s, side, "g") > d)
        kv_spec_set(s, side, "g", (double)d);
    if (d % kv_spec_size(s, side, "g"))
        return kv_fail(e, "g=%zu must divide head_dim %zu",
                       kv_spec_size(s, side, "g"), d);
    return 0;
}

int kv_integers_fit_row(struct kv_spec *s, enum kv_side side, size_t row,
                        struct kv_err *e)
{
    const size_t g = kv_spec_size(s, side, "g");

    if (!g || g > row)
        kv_spec_set(s, side, "g", (double)row);
    if (row % kv_spec_size(s, side, "g"))
        return kv_fail(e, "g=%zu must divide the row of %zu channels",
                       kv_spec_size(s, side, "g"), row);
    return 0;
}

struct integers {
    const struct kv_group_quantizer *q;
    enum kv_axis axis;
    unsigned bits;
    size_t len, n_units, n_groups; /* groups in a unit */
    size_t code_bytes;             /* bytes of a unit */
    bool tiled, is_scaled;         /* params is valid; scaled is valid */
    struct kv_integers params;     /* the tiles' parameters */
    struct kv_scaled scaled;
};

/* Prepares the tiles.  A tile's group ends at the head's end, so a group over
 * all heads is repeated for each head. */
static void init_tiles(const struct kv_codec *c, struct integers *g)
{
    const uint8_t none[8] = {0};
    const size_t d = c->shape.head_dim;
    const bool of_tokens = g->axis == KV_AXIS_CHANNEL;
    uint16_t scale;

    g->is_scaled = g->q->scaled && d % g->len == 0 &&
                   g->q->scaled(&g->scaled, g->bits, d, g->len);
    if (!g->q->affine || (!of_tokens && d % g->len && g->len % d))
        return;
    g->params = (struct kv_integers){.bits = g->bits, .offset = g->q->offset};
    g->q->affine(none, g->bits, &scale, &g->params.zero);
    g->tiled = kv_integers_init(&g->params, c->side == KV_V, d, of_tokens,
                                of_tokens || g->len < d ? g->len : d);
}

int kv_integers_open(struct kv_codec *c, const struct kv_group_quantizer *q,
                     enum kv_axis axis, size_t len, bool all_heads,
                     unsigned bits)
{
    const size_t heads = c->shape.n_kv_heads, d = c->shape.head_dim;
    struct integers *g = kv_alloc(1, sizeof(*g));

    *g = (struct integers){.q = q, .axis = axis, .bits = bits, .len = len};
    g->n_units = all_heads ? 1 : heads;
    if (axis == KV_AXIS_TOKEN)
        g->n_groups = (all_heads ? heads * d : d) / len;
    else
        g->n_groups = d;
    g->code_bytes = kv_pack_bytes(g->n_groups * len, bits);
    c->block = axis == KV_AXIS_TOKEN ? 1 : len;
    c->block_bytes = g->n_units * (g->code_bytes + g->n_groups * q->head_bytes);
    c->state = g;
    init_tiles(c, g);
    return 0;
}

/* The index of value j of group i of unit u in x[block][heads][d], and the
 * stride of a group's values. */
static size_t group_at(const struct kv_codec *c, const struct integers *g,
                       size_t u, size_t i, size_t *apart)
{
    const size_t d = c->shape.head_dim;

    *apart = g->axis == KV_AXIS_TOKEN ? 1 : c->shape.n_kv_heads * d;
    return u * d + i * (g->axis == KV_AXIS_TOKEN ? g->len : 1);
}

void kv_integers_encode(const struct kv_codec *c, struct kv_where w,
                        const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct integers *g = c->state;
    const size_t n = g->n_groups * g->len, head = g->q->head_bytes;
    uint16_t *code = kv_alloc(n, sizeof(*code));
    float *group = kv_alloc(g->len, sizeof(*group));

    (void)w;
    for (size_t b = 0; b < n_blocks; b++, x += kv_codec_block_values(c))
        for (size_t u = 0; u < g->n_units; u++) {
            uint8_t *heads = bytes + g->code_bytes;

            for (size_t i = 0; i < g->n_groups; i++) {
                size_t apart;
                const float *at = x + group_at(c, g, u, i, &apart);

                for (size_t j = 0; j < g->len; j++)
                    group[j] = at[j * apart];
                g->q->encode(group, g->len, g->bits, heads + i * head,
                             code + i * g->len);
            }
            kv_pack(code, n, g->bits, bytes);
            bytes = heads + g->n_groups * head;
        }
    free(group);
    free(code);
}

void kv_integers_decode(const struct kv_codec *c, const uint8_t *bytes,
                        size_t n_blocks, float *x)
{
    const struct integers *g = c->state;
    const size_t n = g->n_groups * g->len, head = g->q->head_bytes;
    uint16_t *code = kv_alloc(n, sizeof(*code));
    float *group = kv_alloc(g->len, sizeof(*group));

    for (size_t b = 0; b < n_blocks; b++, x += kv_codec_block_values(c))
        for (size_t u = 0; u < g->n_units; u++) {
            const uint8_t *heads = bytes + g->code_bytes;

            kv_unpack(bytes, n, g->bits, code);
            for (size_t i = 0; i < g->n_groups; i++) {
                size_t apart;
                float *at = x + group_at(c, g, u, i, &apart);

                g->q->decode(code + i * g->len, g->len, g->bits,
                             heads + i * head, group);
                for (size_t j = 0; j < g->len; j++)
                    at[j * apart] = group[j];
            }
            bytes = heads + g->n_groups * head;
        }
    free(group);
    free(code);
}

bool kv_integers_device(const struct kv_codec *c, struct kv_gpu_code *to)
{
    const struct integers *g = c->state;
    const size_t heads = g->n_groups * g->q->head_bytes;

    to->coding = KV_GPU_GROUPS;
    to->groups = (struct kv_gpu_groups){
        .quantizer = g->q->device,
        .bits = g->bits,
        .by_channel = g->axis == KV_AXIS_CHANNEL,
        .len = g->len,
        .unit = c->shape.n_kv_heads * c->shape.head_dim / g->n_units,
        .n_groups = g->n_groups,
        .code_bytes = g->code_bytes,
        .unit_bytes = g->code_bytes + heads};
    return g->q->device != KV_GPU_NO_QUANTIZER;
}

/* ---- tiles ----------------------------------------------------------------
 */

bool kv_integers_store(const struct kv_codec *c, struct kv_store *s)
{
    const struct integers *g = c->state;

    if (g->tiled)
        kv_store_integers(s, &g->params);
    else if (g->is_scaled)
        kv_store_scaled(s, &g->scaled);
    return g->tiled || g->is_scaled;
}

/* A unit's codes and heads. */
struct unit {
    uint16_t *code;
    const uint8_t *heads;
};

static void read_unit(const struct integers *g, const uint8_t *block, size_t i,
                      struct unit *u)
{
    const size_t heads = g->n_groups * g->q->head_bytes;
    const uint8_t *at = block + i * (g->code_bytes + heads);

    kv_unpack(at, g->n_groups * g->len, g->bits, u->code);
    u->heads = at + g->code_bytes;
}

static void integers_put_head(const struct integers *g,
                              const struct kv_store *s, const struct unit *u,
                              size_t group, size_t i, size_t t, size_t c,
                              uint8_t *tile)
{
    uint16_t scale;
    float offset;

    g->q->affine(u->heads + group * g->q->head_bytes, g->bits, &scale, &offset);
    kv_store_put_group(s, i, t, c, scale, offset, tile);
}

/* Writes the token of a block of one token to the tile. */
static void put_token(const struct integers *g, const struct kv_store *s,
                      const uint8_t *block, size_t head, size_t t,
                      struct unit *u, uint8_t *tile)
{
    const size_t d = s->head_dim, at = g->n_units == 1 ? head * d : 0;

    read_unit(g, block, g->n_units == 1 ? 0 : head, u);
    if (g->is_scaled) {
        kv_store_put_scaled(s, t, u->code + at,
                            u->heads + at / g->len * g->q->head_bytes, tile);
        return;
    }
    kv_store_put_codes(s, t, u->code + at, tile);
    for (size_t c = 0; c < d; c += g->len)
        integers_put_head(g, s, u, (at + c) / g->len, 0, t, c, tile);
}

/* Writes the block's tokens from `from` on as the tile's tokens from t on;
 * returns their number.  i: the tile's number. */
static size_t put_tokens(const struct integers *g, const struct kv_store *s,
                         const uint8_t *block, size_t head, size_t from,
                         size_t i, size_t t, struct unit *u, uint8_t *tile)
{
    const size_t d = s->head_dim, left = g->len - from;
    const size_t n = left < KV_TILE_TOKENS - t ? left : KV_TILE_TOKENS - t;
    uint16_t *token = kv_alloc(d, sizeof(*token));

    read_unit(g, block, head, u);
    for (size_t j = 0; j < n; j++) {
        for (size_t c = 0; c < d; c++)
            token[c] = u->code[c * g->len + from + j];
        kv_store_put_codes(s, t + j, token, tile);
    }
    for (size_t c = 0; c < d; c++)
        integers_put_head(g, s, u, c, i, t, c, tile);
    free(token);
    return n;
}

void kv_integers_tile(const struct kv_codec *c, const struct kv_store *s,
                      const uint8_t *blocks, size_t first, size_t n,
                      size_t head, uint8_t *tile)
{
    const struct integers *g = c->state;
    struct unit u = {.code = kv_alloc(g->n_groups * g->len, sizeof(*u.code))};

    for (size_t t = 0; t < n;) {
        const size_t at = first + t;
        const uint8_t *block = blocks + at / c->block * c->block_bytes;

        if (g->axis == KV_AXIS_TOKEN)
            put_token(g, s, block, head, t++, &u, tile);
        else
            t += put_tokens(g, s, block, head, at % g->len,
                            first / KV_TILE_TOKENS, t, &u, tile);
    }
    free(u.code);
}
