/* llama.cpp's cache types, byte for byte as ggml's reference quantizers
 * (quantize_row_*_ref) define them: 32 consecutive values of a token are a
 * block, a token is its blocks in order, all KV heads.
 *
 *   q8_0    | d: f16 |           code[32]: int8               |   8.5 bits
 *   q5_1    | d: f16 | m: f16 |  fifth: uint32 | nibble[16]   |   6
 *   q5_0    | d: f16 |           fifth: uint32 | nibble[16]   |   5.5
 *   q4_1    | d: f16 | m: f16 |                  nibble[16]   |   5
 *   q4_0    | d: f16 |                           nibble[16]   |   4.5
 *   iq4_nl  | d: f16 |                           nibble[16]   |   4.5
 *
 * Byte j of nibble holds the low four bits of code j (low half) and of code
 * 16 + j (high half), bit j of fifth the fifth bit of code j.
 *
 * These types are the exception to "codes are chosen with the stored scale":
 * ggml divides by d in f32 and rounds d for storage alone.  Its vectorised
 * quantizers round some codes otherwise (q8_0: half to even); the reference
 * defines the files of the format.
 *
 * rot=yes is llama.cpp's form since April 2026: a head is rotated by the
 * Hadamard transform before it is quantized, a key (after RoPE) in blocks of
 * the largest power of two that divides head_dim, a value in blocks of 64.  It
 * rotates the queries and rotates the output back; decode() rotates the decoded
 * values back, which is equivalent.  If 64 does not divide head_dim, heads are
 * not rotated: this is rot=no, as with LLAMA_ATTN_ROT_DISABLE=1 and in every
 * earlier version.
 *
 * order=ggml quantizes keys in the channel order of llama.cpp's files.  For
 * some models (kv_shape's ggml_neighbours) this order differs from the model's
 * own; for other models order=ggml changes nothing.
 *
 * iq4_nl follows quantize_row_iq4_nl_ref, which writes caches, without the
 * search for a better scale that model files get.  A block below 1e-15 has
 * d = 0; in ggml its codes are those that the previous block left in memory,
 * here each is the code of the level nearest to zero. */
#include "kernels/hadamard.h"
#include "kernels/weights/weights.h"
#include "lib/base/alloc.h"
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32, HALF = BLOCK / 2, ROTATED = 64 };

/* code: [BLOCK], in the low `bits` bits.  head: | d | m |. */
struct type {
    const char *name;
    unsigned bits;
    size_t heads; /* 2: d and m */
    void (*quantize)(const float *x, unsigned bits, float *head, uint8_t *code);
    enum kv_stored stored; /* the stored type whose decoder is used */
    bool affine; /* m + d code, or (without m) d (code - 2^(bits - 1)) */
};

static float inverse(float d)
{
    return d != 0 ? 1 / d : 0;
}

/* The value with the largest magnitude, on ties the first; 0 for zeros. */
static float extreme(const float *x)
{
    float max = 0;

    for (size_t j = 0; j < BLOCK; j++)
        max = fabsf(x[j]) > fabsf(max) ? x[j] : max;
    return max;
}

/* x >= 0 rounded down, at most 2^bits - 1. */
static uint8_t floor_code(float x, unsigned bits)
{
    return (uint8_t)fminf(x, (float)((1u << bits) - 1));
}

static void quantize_8(const float *x, unsigned bits, float *head,
                       uint8_t *code)
{
    const float d = fabsf(extreme(x)) / 127, id = inverse(d);

    (void)bits;
    head[0] = d;
    for (size_t j = 0; j < BLOCK; j++)
        code[j] = (uint8_t)(int8_t)roundf(x[j] * id);
}

/* q4_0, q5_0: the extreme is code 0, whatever its sign. */
static void quantize_0(const float *x, unsigned bits, float *head,
                       uint8_t *code)
{
    const float middle = (float)(1u << (bits - 1));
    const float d = extreme(x) / -middle, id = inverse(d);

    head[0] = d;
    for (size_t j = 0; j < BLOCK; j++)
        code[j] = floor_code(x[j] * id + (middle + 0.5f), bits);
}

/* q4_1, q5_1: from the minimum to the maximum. */
static void quantize_1(const float *x, unsigned bits, float *head,
                       uint8_t *code)
{
    float min, max;

    kv_group_ends(x, BLOCK, &min, &max);

    const float d = (max - min) / (float)((1u << bits) - 1), id = inverse(d);

    head[0] = d;
    head[1] = min;
    for (size_t j = 0; j < BLOCK; j++)
        code[j] = floor_code((x[j] - min) * id + 0.5f, bits);
}

