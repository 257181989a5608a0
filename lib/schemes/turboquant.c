/* TurboQuant (arXiv 2504.19874): a head's vector x is turned by a random
 * orthogonal matrix R, which leaves its coordinates nearly N(0, |x|^2 / d)
 * whatever x was; each is quantized with the Lloyd-Max levels of the normal
 * distribution (algorithm 1).  With qjl, for keys, one of the b bits goes to
 * the residual r = x - decoded: the signs of G r, G a Gaussian [d][d], and |r|
 * (algorithm 2): then q . decode(x) is, over G, unbiased.  One KV head:
 *
 *   | codes: d x bits | rms: f16 |
 *   | codes: d x (b - 1) bits | rms: f16 | signs: d bits | rms of r: f16 | qjl
 *
 * codes and signs padded to whole bytes; rms = |x| / sqrt(d), which fp16 holds
 * whenever it holds x.  b + 16 / d bits a value, with qjl b + 32 / d.
 *
 *   x^ = R^T (rms level[code]) + sqrt(pi / 2) rms_r G^T signs / sqrt(d)
 *
 * R and G are not stored: they follow from the word seed, the layer and the
 * side.  rot=qr is the paper's R; rot=hadamard flips signs at random and takes
 * the Hadamard transform, as fast implementations do.
 *
 * Our reading: the levels are those of N(0, 1/d), to which the paper's Beta
 * density tends (a norm away from 1 by fp16's rounding hides more); keys and
 * values after RoPE; no channels apart, as in its 2.5 and 3.5 bits. */
#include "kernels/bitpack.h"
#include "kernels/lloyd_max.h"
#include "kernels/random_matrix.h"
#include "kernels/rows.h"
#include "kernels/tiles_scaled.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/schemes/schemes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_param params[] = {
    {"b", NULL, 3, 1, 8, false, "bits per coordinate, with the residual's"},
    {"rot", "qr|hadamard", 0, 0, 0, false,
     "random orthogonal matrix, or signs and Hadamard transform"},
    {"qjl", "no|yes", 0, 0, 0, false,
     "keys: one of the b bits is a sign of the sketched residual"},
    {"seed", NULL, 0, 0, 1 << 30, false, "of the random matrices"},
    {0},
};

static int check(struct kv_spec *s, const struct kv_shape *shape,
                 struct kv_err *e)
{
    (void)shape;
    return kv_spec_one_side(s, KV_K, "qjl", e);
}

static double nominal(const struct kv_spec *s, enum kv_side side,
                      const struct kv_shape *shape)
{
    (void)shape;
    return kv_spec_get(s, side, "b");
}

static size_t hadamard(const struct kv_spec *s, const struct kv_shape *shape)
{
    return kv_spec_is(s, KV_K, "rot", "hadamard") ||
                   kv_spec_is(s, KV_V, "rot", "hadamard")
               ? shape->head_dim
               : 0;
}

struct turboquant {
    size_t d;
    unsigned bits; /* of a code; 0: the residual has the only one */
    bool qjl;
    size_t code_bytes, sign_bytes, head_bytes; /* of one head */
    float level[KV_LLOYD_MAX_LEVELS], threshold[KV_LLOYD_MAX_LEVELS];
    float *r, *rt; /* R and R^T [d][d] */
    float *g, *gt; /* G and G^T [d][d], or NULL */
    bool tiled;    /* scaled is good */
    struct kv_scaled scaled;
};

static void close_turboquant(struct kv_codec *c)
{
    struct turboquant *t = c->state;

    free(t->r);
    free(t->g);
    free(t);
}

/* Two matrices [d][d] in one piece: s scaled, and its transpose. */
static void both(float *s, size_t d, float scale)
{
    kv_row_scale(s, d * d, scale);
    kv_transpose(s, d, d, s + d * d);
}

static void make_matrices(const struct kv_codec *c, struct turboquant *t)
{
    const size_t d = t->d;
    const uint64_t seed = kv_spec_size(&c->spec, c->side, "seed");
    const uint64_t key = kv_mix(kv_mix(seed, c->layer), c->side);

    t->r = kv_alloc(2 * d, d * sizeof(*t->r));
    t->rt = t->r + d * d;
    if (kv_spec_is(&c->spec, c->side, "rot", "qr"))
        kv_random_orthogonal(key, d, d, t->r);
    else
        kv_random_hadamard(key, d, t->r);
    both(t->r, d, (float)(1 / sqrt((double)d)));
    if (!t->qjl)
        return;
    t->g = kv_alloc(2 * d, d * sizeof(*t->g));
    t->gt = t->g + d * d;
    kv_random_gaussian(kv_mix(key, 1), d, d, t->g);
    both(t->g, d, 1);
}

