/* Stored as floats: the base lines.
 *
 * One token: | x[n_kv_heads][head_dim] |, 4 or 2 bytes a value, little-endian.
 */
#include "kernels/tiles/tiles.h"
#include "lib/base/half.h"
#include "lib/schemes/schemes.h"

#include <string.h>

static size_t values(const struct kv_codec *c, size_t n_blocks)
{
    return n_blocks * kv_codec_block_values(c);
}

static int open_plain(struct kv_codec *c, size_t value_bytes)
{
    c->block = 1;
    c->block_bytes = values(c, 1) * value_bytes;
    return 0;
}

/* f32 and bf16 hold what fp16 cannot: no part of the cache may be fp16. */
static int no_half(struct kv_spec *s, const struct kv_shape *shape,
                   struct kv_err *e)
{
    (void)shape;
    for (int side = 0; side < KV_SIDES; side++)
        if (kv_spec_size(s, (enum kv_side)side, "s") ||
            kv_spec_size(s, (enum kv_side)side, "r"))
            return kv_fail(e,
                           "%s keeps every token in one form: s and r must "
                           "be 0",
                           s->scheme->name);
    return 0;
}

static double bits_32(const struct kv_spec *s, enum kv_side side,
                      const struct kv_shape *shape)
{
    (void)s;
    (void)side;
    (void)shape;
    return 32;
}

static double bits_16(const struct kv_spec *s, enum kv_side side,
                      const struct kv_shape *shape)
{
    (void)s;
    (void)side;
    (void)shape;
    return 16;
}

static bool store_f32(const struct kv_codec *c, struct kv_store *s)
{
    (void)c;
    kv_store_floats(s, KV_FLOAT_32, s->values, s->n_heads, s->head_dim);
    return true;
}

static bool store_f16(const struct kv_codec *c, struct kv_store *s)
{
    (void)c;
    kv_store_floats(s, KV_FLOAT_16, s->values, s->n_heads, s->head_dim);
    return true;
}

static bool store_bf16(const struct kv_codec *c, struct kv_store *s)
{
    (void)c;
    kv_store_floats(s, KV_FLOAT_BF16, s->values, s->n_heads, s->head_dim);
    return true;
}

static void tile(const struct kv_codec *c, const struct kv_store *s,
                 const uint8_t *blocks, size_t first, size_t n, size_t head,
                 uint8_t *tile)
{
    const size_t d = c->shape.head_dim;
    const size_t row = d * (c->block_bytes / kv_codec_block_values(c));

    for (size_t i = 0; i < n; i++)
        kv_store_put_float_row(
            s, i, blocks + (first + i) * c->block_bytes + head * row, tile);
}

static int open_f32(struct kv_codec *c, const struct kv_calib *calib,
                    struct kv_err *e)
{
    (void)calib;
    (void)e;
    return open_plain(c, 4);
}

static void encode_f32(const struct kv_codec *c, struct kv_where w,
                       const float *x, size_t n_blocks, uint8_t *bytes)
{
    (void)w;
    memcpy(bytes, x, values(c, n_blocks) * 4);
}

static void decode_f32(const struct kv_codec *c, const uint8_t *bytes,
                       size_t n_blocks, float *x)
{
    memcpy(x, bytes, values(c, n_blocks) * 4);
}

const struct kv_scheme kv_scheme_f32 = {
    .name = "f32",
    .brief = "32-bit floats: full precision on a CPU",
    .wide = true,
    .check = no_half,
    .nominal = bits_32,
    .open = open_f32,
    .encode = encode_f32,
    .decode = decode_f32,
    .store = store_f32,
    .tile = tile,
};

static int open_half(struct kv_codec *c, const struct kv_calib *calib,
                     struct kv_err *e)
{
    (void)calib;
    (void)e;
    return open_plain(c, 2);
}

static void put16(uint8_t *at, uint16_t h)
{
    memcpy(at, &h, sizeof(h));
}

static uint16_t get16(const uint8_t *at)
{
    uint16_t h;

    memcpy(&h, at, sizeof(h));
    return h;
}

static void encode_f16(const struct kv_codec *c, struct kv_where w,
                       const float *x, size_t n_blocks, uint8_t *bytes)
{
    (void)w;
    for (size_t i = 0; i < values(c, n_blocks); i++)
        put16(bytes + 2 * i, kv_f16_clamp(x[i]));
}

static void decode_f16(const struct kv_codec *c, const uint8_t *bytes,
                       size_t n_blocks, float *x)
{
    for (size_t i = 0; i < values(c, n_blocks); i++)
        x[i] = kv_f16_to_f32(get16(bytes + 2 * i));
}

const struct kv_scheme kv_scheme_f16 = {
    .name = "f16",
    .brief = "IEEE 16-bit floats: what servers store",
    .nominal = bits_16,
    .open = open_half,
    .encode = encode_f16,
    .decode = decode_f16,
    .store = store_f16,
    .tile = tile,
};

static void encode_bf16(const struct kv_codec *c, struct kv_where w,
                        const float *x, size_t n_blocks, uint8_t *bytes)
{
    (void)w;
    for (size_t i = 0; i < values(c, n_blocks); i++)
        put16(bytes + 2 * i, kv_f32_to_bf16(x[i]));
}

static void decode_bf16(const struct kv_codec *c, const uint8_t *bytes,
                        size_t n_blocks, float *x)
{
    for (size_t i = 0; i < values(c, n_blocks); i++)
        x[i] = kv_bf16_to_f32(get16(bytes + 2 * i));
}

const struct kv_scheme kv_scheme_bf16 = {
    .name = "bf16",
    .brief = "bfloat16",
    .wide = true,
    .check = no_half,
    .nominal = bits_16,
    .open = open_half,
    .encode = encode_bf16,
    .decode = decode_bf16,
    .store = store_bf16,
    .tile = tile,
};
