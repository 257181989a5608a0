/* OSCAR (arXiv 2605.17757): a head's keys and values are rotated by matrices
 * calibrated on attention, then quantized per token, asymmetrically, in groups
 * of g channels with a clipped range.  Keys after RoPE.
 *
 * A layer's rotation is R H P.  R has the eigenvectors of a second moment, a
 * mean over KV heads: of the queries for keys, of v v' weighted by k' (q q') k
 * for values.  H is the Hadamard transform.  P orders the columns: the
 * eigenvalue of rank i, falling, gets the place whose bits are those of i
 * reversed.  The rotation is orthogonal, so rotated queries and keys have
 * unchanged scores.
 *
 * The magnitude of a rotated head is clipped at the value of rank clip d among
 * its d magnitudes.  A group's head is
 *
 *   | scale: bf16 | zero: bf16 |     x = scale (code - zero)
 *
 * with zero = -min / scale, which is not rounded to an integer; codes are
 * chosen with scale and zero before rounding to bf16.  All this follows the
 * published code (its prefill kernel) and its settings: 2 bits, groups of 128
 * channels, clips of 0.96 and 0.92, 64 sinks and 256 newest tokens (in bf16,
 * here fp16); but its scripts store scales and zeros in f32, 2.5 bits.  The
 * code's later Lloyd-Max levels are not implemented.  Like the code, we train
 * on all tokens, first and massive ones included.
 *
 * Table in a calibration: rotation [head_dim][head_dim], per side and layer. */
#include "kernels/eigen.h"
#include "kernels/hadamard.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/moments.h"
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

#include <stdlib.h>

static const struct kv_param params[] = {
    {"b", NULL, 2, 1, 8, false, "bits per code"},
    {"g", NULL, 128, 0, 4096, false, "group: channels of a head; 0: the head"},
    {"clip", NULL, 0.92, 0.01, 1, false,
     "rank of the magnitude at which a head is clipped, of head_dim (keys "
     "0.96, values 0.92)"},
    {0},
};

static double oscar_fallback(const struct kv_spec *s, enum kv_side side,
                             const struct kv_param *p)
{
    (void)s;
    return side == KV_K && !strcmp(p->name, "clip") ? 0.96 : p->fallback;
}

static int oscar_check(struct kv_spec *s, const struct kv_shape *shape,
                       struct kv_err *e)
{
    if (kv_hadamard_size(shape->head_dim) != shape->head_dim)
        return kv_fail(e, "head_dim %zu: expected a power of two",
                       shape->head_dim);
    for (int side = 0; side < KV_SIDES; side++)
        if (kv_integers_fit_row(s, (enum kv_side)side, shape->head_dim, e))
            return -1;
    return 0;
}

static double oscar_nominal(const struct kv_spec *s, enum kv_side side,
                            const struct kv_shape *shape)
{
    (void)shape;
    return kv_spec_get(s, side, "b") + 32 / kv_spec_get(s, side, "g");
}

static size_t oscar_hadamard(const struct kv_spec *s,
                             const struct kv_shape *shape)
{
    (void)s;
    return shape->head_dim;
}

/* ---- calibration --------------------------------------------------------- */

enum { CHUNK = 512 }; /* tokens read at a time */

/* A layer of a dump. */
struct job {
    struct kv_dump *dump;
    const struct kv_dump_info *info;
    size_t layer, n_heads, n_kv_heads, d;
    double *qq; /* [n_kv_heads][d][d]: mean of q q' over a group's queries */
};

static int oscar_read(const struct job *j, enum kv_tensor which, size_t first,
                      size_t n, float *x, struct kv_err *e)
{
    return kv_interrupted(e) ||
                   kv_dump_read(j->dump, j->layer, which, first, n, x, e)
               ? -1
               : 0;
}