/* Returns the nearest level, on ties the upper one. */
static uint8_t nearest_level(float x)
{
    uint8_t above = 1;

    while (above < 15 && x >= kv_stored_iq4[above])
        above++;
    return x - kv_stored_iq4[above - 1] < kv_stored_iq4[above] - x
               ? (uint8_t)(above - 1)
               : above;
}

/* Chooses codes with the extreme at level 0, then the d that fits these codes
 * best, by least squares with weights x^2. */
static void quantize_nl(const float *x, unsigned bits, float *head,
                        uint8_t *code)
{
    const float max = extreme(x);
    const float id = fabsf(max) < 1e-15f ? 0 : 1 / (max / kv_stored_iq4[0]);
    float xq = 0, qq = 0;

    (void)bits;
    for (size_t j = 0; j < BLOCK; j++) {
        code[j] = nearest_level(id * x[j]);

        const float w = x[j] * x[j], q = kv_stored_iq4[code[j]];

        xq += w * q * x[j];
        qq += w * q * q;
    }
    head[0] = id != 0 ? xq / qq : 0;
}

static const struct type types[] = {
    {"q8_0", 8, 1, quantize_8, KV_STORED_Q8_0, true},
    {"q5_1", 5, 2, quantize_1, KV_STORED_Q5_1, true},
    {"q5_0", 5, 1, quantize_0, KV_STORED_Q5_0, true},
    {"q4_1", 4, 2, quantize_1, KV_STORED_Q4_1, true},
    {"q4_0", 4, 1, quantize_0, KV_STORED_Q4_0, true},
    {"iq4_nl", 4, 1, quantize_nl, KV_STORED_IQ4_NL, false},
};

static const struct type *type_of(const struct kv_scheme *k)
{
    const struct type *t = types;

    while (strcmp(t->name, k->name))
        t++;
    return t;
}

static size_t type_bytes(const struct type *t)
{
    return kv_stored_bytes(t->stored);
}

static void put_codes(const uint8_t *code, unsigned bits, uint8_t *out)
{
    if (bits == 8) {
        memcpy(out, code, BLOCK);
        return;
    }
    if (bits == 5) {
        uint32_t fifth = 0;

        for (size_t j = 0; j < BLOCK; j++)
            fifth |= (uint32_t)(code[j] >> 4) << j;
        memcpy(out, &fifth, sizeof(fifth));
        out += sizeof(fifth);
    }
    for (size_t j = 0; j < HALF; j++)
        out[j] = (uint8_t)((code[j] & 15) | code[HALF + j] << 4);
}

static void get_codes(const uint8_t *in, unsigned bits, uint8_t *code)
{
    uint32_t fifth = 0;

    if (bits == 8) {
        memcpy(code, in, BLOCK);
        return;
    }
    if (bits == 5) {
        memcpy(&fifth, in, sizeof(fifth));
        in += sizeof(fifth);
    }
    for (size_t j = 0; j < BLOCK; j++) {
        const unsigned low = j < HALF ? in[j] & 15 : in[j - HALF] >> 4;

        code[j] = (uint8_t)(low | (fifth >> j & 1) << 4);
    }
}

static bool ggml_is_rotated(const struct kv_spec *s, enum kv_side side)
{
    return kv_spec_is(s, side, "rot", "yes");
}

static bool ggml_is_moved(const struct kv_codec *c)
{
    return c->side == KV_K && c->shape.ggml_neighbours &&
           kv_spec_is(&c->spec, KV_K, "order", "ggml");
}

/* Rotates x [rows][head_dim] in place; the rotation is its own inverse. */
static void ggml_rotate(const struct kv_codec *c, float *x, size_t rows)
{
    const size_t d = c->shape.head_dim;
    const size_t m = c->side == KV_K ? kv_hadamard_size(d) : ROTATED;

    if (ggml_is_rotated(&c->spec, c->side))
        kv_hadamard(x, rows * d / m, m);
}

/* Reorders x [rows][head_dim] in place, to the channel order in which RoPE
 * rotates neighbours, or back. */
static void ggml_move(const struct kv_codec *c, bool back, float *x,
                      size_t rows)
{
    const size_t d = c->shape.head_dim;
    float own[KV_MAX_HEAD_DIM];

    for (size_t r = 0; ggml_is_moved(c) && r < rows; r++, x += d) {
        memcpy(own, x, d * sizeof(*x));
        for (size_t i = 0; i < d; i++) {
            const size_t there = 2 * (i % (d / 2)) + (i >= d / 2);

            x[back ? i : there] = own[back ? there : i];
        }
    }
}

