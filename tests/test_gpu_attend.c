/* kernels/cuda: decode attention on the device against attention in double
 * over what the cache decodes to.  Here the device is the host twin of
 * tests/gpu_twin.h; scripts/gpu-check runs the same test on a GPU. */
#include "kernels/cuda/codebook.h"
#include "kernels/cuda/gpu_attend.h"
#include "kernels/cuda/nuq_codes.h"
#include "kernels/tiles_nuq.h"
#include "lib/base/half.h"
#include "lib/cache.h"
#include "lib/mixed.h"
#include "lib/rope.h"
#include "lib/tiled.h"
#include "tests/attention_setup.h"

static struct kv_device device;

static float to_f16(float x)
{
    return kv_f16_to_f32(kv_f32_to_f16(x));
}

static float to_bf16(float x)
{
    return kv_bf16_to_f32(kv_f32_to_bf16(x));
}

/* As a GPU does it with halves: queries, keys, values and weights rounded,
 * sums in f32. */
static void plain_halves(const float *q, const float *k, const float *v,
                         size_t n, size_t stride, size_t d, float scale,
                         float (*half)(float), float *out)
{
    float *w = kv_alloc(n, sizeof(*w)), max = -INFINITY, sum = 0;

    for (size_t t = 0; t < n; t++) {
        w[t] = 0;
        for (size_t c = 0; c < d; c++)
            w[t] += half(q[c] * scale) * half(k[t * stride + c]);
        max = fmaxf(max, w[t]);
    }
    memset(out, 0, d * sizeof(*out));
    for (size_t t = 0; t < n; t++) {
        w[t] = expf(w[t] - max);
        sum += w[t];
        for (size_t c = 0; c < d; c++)
            out[c] += half(w[t]) * half(v[t * stride + c]);
    }
    for (size_t c = 0; c < d; c++)
        out[c] /= sum;
    free(w);
}

static void plain_f16(const float *q, const float *k, const float *v, size_t n,
                      size_t stride, size_t d, float scale, float *out)
{
    plain_halves(q, k, v, n, stride, d, scale, to_f16, out);
}

static void plain_bf16(const float *q, const float *k, const float *v, size_t n,
                       size_t stride, size_t d, float scale, float *out)
{
    plain_halves(q, k, v, n, stride, d, scale, to_bf16, out);
}

/* What int8 may be off by beside a scheme's own error. */
static const double INT8_BOUND = 0.03;

/* ---- integers of 8 bits in groups, path int8, in plain C ------------------
 */

/* A value of a store of groups of 8 bits as integers meet it: step * code +
 * middle, code signed. */
struct signed_code {
    float code, step, middle;
};

/* The first n tokens of a KV head: [n][head_dim]. */
static struct signed_code *signed_codes(const struct kv_store *s, size_t head,
                                        size_t n)
{
    const struct kv_grouped *g = s->params;
    const float zero = g->offset == KV_OFFSET_SAME ? g->zero : 128;
    struct signed_code *all = kv_alloc(n * s->head_dim, sizeof(*all));

    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < s->head_dim; c++) {
            const uint8_t *tile = kv_store_tile(s, head, t / KV_TILE_TOKENS);
            const size_t in = t % KV_TILE_TOKENS;
            struct signed_code *x = &all[t * s->head_dim + c];
            float offset;

            kv_store_group(s, head, tile, in, c, &x->step, &offset);
            x->code = (float)kv_store_code(s, tile, in, c) - zero;
            x->middle = g->offset == KV_OFFSET_LOW ? offset + zero * x->step
                                                   : (zero - offset) * x->step;
        }
    return all;
}

/* x in integers up to `most`; gives what they are times. */
static float to_integers(float *x, size_t n, float most)
{
    float max = 0;

    for (size_t i = 0; i < n; i++)
        max = fmaxf(max, fabsf(x[i]));
    for (size_t i = 0; i < n && max > 0; i++)
        x[i] = rintf(x[i] * (most / max));
    return max / most;
}

/* q . k, so many channels of which are rounded together: times steps (folded),
 * or of one step. */
static float int8_score(const struct signed_code *k, const float *q, size_t n,
                        bool folded)
{
    float w[KV_GPU_MAX_DIM], sum = 0, rest = 0;

    for (size_t c = 0; c < n; c++) {
        w[c] = q[c] * (folded ? k[c].step : 1);
        rest += q[c] * k[c].middle;
    }

    const float unit = to_integers(w, n, 127);

    for (size_t c = 0; c < n; c++)
        sum += w[c] * k[c].code;
    return sum * unit * (folded ? 1 : k->step) + rest;
}

enum { INT8_TOKENS = 32 /* whose weights are rounded together */ };

/* out += p v of so many tokens. */
static void int8_gather(const struct signed_code *v, size_t d, const float *p,
                        float *out)
{
    for (size_t c = 0; c < d; c++) {
        float w[INT8_TOKENS], sum = 0;

        for (size_t i = 0; i < INT8_TOKENS; i++) {
            w[i] = p[i] * v[i * d + c].step;
            out[c] += p[i] * v[i * d + c].middle;
        }

        const float unit = to_integers(w, INT8_TOKENS, 255);

        for (size_t i = 0; i < INT8_TOKENS; i++)
            sum += w[i] * v[i * d + c].code;
        out[c] += sum * unit;
    }
}

/* A KV head's tokens: codes [first, end), which fill tiles of 128 on both
 * sides, and all as floats, rows `stride` apart. */
struct int8_head {
    const struct kv_tiles_job *j;
    size_t first, end, stride;
    struct signed_code *k_codes, *v_codes;
    const float *k, *v;
};

/* One query, which sees n tokens. */
static void int8_query(const struct int8_head *h, const float *q, size_t n,
                       float *out)
{
    const struct kv_grouped *g = h->j->k[1].params;
    const size_t d = h->j->head_dim;
    const size_t len = !g->folded && g->n_runs > 1 ? g->run : d;
    float *p = kv_alloc(h->end + n, sizeof(*p)), max = -INFINITY, sum = 0;

    memset(p, 0, (h->end + n) * sizeof(*p));
    memset(out, 0, d * sizeof(*out));
    for (size_t t = 0; t < n; t++) {
        if (t >= h->first && t < h->end)
            for (size_t c = 0; c < d; c += len)
                p[t] += int8_score(&h->k_codes[(t - h->first) * d + c], q + c,
                                   len, g->folded);
        else
            for (size_t c = 0; c < d; c++)
                p[t] += q[c] * h->k[t * h->stride + c];
        p[t] *= h->j->scale;
        max = fmaxf(max, p[t]);
    }
    for (size_t t = 0; t < n; t++) {
        p[t] = expf(p[t] - max);
        sum += p[t];
        for (size_t c = 0; c < d && (t < h->first || t >= h->end); c++)
            out[c] += p[t] * h->v[t * h->stride + c];
    }
    for (size_t t = h->first; t < h->end; t += INT8_TOKENS)
        int8_gather(&h->v_codes[(t - h->first) * d], d, p + t, out);
    for (size_t c = 0; c < d; c++)
        out[c] /= sum;
    free(p);
}

