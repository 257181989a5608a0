/* The baselines, which store floats.
 *
 * One token: | x[n_kv_heads][head_dim] |, 4 or 2 bytes a value, little-endian.
 */
#include "kernels/tiles/tiles.h"
#include "lib/base/half.h"
#include "lib/schemes/schemes.h"

#include <string.h>

static enum kv_float float_kind_of(const struct kv_scheme *k)
{
    return k == &kv_scheme_f32    ? KV_FLOAT_32
           : k == &kv_scheme_bf16 ? KV_FLOAT_BF16
                                  : KV_FLOAT_16;
}

static size_t value_bytes(const struct kv_scheme *k)
{
    return k == &kv_scheme_f32 ? 4 : 2;
}

/* Fails if part of the cache would be fp16: f32 and bf16 hold values that fp16
 * cannot. */
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

static double float_nominal(const struct kv_spec *s, enum kv_side side,
                            const struct kv_shape *shape)
{
    (void)side;
    (void)shape;
    return 8 * (double)value_bytes(s->scheme);
}

static int open_float(struct kv_codec *c, const struct kv_calib *calib,
                      struct kv_err *e)
{
    (void)calib;
    (void)e;
    c->block = 1;
    c->block_bytes = kv_codec_block_values(c) * value_bytes(c->scheme);
    return 0;
}

static void float_encode(const struct kv_codec *c, struct kv_where w,
                         const float *x, size_t n_blocks, uint8_t *bytes)
{
    const size_t n = n_blocks * kv_codec_block_values(c);
    const enum kv_float kind = float_kind_of(c->scheme);

    (void)w;
    if (kind == KV_FLOAT_32) {
        memcpy(bytes, x, n * sizeof(*x));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const uint16_t h =
            kind == KV_FLOAT_16 ? kv_f16_clamp(x[i]) : kv_f32_to_bf16(x[i]);

        memcpy(bytes + 2 * i, &h, sizeof(h));
    }
}

static void float_decode(const struct kv_codec *c, const uint8_t *bytes,
                         size_t n_blocks, float *x)
{
    const size_t n = n_blocks * kv_codec_block_values(c);
    const enum kv_float kind = float_kind_of(c->scheme);

    if (kind == KV_FLOAT_32) {
        memcpy(x, bytes, n * sizeof(*x));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t h;

        memcpy(&h, bytes + 2 * i, sizeof(h));
        x[i] = kind == KV_FLOAT_16 ? kv_f16_to_f32(h) : kv_bf16_to_f32(h);
    }
}

static bool float_store(const struct kv_codec *c, struct kv_store *s)
{
    kv_store_floats(s, float_kind_of(c->scheme), s->values, s->n_heads,
                    s->head_dim);
    return true;
}

static void float_tile(const struct kv_codec *c, const struct kv_store *s,
                       const uint8_t *blocks, size_t first, size_t n,
                       size_t head, uint8_t *tile)
{
    const size_t row = c->shape.head_dim * value_bytes(c->scheme);

    for (size_t i = 0; i < n; i++)
        kv_store_put_float_row(
            s, i, blocks + (first + i) * c->block_bytes + head * row, tile);
}

#define FLOAT                                                             \
    .nominal = float_nominal, .open = open_float, .encode = float_encode, \
    .decode = float_decode, .store = float_store, .tile = float_tile

const struct kv_scheme kv_scheme_f32 = {
    .name = "f32",
    .brief = "32-bit floats: full precision on a CPU",
    .wide = true,
    .check = no_half,
    FLOAT,
};

const struct kv_scheme kv_scheme_f16 = {
    .name = "f16",
    .brief = "IEEE 16-bit floats: what servers store",
    FLOAT,
};

const struct kv_scheme kv_scheme_bf16 = {
    .name = "bf16",
    .brief = "bfloat16",
    .wide = true,
    .check = no_half,
    FLOAT,
};