static bool ggml_is_changed(const struct kv_codec *c)
{
    return ggml_is_moved(c) || ggml_is_rotated(&c->spec, c->side);
}

/* Transform x to the form that is quantized, and back. */
static void ggml_enter(const struct kv_codec *c, float *x, size_t rows)
{
    ggml_move(c, false, x, rows);
    ggml_rotate(c, x, rows);
}

static void ggml_leave(const struct kv_codec *c, float *x, size_t rows)
{
    ggml_rotate(c, x, rows);
    ggml_move(c, true, x, rows);
}

/* Quantizes n blocks of BLOCK values. */
static void ggml_quantize(const struct type *t, const float *x, size_t n,
                          uint8_t *bytes)
{
    for (size_t i = 0; i < n; i++, x += BLOCK, bytes += type_bytes(t)) {
        float head[2];
        uint8_t code[BLOCK];

        t->quantize(x, t->bits, head, code);
        for (size_t h = 0; h < t->heads; h++) {
            const uint16_t half = kv_f32_to_f16(head[h]);

            memcpy(bytes + 2 * h, &half, sizeof(half));
        }
        put_codes(code, t->bits, bytes + 2 * t->heads);
    }
}

static void encode_ggml(const struct kv_codec *c, struct kv_where w,
                        const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct type *t = type_of(c->scheme);
    const size_t values = n_blocks * kv_codec_block_values(c);
    float *changed;

    (void)w;
    if (!ggml_is_changed(c)) {
        ggml_quantize(t, x, values / BLOCK, bytes);
        return;
    }
    changed = kv_alloc(values, sizeof(*changed));
    memcpy(changed, x, values * sizeof(*changed));
    ggml_enter(c, changed, values / c->shape.head_dim);
    ggml_quantize(t, changed, values / BLOCK, bytes);
    free(changed);
}

static void get_heads(const uint8_t *in, size_t n, float *head)
{
    for (size_t h = 0; h < n; h++)
        head[h] = kv_f16_get(in + 2 * h);
}

static void decode_ggml(const struct kv_codec *c, const uint8_t *bytes,
                        size_t n_blocks, float *x)
{
    const struct type *t = type_of(c->scheme);
    const size_t values = n_blocks * kv_codec_block_values(c);

    kv_stored_decode(t->stored, bytes, values, x);
    ggml_leave(c, x, values / c->shape.head_dim);
}

static const struct kv_param params[] = {
    {"rot", "no|yes", 0, 0, 0, false,
     "rotated by the Hadamard transform, as llama.cpp does since April 2026"},
    {"order", "model|ggml", 0, 0, 0, false,
     "keys' channels in the model's order, or in the one of llama.cpp's files"},
    {0},
};

static int ggml_check(struct kv_spec *s, const struct kv_shape *shape,
                      struct kv_err *e)
{
    if (shape->head_dim % BLOCK)
        return kv_fail(e,
                       "%s stores blocks of %d values: head_dim %zu must be "
                       "a multiple of that, as in llama.cpp",
                       s->scheme->name, BLOCK, shape->head_dim);
    for (int side = 0; side < KV_SIDES; side++)
        if (ggml_is_rotated(s, (enum kv_side)side) && shape->head_dim % ROTATED)
            return kv_fail(e,
                           "rot=yes wants a head_dim that is a multiple of %d, "
                           "not %zu, which llama.cpp does not turn",
                           ROTATED, shape->head_dim);
    return kv_spec_one_side(s, KV_K, "order", e);
}

static size_t ggml_hadamard(const struct kv_spec *s,
                            const struct kv_shape *shape)
{
    return ggml_is_rotated(s, KV_K)   ? shape->head_dim
           : ggml_is_rotated(s, KV_V) ? ROTATED
                                      : 0;
}

static double ggml_nominal(const struct kv_spec *s, enum kv_side side,
                           const struct kv_shape *shape)
{
    (void)side;
    (void)shape;
    return (double)type_bytes(type_of(s->scheme)) * 8 / BLOCK;
}