static void plain_int8(const struct kv_tiles_job *j, const struct attention *a,
                       float *out)
{
    const size_t d = j->head_dim, group = j->n_heads / j->n_kv_heads;
    const size_t both = j->k[1].n < j->v[1].n ? j->k[1].n : j->v[1].n;
    const size_t n = both / KV_GPU_TILE * KV_GPU_TILE;

    for (size_t head = 0; head < j->n_kv_heads; head++) {
        const struct int8_head h = {
            .j = j,
            .first = j->k[0].n,
            .end = j->k[0].n + n,
            .stride = j->n_kv_heads * d,
            .k_codes = signed_codes(&j->k[1], head, n),
            .v_codes = signed_codes(&j->v[1], head, n),
            .k = a->k + head * d,
            .v = a->v + head * d,
        };

        for (size_t i = 0; i < a->nq * group; i++) {
            const size_t at = i / group * j->n_heads + head * group + i % group;

            int8_query(&h, a->q + at * d, a->n - a->nq + i / group + 1,
                       out + at * d);
        }
        free(h.k_codes);
        free(h.v_codes);
    }
}

/* What may be on the edge of two integers. */
static const double INTEGERS_BOUND = 1e-4;

/* Whether plain_int8() is what runs. */
static bool is_int8_groups(const struct kv_tiles_job *j)
{
    const struct kv_grouped *g = j->k[1].params;

    return j->k[1].family == &kv_family_grouped && g->bits == 8 &&
           !j->k[1].enter;
}

/* Whether no token is attended to in halves. */
static bool all_codes(const struct kv_tiles_job *j)
{
    return j->k[1].n == j->n && j->v[1].n == j->n && j->n % KV_GPU_TILE == 0;
}

/* What hack may be off by from its own attention: the order of sums, and a
 * weight that another order rounds to the next integer, where all tokens are
 * codes; else tokens between codes and tail are halves here, whose queries are
 * not rounded. */
static double hack_bound(const struct kv_tiles_job *j)
{
    return all_codes(j) ? 3e-4 : 1e-2;
}

/* What attends: the best that is there on a path, or one that is asked for. */
enum way { BY_EXACT, BY_INT8, BY_GENERIC, BY_DEQUANT };

static int open_by(enum way way, const struct kv_tiles_job *jobs, size_t n_jobs,
                   struct kv_gpu_attend **g, struct kv_err *e)
{
    switch (way) {
    case BY_GENERIC:
        return kv_gpu_attend_new_generic(g, &device, jobs, n_jobs, e);
    case BY_DEQUANT:
        return kv_gpu_attend_new_dequant(g, &device, jobs, n_jobs, e);
    case BY_EXACT:
    case BY_INT8:
        break;
    }
    return kv_gpu_attend_new(g, &device, jobs, n_jobs,
                             way == BY_INT8 ? KV_PATH_INT8 : KV_PATH_EXACT, e);
}

/* Two sequences, the same tokens: their answers are the same. */
static void check_way(const char *what, const struct kv_cache *c,
                      const struct kv_tiled *t, const struct attention *a,
                      enum way way)
{
    const bool own =
        kv_cache_reader(c, KV_K).codec->scheme->flags & KV_OWN_ORACLE;
    const enum kv_path path = way == BY_INT8 || (own && way == BY_GENERIC)
                                  ? KV_PATH_INT8
                                  : KV_PATH_EXACT;
    /* The second finds no traces of the first; once is enough. */
    const int runs = a->n == 129 ? 2 : 1;
    const size_t n = a->nq * a->shape.n_heads * a->shape.head_dim;
    struct kv_tiles_job job = kv_tiled_job(t, a->nq);
    struct kv_store *stores = kv_alloc(2 * KV_MAX_RUNS, sizeof(*stores));
    float *exact = kv_alloc(n, sizeof(float));
    float *plain = kv_alloc(n, sizeof(float));
    float *q = kv_alloc(2 * n, sizeof(float));
    float *out = kv_alloc(2 * n, sizeof(float));
    struct kv_gpu_attend *g;
    struct kv_err e = {""};

    if (own)
        kv_cache_attend(c, a->q, a->nq, exact);
    else
        attend_exact(a, exact);
    attend_by(way == BY_EXACT && !strncmp(what, "bf16", 4) ? plain_bf16
                                                           : plain_f16,
              a, plain);
    for (size_t i = 0; i < 2; i++)
        memcpy(q + i * n, a->q, n * sizeof(*q));
    memcpy(stores, job.k, KV_MAX_RUNS * sizeof(*stores));
    memcpy(stores + KV_MAX_RUNS, job.v, KV_MAX_RUNS * sizeof(*stores));
    job.k = stores;
    job.v = stores + KV_MAX_RUNS;

    const struct kv_tiles_job jobs[2] = {job, job};
    const double hack = hack_bound(&job);
    const bool groups = way == BY_INT8 && is_int8_groups(&job);
    const double of_halves = all_codes(&job) ? 0 : 2 * rel_err(plain, exact, n);
    float *integers = groups ? kv_alloc(n, sizeof(*integers)) : NULL;

    if (groups)
        plain_int8(&job, a, integers);

