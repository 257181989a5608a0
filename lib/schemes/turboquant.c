/* TurboQuant (arXiv 2504.19874): a head's vector x is rotated by a random
 * orthogonal matrix R, which makes its coordinates nearly N(0, |x|^2 / d) for
 * any x.  Each coordinate is quantized with the Lloyd-Max levels of the normal
 * distribution (algorithm 1).  With qjl, for keys, one of the b bits goes to
 * the residual r = x - decoded: stored are |r| and the signs of G r, where G is
 * a Gaussian [d][d] (algorithm 2).  Then q . decode(x) is unbiased over G.  One
 * KV head:
 *
 *   | codes: d x bits | rms: f16 |
 *   | codes: d x (b - 1) bits | rms: f16 | signs: d bits | rms of r: f16 | qjl
 *
 * codes and signs padded to whole bytes; rms = |x| / sqrt(d), which fp16 can
 * hold whenever it can hold x.  b + 16 / d bits a value, with qjl b + 32 / d.
 *
 *   x^ = R^T (rms level[code]) + sqrt(pi / 2) rms_r G^T signs / sqrt(d)
 *
 * R and G are not stored: they follow from the parameter seed, the layer and
 * the side.  rot=qr is the paper's R; rot=hadamard flips signs at random and
 * takes the Hadamard transform, as fast implementations do; rot=plain is that
 * transform alone.
 *
 * vLLM's variants.  With nc (norm correction) the chosen levels are scaled to
 * the norm of x: the stored rms is |x| / |levels|, where vLLM stores |x| and
 * divides when it reads.  A side with other levels is not rotated:
 *
 *   levels=uniform  minimum to maximum of the head, as kivi has them along
 *                   channels: | codes | scale: f16 | minimum: f16 |
 *   levels=fp8      e4m3 without a scale (b8)
 *
 * and skip leaves the first and last layers in fp16.  vLLM's cache types are
 *
 *   turboquant_k8v4     K-b8/V-b4,K-levels=fp8,V-levels=uniform,skip=2
 *   turboquant_4bit_nc  b4,rot=plain,nc,V-levels=uniform,skip=2
 *   turboquant_k3v4_nc  K-b3/V-b4,rot=plain,nc,V-levels=uniform,skip=2
 *   turboquant_3bit_nc  b3,rot=plain,nc,V-levels=uniform,skip=2
 *
 * Our reading: the levels are those of N(0, 1/d), to which the paper's Beta
 * density tends (fp16's rounding of the norm is a larger error); keys are taken
 * after RoPE; no outlier channels get more bits, as in the paper's 2.5 and 3.5
 * bits. */
#include "kernels/bitpack.h"
#include "kernels/hadamard.h"
#include "kernels/levels/lloyd_max.h"
#include "kernels/random_matrix.h"
#include "kernels/scaled/scaled.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_param params[] = {
    {"b", NULL, 3, 1, 8, false, "bits per coordinate, with the residual's"},
    {"rot", "qr|hadamard|plain", 0, 0, 0, false,
     "random orthogonal matrix, signs and Hadamard transform, or that alone"},
    {"qjl", "no|yes", 0, 0, 0, false,
     "keys: one of the b bits is a sign of the sketched residual"},
    {"nc", "no|yes", 0, 0, 0, false,
     "decoded to the norm it had; vLLM's turboquant_4bit_nc: "
     "b4,rot=plain,nc,V-levels=uniform,skip=2 (k3v4_nc: K-b3/V-b4)"},
    {"levels", "normal|uniform|fp8", 0, 0, 0, false,
     "Lloyd-Max, or not rotated: minimum to maximum, e4m3; turboquant_k8v4: "
     "K-b8/V-b4,K-levels=fp8,V-levels=uniform,skip=2"},
    {"skip", NULL, 0, 0, 1024, false,
     "layers at either end that stay fp16 (vLLM: 2)"},
    {"seed", NULL, 0, 0, 1 << 30, false, "of the random matrices"},
    {0},
};