/* iq4_nl: the state is the tiles' parameters. */
static int open_levels(struct kv_codec *c)
{
    struct kv_scaled *tiles = kv_alloc(1, sizeof(*tiles));

    c->state = tiles;
    kv_scaled_init(tiles, 4, kv_stored_iq4, NULL, KV_SCALE_F16, 1,
                   c->shape.head_dim, BLOCK);
    return 0;
}

static int open_ggml(struct kv_codec *c, const struct kv_calib *calib,
                     struct kv_err *e)
{
    const struct type *t = type_of(c->scheme);
    struct kv_integers *tiles;

    (void)calib;
    (void)e;
    c->block = 1;
    c->block_bytes = kv_codec_block_values(c) / BLOCK * type_bytes(t);
    if (!t->affine)
        return open_levels(c);
    c->state = tiles = kv_alloc(1, sizeof(*tiles));
    *tiles = (struct kv_integers){.bits = t->bits,
                                  .offset = t->heads == 2 ? KV_OFFSET_LOW
                                                          : KV_OFFSET_SAME,
                                  .zero = (float)(1u << (t->bits - 1)),
                                  .negative = t->quantize == quantize_0};
    kv_integers_init(tiles, c->side == KV_V, c->shape.head_dim, false, BLOCK);
    return 0;
}

/* Transforms queries as the keys were transformed. */
static void enter_rows(const void *codec, size_t head, float *x, size_t rows)
{
    (void)head;
    ggml_enter(codec, x, rows);
}

/* Transforms attention's output back into the model's space. */
static void leave_rows(const void *codec, size_t head, float *x, size_t rows)
{
    (void)head;
    ggml_leave(codec, x, rows);
}

static bool ggml_store(const struct kv_codec *c, struct kv_store *s)
{
    if (ggml_is_changed(c)) {
        s->enter = enter_rows;
        s->leave = leave_rows;
        s->space = c;
    }
    if (type_of(c->scheme)->affine)
        kv_store_integers(s, c->state);
    else
        kv_store_scaled(s, c->state);
    return true;
}

/* Signed bytes (q8_0) become codes from 0 to 255. */
static void ggml_tile(const struct kv_codec *c, const struct kv_store *s,
                      const uint8_t *blocks, size_t first, size_t n,
                      size_t head, uint8_t *tile)
{
    const struct type *t = type_of(c->scheme);
    const size_t d = s->head_dim;
    const uint8_t sign = t->bits == 8 ? 0x80 : 0;
    uint16_t *token = kv_alloc(d, sizeof(*token));
    uint16_t *scale = kv_alloc(d / BLOCK, sizeof(*scale));

    for (size_t i = 0; i < n; i++) {
        const uint8_t *at = blocks + (first + i) * c->block_bytes +
                            head * d / BLOCK * type_bytes(t);

        for (size_t j = 0; j < d; j += BLOCK, at += type_bytes(t)) {
            uint8_t code[BLOCK];
            float head_of[2];

            get_heads(at, t->heads, head_of);
            get_codes(at + 2 * t->heads, t->bits, code);
            for (size_t k = 0; k < BLOCK; k++)
                token[j + k] = code[k] ^ sign;
            memcpy(&scale[j / BLOCK], at, sizeof(*scale));
            if (t->affine)
                kv_store_put_group(s, 0, i, j, scale[j / BLOCK],
                                   t->heads == 2 ? head_of[1] : 0, tile);
        }
        if (t->affine)
            kv_store_put_codes(s, i, token, tile);
        else
            kv_store_put_scaled(s, i, token, (const uint8_t *)scale, tile);
    }
    free(scale);
    free(token);
}

#define SCHEME(NAME, BRIEF)                        \
    const struct kv_scheme kv_scheme_##NAME = {    \
        .name = #NAME,                             \
        .brief = "llama.cpp: 32 values as " BRIEF, \
        .params = params,                          \
        .newer = "order",                          \
        .coarse = true,                            \
        .check = ggml_check,                       \
        .nominal = ggml_nominal,                   \
        .hadamard = ggml_hadamard,                 \
        .open = open_ggml,                         \
        .encode = encode_ggml,                     \
        .decode = decode_ggml,                     \
        .store = ggml_store,                       \
        .tile = ggml_tile,                         \
    }

SCHEME(q8_0, "8-bit integers and a scale");
SCHEME(q5_1, "5-bit integers, a scale and a minimum");
SCHEME(q5_0, "5-bit integers and a scale");
SCHEME(q4_1, "4-bit integers, a scale and a minimum");
SCHEME(q4_0, "4-bit integers and a scale");
SCHEME(iq4_nl, "16 uneven levels and a scale");