    if (open_by(way, jobs, 2, &g, &e))
        fail_msg("%s: %s", what, e.msg);
    /* nobody may want the stores from here on */
    memset(stores, 0xee, 2 * KV_MAX_RUNS * sizeof(*stores));
    free(stores);
    if (kv_gpu_attend_path(g) == path)
        for (int run = 0; run < runs; run++) {
            const double bound = own ? hack
                                 : path == KV_PATH_INT8
                                     ? INT8_BOUND
                                     : 2 * rel_err(plain, exact, n) + 1e-6;

            memset(out, 0xff, 2 * n * sizeof(*out));
            if (kv_gpu_attend_ask(g, q, &e) || kv_gpu_attend_launch(g, &e) ||
                kv_gpu_attend_answer(g, out, &e))
                fail_msg("%s: %s", what, e.msg);
            if (!(rel_err(out, exact, n) <= bound))
                fail_msg("%s, %zu tokens, %zu queries, head_dim %zu, group "
                         "%zu, %s: error %g, expected at most %g",
                         what, a->n, a->nq, a->shape.head_dim,
                         a->shape.n_heads / a->shape.n_kv_heads,
                         kv_gpu_attend_name(g), rel_err(out, exact, n), bound);
            if (groups &&
                !(rel_err(out, integers, n) <= of_halves + INTEGERS_BOUND))
                fail_msg("%s, %zu tokens, head_dim %zu: %g from what plain C "
                         "makes of the same integers",
                         what, a->n, a->shape.head_dim,
                         rel_err(out, integers, n));
            assert_memory_equal(out, out + n, n * sizeof(*out));
        }
    kv_gpu_attend_free(g);
    free(integers);
    free(out);
    free(q);
    free(plain);
    free(exact);
}

enum { TILE = 128, LONG = 3500 /* some warps have three tiles */ };

/* Rows of tiles side by side are of sizes far apart. */
static void vary(const struct kv_shape *s, float *x, size_t n, float most)
{
    const size_t row = s->n_kv_heads * s->head_dim;

    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < row; c++)
            x[t * row + c] *= ldexpf(most, -(int)(t / TILE * 5 % 7));
}

/* What the calibration is of.  Far from it, coefficients are the last of their
 * tables in every token, and so is what rounding these does. */
static void alike(const struct kv_shape *s, float *x, size_t n,
                  enum kv_tensor tensor)
{
    const uint64_t layer = 2000; /* as in synthetic_dump() */

    synthetic_rows(s, s->n_kv_heads, layer + (tensor == KV_T_V ? 20 : 30), n,
                   x);
}

/* A cache of n made-up tokens, and its tiles. */
struct rig {
    struct tensors x;
    struct kv_codec *codec[KV_SIDES];
    struct kv_cache *cache;
    struct kv_tiled *tiled;
};

static struct rig rig(const char *text, const struct kv_shape *s, size_t n,
                      struct kv_calib **calib)
{
    struct rig r = {.x = tensors(s, n)};
    struct kv_spec spec;
    struct kv_err e = {""};

    if (!strncmp(text, "klt", 3)) {
        alike(s, r.x.k, n, KV_T_K_PRE);
        alike(s, r.x.v, n, KV_T_V);
    } else if (n >= LONG) {
        vary(s, r.x.k, n, 1);
        vary(s, r.x.v, n, 1000);
    }
    if (kv_spec_parse(&spec, text, &e) || kv_spec_fit(&spec, s, &e))
        fail_msg("%s: %s", text, e.msg);
    if (kv_spec_calibrated(&spec) &&
        !(*calib && kv_calib_find(*calib, &spec))) {
        kv_calib_free(*calib);
        *calib = synthetic_calib(s, &spec, test_folder());
    }
    for (int side = 0; side < KV_SIDES; side++)
        if (kv_codec_new(&r.codec[side], &spec, s, 1, (enum kv_side)side,
                         *calib, &e))
            fail_msg("%s: %s", text, e.msg);
    if (kv_cache_new(&r.cache, r.codec[KV_K], r.codec[KV_V], 5, &e) ||
        kv_cache_append(r.cache, r.x.q, r.x.k, r.x.v, n, &e))
        fail_msg("%s: %s", text, e.msg);
    r.tiled = kv_tiled_new(r.cache);
    kv_tiled_update(r.tiled);
    return r;
}

static void rig_clear(struct rig *r)
{
    kv_tiled_free(r->tiled);
    kv_cache_free(r->cache);
    for (int side = 0; side < KV_SIDES; side++)
        kv_codec_free(r->codec[side]);
    free_tensors(r->x);
}

/* Which kernel it is, of this path. */
static void check_path(const char *text, size_t head_dim, enum kv_path path,
                       const char *name)
{
    const struct kv_shape s = synthetic_shape(head_dim);
    struct kv_calib *calib = NULL;
    struct rig r = rig(text, &s, 10, &calib);
    const struct kv_tiles_job job = kv_tiled_job(r.tiled, 1);
    struct kv_gpu_attend *g;
    struct kv_err e = {""};

    if (kv_gpu_attend_new(&g, &device, &job, 1, path, &e))
        fail_msg("%s: %s", text, e.msg);
    if (strcmp(kv_gpu_attend_name(g), name))
        fail_msg("%s, head_dim %zu: path %s, expected %s", text, head_dim,
                 kv_gpu_attend_name(g), name);
    kv_gpu_attend_free(g);
    rig_clear(&r);
    kv_calib_free(calib);
}

static void check_name(const char *text, size_t head_dim, const char *name)
{
    check_path(text, head_dim, KV_PATH_EXACT, name);
}

/* On ways [first, last]. */
static void check_by(const char *text, const struct kv_shape *s, size_t n,
                     size_t nq, enum way first, enum way last,
                     struct kv_calib **calib)
{
    const size_t row = s->n_kv_heads * s->head_dim;
    struct rig r = rig(text, s, n, calib);
    float *k = kv_alloc(n, row * sizeof(*k)),
          *v = kv_alloc(n, row * sizeof(*v));
    const struct attention a = {.shape = *s,
                                .n = n,
                                .nq = nq,
                                .q =
                                    r.x.q + (n - nq) * s->n_heads * s->head_dim,
                                .k = k,
                                .v = v};

    kv_cache_decode(r.cache, KV_K, k);
    kv_cache_decode(r.cache, KV_V, v);
    if (r.codec[KV_K]->pre_rope)
        kv_rope(s, k, n, s->n_kv_heads, 0);
    for (int way = (int)first; way <= (int)last; way++)
        check_way(text, r.cache, r.tiled, &a, (enum way)way);
    free(v);
    free(k);
    rig_clear(&r);
}

static void check(const char *text, const struct kv_shape *s, size_t n,
                  size_t nq, struct kv_calib **calib)
{
    check_by(text, s, n, nq, BY_EXACT, BY_INT8, calib);
}

