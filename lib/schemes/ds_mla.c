/* vLLM's caches of latents (lib/shape.h): the latent in small floats, the
 * channels that RoPE rotates in bf16.  A token with a latent of n channels and
 * d - n other channels:
 *
 *   fp8_ds_mla    | code: e4m3 x n | scale: f32 x n/128 | x: bf16 x (d - n) |
 *       FlashMLA's 656 bytes of 512 + 64 channels: of 128 channels
 *       scale = max(max|x| / 448, 2^-126)
 *   nvfp4_ds_mla  | code: e2m1 x n | scale: e4m3 x n/16 | 16 bytes 0 |
 *                 | x: bf16 x (d - n) |
 *       432 bytes (of an extension of vLLM's): of 16 channels nvfp4's scale,
 *       max|x| / 6, without a second one
 *
 * g replaces 128, for smaller latents.  Our reading, for models without a
 * latent: a head is all codes and scales, without the rest. */
#include "kernels/bitpack.h"
#include "kernels/scaled/minifloat.h"
#include "lib/base/alloc.h"
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

#include <float.h>
#include <stdlib.h>

enum { NV_GROUP = 16, NV_PAD = 16 };

static const struct kv_param params[] = {
    {"g", NULL, 128, 1, KV_MAX_HEAD_DIM, false, "channels of a scale"},
    {0},
};

/* ---- a scale in f32 ------------------------------------------------------ */

static void encode_e4m3(const float *x, size_t n, unsigned bits, uint8_t *head,
                        uint16_t *code)
{
    const float scale = fmaxf(kv_group_max_abs(x, n) / kv_e4m3.max, FLT_MIN);

    (void)bits;
    memcpy(head, &scale, sizeof(scale));
    kv_minifloat_encode(&kv_e4m3, x, n, scale, code);
}

static void decode_e4m3(const uint16_t *code, size_t n, unsigned bits,
                        const uint8_t *head, float *x)
{
    float scale;

    (void)bits;
    memcpy(&scale, head, sizeof(scale));
    kv_minifloat_decode(&kv_e4m3, code, n, scale, x);
}

static const struct kv_group_quantizer e4m3_f32 = {
    .head_bytes = 4, .encode = encode_e4m3, .decode = decode_e4m3};

/* ---- the layout ---------------------------------------------------------- */

struct layout {
    const struct kv_group_quantizer *quantizer;
    unsigned bits;
    size_t coded, group;               /* channels */
    size_t scales, rest, record_bytes; /* where scales and rest begin; a head's
                                        * bytes */
};

static bool is_nv(const struct kv_spec *s)
{
    return s->scheme == &kv_scheme_nvfp4_ds_mla;
}

static size_t coded_of(const struct kv_shape *shape)
{
    return shape->latent ? shape->latent : shape->head_dim;
}

static struct layout layout_of(const struct kv_spec *s, enum kv_side side,
                               const struct kv_shape *shape)
{
    const bool nv = is_nv(s);
    struct layout l = {.quantizer = nv ? kv_nvfp4_quantizer : &e4m3_f32,
                       .bits = nv ? 4 : 8,
                       .coded = coded_of(shape),
                       .group = nv ? NV_GROUP : kv_spec_size(s, side, "g")};

    l.scales = kv_pack_bytes(l.coded, l.bits);
    l.rest = l.scales + l.coded / l.group * l.quantizer->head_bytes +
             (nv && shape->latent ? NV_PAD : 0);
    l.record_bytes = l.rest + (shape->head_dim - l.coded) * sizeof(uint16_t);
    return l;
}

static int fp8_ds_mla_check(struct kv_spec *s, const struct kv_shape *shape,
                            struct kv_err *e)
{
    const size_t n = coded_of(shape);

    for (int side = 0; side < KV_SIDES; side++) {
        const size_t g = kv_spec_size(s, (enum kv_side)side, "g");

        if (g > n)
            kv_spec_set(s, (enum kv_side)side, "g", (double)n);
        else if (n % g)
            return kv_fail(e, "g=%zu must divide the %zu channels %s", g, n,
                           shape->latent ? "of the latent" : "of a head");
    }
    return 0;
}

