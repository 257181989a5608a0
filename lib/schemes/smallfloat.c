/* Small floats (kernels/scaled/minifloat.h) in groups of a token's channels
 * that share a scale.  A group's head, and the choice of its scale:
 *
 *   fp8 fp6 fp4       | max|x|: f16 |   max|x| / the format's max; with
 *     scale=none      nothing           1: values are cast unscaled
 *   mxfp8 6 4         | power: e8m0 |   OCP MX v1.0, 32 values:
 *                                       2^(floor(log2 max|x|) - emax)
 *   nvfp4             | scale: e4m3 |   NVIDIA, 16 values: max|x| / 6
 *   fp4_e2m1          | power: e8m0 |   SGLang, 16 values:
 *                                       2^ceil(log2(max|x| / 6))
 *
 * e8m0 is a byte p that stands for 2^(p - 127); emax is the exponent of the
 * format's max.  Elements are x / scale rounded half to even and saturated.
 *
 * Our readings.  A scale per tensor cannot be known while a cache grows:
 * scale=none is the static scale 1 that servers' fp8 caches have by default.
 * NVFP4's second scale, a float per tensor, is 1 for the same reason; a group
 * with a nonzero value has a scale of at least 2^-9, the smallest e4m3.  A
 * group of zeros has head 0.  fp8, fp6 and fp4 store max|x| instead of the
 * scale, since dividing by e5m2's max would make the scale a denormal of fp16.
 * If head_dim is less than a block, the block is the head. */
#include "kernels/scaled/minifloat.h"
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

enum { MX_BLOCK = 32, NV_BLOCK = 16 };

/* floor(log2 x); -127 for zero. */
static int exponent(float x)
{
    return (int)(kv_f32_bits(x) >> 23) - 127;
}

/* ---- scales: put_ chooses one, stores it and returns it as stored ------- */

static float get_none(const struct kv_minifloat *f, const uint8_t *head)
{
    (void)f;
    (void)head;
    return 1;
}

static float put_none(const struct kv_minifloat *f, const float *x, size_t n,
                      uint8_t *head)
{
    (void)x;
    (void)n;
    return get_none(f, head);
}

static float get_f16(const struct kv_minifloat *f, const uint8_t *head)
{
    return kv_f16_get(head) / f->max;
}

static float put_f16(const struct kv_minifloat *f, const float *x, size_t n,
                     uint8_t *head)
{
    return kv_f16_put(head, kv_group_max_abs(x, n)) / f->max;
}

static float get_e8m0(const struct kv_minifloat *f, const uint8_t *head)
{
    (void)f;
    return ldexpf(1, *head - 127);
}

static float put_e8m0(const struct kv_minifloat *f, const float *x, size_t n,
                      uint8_t *head)
{
    const int p = 127 + exponent(kv_group_max_abs(x, n)) - exponent(f->max);

    *head = p > 0 ? (uint8_t)p : 0; /* 254 at most */
    return get_e8m0(f, head);
}

static float get_e4m3(const struct kv_minifloat *f, const uint8_t *head)
{
    const uint16_t code = *head;
    float scale;

    (void)f;
    kv_minifloat_decode(&kv_e4m3, &code, 1, 1, &scale);
    return scale;
}

static float put_e4m3(const struct kv_minifloat *f, const float *x, size_t n,
                      uint8_t *head)
{
    const float scale = kv_group_max_abs(x, n) / f->max;
    uint16_t code;

    kv_minifloat_encode(&kv_e4m3, &scale, 1, 1, &code);
    *head = (uint8_t)(code || scale == 0 ? code : 1);
    return get_e4m3(f, head);
}

#define KIND_none KV_SCALE_NONE
#define KIND_f16 KV_SCALE_F16
#define KIND_e8m0 KV_SCALE_E8M0
#define KIND_e4m3 KV_SCALE_E4M3

/* ---- a quantizer of every format with every scale it goes with ---------- */

#define QUANTIZER(F, SCALE, BYTES)                                            \
    static void encode_##F##_##SCALE(const float *x, size_t n, unsigned bits, \
                                     uint8_t *head, uint16_t *code)           \
    {                                                                         \
        (void)bits;                                                           \
        kv_minifloat_encode(&kv_##F, x, n, put_##SCALE(&kv_##F, x, n, head),  \
                            code);                                            \
    }                                                                         \
    static void decode_##F##_##SCALE(const uint16_t *code, size_t n,          \
                                     unsigned bits, const uint8_t *head,      \
                                     float *x)                                \
    {                                                                         \
        (void)bits;                                                           \
        kv_minifloat_decode(&kv_##F, code, n, get_##SCALE(&kv_##F, head), x); \
    }                                                                         \
    static bool scaled_##F##_##SCALE(struct kv_scaled *to, unsigned bits,     \
                                     size_t head_dim, size_t group)           \
    {                                                                         \
        return kv_scaled_init(to, bits, NULL, &kv_##F, KIND_##SCALE,          \
                              kv_##F.max, head_dim, group);                   \
    }                                                                         \
    static const struct kv_group_quantizer F##_##SCALE = {                    \
        .head_bytes = BYTES,                                                  \
        .encode = encode_##F##_##SCALE,                                       \
        .decode = decode_##F##_##SCALE,                                       \
        .scaled = scaled_##F##_##SCALE,                                       \
    };