/* What has no kernel says what it is. */
static void check_missing(const char *text, size_t head_dim, const char *says)
{
    const struct kv_shape s = synthetic_shape(head_dim);
    struct kv_calib *calib = NULL;
    struct rig r = rig(text, &s, 10, &calib);
    const struct kv_tiles_job job = kv_tiled_job(r.tiled, 1);
    struct kv_gpu_attend *g;
    struct kv_err e = {""};

    assert_int_not_equal(
        kv_gpu_attend_new(&g, &device, &job, 1, KV_PATH_EXACT, &e), 0);
    if (!strstr(e.msg, says))
        fail_msg("%s: \"%s\" does not say \"%s\"", text, e.msg, says);
    rig_clear(&r);
    kv_calib_free(calib);
}

/* One below, at and above a tile; queries of which some are in codes. */
static const struct {
    size_t n, nq;
} sizes[] = {{1, 1}, {127, 1}, {128, 3}, {129, 1}, {400, 8}, {1300, 2}};

static void check_sizes(const char *text, size_t head_dim, size_t group)
{
    struct kv_shape s = synthetic_shape(head_dim);
    struct kv_calib *calib = NULL;

    s.n_heads = s.n_kv_heads * group;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        check(text, &s, sizes[i].n, sizes[i].nq, &calib);
    kv_calib_free(calib);
}

static void check_long(const char *text, size_t head_dim, size_t group)
{
    struct kv_shape s = synthetic_shape(head_dim);
    struct kv_calib *calib = NULL;

    s.n_heads = s.n_kv_heads * group;
    check(text, &s, LONG, 2, &calib);
    kv_calib_free(calib);
}

/* 2 tiles of codes and a rest, of 4 and of 12 rows: tests of every kernel that
 * is listed. */
static void check_kernels(const char *text, size_t head_dim)
{
    struct kv_shape s = synthetic_shape(head_dim);
    struct kv_calib *calib = NULL;

    s.n_heads = s.n_kv_heads * 4;
    check(text, &s, 300, 1, &calib);
    check(text, &s, 300, 3, &calib);
    kv_calib_free(calib);
}

static void test_float(void **state)
{
    static const size_t dims[] = {64, 96, 128, 256};

    (void)state;
    for (size_t i = 0; i < sizeof(dims) / sizeof(*dims); i++) {
        check_sizes("f16:r0", dims[i], 4);
        check_sizes("f16:s3r40", dims[i], i == 2 ? 16 : 1);
        check_kernels("bf16", dims[i]);
    }
    check_sizes("bf16", 128, 4);
    check_name("bf16", 256, "exact");
}

static void test_hack(void **state)
{
    (void)state;
    check_sizes("hack:b2p64r0", 128, 4);
    check_sizes("hack:b2p64s5r40,nearest", 128, 16);
    check_sizes("hack:b2p32r0,nearest", 128, 7);
    check_sizes("hack:b2p128r0", 128, 1);
    check_sizes("hack:b4p64r0", 64, 8);
    check_sizes("hack:b2p64,nearest", 64, 2);
    check_sizes("hack:b4p64s1", 128, 8);
}

/* Groups of tokens (kivi's keys; of a half, one and two CPU tiles), of
 * channels; lows, zeros of a group and one zero for all; steps below 0 (q4_0).
 */
static void test_grouped(void **state)
{
    (void)state;
    check_sizes("kivi:b2g32r128", 128, 4);
    check_sizes("kivi:b2g128r128", 64, 16);
    check_sizes("kivi:b4g64r128", 256, 3);
    check_sizes("kivi:b8g32r0", 64, 4);
    check_sizes("quarot:b2g128", 128, 4);
    check_sizes("zeropoint:b8g32", 128, 1);
    check_sizes("zeropoint:b8g32,K-axis=channel", 128, 1);
    check_sizes("q4_0", 128, 3);
    check_long("kivi:b2g32r128", 128, 8);
    check_long("absmax:b2g64", 64, 7);
}

/* 8 bits as integers: zeros of a group and one for all, steps of one group and
 * of several, in a step's bytes and in a tile's. */
static void test_grouped_int8(void **state)
{
    (void)state;
    check_sizes("kivi:b8g128s3r128", 128, 4);
    check_sizes("q8_0", 128, 16);
    check_sizes("zeropoint:b8g64,K-axis=channel", 64, 8);
    check_long("kivi:b8g64r0", 128, 8);
    check_long("q8_0", 64, 4);
    check_path("kivi:b8g32r0", 128, KV_PATH_INT8, "int8");
    check_path("absmax:b8", 64, KV_PATH_INT8, "int8");
    check_path("q8_0", 128, KV_PATH_INT8, "int8");
    check_path("kivi:b8g32r0", 256, KV_PATH_INT8, "exact");
    check_path("kivi:b4g32r0", 128, KV_PATH_INT8, "exact");
}

/* Both formats of floats, scales of a head, groups of 16 channels. */
static void test_scaled(void **state)
{
    (void)state;
    check_sizes("nf4:g32s3r40", 64, 16);
    check_sizes("iq4_nl", 128, 12);
    check_sizes("nvfp4", 128, 3);
    check_sizes("turboquant:b3r0", 128, 4);
    check_sizes("turboquant:b2r0", 128, 4);
    check_sizes("fp8:K-e4m3/V-e5m2,scale=token,r=40", 64, 8);
    check_sizes("mxfp8:e5m2r0", 128, 4);
    check_long("nvfp4", 64, 8);
    check_long("turboquant:b2r0", 64, 4);
    check_long("mxfp4:r0", 64, 2);
    check_long("fp8,scale=none,r=0", 64, 2);
}

/* Keys folded and not. */
static void test_grouped_kernels(void **state)
{
    static const size_t bits[] = {2, 4, 8}, dims[] = {64, 128, 256};

    (void)state;
    for (size_t i = 0; i < sizeof(bits) / sizeof(*bits); i++)
        for (size_t j = 0; j < sizeof(dims) / sizeof(*dims); j++) {
            char text[64];

            snprintf(text, sizeof(text), "kivi:b%zug64r0", bits[i]);
            check_kernels(text, dims[j]);
            snprintf(text, sizeof(text), "absmax:b%zug64", bits[i]);
            check_kernels(text, dims[j]);
        }
}

static void test_scaled_kernels(void **state)
{
    static const char *const texts[] = {
        "turboquant:b2r0", "turboquant:b3r0",    "nf4:r0",   "mxfp4:r0",
        "nvfp4:r0",        "fp8,scale=none,r=0", "mxfp8:r0", "fp8:r0"};
    static const size_t dims[] = {64, 128, 256};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        for (size_t j = 0; j < sizeof(dims) / sizeof(*dims); j++)
            check_kernels(texts[i], dims[j]);
}

