/* Cache types of ik_llama.cpp that llama.cpp lacks.
 *
 *   q6_0   32 channels:  | code: 6 bits x 32 | d: f16 |          6.5 bits
 *          d = the value of the largest magnitude / -32, code = round(x / d) +
 *          32 in [0, 63]: ggml's q5_0 with one bit more (ggml.c)
 *   q8_kv  a head:       | code: int8 x d | d: f32 | sum: i32 |
 *          d = max|x| / 127, code = round(x / d), halves to even; sum: the sum
 *          of the codes, for products with types that have an offset.
 *          8 + 64 / head_dim bits
 *
 * The bytes are ik_llama.cpp's, in the order of integers.h: ik_llama.cpp puts
 * q6_0's d and q8_kv's d and sum before the codes. */
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

enum { BLOCK = 32 };

static float inverse_of(float d)
{
    return d != 0 ? 1 / d : 0;
}

static void encode_q6(const float *x, size_t n, unsigned bits, uint8_t *head,
                      uint16_t *code)
{
    float extreme = 0, inverse;

    (void)bits;
    for (size_t i = 0; i < n; i++)
        extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
    inverse = inverse_of(extreme / -32);
    for (size_t i = 0; i < n; i++)
        code[i] = (uint16_t)fminf(x[i] * inverse + 32.5f, 63);
    kv_f16_put(head, extreme / -32);
}

static void decode_q6(const uint16_t *code, size_t n, unsigned bits,
                      const uint8_t *head, float *x)
{
    const float d = kv_f16_get(head);

    (void)bits;
    for (size_t i = 0; i < n; i++)
        x[i] = ((float)code[i] - 32) * d;
}

static void encode_q8(const float *x, size_t n, unsigned bits, uint8_t *head,
                      uint16_t *code)
{
    const float d = kv_group_max_abs(x, n) / 127, inverse = inverse_of(d);
    int32_t sum = 0;

    (void)bits;
    for (size_t i = 0; i < n; i++) {
        const int32_t q = (int32_t)kv_round_even(x[i] * inverse);

        sum += q;
        code[i] = (uint16_t)(q + 127);
    }
    memcpy(head, &d, sizeof(d));
    memcpy(head + sizeof(d), &sum, sizeof(sum));
}

static void decode_q8(const uint16_t *code, size_t n, unsigned bits,
                      const uint8_t *head, float *x)
{
    float d;

    (void)bits;
    memcpy(&d, head, sizeof(d));
    for (size_t i = 0; i < n; i++)
        x[i] = ((float)code[i] - 127) * d;
}

static const struct kv_group_quantizer q6 = {
    .head_bytes = 2, .encode = encode_q6, .decode = decode_q6};
static const struct kv_group_quantizer q8 = {
    .head_bytes = 8, .encode = encode_q8, .decode = decode_q8};

static int ik_check(struct kv_spec *s, const struct kv_shape *shape,
                    struct kv_err *e)
{
    if (shape->head_dim % BLOCK)
        return kv_fail(e, "%s: head_dim %zu must be a multiple of %d",
                       s->scheme->name, shape->head_dim, BLOCK);
    return 0;
}

static double ik_nominal(const struct kv_spec *s, enum kv_side side,
                         const struct kv_shape *shape)
{
    (void)side;
    return s->scheme == &kv_scheme_q6_0 ? 6.5
                                        : 8 + 64 / (double)shape->head_dim;
}

static int open_ik(struct kv_codec *c, const struct kv_calib *calib,
                   struct kv_err *e)
{
    const bool six = c->scheme == &kv_scheme_q6_0;

    (void)calib;
    (void)e;
    return kv_integers_open(c, six ? &q6 : &q8, KV_AXIS_TOKEN,
                            six ? BLOCK : c->shape.head_dim, false,
                            six ? 6 : 8);
}

#define SCHEME(NAME, BRIEF)                     \
    const struct kv_scheme kv_scheme_##NAME = { \
        .name = #NAME,                          \
        .brief = "ik_llama.cpp: " BRIEF,        \
        .coarse = true,                         \
        .check = ik_check,                      \
        .nominal = ik_nominal,                  \
        .open = open_ik,                        \
        .encode = kv_integers_encode,           \
        .decode = kv_integers_decode,           \
    }

SCHEME(q6_0, "32 values as 6-bit integers and a scale");
SCHEME(q8_kv, "a head as 8-bit integers, a scale and their sum");
