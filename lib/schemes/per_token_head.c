/* vLLM's cache types with a scale for each token and KV head, an f32 (its
 * vllm/v1/attention/ops, 2026).  d: head_dim; x: a head, in f32.
 *
 *   int8_per_token_head  | code: int8 x d | scale |
 *       scale = max(max|x| / 127, 1e-6), code = round(x (1 / scale)), halves
 *       away from 0; before version 0.24 vLLM's kernel truncated
 *   fp8_per_token_head   | code: e4m3 x d | scale |
 *       scale = max(max|x| / 448, 1e-6)
 *   int4_per_token_head  | code: 4 bits x d | scale and zero |
 *       x is rotated: signs flipped at random, then the Hadamard transform;
 *       scale = max((max - min) / 15, 1e-6), zero = round(-min / scale) in
 *       [0, 15], code = round(x / scale + zero), halves away from 0; the zero
 *       takes the lowest four bits of the scale's mantissa
 *   int2_per_token_head  | code: 2 bits x d | deviation |
 *       x is rotated by the Hadamard transform; Lloyd-Max levels of a normal
 *       distribution, times |x| / sqrt(d).  (From a pull request; not in a
 *       release.)
 *
 * A block has each head's codes before its scale, and as many bytes as vLLM's.
 * vLLM's signs come from torch's generator, ours from kv_random().  vLLM rounds
 * rotated heads to the model's type, which we do not.  vLLM's type fp8 (a scale
 * of 1, e4m3) is fp8,none here. */
#include "kernels/hadamard.h"
#include "kernels/scaled/minifloat.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

#include <stdlib.h>

static const float LEAST_SCALE = 1e-6f;

static void put_word(uint8_t *head, uint32_t word)
{
    memcpy(head, &word, sizeof(word));
}

static uint32_t get_word(const uint8_t *head)
{
    uint32_t word;

    memcpy(&word, head, sizeof(word));
    return word;
}

/* ---- int8, fp8 ----------------------------------------------------------- */

static float put_scale_of(uint8_t *head, const float *x, size_t n, float top)
{
    const float scale = fmaxf(kv_group_max_abs(x, n) / top, LEAST_SCALE);

    put_word(head, kv_f32_bits(scale));
    return scale;
}

static void encode_int8(const float *x, size_t n, unsigned bits, uint8_t *head,
                        uint16_t *code)
{
    const float inverse = 1 / put_scale_of(head, x, n, 127);

    (void)bits;
    for (size_t i = 0; i < n; i++) {
        const float y = x[i] * inverse, half = copysignf(0.5f, y);

        code[i] = (uint16_t)(truncf(fminf(fmaxf(y + half, -128), 127)) + 128);
    }
}

static void decode_int8(const uint16_t *code, size_t n, unsigned bits,
                        const uint8_t *head, float *x)
{
    const float scale = kv_bits_f32(get_word(head));

    (void)bits;
    for (size_t i = 0; i < n; i++)
        x[i] = ((float)code[i] - 128) * scale;
}

static void encode_fp8(const float *x, size_t n, unsigned bits, uint8_t *head,
                       uint16_t *code)
{
    const float inverse = 1 / put_scale_of(head, x, n, kv_e4m3.max);

    (void)bits;
    for (size_t i = 0; i < n; i++) {
        const float y = x[i] * inverse;

        kv_minifloat_encode(&kv_e4m3, &y, 1, 1, &code[i]);
    }
}

static void decode_fp8(const uint16_t *code, size_t n, unsigned bits,
                       const uint8_t *head, float *x)
{
    (void)bits;
    kv_minifloat_decode(&kv_e4m3, code, n, kv_bits_f32(get_word(head)), x);
}

/* ---- int4 ---------------------------------------------------------------- */

/* round(x) in [0, 15], halves away from 0. */
static float nibble(float x)
{
    return fminf(fmaxf(roundf(x), 0), 15);
}

static void encode_int4(const float *x, size_t n, unsigned bits, uint8_t *head,
                        uint16_t *code)
{
    float min, max, scale, zero, inverse;

    (void)bits;
    kv_group_ends(x, n, &min, &max);
    scale = fmaxf((max - min) / 15, LEAST_SCALE);
    zero = nibble(-min / scale);
    inverse = 1 / scale;
    for (size_t i = 0; i < n; i++)
        code[i] = (uint16_t)nibble(x[i] * inverse + zero);
    put_word(head, (kv_f32_bits(scale) & ~15u) | (uint32_t)zero);
}

static void decode_int4(const uint16_t *code, size_t n, unsigned bits,
                        const uint8_t *head, float *x)
{
    const uint32_t word = get_word(head);
    const float scale = kv_bits_f32(word & ~15u), zero = (float)(word & 15);

    (void)bits;
    for (size_t i = 0; i < n; i++)
        x[i] = ((float)code[i] - zero) * scale;
}

/* ---- int2 ---------------------------------------------------------------- */

static const float level2[] = {-1.5104f, -0.4528f, 0.4528f, 1.5104f};