/* No bits: one level, 0. */
static void make_levels(struct turboquant *t)
{
    double level[KV_LLOYD_MAX_LEVELS] = {0}, threshold[KV_LLOYD_MAX_LEVELS];
    const size_t n = (size_t)1 << t->bits;

    if (t->bits)
        kv_lloyd_max(t->bits, level, threshold);
    for (size_t i = 0; i < n; i++)
        t->level[i] = (float)level[i];
    for (size_t i = 0; i + 1 < n; i++)
        t->threshold[i] = (float)threshold[i];
}

static int open_turboquant(struct kv_codec *c, const struct kv_calib *calib,
                           struct kv_err *e)
{
    struct turboquant *t = kv_alloc(1, sizeof(*t));

    (void)calib;
    (void)e;
    t->d = c->shape.head_dim;
    t->qjl = c->side == KV_K && kv_spec_is(&c->spec, KV_K, "qjl", "yes");
    t->bits = (unsigned)kv_spec_size(&c->spec, c->side, "b") - t->qjl;
    t->code_bytes = t->bits ? kv_pack_bytes(t->d, t->bits) : 0;
    t->sign_bytes = kv_pack_bytes(t->d, 1);
    t->head_bytes = t->code_bytes + 2 + (t->qjl ? t->sign_bytes + 2 : 0);
    make_levels(t);
    make_matrices(c, t);
    t->tiled = t->bits && t->bits <= 4 && !t->qjl &&
               kv_scaled_init(&t->scaled, t->bits, t->level, NULL, KV_SCALE_F16,
                              1, t->d, t->d);
    c->state = t;
    c->block = 1;
    c->block_bytes = c->shape.n_kv_heads * t->head_bytes;
    return 0;
}

/* |x| / sqrt(d) in fp16. */
static uint16_t rms(const float *x, size_t d)
{
    double sum = 0;

    for (size_t i = 0; i < d; i++)
        sum += (double)x[i] * (double)x[i];
    return kv_f16_clamp((float)sqrt(sum / (double)d));
}

static float half_at(const uint8_t *bytes)
{
    uint16_t half;

    memcpy(&half, bytes, sizeof(half));
    return kv_f16_to_f32(half);
}

/* work: [d]; x: [d]. */
static void decode_codes(const struct turboquant *t, const uint8_t *bytes,
                         uint16_t *code, float *work, float *x)
{
    const float size = half_at(bytes + t->code_bytes);

    memset(code, 0, t->d * sizeof(*code));
    if (t->bits)
        kv_unpack(bytes, t->d, t->bits, code);
    for (size_t i = 0; i < t->d; i++)
        work[i] = size * t->level[code[i]];
    kv_combine_rows(work, t->r, t->d, t->d, x);
}

static void encode_codes(const struct turboquant *t, const float *x,
                         uint16_t *code, float *work, uint8_t *bytes)
{
    const uint16_t half = rms(x, t->d);
    const float size = kv_f16_to_f32(half); /* as stored */

    memcpy(bytes + t->code_bytes, &half, sizeof(half));
    if (!t->bits)
        return;
    kv_combine_rows(x, t->rt, t->d, t->d, work);
    for (size_t i = 0; i < t->d; i++)
        code[i] = kv_lloyd_max_code(t->threshold, t->bits,
                                    size > 0 ? work[i] / size : 0);
    kv_pack(code, t->d, t->bits, bytes);
}

/* work: [2][d]. */
static void encode_residual(const struct turboquant *t, const float *x,
                            uint16_t *code, float *work, uint8_t *bytes)
{
    uint8_t *at = bytes + t->code_bytes + 2;
    float *left = work + t->d;

    decode_codes(t, bytes, code, work, left);
    for (size_t i = 0; i < t->d; i++)
        left[i] = x[i] - left[i];

    const uint16_t half = rms(left, t->d);

    kv_combine_rows(left, t->gt, t->d, t->d, work);
    for (size_t i = 0; i < t->d; i++)
        code[i] = work[i] < 0;
    kv_pack(code, t->d, 1, at);
    memcpy(at + t->sign_bytes, &half, sizeof(half));
}