/* Whether a side is rotated; if not, rot, nc and seed do not affect it. */
static bool turboquant_is_rotated(const struct kv_spec *s, enum kv_side side)
{
    return kv_spec_is(s, side, "levels", "normal");
}

/* Checks rot, nc and seed on a side without rotation: they belong to the other
 * side's rotation or must be the defaults, so that the spec's canonical text is
 * unique. */
static int check_unrotated(struct kv_spec *s, enum kv_side side,
                           struct kv_err *e)
{
    static const char *const words[] = {"rot", "nc", "seed"};
    const enum kv_side other = side == KV_K ? KV_V : KV_K;

    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        if (turboquant_is_rotated(s, other)) {
            if (kv_spec_one_side(s, other, words[i], e))
                return -1;
        } else if (kv_spec_get(s, side, words[i]) != 0) {
            return kv_fail(e,
                           "%s goes with levels=normal: other levels are "
                           "not turned",
                           words[i]);
        }
    }
    return 0;
}

static int turboquant_check(struct kv_spec *s, const struct kv_shape *shape,
                            struct kv_err *e)
{
    if (kv_spec_one_side(s, KV_K, "qjl", e))
        return -1;
    if (kv_spec_is(s, KV_K, "qjl", "yes") && !turboquant_is_rotated(s, KV_K))
        return kv_fail(e, "qjl=yes goes with K-levels=normal alone");
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;

        if (kv_spec_is(s, side, "levels", "fp8") &&
            kv_spec_size(s, side, "b") != 8)
            return kv_fail(e, "levels=fp8 is 8 bits: it wants b8, not b%zu",
                           kv_spec_size(s, side, "b"));
        if (!turboquant_is_rotated(s, side) && check_unrotated(s, side, e))
            return -1;
        kv_spec_set(s, side, "skip",
                    fmin(kv_spec_get(s, side, "skip"),
                         floor((double)shape->n_layers / 2)));
    }
    return 0;
}

/* Skipped layers count with their 16 bits. */
static double turboquant_nominal(const struct kv_spec *s, enum kv_side side,
                                 const struct kv_shape *shape)
{
    const double skipped =
        2 * kv_spec_get(s, side, "skip") / (double)shape->n_layers;

    return skipped * 16 + (1 - skipped) * kv_spec_get(s, side, "b");
}

static size_t turboquant_hadamard(const struct kv_spec *s,
                                  const struct kv_shape *shape)
{
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;

        if (turboquant_is_rotated(s, side) && !kv_spec_is(s, side, "rot", "qr"))
            return shape->head_dim;
    }
    return 0;
}

struct turboquant {
    size_t d;
    unsigned bits; /* bits of a code; 0: only the residual has one */
    bool qjl, nc;
    size_t code_bytes, sign_bytes, head_bytes; /* bytes of one head */
    float level[KV_LLOYD_MAX_LEVELS], threshold[KV_LLOYD_MAX_LEVELS];
    float *r, *rt; /* R and R^T [d][d] */
    float *g, *gt; /* G and G^T [d][d], or NULL */
    bool tiled;    /* `scaled` is valid */
    struct kv_scaled scaled;
};

static void close_turboquant(struct kv_codec *c)
{
    struct turboquant *t = c->state;

    free(t->r);
    free(t->g);
    free(t);
}

/* Scales s [d][d], and appends its transpose. */
static void both(float *s, size_t d, float scale)
{
    kv_row_scale(s, d * d, scale);
    kv_transpose(s, d, d, s + d * d);
}

/* s = sqrt(d) times the Hadamard transform. */
static void make_hadamard(size_t d, float *s)
{
    memset(s, 0, d * d * sizeof(*s));
    for (size_t i = 0; i < d; i++)
        s[i * d + i] = (float)sqrt((double)d);
    kv_hadamard(s, d, d);
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
    else if (kv_spec_is(&c->spec, c->side, "rot", "hadamard"))
        kv_random_hadamard(key, d, t->r);
    else
        make_hadamard(d, t->r);
    both(t->r, d, (float)(1 / sqrt((double)d)));
    if (!t->qjl)
        return;
    t->g = kv_alloc(2 * d, d * sizeof(*t->g));
    t->gt = t->g + d * d;
    kv_random_gaussian(kv_mix(key, 1), d, d, t->g);
    both(t->g, d, 1);
}