/* Sets j->qq, which comes cleared. */
static int measure_queries(const struct job *j, struct kv_err *e)
{
    const size_t tokens = j->info->n_windows * j->info->ctx, dd = j->d * j->d;
    const size_t group = j->n_heads / j->n_kv_heads;
    float *q = kv_alloc(CHUNK, j->n_heads * j->d * sizeof(*q));
    double *sum = kv_alloc(j->n_heads * dd, sizeof(*sum));
    int rc = 0;

    for (size_t first = 0; first < tokens && !rc; first += CHUNK) {
        const size_t n = tokens - first < CHUNK ? tokens - first : CHUNK;

        rc = oscar_read(j, KV_T_Q, first, n, q, e);
        if (!rc)
            kv_moments_add(q, n, j->n_heads, j->d, sum);
    }
    for (size_t i = 0; i < j->n_heads * dd; i++)
        j->qq[i / dd / group * dd + i % dd] +=
            sum[i] / (double)(group * tokens);
    free(sum);
    free(q);
    return rc;
}

/* Multiplies v [n][n_kv_heads][d] by the roots of the weights k' (q q') k, and
 * adds the weights to sum [n_kv_heads]. */
static void weigh(const struct job *j, const float *k, size_t n, float *v,
                  double *sum)
{
    for (size_t i = 0; i < n * j->n_kv_heads; i++) {
        const double *qq = j->qq + i % j->n_kv_heads * j->d * j->d;
        const float *x = k + i * j->d;
        double weight = 0;

        for (size_t a = 0; a < j->d; a++) {
            double y = 0;

            for (size_t b = 0; b < j->d; b++)
                y += qq[a * j->d + b] * (double)x[b];
            weight += y * (double)x[a];
        }
        weight = fmax(weight, 0);
        sum[i % j->n_kv_heads] += weight;
        for (size_t a = 0; a < j->d; a++)
            v[i * j->d + a] *= (float)sqrt(weight);
    }
}

/* Computes moment [d][d], which comes cleared: the second moment of the
 * weighted values, a mean over KV heads. */
static int measure_values(const struct job *j, double *moment, struct kv_err *e)
{
    const size_t tokens = j->info->n_windows * j->info->ctx, dd = j->d * j->d;
    const size_t row = j->n_kv_heads * j->d;
    float *k = kv_alloc(CHUNK, 2 * row * sizeof(*k)), *v = k + CHUNK * row;
    double *sum = kv_alloc(j->n_kv_heads * (dd + 1), sizeof(*sum));
    double *weight = sum + j->n_kv_heads * dd;
    int rc = 0;

    for (size_t first = 0; first < tokens && !rc; first += CHUNK) {
        const size_t n = tokens - first < CHUNK ? tokens - first : CHUNK;

        rc = oscar_read(j, KV_T_K, first, n, k, e) ||
             oscar_read(j, KV_T_V, first, n, v, e);
        if (rc)
            break;
        weigh(j, k, n, v, weight);
        kv_moments_add(v, n, j->n_kv_heads, j->d, sum);
    }
    for (size_t i = 0; i < j->n_kv_heads * dd; i++)
        moment[i % dd] +=
            sum[i] / fmax(weight[i / dd], 1e-12) / (double)j->n_kv_heads;
    free(sum);
    free(k);
    return rc ? -1 : 0;
}

static size_t reversed(size_t i, size_t d)
{
    size_t r = 0;

    for (; d > 1; d /= 2, i /= 2)
        r = 2 * r + i % 2;
    return r;
}

/* Computes rotation [d][d] from moment [d][d], which is overwritten. */
static int rotation_of(double *moment, size_t d, float *rotation,
                       struct kv_err *e)
{
    double *value = kv_alloc(d, sizeof(*value));
    float *r = kv_alloc(d * d, sizeof(*r));
    const int rc = kv_eigen(moment, d, value);

    for (size_t i = 0; i < d * d && !rc; i++)
        r[i] = (float)moment[i];
    if (!rc)
        kv_hadamard(r, d, d);
    for (size_t rank = 0; rank < d && !rc; rank++) /* eigenvalues ascend */
        for (size_t i = 0; i < d; i++)
            rotation[i * d + reversed(rank, d)] = r[i * d + d - 1 - rank];
    free(r);
    free(value);
    return rc ? kv_fail(e, "no eigenvectors: second moments are not finite")
              : 0;
}