static int nvfp4_ds_mla_check(struct kv_spec *s, const struct kv_shape *shape,
                              struct kv_err *e)
{
    (void)s;
    return coded_of(shape) % NV_GROUP == 0
               ? 0
               : kv_fail(e, "%zu channels %s: expected a multiple of %d",
                         coded_of(shape),
                         shape->latent ? "of a latent" : "of a head", NV_GROUP);
}

static double ds_mla_nominal(const struct kv_spec *s, enum kv_side side,
                             const struct kv_shape *shape)
{
    return 8 * (double)layout_of(s, side, shape).record_bytes /
           (double)shape->head_dim;
}

/* ---- the codec ----------------------------------------------------------- */

static int open_ds_mla(struct kv_codec *c, const struct kv_calib *calib,
                       struct kv_err *e)
{
    struct layout *l = kv_alloc(1, sizeof(*l));

    (void)calib;
    (void)e;
    *l = layout_of(&c->spec, c->side, &c->shape);
    c->state = l;
    c->block = 1;
    c->block_bytes = c->shape.n_kv_heads * l->record_bytes;
    return 0;
}

/* Encodes a head x of d channels. */
static void put_record(const struct layout *l, const float *x, size_t d,
                       uint8_t *record)
{
    uint16_t code[KV_MAX_HEAD_DIM];
    uint8_t *scale = record + l->scales;

    memset(record, 0, l->record_bytes);
    for (size_t i = 0; i < l->coded; i += l->group) {
        l->quantizer->encode(x + i, l->group, l->bits, scale, code + i);
        scale += l->quantizer->head_bytes;
    }
    kv_pack(code, l->coded, l->bits, record);
    for (size_t i = l->coded; i < d; i++) {
        const uint16_t half = kv_f32_to_bf16(x[i]);

        memcpy(record + l->rest + (i - l->coded) * sizeof(half), &half,
               sizeof(half));
    }
}

static void get_record(const struct layout *l, const uint8_t *record, size_t d,
                       float *x)
{
    uint16_t code[KV_MAX_HEAD_DIM], half;
    const uint8_t *scale = record + l->scales;

    kv_unpack(record, l->coded, l->bits, code);
    for (size_t i = 0; i < l->coded; i += l->group) {
        l->quantizer->decode(code + i, l->group, l->bits, scale, x + i);
        scale += l->quantizer->head_bytes;
    }
    for (size_t i = l->coded; i < d; i++) {
        memcpy(&half, record + l->rest + (i - l->coded) * sizeof(half),
               sizeof(half));
        x[i] = kv_bf16_to_f32(half);
    }
}

static void ds_mla_encode(const struct kv_codec *c, struct kv_where w,
                          const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct layout *l = c->state;
    const size_t d = c->shape.head_dim;

    (void)w;
    for (size_t i = 0; i < n_blocks * c->shape.n_kv_heads; i++)
        put_record(l, x + i * d, d, bytes + i * l->record_bytes);
}

static void ds_mla_decode(const struct kv_codec *c, const uint8_t *bytes,
                          size_t n_blocks, float *x)
{
    const struct layout *l = c->state;
    const size_t d = c->shape.head_dim;

    for (size_t i = 0; i < n_blocks * c->shape.n_kv_heads; i++)
        get_record(l, bytes + i * l->record_bytes, d, x + i * d);
}

#define SCHEME(TYPE, BRIEF, PARAMS)                                      \
    const struct kv_scheme kv_scheme_##TYPE##_ds_mla = {                 \
        .name = #TYPE "_ds_mla",                                         \
        .brief = "vLLM, of latents: " BRIEF ", what RoPE turns in bf16", \
        .params = PARAMS,                                                \
        .coarse = true,                                                  \
        .check = TYPE##_ds_mla_check,                                    \
        .nominal = ds_mla_nominal,                                       \
        .open = open_ds_mla,                                             \
        .encode = ds_mla_encode,                                         \
        .decode = ds_mla_decode,                                         \
    };
SCHEME(fp8, "e4m3, an f32 for 128 channels", params)
SCHEME(nvfp4, "e2m1, an e4m3 for 16 channels", NULL)