/* Queries rounded to the nearest and stochastically; prefill where it is. */
static void test_hack_kernels(void **state)
{
    static const struct {
        size_t bits, part, head_dim;
        bool prefill;
    } kernels[] = {{2, 64, 128, true},  {2, 32, 128, true}, {2, 128, 128, true},
                   {4, 64, 128, false}, {2, 64, 64, false}, {4, 64, 64, false}};
    static const char *const ways[] = {"", ",nearest"};

    (void)state;
    for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++)
        for (size_t j = 0; j < 2; j++) {
            struct kv_shape s = synthetic_shape(kernels[i].head_dim);
            struct kv_calib *calib = NULL;
            char text[64];

            snprintf(text, sizeof(text), "hack:b%zup%zur0%s", kernels[i].bits,
                     kernels[i].part, ways[j]);
            check_kernels(text, kernels[i].head_dim);
            if (kernels[i].prefill)
                check(text, &s, 256, 20, &calib);
        }
}

static void test_codebook_kernels(void **state)
{
    static const struct {
        size_t head_dim, d, bits;
        bool own;
    } kernels[] = {
#define KERNEL(D, DIMS, BITS, OWN, ...) {D, DIMS, BITS, OWN},
        KV_CODEBOOKS(KERNEL)
#undef KERNEL
    };

    (void)state;
    for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++) {
        char text[64];

        snprintf(text, sizeof(text), "%s:d%zub%zur0,iters=1",
                 kernels[i].own ? "evasion" : "vecinfer", kernels[i].d,
                 kernels[i].bits);
        check_kernels(text, kernels[i].head_dim);
    }
}

/* Pairs of 4 bits, tables of their own for each head, dimensions apart. */
static void test_codebook(void **state)
{
    (void)state;
    check_sizes("vecinfer:K-d2b4/V-d4b8,s=3,r=40,iters=2", 128, 8);
    check_sizes("evasion:d4b8,books=head,iters=2", 64, 1);
}

/* Every kind of float; every width of integers,
 * groups of tokens and of channels along and across the lanes, lows, zeros and
 * one zero; every order of indices; tables and small floats with every kind of
 * scale; keys and values of different families. */
static void test_generic(void **state)
{
    static const struct {
        const char *spec;
        size_t head_dim, group;
    } cases[] = {
        {"f32", 64, 4},
        {"bf16", 128, 16},
        {"f16:s3r40", 80, 3},
        {"f16:r0", 2, 1},
        {"kivi:b3g32r0", 64, 4},
        {"kivi:b1g128r0", 66, 2},
        {"kivi:K-b4/V-b2,r=32,s=5", 64, 1},
        {"kivi:b7g16r0", 192, 4},
        {"absmax:b5g32,V-axis=channel", 64, 4},
        {"absmax:b6", 70, 1},
        {"zeropoint:K-b8g32/V-b6g48,K-axis=channel", 96, 2},
        {"zeropoint:b2g32,V-axis=channel", 256, 1},
        {"quarot:b3g32", 96, 4},
        {"q8_0", 96, 5},
        {"q5_1", 128, 2},
        {"iq4_nl", 64, 4},
        {"nf4:g64", 192, 4},
        {"nvfp4", 64, 4},
        {"fp8:e5m2g16", 48, 2},
        {"fp8:e4m3g50", 50, 2},
        {"fp6:e2m3", 64, 4},
        {"mxfp6:e3m2", 96, 1},
        {"mxfp4:e2m1", 128, 4},
        {"turboquant:K-b1/V-b3", 96, 4},
        {"vecinfer:d4b6r0,iters=1", 64, 4},
        {"vecinfer:d2b3s2,iters=1", 66, 1},
        {"evasion:d2b4,iters=1", 96, 2},
        {"evasion:d8b6r0,iters=1", 40, 2},
        {"vecinfer:K-d4b8/V-d8b9,r=0,iters=1", 128, 4},
        {"million:d6b8,iters=1", 96, 4},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_shape s = synthetic_shape(cases[i].head_dim);
        struct kv_calib *calib = NULL;

        s.n_heads = s.n_kv_heads * cases[i].group;
        check_by(cases[i].spec, &s, 300, 2, BY_GENERIC, BY_GENERIC, &calib);
        kv_calib_free(calib);
    }
    check_name("f16:r0", 128, "exact");
    check_name("bf16", 72, "generic");
    check_name("f32:r0", 128, "generic");
    check_name("vecinfer:d4b8r0,iters=1", 128, "exact");
    check_name("nvfp4", 64, "exact");
    check_name("fp6", 64, "generic");
    check_name("vecinfer:K-d4b8/V-d8b8,r=0,iters=1", 128, "generic");
    check_sizes("kivi:b3g32r128", 96, 16);
    check_sizes("bf16", 72, 4);
    check_long("kivi:b3g32r0", 96, 7);
}

/* Levels and outliers: of every width, none to many; keys before RoPE, all of
 * whose channels turn, or some; of sinks and tail, of many tiles. */