/* Fills levels and thresholds; without bits there is one level, 0. */
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

/* Returns |x| / sqrt(d). */
static float rms(const float *x, size_t d)
{
    double sum = 0;

    for (size_t i = 0; i < d; i++)
        sum += (double)x[i] * (double)x[i];
    return (float)sqrt(sum / (double)d);
}

/* Decodes the codes to x [d]; work: [d]. */
static void decode_codes(const struct turboquant *t, const uint8_t *bytes,
                         uint16_t *code, float *work, float *x)
{
    const float size = kv_f16_get(bytes + t->code_bytes);

    memset(code, 0, t->d * sizeof(*code));
    if (t->bits)
        kv_unpack(bytes, t->d, t->bits, code);
    for (size_t i = 0; i < t->d; i++)
        work[i] = size * t->level[code[i]];
    kv_combine_rows(work, t->r, t->d, t->d, x);
}

/* The factor that gives the decoded levels the norm of x: size /
 * rms(levels). */
static float corrected(const struct turboquant *t, const uint16_t *code,
                       float size)
{
    double sum = 0;

    for (size_t i = 0; i < t->d; i++)
        sum += (double)t->level[code[i]] * (double)t->level[code[i]];
    return (float)(size / sqrt(sum / (double)t->d));
}

static void encode_codes(const struct turboquant *t, const float *x,
                         uint16_t *code, float *work, uint8_t *bytes)
{
    uint8_t *head = bytes + t->code_bytes;
    const float size = kv_f16_put(head, rms(x, t->d)); /* final without nc */

    if (!t->bits)
        return;
    kv_combine_rows(x, t->rt, t->d, t->d, work);
    for (size_t i = 0; i < t->d; i++)
        code[i] = kv_lloyd_max_code(t->threshold, t->bits,
                                    size > 0 ? work[i] / size : 0);
    kv_pack(code, t->d, t->bits, bytes);
    if (t->nc)
        kv_f16_put(head, corrected(t, code, size));
}

/* Encodes the residual of x; work: [2][d]. */
static void encode_residual(const struct turboquant *t, const float *x,
                            uint16_t *code, float *work, uint8_t *bytes)
{
    uint8_t *at = bytes + t->code_bytes + 2;
    float *left = work + t->d;

    decode_codes(t, bytes, code, work, left);
    for (size_t i = 0; i < t->d; i++)
        left[i] = x[i] - left[i];
    kv_f16_put(at + t->sign_bytes, rms(left, t->d));
    kv_combine_rows(left, t->gt, t->d, t->d, work);
    for (size_t i = 0; i < t->d; i++)
        code[i] = work[i] < 0;
    kv_pack(code, t->d, 1, at);
}

static void decode_residual(const struct turboquant *t, const uint8_t *bytes,
                            uint16_t *code, float *work, float *x)
{
    const uint8_t *at = bytes + t->code_bytes + 2;
    const double per_sign = sqrt(acos(-1) / 2 / (double)t->d);
    const float size = (float)per_sign * kv_f16_get(at + t->sign_bytes);
    float *sum = work + t->d;

    kv_unpack(at, t->d, 1, code);
    for (size_t i = 0; i < t->d; i++)
        work[i] = code[i] ? -1 : 1;
    kv_combine_rows(work, t->g, t->d, t->d, sum);
    for (size_t i = 0; i < t->d; i++)
        x[i] += size * sum[i];
}

static void turboquant_encode(const struct kv_codec *c, struct kv_where w,
                              const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct turboquant *t = c->state;
    uint16_t *code = kv_alloc(t->d, sizeof(*code));
    float *work = kv_alloc(2 * t->d, sizeof(*work));

    (void)w;
    for (size_t i = 0; i < n_blocks * c->shape.n_kv_heads; i++) {
        encode_codes(t, x, code, work, bytes);
        if (t->qjl)
            encode_residual(t, x, code, work, bytes);
        x += t->d;
        bytes += t->head_bytes;
    }
    free(work);
    free(code);
}