#define FORMATS(X) X(e5m2) X(e4m3) X(e3m2) X(e2m3) X(e2m1)
#define QUANTIZERS(F)     \
    QUANTIZER(F, none, 0) \
    QUANTIZER(F, f16, 2)  \
    QUANTIZER(F, e8m0, 1)
FORMATS(QUANTIZERS)
QUANTIZER(e2m1, e4m3, 1)

const struct kv_group_quantizer *const kv_e4m3_quantizer = &e4m3_none;
const struct kv_group_quantizer *const kv_nvfp4_quantizer = &e2m1_e4m3;

/* SGLang's fp4_e2m1: the scale is the least power of two for which nothing
 * saturates, and a magnitude halfway between two levels goes to the larger. */
static void encode_fp4_e2m1(const float *x, size_t n, unsigned bits,
                            uint8_t *head, uint16_t *code)
{
    static const float border[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
    const float most = fmaxf(kv_group_max_abs(x, n) / kv_e2m1.max, 1e-10f);
    const int power = (int)ceilf(log2f(most));

    (void)bits;
    *head = (uint8_t)(power + 127);
    for (size_t i = 0; i < n; i++) {
        const float y = ldexpf(x[i], -power);

        code[i] = y < 0 ? 8 : 0;
        for (size_t j = 0; j < sizeof(border) / sizeof(*border); j++)
            code[i] += fabsf(y) >= border[j];
    }
}

static const struct kv_group_quantizer fp4_of_16 = {
    .head_bytes = 1,
    .encode = encode_fp4_e2m1,
    .decode = decode_e2m1_e8m0,
    .scaled = scaled_e2m1_e8m0,
};

static const struct format {
    const struct kv_minifloat *f;
    const struct kv_group_quantizer *none, *f16, *e8m0;
} formats[] = {
#define ROW(F) {&kv_##F, &F##_none, &F##_f16, &F##_e8m0},
    FORMATS(ROW)
#undef ROW
};

/* The format with e and m bits; NULL: there is none. */
static const struct format *format(const struct kv_spec *s, enum kv_side side)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++)
        if (formats[i].f->e == kv_spec_size(s, side, "e") &&
            formats[i].f->m == kv_spec_size(s, side, "m"))
            return &formats[i];
    return NULL;
}

static unsigned bits(const struct kv_spec *s, enum kv_side side)
{
    const struct kv_minifloat *f = format(s, side)->f;

    return 1 + f->e + f->m;
}

/* Fails on pairs that the ranges of e and m allow but that are no format: e4m2,
 * e5m3, ... */
static int check_format(const struct kv_spec *s, enum kv_side side,
                        struct kv_err *e)
{
    const size_t exp = kv_spec_size(s, side, "e");

    if (format(s, side))
        return 0;
    return kv_fail(e, "%s is %s, not e%zum%zu: write both letters, as in %s",
                   s->scheme->name, exp > 3 ? "e4m3 or e5m2" : "e2m3 or e3m2",
                   exp, kv_spec_size(s, side, "m"), exp > 3 ? "e5m2" : "e3m2");
}

static int open_groups(struct kv_codec *c, const struct kv_group_quantizer *q,
                       size_t len)
{
    return kv_integers_open(c, q, KV_AXIS_TOKEN, len, false,
                            bits(&c->spec, c->side));
}

/* clang-format off */
#define FORMAT(E, E_MAX, M, M_MIN)                         \
    {"e", NULL, E, E, E_MAX, false, "bits of exponent"},     \
    {"m", NULL, M, M_MIN, M, false, "bits of mantissa"}
#define SCALE                                                 \
    {"g", NULL, 32, 1, 4096, false,                           \
     "scale=block: channels that share a scale; else a head"}, \
    {"scale", "none|token|block", 2, 0, 0, false,             \
     "an f16 scale per head and token, or per g channels"}
/* clang-format on */

/* ---- fp8, fp6, fp4 ------------------------------------------------------ */

static const struct kv_param fp8[] = {FORMAT(4, 5, 3, 2), SCALE, {0}};
static const struct kv_param fp6[] = {FORMAT(2, 3, 3, 2), SCALE, {0}};
static const struct kv_param fp4[] = {FORMAT(2, 2, 1, 1), SCALE, {0}};

