/* Caches with calibrated scales, one f32 for a layer's keys and one for its
 * values.  ModelOpt makes such scales; vLLM, SGLang and TensorRT-LLM read them
 * from a checkpoint.  Keys after RoPE.  S: the scale; amax: the largest
 * magnitude in the calibration's text, including first and massive tokens.
 *
 *   fp8            | code: e4m3 |                    S = amax / 448
 *                  x = S code: 8 bits
 *   nvfp4          | 16 codes: e2m1 | scale: e4m3 |  S = amax / (6 448)
 *                  x = S scale code, scale = max|x| / 6 S: 4.5 bits
 *   nvfp4_4over6   the same, S = amax / (6 256); the scale is max|x| / 6 S or
 *                  max|x| / 4 S, whichever has the smaller squared error (the
 *                  first on ties)
 *   nvfp4_rotate   the same as nvfp4, keys rotated by the Hadamard transform
 *   fp8_affine,    a bias is subtracted, the mean of each channel of each head
 *   nvfp4_affine   over the text, and S is computed afterwards
 *
 * (ModelOpt's export raises S of fp8 to at least 1.  The schemes fp8,none and
 * nvfp4 have S = 1.  It is our reading that S is computed after the bias is
 * subtracted.)
 *
 * Without a calibration fp8 has the scales that the model's files hold
 * (lib/shape.h).
 *
 * Tables in a calibration, per side and layer: scale [1]; bias [KV
 * heads][head_dim] of affine types. */
#include "kernels/hadamard.h"
#include "kernels/scaled/minifloat.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

#include <stdlib.h>

enum { GROUP = 16, CHUNK = 512 /* tokens read at a time */ };

static const struct kv_param params[] = {
    {"type", "fp8|nvfp4|nvfp4_4over6|nvfp4_rotate|fp8_affine|nvfp4_affine", 1,
     0, 0, true, "of the cache"},
    {0},
};

static bool has(const struct kv_spec *s, const char *what)
{
    const struct kv_param *p = kv_spec_param(s->scheme, 0);
    const char *at = p->choices;

    for (size_t i = kv_spec_size(s, KV_K, "type"); i; i--)
        at = strchr(at, '|') + 1;

    const size_t n = strcspn(at, "|"), m = strlen(what);

    for (size_t i = 0; i + m <= n; i++)
        if (!memcmp(at + i, what, m))
            return true;
    return false;
}

static bool is_rotated(const struct kv_spec *s, enum kv_side side)
{
    return side == KV_K && has(s, "rotate");
}

static int modelopt_check(struct kv_spec *s, const struct kv_shape *shape,
                          struct kv_err *e)
{
    if (kv_spec_one_side(s, KV_K, "type", e))
        return -1;
    if (has(s, "nvfp4") && shape->head_dim % GROUP)
        return kv_fail(e, "head_dim %zu: expected a multiple of %d",
                       shape->head_dim, GROUP);
    if (is_rotated(s, KV_K) &&
        kv_hadamard_size(shape->head_dim) != shape->head_dim)
        return kv_fail(e, "head_dim %zu: expected a power of two",
                       shape->head_dim);
    return 0;
}

static double modelopt_nominal(const struct kv_spec *s, enum kv_side side,
                               const struct kv_shape *shape)
{
    (void)side;
    (void)shape;
    return has(s, "fp8") ? 8 : 4.5;
}

static size_t modelopt_hadamard(const struct kv_spec *s,
                                const struct kv_shape *shape)
{
    return is_rotated(s, KV_K) ? shape->head_dim : 0;
}

/* ---- calibration --------------------------------------------------------- */

/* A side of a layer. */
struct job {
    const struct kv_spec *spec;
    struct kv_dump *dump;
    const struct kv_dump_info *info;
    size_t layer, row;
    enum kv_side side;
};

static enum kv_tensor modelopt_tensor(enum kv_side side)
{
    return side == KV_K ? KV_T_K : KV_T_V;
}

static int modelopt_read(const struct job *j, size_t first, size_t n, float *x,
                         struct kv_err *e)
{
    return kv_interrupted(e) ||
                   kv_dump_read(j->dump, j->layer, modelopt_tensor(j->side),
                                first, n, x, e)
               ? -1
               : 0;
}

/* Computes mean [row], which comes cleared. */
static int channel_means(const struct job *j, float *mean, struct kv_err *e)
{
    const size_t tokens = j->info->n_windows * j->info->ctx;
    float *x = kv_alloc(CHUNK, j->row * sizeof(*x));
    double *sum = kv_alloc(j->row, sizeof(*sum));
    int rc = 0;

    for (size_t t = 0; t < tokens && !rc; t += CHUNK) {
        const size_t n = tokens - t < CHUNK ? tokens - t : CHUNK;

        rc = modelopt_read(j, t, n, x, e);
        for (size_t i = 0; i < n * j->row && !rc; i++)
            sum[i % j->row] += (double)x[i];
    }
    for (size_t i = 0; i < j->row; i++)
        mean[i] = (float)(sum[i] / (double)tokens);
    free(sum);
    free(x);
    return rc;
}