static void test_before_rope(void **state)
{
    static const struct {
        const char *spec;
        size_t head_dim, group, n_rot, n, nq;
    } cases[] = {
        {"kvquant:r0", 128, 4, 64, 300, 2},
        {"kvquant:b2o20s3r40", 64, 1, 32, 400, 1},
        {"kvquant:b4o0.2r0", 80, 16, 20, 300, 3},
        {"kvquant:b3o0r0", 256, 2, 128, 130, 1},
        {"kvquant:K-b4o5/V-b2o0,s=5,r=0", 8, 1, 4, 1300, 8},
        {"kvquant:b2r0,type=nf", 64, 3, 0, 300, 1},
        {"kvquant:b3o2s2r40", 128, 7, 64, LONG, 2},
        {"evasion:d4b8s5r40,rope=pre,iters=1", 64, 4, 32, 700, 2},
        {"evasion:d2b8,rope=pre,books=head,r=0,iters=1", 96, 2, 12, 300, 1},
        {"cq:c4b6r0,iters=1", 128, 1, 64, 300, 1},
        {"rotatekv:r0", 128, 4, 64, 300, 2},
        {"rotatekv:b3g32h1s5r40,zero=int", 64, 1, 20, 700, 1},
        {"rotatekv:b4g32r0,before", 64, 16, 32, 300, 3},
        {"rotatekv:K-b2g12/V-b8g24,r=0,h=2", 24, 2, 12, 300, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_shape s = synthetic_shape(cases[i].head_dim);
        struct kv_calib *calib = NULL;

        s.n_heads = s.n_kv_heads * cases[i].group;
        s.n_rot = cases[i].n_rot;
        check_by(cases[i].spec, &s, cases[i].n, cases[i].nq, BY_GENERIC,
                 BY_GENERIC, &calib);
        kv_calib_free(calib);
    }
    check_name("kvquant:r0", 96, "generic");
    check_name("kvquant:K-b4/V-b3,r=0", 128, "generic");
    check_name("evasion:d2b8,rope=pre,iters=1", 64, "generic");
}

/* Levels and outliers, on tensor cores: none to many of these; all channels
 * turn, or some, or none; sinks, so that no tile begins at a position that 64
 * divides; tiles of sizes far apart. */
static void test_nuq(void **state)
{
    static const struct {
        const char *spec;
        size_t head_dim, group, n_rot, n, nq;
    } cases[] = {
        {"kvquant:b4o20s3r40", 64, 1, 32, 400, 1},
        {"kvquant:b2o0.2r0", 64, 16, 5, 300, 1},
        {"kvquant:b3o0r0", 128, 2, 0, 130, 1},
        {"kvquant:K-o45/V-o0,b=2,s=5,r=0", 128, 16, 64, 700, 2},
        {"kvquant:b4r0,type=nf", 128, 3, 20, 300, 8},
        {"kvquant:b3o2s2r40", 128, 7, 64, LONG, 2},
        {"kvquant:b2o1s2r40", 64, 4, 32, LONG, 2},
    };

    (void)state;
    check_sizes("kvquant:r0", 128, 4);
    check_sizes("kvquant:b4s3r40", 64, 8);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_shape s = synthetic_shape(cases[i].head_dim);
        struct kv_calib *calib = NULL;

        s.n_heads = s.n_kv_heads * cases[i].group;
        s.n_rot = cases[i].n_rot;
        check_by(cases[i].spec, &s, cases[i].n, cases[i].nq, BY_EXACT, BY_EXACT,
                 &calib);
        kv_calib_free(calib);
    }
    check_name("kvquant:r0", 128, "exact");
    check_name("kvquant:b4o10r0", 64, "exact");
}

static void test_nuq_kernels(void **state)
{
    static const struct {
        size_t head_dim, bits;
    } kernels[] = {
#define KERNEL(D, BITS) {D, BITS},
        KV_NUQ_KERNELS(KERNEL)
#undef KERNEL
    };

    (void)state;
    for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++) {
        char text[64];

        snprintf(text, sizeof(text), "kvquant:b%zur0", kernels[i].bits);
        check_kernels(text, kernels[i].head_dim);
    }
}

/* However many outliers there are, two blocks of 2 or 3 bits share an H200's
 * multiprocessor: of 228 KB, each block's own KB among them. */
static void test_nuq_shared(void **state)
{
    const struct kv_shape s = synthetic_shape(128);
    struct kv_calib *calib = NULL;
    struct rig r = rig("kvquant:b3r0", &s, 130, &calib);
    const struct kv_tiles_job job = kv_tiled_job(r.tiled, 1);
    const struct kv_gpu_family *const *family = kv_gpu_families;
    struct kv_gpu_side k = {.store = &job.k[1], .owned = 1 << 20};
    struct kv_gpu_side v = {.store = &job.v[1], .owned = 1 << 20};
    struct kv_gpu_launch l = {
        .p = {.group = 1, .nq = 1},
        .n_work = 1,
        .n_kv_heads = s.n_kv_heads,
        .head_dim = s.head_dim,
        .k = &k,
        .v = &v,
        .measure = true,
    };
    struct kv_err e = {""};

    (void)state;
    while (strcmp((*family)->name, "nuq"))
        family++;
    assert_true((*family)->open(&k) && (*family)->open(&v));
    if ((*family)->launch(&l, &e))
        fail_msg("%s", e.msg);
    assert_true(2 * (l.shared + 1024) <= 228 << 10);
    free(k.table);
    free(v.table);
    rig_clear(&r);
    kv_calib_free(calib);
}

/* Keys' ranges that halves have no room for. */
static void test_nuq_range(void **state)
{
    const struct kv_shape s = synthetic_shape(64);
    const size_t row = s.n_kv_heads * s.head_dim;
    struct kv_calib *calib = NULL;
    struct rig r = rig("kvquant:r0", &s, 130, &calib);
    struct kv_tiles_job job = kv_tiled_job(r.tiled, 1);
    struct kv_store k[KV_MAX_RUNS];
    float *offset = kv_alloc(row, sizeof(*offset));
    struct kv_nuq_tiles wide;
    struct kv_err e = {""};

    (void)state;
    memcpy(k, job.k, sizeof(k));
    wide = *(const struct kv_nuq_tiles *)k[1].params;
    memcpy(offset, wide.offset, row * sizeof(*offset));
    wide.offset = offset;
    k[1].params = &wide;
    job.k = k;
    for (int i = 0; i < 2; i++) {
        struct kv_gpu_attend *g;

        offset[row - 1] = i ? 9000 : 8000;
        if (kv_gpu_attend_new(&g, &device, &job, 1, KV_PATH_EXACT, &e))
            fail_msg("%s", e.msg);
        assert_string_equal(kv_gpu_attend_name(g), i ? "generic" : "exact");
        kv_gpu_attend_free(g);
    }
    free(offset);
    rig_clear(&r);
    kv_calib_free(calib);
}

/* A launch has room for the outliers of the sequence that has the most, which
 * need not be the first: answers are those of each alone. */