static void decode_residual(const struct turboquant *t, const uint8_t *bytes,
                            uint16_t *code, float *work, float *x)
{
    const uint8_t *at = bytes + t->code_bytes + 2;
    const double per_sign = sqrt(acos(-1) / 2 / (double)t->d);
    const float size = (float)per_sign * half_at(at + t->sign_bytes);
    float *sum = work + t->d;

    kv_unpack(at, t->d, 1, code);
    for (size_t i = 0; i < t->d; i++)
        work[i] = code[i] ? -1 : 1;
    kv_combine_rows(work, t->g, t->d, t->d, sum);
    for (size_t i = 0; i < t->d; i++)
        x[i] += size * sum[i];
}

static void encode(const struct kv_codec *c, struct kv_where w, const float *x,
                   size_t n_blocks, uint8_t *bytes)
{
    const struct turboquant *t = c->state;
    uint16_t *code = kv_alloc(t->d, sizeof(*code));
    float *work = kv_alloc(2 * t->d, sizeof(*work));

    (void)w;
    for (size_t i = 0; i < n_blocks * c->shape.n_kv_heads; i++) {
        encode_codes(t, x + i * t->d, code, work, bytes + i * t->head_bytes);
        if (t->qjl)
            encode_residual(t, x + i * t->d, code, work,
                            bytes + i * t->head_bytes);
    }
    free(work);
    free(code);
}

static void decode(const struct kv_codec *c, const uint8_t *bytes,
                   size_t n_blocks, float *x)
{
    const struct turboquant *t = c->state;
    uint16_t *code = kv_alloc(t->d, sizeof(*code));
    float *work = kv_alloc(2 * t->d, sizeof(*work));

    for (size_t i = 0; i < n_blocks * c->shape.n_kv_heads; i++) {
        decode_codes(t, bytes + i * t->head_bytes, code, work, x + i * t->d);
        if (t->qjl)
            decode_residual(t, bytes + i * t->head_bytes, code, work,
                            x + i * t->d);
    }
    free(work);
    free(code);
}

/* ---- attention on the codes ---------------------------------------------- */

/* m: [d][d]; x: [rows][d] becomes x m. */
static void turn(const float *m, size_t d, float *x, size_t rows)
{
    float *y = kv_alloc(d, sizeof(*y));

    for (size_t r = 0; r < rows; r++, x += d) {
        kv_combine_rows(x, m, d, d, y);
        memcpy(x, y, d * sizeof(*x));
    }
    free(y);
}

static void enter(const void *space, size_t head, float *q, size_t rows)
{
    const struct turboquant *t = space;

    (void)head;
    turn(t->rt, t->d, q, rows);
}

static void leave(const void *space, size_t head, float *out, size_t rows)
{
    const struct turboquant *t = space;

    (void)head;
    turn(t->r, t->d, out, rows);
}

static bool store(const struct kv_codec *c, struct kv_store *s)
{
    const struct turboquant *t = c->state;

    if (!t->tiled)
        return false;
    kv_store_scaled(s, &t->scaled);
    s->enter = enter;
    s->leave = leave;
    s->space = t;
    return true;
}

static void tile(const struct kv_codec *c, const struct kv_store *s,
                 const uint8_t *blocks, size_t first, size_t n, size_t head,
                 uint8_t *tile)
{
    const struct turboquant *t = c->state;
    uint16_t *code = kv_alloc(t->d, sizeof(*code));

    for (size_t i = 0; i < n; i++) {
        const uint8_t *at =
            blocks + (first + i) * c->block_bytes + head * t->head_bytes;

        kv_unpack(at, t->d, t->bits, code);
        kv_store_put_scaled(s, i, code, at + t->code_bytes, tile);
    }
    free(code);
}

const struct kv_scheme kv_scheme_turboquant = {
    .name = "turboquant",
    .brief = "TurboQuant: turned at random, Lloyd-Max levels, a norm per head",
    .params = params,
    .flags = KV_COARSE,
    .check = check,
    .nominal = nominal,
    .hadamard = hadamard,
    .open = open_turboquant,
    .close = close_turboquant,
    .encode = encode,
    .decode = decode,
    .store = store,
    .tile = tile,
};