static void encode_int2(const float *x, size_t n, unsigned bits, uint8_t *head,
                        uint16_t *code)
{
    const float border = 0.9816f;
    float squares = 1e-12f, deviation;

    (void)bits;
    for (size_t i = 0; i < n; i++)
        squares += x[i] * x[i];
    deviation = sqrtf(squares / (float)n);
    for (size_t i = 0; i < n; i++) {
        const float z = x[i] / deviation;

        code[i] = (uint16_t)((z >= -border) + (z >= 0) + (z >= border));
    }
    put_word(head, kv_f32_bits(deviation));
}

static void decode_int2(const uint16_t *code, size_t n, unsigned bits,
                        const uint8_t *head, float *x)
{
    const float deviation = kv_bits_f32(get_word(head));

    (void)bits;
    for (size_t i = 0; i < n; i++)
        x[i] = level2[code[i]] * deviation;
}

/* ---- the schemes --------------------------------------------------------- */

static const struct type {
    const struct kv_scheme *scheme;
    unsigned bits;
    bool rotated, flipped; /* Hadamard transform; signs flipped before it */
    struct kv_group_quantizer quantizer;
} types[] = {
    {&kv_scheme_int8_per_token_head,
     8,
     false,
     false,
     {.head_bytes = 4, .encode = encode_int8, .decode = decode_int8}},
    {&kv_scheme_fp8_per_token_head,
     8,
     false,
     false,
     {.head_bytes = 4, .encode = encode_fp8, .decode = decode_fp8}},
    {&kv_scheme_int4_per_token_head,
     4,
     true,
     true,
     {.head_bytes = 4, .encode = encode_int4, .decode = decode_int4}},
    {&kv_scheme_int2_per_token_head,
     2,
     true,
     false,
     {.head_bytes = 4, .encode = encode_int2, .decode = decode_int2}},
};

static const struct type *per_head_type(const struct kv_scheme *k)
{
    const struct type *t = types;

    while (t->scheme != k)
        t++;
    return t;
}

static int per_head_check(struct kv_spec *s, const struct kv_shape *shape,
                          struct kv_err *e)
{
    if (per_head_type(s->scheme)->rotated &&
        kv_hadamard_size(shape->head_dim) != shape->head_dim)
        return kv_fail(e, "head_dim %zu: expected a power of two",
                       shape->head_dim);
    return 0;
}

static double per_head_nominal(const struct kv_spec *s, enum kv_side side,
                               const struct kv_shape *shape)
{
    (void)side;
    return per_head_type(s->scheme)->bits + 32 / (double)shape->head_dim;
}

static size_t per_head_hadamard(const struct kv_spec *s,
                                const struct kv_shape *shape)
{
    return per_head_type(s->scheme)->rotated ? shape->head_dim : 0;
}

static int open_per_head(struct kv_codec *c, const struct kv_calib *calib,
                         struct kv_err *e)
{
    const struct type *t = per_head_type(c->scheme);

    (void)calib;
    (void)e;
    return kv_integers_open(c, &t->quantizer, KV_AXIS_TOKEN, c->shape.head_dim,
                            false, t->bits);
}

/* Flips the signs of x [n][d], in the same channels for all rows. */
static void flip_signs(float *x, size_t n, size_t d)
{
    for (size_t i = 0; i < d; i++)
        for (size_t j = i; j < n * d && kv_random(d, i) & 1; j += d)
            x[j] = -x[j];
}

static void per_head_encode(const struct kv_codec *c, struct kv_where w,
                            const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct type *t = per_head_type(c->scheme);
    const size_t values = n_blocks * kv_codec_block_values(c);
    const size_t d = c->shape.head_dim, n = values / d;
    float *y;

    if (!t->rotated) {
        kv_integers_encode(c, w, x, n_blocks, bytes);
        return;
    }
    y = kv_alloc(values, sizeof(*y));
    memcpy(y, x, values * sizeof(*y));
    if (t->flipped)
        flip_signs(y, n, d);
    kv_hadamard(y, n, d);
    kv_integers_encode(c, w, y, n_blocks, bytes);
    free(y);
}

static void per_head_decode(const struct kv_codec *c, const uint8_t *bytes,
                            size_t n_blocks, float *x)
{
    const struct type *t = per_head_type(c->scheme);
    const size_t d = c->shape.head_dim, n = n_blocks * c->shape.n_kv_heads;

    kv_integers_decode(c, bytes, n_blocks, x);
    if (t->rotated)
        kv_hadamard(x, n, d);
    if (t->flipped)
        flip_signs(x, n, d);
}

/* Coarse, since 1e-6 bounds the scale, and the rotation turns a flat head into
 * one spike. */
#define SCHEME(TYPE, BRIEF)                                      \
    const struct kv_scheme kv_scheme_##TYPE##_per_token_head = { \
        .name = #TYPE "_per_token_head",                         \
        .brief = "vLLM: " BRIEF ", an f32 per token and head",   \
        .coarse = true,                                          \
        .check = per_head_check,                                 \
        .nominal = per_head_nominal,                             \
        .hadamard = per_head_hadamard,                           \
        .open = open_per_head,                                   \
        .encode = per_head_encode,                               \
        .decode = per_head_decode,                               \
    }

SCHEME(int8, "8-bit integers");
SCHEME(fp8, "floats e4m3");
SCHEME(int4, "rotated, asymmetric 4-bit integers");
SCHEME(int2, "rotated, four levels");