static void test_outliers_apart(void **state)
{
    static const size_t n[] = {128, 640};
    const struct kv_shape s = synthetic_shape(64);
    const size_t row = s.n_heads * s.head_dim;
    struct kv_calib *calib = NULL;
    struct rig r[2];
    struct kv_tiles_job jobs[2];
    float *q = kv_alloc(2 * row, sizeof(*q));
    float *out = kv_alloc(2 * row, sizeof(*out));
    float *alone = kv_alloc(row, sizeof(*alone));
    struct kv_gpu_attend *g;
    struct kv_err e = {""};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        r[i] = rig("kvquant:o3r0", &s, n[i], &calib);
        jobs[i] = kv_tiled_job(r[i].tiled, 1);
        memcpy(q + i * row, r[i].x.q, row * sizeof(*q));
    }
    if (kv_gpu_attend_new(&g, &device, jobs, 2, KV_PATH_EXACT, &e) ||
        kv_gpu_attend_ask(g, q, &e) || kv_gpu_attend_launch(g, &e) ||
        kv_gpu_attend_answer(g, out, &e))
        fail_msg("%s", e.msg);
    kv_gpu_attend_free(g);
    for (size_t i = 0; i < 2; i++) {
        if (kv_gpu_attend_new(&g, &device, &jobs[i], 1, KV_PATH_EXACT, &e) ||
            kv_gpu_attend_ask(g, q + i * row, &e) ||
            kv_gpu_attend_launch(g, &e) || kv_gpu_attend_answer(g, alone, &e))
            fail_msg("%s", e.msg);
        assert_true(rel_err(out + i * row, alone, row) <= 1e-6);
        kv_gpu_attend_free(g);
        rig_clear(&r[i]);
    }
    kv_calib_free(calib);
    free(alone);
    free(out);
    free(q);
}

/* Keys before RoPE and after it; on a trellis, and as levels; from a head
 * without a coefficient to all of them; strings of whole words and not. */
static void test_coefs(void **state)
{
    static const struct {
        const char *spec;
        size_t head_dim, group, n_rot, n, nq;
    } cases[] = {
        {"klt:b2,rope=post", 64, 4, 32, 400, 1},
        {"klt:b2s3r40", 64, 4, 32, 400, 1},
        {"klt:b3r0", 128, 16, 64, 300, 1},
        {"klt:b3s5r40,rope=post,metric=none", 128, 2, 64, 700, 3},
        {"klt:b8r0,code=scalar", 64, 1, 20, 260, 8},
        {"klt:b8r0,rope=post", 64, 3, 32, 300, 1},
        {"klt:b1.3r0", 128, 4, 0, 1300, 2},
        {"klt:b0.0625r0", 64, 4, 32, 300, 1},
        {"klt:K-b1/V-b0.0625,r=0,rope=post", 64, 4, 32, 129, 1},
        {"klt:b2r0", 96, 8, 48, 300, 2},
        {"klt:b2r0,rope=post", 96, 1, 48, 300, 1},
        {"klt:b2r0,code=scalar", 256, 4, 128, 300, 1},
        {"klt:b1r0,rope=post,code=scalar", 256, 1, 128, 300, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct kv_shape s = synthetic_shape(cases[i].head_dim);
        struct kv_calib *calib = NULL;

        s.n_heads = s.n_kv_heads * cases[i].group;
        s.n_rot = cases[i].n_rot;
        check(cases[i].spec, &s, cases[i].n, cases[i].nq, &calib);
        kv_calib_free(calib);
    }
}

struct sized {
    const char *text;
    size_t head_dim, group, n, nq;
};

/* On ways [first, last]. */
static void check_sized(const struct sized *x, size_t n_cases, enum way first,
                        enum way last)
{
    for (size_t i = 0; i < n_cases; i++, x++) {
        struct kv_shape s = synthetic_shape(x->head_dim);
        struct kv_calib *calib = NULL;

        s.n_heads = s.n_kv_heads * x->group;
        check_by(x->text, &s, x->n, x->nq, first, last, &calib);
        kv_calib_free(calib);
    }
}

/* HACK at other sizes than its kernels': every width; partitions of 16, of
 * three 16s, of the whole head, of no multiple of 16, keys' unlike values';
 * queries and weights of few bits; and where there is a better kernel. */
static void test_generic_hack(void **state)
{
    static const struct sized cases[] = {
        {"hack:b3p32r0", 96, 4, 384, 1},
        {"hack:b2p64r0,nearest", 256, 2, 256, 3},
        {"hack:b1p16r0,nearest", 64, 16, 400, 8},
        {"hack:K-b8p48/V-b5p16,r=0", 96, 3, 256, 2},
        {"hack:b4p128s5r40", 66, 1, 300, 1},
        {"hack:K-b2p256/V-b3p128,r=0,K-qb=4,V-qb=6,nearest", 256, 1, 256, 1},
        {"hack:b7p64r0,no-se", 192, 4, 384, 2},
        {"hack:b2p64r0", 128, 4, 128, 1},
        {"hack:b2p32s1r0", 8, 1, 1300, 2},
        {"hack:b3p64r0", 128, 4, LONG, 2}};

    (void)state;
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_GENERIC, BY_GENERIC);
    check_sizes("hack:b3p32r0", 96, 7);
    check_name("hack:b2p32r0", 96, "generic");
    check_name("hack:b3p64r0", 128, "generic");
    check_name("hack:b2p64r0", 128, "int8");
}

/* What a device has no shared memory for runs on the generic kernel. */
static void test_small_device(void **state)
{
    const size_t shared = device.shared;

    (void)state;
    device.shared = 99 << 10;
    check_name("nf4:g32r0", 256, "generic");
    check_name("kivi:b2g32r0", 256, "generic");
    device.shared = shared;
}

/* Codes written as halves, then attended to: with sinks and tail, in a space of
 * their own, in prefill. */
static void test_dequant(void **state)
{
    static const struct sized cases[] = {
        {"kivi:b2g32s5r128", 128, 4, 700, 2},
        {"kivi:b3g128r0", 96, 2, 300, 1},
        {"vecinfer:d4b8r40,iters=1", 64, 8, 400, 3},
        {"evasion:d8b6r0,iters=1", 256, 1, 300, 1},
        {"fp6:e3m2r0", 64, 4, 100, 1},
        {"kvquant:s2r40", 128, 2, 400, 2},
        {"rotatekv:s2r40", 64, 2, 400, 2},
        {"turboquant:b4", 128, 2, 260, 100}};

    (void)state;
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_DEQUANT, BY_DEQUANT);
}

/* Without computing there is no answer, without copies a wrong one; and
 * neither leaves traces in the next whole launch. */