/* *amax: the largest magnitude of the values that are quantized; bias [row] or
 * NULL. */
static int largest(const struct job *j, const float *bias, float *amax,
                   struct kv_err *e)
{
    const size_t tokens = j->info->n_windows * j->info->ctx;
    const size_t d = j->info->shape.head_dim;
    float *x = kv_alloc(CHUNK, j->row * sizeof(*x));
    int rc = 0;

    *amax = 0;
    for (size_t t = 0; t < tokens && !rc; t += CHUNK) {
        const size_t n = tokens - t < CHUNK ? tokens - t : CHUNK;

        if ((rc = modelopt_read(j, t, n, x, e)))
            break;
        for (size_t i = 0; bias && i < n * j->row; i++)
            x[i] -= bias[i % j->row];
        if (is_rotated(j->spec, j->side))
            kv_hadamard(x, n * j->row / d, d);
        *amax = fmaxf(*amax, kv_group_max_abs(x, n * j->row));
    }
    free(x);
    return rc;
}

static int modelopt_train(const struct job *j, struct kv_calib_set *out,
                          struct kv_err *e)
{
    const size_t one = 1,
                 dims[] = {j->info->shape.n_kv_heads, j->info->shape.head_dim};
    const float top = has(j->spec, "fp8")      ? 448
                      : has(j->spec, "4over6") ? 6 * 256
                                               : 6 * 448;
    float *bias = NULL, amax;

    if (has(j->spec, "affine")) {
        bias = kv_calib_add(out, "bias", (int)j->side, (int)j->layer, KV_ALL, 2,
                            dims)
                   ->data;
        if (channel_means(j, bias, e))
            return -1;
    }
    if (largest(j, bias, &amax, e))
        return -1;
    kv_calib_add(out, "scale", (int)j->side, (int)j->layer, KV_ALL, 1, &one)
        ->data[0] = amax > 0 ? amax / top : 1;
    return 0;
}

static int modelopt_check_dump(const struct kv_spec *s, struct kv_dump *dump,
                               struct kv_err *e)
{
    (void)s;
    for (int side = 0; side < KV_SIDES; side++)
        if (kv_dump_want(dump, modelopt_tensor((enum kv_side)side), e))
            return kv_fail_in(e, "%c", kv_side_name((enum kv_side)side));
    return 0;
}

static int modelopt_calibrate(const struct kv_spec *s, struct kv_dump *dump,
                              uint64_t seed, struct kv_calib_set *out,
                              struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    struct job j = {.spec = s,
                    .dump = dump,
                    .info = info,
                    .row = info->shape.n_kv_heads * info->shape.head_dim};

    (void)seed;
    if (out->progress)
        out->progress->total += info->last_layer - info->first_layer + 1;
    for (j.layer = info->first_layer; j.layer <= info->last_layer; j.layer++) {
        for (int side = 0; side < kv_shape_sides(&info->shape); side++) {
            j.side = (enum kv_side)side;
            if (modelopt_train(&j, out, e))
                return kv_fail_in(e, "layer %zu, %c", j.layer,
                                  kv_side_name(j.side));
        }
        if (out->progress)
            kv_progress_step(out->progress, 1);
    }
    return 0;
}

/* ---- the codec ----------------------------------------------------------- */

/* Encodes a group with this scale; returns the squared error. */
static double try_scale(const float *x, size_t n, float scale, uint8_t *head,
                        uint16_t *code)
{
    float back[GROUP];
    uint16_t stored;
    double sum = 0;

    kv_minifloat_encode(&kv_e4m3, &scale, 1, 1, &stored);
    stored = (uint16_t)(stored || scale == 0 ? stored : 1);
    *head = (uint8_t)stored;
    kv_minifloat_decode(&kv_e4m3, &stored, 1, 1, &scale);
    kv_minifloat_encode(&kv_e2m1, x, n, scale, code);
    kv_minifloat_decode(&kv_e2m1, code, n, scale, back);
    for (size_t i = 0; i < n; i++)
        sum += pow((double)x[i] - (double)back[i], 2);
    return sum;
}

static void decode_4over6(const uint16_t *code, size_t n, unsigned bits,
                          const uint8_t *head, float *x)
{
    kv_nvfp4_quantizer->decode(code, n, bits, head, x);
}

static void encode_4over6(const float *x, size_t n, unsigned bits,
                          uint8_t *head, uint16_t *code)
{
    const float most = kv_group_max_abs(x, n);
    uint16_t other[GROUP];
    uint8_t other_head;

    (void)bits;
    if (try_scale(x, n, most / 4, &other_head, other) <
        try_scale(x, n, most / 6, head, code)) {
        *head = other_head;
        memcpy(code, other, n * sizeof(*code));
    }
}