static void turboquant_decode(const struct kv_codec *c, const uint8_t *bytes,
                              size_t n_blocks, float *x)
{
    const struct turboquant *t = c->state;
    uint16_t *code = kv_alloc(t->d, sizeof(*code));
    float *work = kv_alloc(2 * t->d, sizeof(*work));

    for (size_t i = 0; i < n_blocks * c->shape.n_kv_heads; i++) {
        decode_codes(t, bytes, code, work, x);
        if (t->qjl)
            decode_residual(t, bytes, code, work, x);
        x += t->d;
        bytes += t->head_bytes;
    }
    free(work);
    free(code);
}

/* ---- attention on the codes ---------------------------------------------- */

/* Replaces x [rows][d] by x m, with m [d][d]. */
static void turboquant_rotate(const float *m, size_t d, float *x, size_t rows)
{
    float *y = kv_alloc(d, sizeof(*y));

    for (size_t r = 0; r < rows; r++, x += d) {
        kv_combine_rows(x, m, d, d, y);
        memcpy(x, y, d * sizeof(*x));
    }
    free(y);
}

static void turboquant_enter(const void *space, size_t head, float *q,
                             size_t rows)
{
    const struct turboquant *t = space;

    (void)head;
    turboquant_rotate(t->rt, t->d, q, rows);
}

static void leave(const void *space, size_t head, float *out, size_t rows)
{
    const struct turboquant *t = space;

    (void)head;
    turboquant_rotate(t->r, t->d, out, rows);
}

static bool turboquant_store(const struct kv_codec *c, struct kv_store *s)
{
    const struct turboquant *t = c->state;

    if (!t->tiled)
        return false;
    kv_store_scaled(s, &t->scaled);
    s->enter = turboquant_enter;
    s->leave = leave;
    s->space = t;
    return true;
}

static void turboquant_tile(const struct kv_codec *c, const struct kv_store *s,
                            const uint8_t *blocks, size_t first, size_t n,
                            size_t head, uint8_t *tile)
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

/* Opens a side with levels=uniform or levels=fp8. */
static int open_unrotated(struct kv_codec *c)
{
    static const struct kv_scheme unrotated = {
        .name = "turboquant",
        .encode = kv_integers_encode,
        .decode = kv_integers_decode,
        .store = kv_integers_store,
        .tile = kv_integers_tile,
    };

    c->scheme = &unrotated;
    return kv_integers_open(c,
                            kv_spec_is(&c->spec, c->side, "levels", "fp8")
                                ? kv_e4m3_quantizer
                                : &kv_kivi_quantizer,
                            KV_AXIS_TOKEN, c->shape.head_dim, false,
                            (unsigned)kv_spec_size(&c->spec, c->side, "b"));
}

static int open_turboquant(struct kv_codec *c, const struct kv_calib *calib,
                           struct kv_err *e)
{
    const size_t skip = kv_spec_size(&c->spec, c->side, "skip");
    struct turboquant *t;

    if (c->layer < skip || c->layer + skip >= c->shape.n_layers) {
        c->scheme = &kv_scheme_f16;
        return c->scheme->open(c, calib, e);
    }
    if (!turboquant_is_rotated(&c->spec, c->side))
        return open_unrotated(c);
    t = kv_alloc(1, sizeof(*t));
    t->d = c->shape.head_dim;
    t->qjl = c->side == KV_K && kv_spec_is(&c->spec, KV_K, "qjl", "yes");
    t->nc = kv_spec_is(&c->spec, c->side, "nc", "yes");
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

const struct kv_scheme kv_scheme_turboquant = {
    .name = "turboquant",
    .brief = "TurboQuant: rotated at random, Lloyd-Max levels, a norm per head",
    .params = params,
    .coarse = true,
    .check = turboquant_check,
    .nominal = turboquant_nominal,
    .hadamard = turboquant_hadamard,
    .open = open_turboquant,
    .close = close_turboquant,
    .encode = turboquant_encode,
    .decode = turboquant_decode,
    .store = turboquant_store,
    .tile = turboquant_tile,
};