static void check_parts(const char *text, enum way way)
{
    struct kv_shape s = synthetic_shape(128);
    const size_t n = 4 * s.n_kv_heads * s.head_dim;
    float *whole = kv_alloc(n, sizeof(*whole));
    float *out = kv_alloc(n, sizeof(*out));
    struct kv_calib *calib = NULL;
    struct kv_gpu_attend *g;
    struct kv_err e = {""};
    size_t nans = 0, wrong = 0;

    s.n_heads = 4 * s.n_kv_heads;

    struct rig r = rig(text, &s, 2 * LONG, &calib);
    const struct kv_tiles_job job = kv_tiled_job(r.tiled, 1);

    if (open_by(way, &job, 1, &g, &e) || kv_gpu_attend_ask(g, r.x.q, &e) ||
        kv_gpu_attend_launch(g, &e) || kv_gpu_attend_answer(g, whole, &e))
        fail_msg("%s: %s", text, e.msg);
    if (!kv_gpu_attend_has_parts(g))
        fail_msg("%s, %s: there are no parts", text, kv_gpu_attend_name(g));
    if (kv_gpu_attend_launch_part(g, KV_LOADS, &e) ||
        kv_gpu_attend_answer(g, out, &e))
        fail_msg("%s: %s", text, e.msg);
    for (size_t i = 0; i < n; i++)
        nans += isnan(out[i]) ? 1 : 0;
    assert_int_equal(nans, n);
    if (kv_gpu_attend_launch_part(g, KV_COMPUTE, &e) ||
        kv_gpu_attend_answer(g, out, &e))
        fail_msg("%s: %s", text, e.msg);
    for (size_t i = 0; i < n; i++)
        wrong += isfinite(out[i]) && out[i] != whole[i] ? 1 : 0;
    assert_int_equal(wrong, n);
    if (kv_gpu_attend_launch(g, &e) || kv_gpu_attend_answer(g, out, &e))
        fail_msg("%s: %s", text, e.msg);
    assert_memory_equal(out, whole, n * sizeof(*out));
    kv_gpu_attend_free(g);
    rig_clear(&r);
    kv_calib_free(calib);
    free(out);
    free(whole);
}

static void test_parts(void **state)
{
    static const char *const codes[] = {"d2b8", "d4b8", "d8b8", "d4b12",
                                        "d8b12"};

    (void)state;
    check_parts("f16:r0", BY_EXACT);
    check_parts("bf16", BY_EXACT);
    check_parts("kivi:b2g32r0", BY_EXACT);
    check_parts("kivi:b4g128r128", BY_EXACT);
    check_parts("absmax:b4", BY_EXACT);
    check_parts("kivi:b8g128r0", BY_EXACT);
    check_parts("kivi:b8g128r0", BY_INT8);
    check_parts("q8_0", BY_INT8);
    check_parts("hack:b2p64r0", BY_INT8);
    check_parts("hack:b2p64r0,nearest", BY_INT8);
    for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); i++) {
        char text[64];

        snprintf(text, sizeof(text), "vecinfer:%sr0,iters=1", codes[i]);
        check_parts(text, BY_EXACT);
        check_parts(text, BY_INT8);
    }
    check_parts("nf4:g64r0", BY_EXACT);
    check_parts("turboquant:b2r0", BY_EXACT);
    check_parts("fp8:r0", BY_EXACT);
    check_parts("kvquant:b2r0", BY_EXACT);
    check_parts("kvquant:b3r0", BY_EXACT);
    check_parts("kvquant:b4r0", BY_EXACT);
}

/* More queries than a decoding step has: more rows than a block takes, causal
 * from the first token, from within the codes, and in the tail alone. */
static void test_prefill(void **state)
{
    static const struct sized cases[] = {
        {"f16:r0", 64, 4, 300, 300},
        {"f16:s3r40", 128, 1, 200, 9},
        {"f16:r0", 128, 16, 130, 30},
        {"bf16", 64, 2, 300, 150},
        {"bf16", 128, 4, 140, 20},
        {"hack:b2p64r0", 128, 4, 256, 256},
        {"hack:b2p64s5r40,nearest", 128, 2, 300, 150},
        {"hack:b2p128r0", 128, 1, 400, 200},
        {"hack:b2p32r0", 128, 3, 300, 130},
        {"hack:b2p32s5r40,nearest", 128, 4, 260, 20}};

    (void)state;
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_EXACT, BY_INT8);
}

/* Groups of more tokens than a tile: whole ones are codes, what is between
 * these and the tail halves. */
static void test_long_groups(void **state)
{
    static const struct sized cases[] = {
        {"kivi:b2g256r0", 128, 4, 700, 2},
        {"kivi:b3g192s3r0", 64, 2, 900, 1},
        {"kivi:b4g1024r1024", 96, 1, 2300, 8},
        {"kivi:b8g320r320", 256, 1, 1500, 1},
        {"zeropoint:K-b4g512/V-b3g256,axis=channel,r=0", 64, 7, 1100, 1},
        {"kivi:K-g256r0/V-r200,b=2", 64, 4, 700, 1}, /* values are behind */
        {"kivi:b2g256r0", 64, 4, 200, 1}};           /* no whole group */

    (void)state;
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_EXACT, BY_EXACT);
    check_sized(cases, sizeof(cases) / sizeof(*cases), BY_DEQUANT, BY_DEQUANT);
    check_name("kivi:b2g256r0", 128, "generic");
}

static void test_missing(void **state)
{
    static const struct {
        const char *spec;
        size_t head_dim;
        const char *says;
    } cases[] = {
        {"evasion:d2b8,rope=pre,iters=1", 66, "keys stored before RoPE"},
        {"f16", 258, "family float and values of family"},
        {"kvquant:r0", 66, "keys of family nuq"},
        {"klt", 80, "keys of family coef"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        check_missing(cases[i].spec, cases[i].head_dim, cases[i].says);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float),
        cmocka_unit_test(test_hack),
        cmocka_unit_test(test_prefill),
        cmocka_unit_test(test_grouped),
        cmocka_unit_test(test_grouped_int8),
        cmocka_unit_test(test_hack_kernels),
        cmocka_unit_test(test_grouped_kernels),
        cmocka_unit_test(test_scaled),
        cmocka_unit_test(test_scaled_kernels),
        cmocka_unit_test(test_codebook_kernels),
        cmocka_unit_test(test_codebook),
        cmocka_unit_test(test_generic),
        cmocka_unit_test(test_generic_hack),
        cmocka_unit_test(test_small_device),
        cmocka_unit_test(test_long_groups),
        cmocka_unit_test(test_before_rope),
        cmocka_unit_test(test_nuq),
        cmocka_unit_test(test_nuq_kernels),
        cmocka_unit_test(test_nuq_shared),
        cmocka_unit_test(test_nuq_range),
        cmocka_unit_test(test_outliers_apart),
        cmocka_unit_test(test_coefs),
        cmocka_unit_test(test_dequant),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_missing),
    };
    struct kv_err e = {""};

    if (kv_device_cuda(0, &device, &e)) {
        printf("skipped: %s\n", e.msg);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