static const struct kv_group_quantizer of_two_scales = {
    .head_bytes = 1, .encode = encode_4over6, .decode = decode_4over6};

struct modelopt {
    struct kv_codec integers; /* the same codec, with a state of integers.h */
    float scale, *bias;       /* [row], or NULL */
    bool rotated;
};

static void modelopt_encode(const struct kv_codec *c, struct kv_where w,
                            const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct modelopt *m = c->state;
    const size_t row = kv_codec_row(c), d = c->shape.head_dim;
    float *y = kv_alloc(n_blocks * row, sizeof(*y));

    for (size_t i = 0; i < n_blocks * row; i++)
        y[i] = x[i] - (m->bias ? m->bias[i % row] : 0);
    if (m->rotated)
        kv_hadamard(y, n_blocks * row / d, d);
    for (size_t i = 0; i < n_blocks * row; i++)
        y[i] /= m->scale;
    kv_integers_encode(&m->integers, w, y, n_blocks, bytes);
    free(y);
}

static void modelopt_decode(const struct kv_codec *c, const uint8_t *bytes,
                            size_t n_blocks, float *x)
{
    const struct modelopt *m = c->state;
    const size_t row = kv_codec_row(c), d = c->shape.head_dim;

    kv_integers_decode(&m->integers, bytes, n_blocks, x);
    for (size_t i = 0; i < n_blocks * row; i++)
        x[i] *= m->scale;
    if (m->rotated)
        kv_hadamard(x, n_blocks * row / d, d);
    for (size_t i = 0; m->bias && i < n_blocks * row; i++)
        x[i] += m->bias[i % row];
}

static void close_modelopt(struct kv_codec *c)
{
    struct modelopt *m = c->state;

    if (!m)
        return;
    free(m->integers.state);
    free(m->bias);
    free(m);
}

/* Loads the scale from the model's files. */
static int load_own(struct modelopt *m, const struct kv_codec *c,
                    struct kv_err *e)
{
    m->scale = c->shape.cache_scale[c->side];
    return m->scale > 0
               ? 0
               : kv_fail(e,
                         "the model has scales of an fp8 cache, but no single "
                         "one of layer %zu, %c",
                         c->layer, kv_side_name(c->side));
}

/* Loads the scale and the bias. */
static int load_tables(struct modelopt *m, const struct kv_codec *c,
                       const struct kv_calib *calib, struct kv_err *e)
{
    const size_t one = 1, row = kv_codec_row(c);
    const size_t dims[] = {c->shape.n_kv_heads, c->shape.head_dim};
    const struct kv_calib_set *set;
    const struct kv_table *t;

    if (c->shape.cache_scale && kv_spec_is(&c->spec, KV_K, "type", "fp8") &&
        (!calib || !kv_calib_find(calib, &c->spec)))
        return load_own(m, c, e);
    if (kv_calib_want_set(&set, calib, &c->spec, e) ||
        !(t = kv_calib_want(c, set, "scale", 0, 1, &one, e)))
        return -1;
    m->scale = t->data[0];
    if (!has(&c->spec, "affine"))
        return 0;
    if (!(t = kv_calib_want(c, set, "bias", 0, 2, dims, e)))
        return -1;
    m->bias = kv_alloc(row, sizeof(*m->bias));
    memcpy(m->bias, t->data, row * sizeof(*m->bias));
    return 0;
}

static int open_modelopt(struct kv_codec *c, const struct kv_calib *calib,
                         struct kv_err *e)
{
    const bool eight = has(&c->spec, "fp8");
    struct modelopt *m = kv_alloc(1, sizeof(*m));

    c->state = m;
    m->integers = *c;
    m->integers.state = NULL;
    m->rotated = is_rotated(&c->spec, c->side);
    if (load_tables(m, c, calib, e))
        return -1;
    if (kv_integers_open(&m->integers,
                         eight                     ? kv_e4m3_quantizer
                         : has(&c->spec, "4over6") ? &of_two_scales
                                                   : kv_nvfp4_quantizer,
                         KV_AXIS_TOKEN, eight ? c->shape.head_dim : GROUP,
                         false, eight ? 8 : 4))
        return -1;
    c->block = m->integers.block;
    c->block_bytes = m->integers.block_bytes;
    return 0;
}

const struct kv_scheme kv_scheme_modelopt = {
    .name = "modelopt",
    .brief = "ModelOpt, vLLM: fp8 or nvfp4 with a calibrated scale, or a bias",
    .params = params,
    .coarse = true,
    .check = modelopt_check,
    .nominal = modelopt_nominal,
    .hadamard = modelopt_hadamard,
    .training = &(const struct kv_training){.check_dump = modelopt_check_dump,
                                            .calibrate = modelopt_calibrate},
    .open = open_modelopt,
    .close = close_modelopt,
    .encode = modelopt_encode,
    .decode = modelopt_decode,
};