static int check_fp(struct kv_spec *s, const struct kv_shape *shape,
                    struct kv_err *e)
{
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;

        if (check_format(s, side, e))
            return -1;
        if (!kv_spec_is(s, side, "scale", "block"))
            kv_spec_set(s, side, "g", (double)shape->head_dim);
        if (kv_integers_fit(s, side, shape, e))
            return -1;
    }
    return 0;
}

static double nominal_fp(const struct kv_spec *s, enum kv_side side,
                         const struct kv_shape *shape)
{
    (void)shape;
    if (kv_spec_is(s, side, "scale", "none"))
        return bits(s, side);
    return bits(s, side) + 16 / kv_spec_get(s, side, "g");
}

static int open_fp(struct kv_codec *c, const struct kv_calib *calib,
                   struct kv_err *e)
{
    const struct format *t = format(&c->spec, c->side);

    (void)calib;
    (void)e;
    return open_groups(
        c, kv_spec_is(&c->spec, c->side, "scale", "none") ? t->none : t->f16,
        kv_spec_size(&c->spec, c->side, "g"));
}

/* ---- mxfp8, mxfp6, mxfp4, nvfp4, fp4_e2m1 ------------------------------- */

static const struct kv_param mxfp8[] = {FORMAT(4, 5, 3, 2), {0}};
static const struct kv_param mxfp6[] = {FORMAT(2, 3, 3, 2), {0}};
static const struct kv_param mxfp4[] = {FORMAT(2, 2, 1, 1), {0}};
static const struct kv_param nvfp4[] = {FORMAT(2, 2, 1, 1), {0}};
static const struct kv_param fp4_e2m1[] = {FORMAT(2, 2, 1, 1), {0}};

static size_t block_of(const struct kv_scheme *k, size_t head_dim)
{
    const size_t block =
        k == &kv_scheme_nvfp4 || k == &kv_scheme_fp4_e2m1 ? NV_BLOCK : MX_BLOCK;

    return head_dim < block ? head_dim : block;
}

static int check_block(struct kv_spec *s, const struct kv_shape *shape,
                       struct kv_err *e)
{
    const size_t d = shape->head_dim, block = block_of(s->scheme, d);

    if (d % block)
        return kv_fail(e,
                       "%s has blocks of %zu channels, which must divide "
                       "head_dim %zu",
                       s->scheme->name, block, d);
    return check_format(s, KV_K, e) || check_format(s, KV_V, e) ? -1 : 0;
}

static double nominal_block(const struct kv_spec *s, enum kv_side side,
                            const struct kv_shape *shape)
{
    const size_t block = block_of(s->scheme, shape->head_dim);

    return bits(s, side) + 8 / (double)block;
}

static int open_block(struct kv_codec *c, const struct kv_calib *calib,
                      struct kv_err *e)
{
    const struct kv_group_quantizer *q =
        c->scheme == &kv_scheme_nvfp4      ? &e2m1_e4m3
        : c->scheme == &kv_scheme_fp4_e2m1 ? &fp4_of_16
                                           : format(&c->spec, c->side)->e8m0;

    (void)calib;
    (void)e;
    return open_groups(c, q, block_of(c->scheme, c->shape.head_dim));
}

#define SCHEME(NAME, KIND, BRIEF)               \
    const struct kv_scheme kv_scheme_##NAME = { \
        .name = #NAME,                          \
        .brief = BRIEF,                         \
        .params = NAME,                         \
        .coarse = true,                         \
        .check = check_##KIND,                  \
        .nominal = nominal_##KIND,              \
        .open = open_##KIND,                    \
        .encode = kv_integers_encode,           \
        .decode = kv_integers_decode,           \
        .store = kv_integers_store,             \
        .tile = kv_integers_tile,               \
    }

SCHEME(fp8, fp, "floats e4m3 or e5m2 (OCP), scaled per block, token, or not");
SCHEME(fp6, fp, "floats e2m3 or e3m2 (OCP), scaled per block, token, or not");
SCHEME(fp4, fp, "floats e2m1 (OCP), scaled per block, token, or not");
SCHEME(mxfp8, block, "OCP MX: 32 floats e4m3 or e5m2 and a power of two");
SCHEME(mxfp6, block, "OCP MX: 32 floats e2m3 or e3m2 and a power of two");
SCHEME(mxfp4, block, "OCP MX: 32 floats e2m1 and a power of two");
SCHEME(nvfp4, block, "NVIDIA: 16 floats e2m1 and a scale e4m3");
SCHEME(fp4_e2m1, block, "SGLang: 16 floats e2m1 and a power of two");