static float *add_rotation(struct kv_calib_set *out, enum kv_side side,
                           size_t layer, size_t d)
{
    const size_t dims[] = {d, d};

    return kv_calib_add(out, "rotation", (int)side, (int)layer, KV_ALL, 2, dims)
        ->data;
}

static int calibrate_layer(struct job *j, struct kv_calib_set *out,
                           struct kv_err *e)
{
    const int n_sides = kv_shape_sides(&j->info->shape);
    const size_t d = j->d, dd = d * d;
    double *moment[KV_SIDES] = {kv_alloc(dd, sizeof(**moment)),
                                kv_alloc(dd, sizeof(**moment))};
    int rc;

    j->qq = kv_alloc(j->n_kv_heads * dd, sizeof(*j->qq));
    rc = measure_queries(j, e) ||
         (n_sides > KV_V && measure_values(j, moment[KV_V], e));
    for (size_t i = 0; i < j->n_kv_heads * dd; i++)
        moment[KV_K][i % dd] += j->qq[i] / (double)j->n_kv_heads;
    for (int side = 0; side < n_sides && !rc; side++)
        rc = rotation_of(moment[side], d,
                         add_rotation(out, (enum kv_side)side, j->layer, d), e);
    free(j->qq);
    free(moment[KV_K]);
    free(moment[KV_V]);
    return rc ? -1 : 0;
}

static int oscar_check_dump(const struct kv_spec *s, struct kv_dump *dump,
                            struct kv_err *e)
{
    static const enum kv_tensor wanted[] = {KV_T_Q, KV_T_K, KV_T_V};

    (void)s;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++)
        if (kv_dump_want(dump, wanted[i], e))
            return kv_fail_in(e, wanted[i] == KV_T_V ? "V" : "K");
    return 0;
}

static int oscar_calibrate(const struct kv_spec *s, struct kv_dump *dump,
                           uint64_t seed, struct kv_calib_set *out,
                           struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);

    (void)s;
    (void)seed;
    if (out->progress)
        out->progress->total += info->last_layer - info->first_layer + 1;
    for (size_t l = info->first_layer; l <= info->last_layer; l++) {
        struct job j = {.dump = dump,
                        .info = info,
                        .layer = l,
                        .n_heads = info->shape.n_heads,
                        .n_kv_heads = info->shape.n_kv_heads,
                        .d = info->shape.head_dim};

        if (calibrate_layer(&j, out, e))
            return kv_fail_in(e, "layer %zu", l);
        if (out->progress)
            kv_progress_step(out->progress, 1);
    }
    return 0;
}

/* ---- the codec ----------------------------------------------------------- */

static void put_bf16(uint8_t *at, float x)
{
    const uint16_t half = kv_f32_to_bf16(x);

    memcpy(at, &half, sizeof(half));
}

static float get_bf16(const uint8_t *at)
{
    uint16_t half;

    memcpy(&half, at, sizeof(half));
    return kv_bf16_to_f32(half);
}

static void oscar_encode_group(const float *x, size_t n, unsigned bits,
                               uint8_t *head, uint16_t *code)
{
    const float top = (float)((1u << bits) - 1);
    float min, max, scale, zero;

    kv_group_ends(x, n, &min, &max);
    scale = fmaxf(max - min, 1e-8f) / top;
    zero = -min / scale;
    for (size_t i = 0; i < n; i++)
        code[i] =
            (uint16_t)fminf(fmaxf(floorf(x[i] / scale + zero + 0.5f), 0), top);
    put_bf16(head, scale);
    put_bf16(head + 2, zero + 0.0f); /* no -0 */
}

static void oscar_decode_group(const uint16_t *code, size_t n, unsigned bits,
                               const uint8_t *head, float *x)
{
    const float scale = get_bf16(head), zero = get_bf16(head + 2);

    (void)bits;
    for (size_t i = 0; i < n; i++)
        x[i] = ((float)code[i] - zero) * scale;
}

static const struct kv_group_quantizer quantizer = {
    .head_bytes = 4,
    .encode = oscar_encode_group,
    .decode = oscar_decode_group,
};

struct oscar {
    struct kv_codec integers; /* the same codec, with a state of integers.h */
    float *forward, *back;    /* [d][d]: the rotation, and its transpose */
    size_t rank;              /* index of the clip magnitude among the head's
                               * magnitudes, ascending */
};

static int oscar_by_size(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return x < y ? -1 : x > y;
}

/* Clips a head x [d]; room [d] is workspace. */
static void oscar_clip(float *x, size_t d, size_t rank, float *room)
{
    float most;

    for (size_t i = 0; i < d; i++)
        room[i] = fabsf(x[i]);
    qsort(room, d, sizeof(*room), oscar_by_size);
    most = room[rank];
    for (size_t i = 0; i < d; i++)
        x[i] = fminf(fmaxf(x[i], -most), most);
}

static void oscar_encode(const struct kv_codec *c, struct kv_where w,
                         const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct oscar *o = c->state;
    const size_t d = c->shape.head_dim, n = n_blocks * c->shape.n_kv_heads;
    float *y = kv_alloc(n * d, sizeof(*y)), *room = kv_alloc(d, sizeof(*room));

    kv_vecops_times(x, d, n, o->forward, d, d, d, y, d);
    for (size_t i = 0; i < n; i++)
        oscar_clip(y + i * d, d, o->rank, room);
    kv_integers_encode(&o->integers, w, y, n_blocks, bytes);
    free(room);
    free(y);
}

static void oscar_decode(const struct kv_codec *c, const uint8_t *bytes,
                         size_t n_blocks, float *x)
{
    const struct oscar *o = c->state;
    const size_t d = c->shape.head_dim, n = n_blocks * c->shape.n_kv_heads;
    float *y = kv_alloc(n * d, sizeof(*y));

    kv_integers_decode(&o->integers, bytes, n_blocks, y);
    memset(x, 0, n * d * sizeof(*x));
    kv_vecops_times(y, d, n, o->back, d, d, d, x, d);
    free(y);
}

static void close_oscar(struct kv_codec *c)
{
    struct oscar *o = c->state;

    if (!o)
        return;
    free(o->integers.state);
    free(o->forward);
    free(o->back);
    free(o);
}

static int open_oscar(struct kv_codec *c, const struct kv_calib *calib,
                      struct kv_err *e)
{
    const size_t d = c->shape.head_dim, dims[] = {d, d};
    const struct kv_calib_set *set;
    const struct kv_table *t;
    struct oscar *o;

    if (kv_calib_want_set(&set, calib, &c->spec, e) ||
        !(t = kv_calib_want(c, set, "rotation", 0, 2, dims, e)))
        return -1;
    c->state = o = kv_alloc(1, sizeof(*o));
    o->integers = *c;
    o->rank = (size_t)(kv_spec_get(&c->spec, c->side, "clip") * (double)d);
    o->rank = o->rank < d ? o->rank : d - 1;
    o->forward = kv_alloc(d * d, sizeof(*o->forward));
    o->back = kv_alloc(d * d, sizeof(*o->back));
    for (size_t i = 0; i < d * d; i++) {
        o->forward[i] = t->data[i];
        o->back[i % d * d + i / d] = t->data[i];
    }
    if (kv_integers_open(&o->integers, &quantizer, KV_AXIS_TOKEN,
                         kv_spec_size(&c->spec, c->side, "g"), false,
                         (unsigned)kv_spec_size(&c->spec, c->side, "b")))
        return -1;
    c->block = o->integers.block;
    c->block_bytes = o->integers.block_bytes;
    return 0;
}

const struct kv_scheme kv_scheme_oscar = {
    .name = "oscar",
    .brief = "OSCAR: heads rotated as attention weighs them, clipped integers",
    .params = params,
    .sinks = 64,
    .residual = 256,
    .residual_rule = {KV_SLIDING, KV_SLIDING},
    .coarse = true, /* a flat head is rotated to a spike, and clipped */
    .fallback = oscar_fallback,
    .check = oscar_check,
    .nominal = oscar_nominal,
    .hadamard = oscar_hadamard,
    .training = &(const struct kv_training){.check_dump = oscar_check_dump,
                                            .calibrate = oscar_calibrate},
    .open = open_oscar,
    .close = close_oscar,
    .encode = oscar_encode,
    .decode = oscar_decode,
};
