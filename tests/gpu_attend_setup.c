#include "tests/gpu_attend_setup.h"
#include "kernels/cuda/families.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/half.h"
#include "lib/mixed.h"
#include "lib/rope_table.h"
#include "tests/append_rows.h"
#include "tests/plain_int8.h"

struct kv_device test_device;

bool no_device(void)
{
    struct kv_err e = {""};
    const bool none = kv_device_cuda(0, &test_device, &e);

    if (none)
        printf("skipped: %s\n", e.msg);
    return none;
}

static void to_bf16(const float *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = kv_bf16_to_f32(kv_f32_to_bf16(x[i]));
}

/* Attention as on a GPU with halves: queries, keys, values and weights rounded,
 * sums in f32. */
static void plain_halves(const float *q, const float *k, const float *v,
                         size_t n, size_t stride, size_t d, float scale,
                         void (*half)(const float *x, size_t n, float *out),
                         float *out)
{
    float *w = kv_alloc(n, sizeof(*w)), max = -INFINITY, sum = 0;
    float *query = kv_alloc(d, sizeof(*query));
    float *row = kv_alloc(d, sizeof(*row));

    for (size_t c = 0; c < d; c++)
        query[c] = q[c] * scale;
    half(query, d, query);
    for (size_t t = 0; t < n; t++) {
        half(k + t * stride, d, row);
        w[t] = 0;
        for (size_t c = 0; c < d; c++)
            w[t] += query[c] * row[c];
        max = fmaxf(max, w[t]);
    }
    memset(out, 0, d * sizeof(*out));
    for (size_t t = 0; t < n; t++) {
        w[t] = expf(w[t] - max);
        sum += w[t];
        half(w + t, 1, w + t);
        half(v + t * stride, d, row);
        for (size_t c = 0; c < d; c++)
            out[c] += w[t] * row[c];
    }
    for (size_t c = 0; c < d; c++)
        out[c] /= sum;
    free(row);
    free(query);
    free(w);
}

/* No key or value is beyond halves: kv_round_f16() has no infinity. */
static void plain_f16(const float *q, const float *k, const float *v, size_t n,
                      size_t stride, size_t d, float scale, float *out)
{
    plain_halves(q, k, v, n, stride, d, scale, kv_round_f16, out);
}

static void plain_bf16(const float *q, const float *k, const float *v, size_t n,
                       size_t stride, size_t d, float scale, float *out)
{
    plain_halves(q, k, v, n, stride, d, scale, to_bf16, out);
}

/* Tolerance of path int8, in addition to a scheme's own error. */
static const double INT8_BOUND = 0.03;

/* Tolerance of values on the edge between two integers. */
static const double INTEGERS_BOUND = 1e-4;

/* Whether no token is attended to in halves. */
static bool all_codes(const struct kv_tiles_job *j)
{
    return j->k[1].n == j->view.n && j->v[1].n == j->view.n &&
           j->view.n % KV_GPU_TILE == 0;
}

/* Tolerance of hack against its own attention.  If all tokens are codes: the
 * order of sums, and a weight that another order rounds to the next integer.
 * Otherwise tokens between codes and tail are halves here, and their queries
 * are not rounded. */
static double hack_bound(const struct kv_tiles_job *j)
{
    return all_codes(j) ? 3e-4 : 1e-2;
}

static int open_by(enum way way, const struct kv_tiles_job *jobs, size_t n_jobs,
                   struct kv_gpu_attend **g, struct kv_err *e)
{
    switch (way) {
    case BY_GENERIC:
        return kv_gpu_attend_new_generic(g, &test_device, jobs, n_jobs, e);
    case BY_DEQUANT:
        return kv_gpu_attend_new_dequant(g, &test_device, jobs, n_jobs, e);
    case BY_EXACT:
    case BY_INT8:
        break;
    }
    return kv_gpu_attend_new(g, &test_device, jobs, n_jobs,
                             way == BY_INT8 ? KV_PATH_INT8 : KV_PATH_EXACT, e);
}

/* Two sequences, the same tokens: their answers are the same. */
static void check_way(const char *what, const struct kv_cache *c,
                      const struct kv_tile_cache *t, const struct attention *a,
                      enum way way)
{
    const bool own = kv_codec_attends(kv_cache_reader(c, KV_K).codec);
    const enum kv_path path = way == BY_INT8 || (own && way == BY_GENERIC)
                                  ? KV_PATH_INT8
                                  : KV_PATH_EXACT;
    /* The second finds no traces of the first; once is enough. */
    const int runs = a->n == 129 ? 2 : 1;
    const size_t n = a->nq * a->shape.n_heads * a->shape.head_dim;
    struct kv_tiles_job job = kv_tile_cache_job(t, a->nq);
    struct kv_store *stores = kv_alloc(2 * KV_MAX_RUNS, sizeof(*stores));
    float *exact = kv_alloc(n, sizeof(float));
    float *plain = kv_alloc(n, sizeof(float));
    float *q = kv_alloc(2 * n, sizeof(float));
    float *out = kv_alloc(2 * n, sizeof(float));
    struct kv_gpu_attend *g;
    struct kv_err e = {""};

    if (own)
        kv_cache_attend(c, kv_cache_view(c, a->nq), a->q, exact);
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
    const bool groups = way == BY_INT8 && plain_int8_has(&job);
    const double of_halves = all_codes(&job) ? 0 : 2 * rel_err(plain, exact, n);
    float *integers = groups ? kv_alloc(n, sizeof(*integers)) : NULL;

    if (groups)
        plain_int8(&job, a, integers);

    if (open_by(way, jobs, 2, &g, &e))
        fail_msg("%s: %s", what, e.msg);
    /* the stores must not be used from here on */
    memset(stores, 0xee, 2 * KV_MAX_RUNS * sizeof(*stores));
    free(stores);
    if (kv_gpu_attend_path(g) != path)
        fail_msg("%s, head_dim %zu: path %s, expected %s", what,
                 a->shape.head_dim, kv_gpu_attend_name(g),
                 path == KV_PATH_INT8 ? "int8" : "exact");
    for (int run = 0; run < runs; run++) {
        const double bound = own ? hack
                             : path == KV_PATH_INT8
                                 ? INT8_BOUND
                                 : 2.5 * rel_err(plain, exact, n) + 1e-6;

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
                     what, a->n, a->shape.head_dim, rel_err(out, integers, n));
        assert_memory_equal(out, out + n, n * sizeof(*out));
    }
    kv_gpu_attend_free(g);
    free(integers);
    free(out);
    free(q);
    free(plain);
    free(exact);
}

/* Rows of neighbouring tiles have very different sizes; one tile's rows are
 * 0. */
static void vary(const struct kv_shape *s, float *x, size_t n, float max)
{
    const size_t row = s->n_kv_heads * s->head_dim;

    for (size_t t = 0; t < n; t++) {
        const size_t tile = t / KV_GPU_TILE;
        const float by = tile == 3 ? 0 : ldexpf(max, -(int)(tile * 5 % 7));

        for (size_t c = 0; c < row; c++)
            x[t * row + c] *= by;
    }
}

/* The text of the calibration.  Far from it, coefficients are the last of their
 * tables in every token, and so are their rounding errors. */
static void alike(const struct kv_shape *s, float *x, size_t n,
                  enum kv_tensor tensor)
{
    const uint64_t layer = 2000; /* the same as in synthetic_dump() */

    synthetic_rows(s, s->n_kv_heads, layer + (tensor == KV_T_V ? 20 : 30), n,
                   x);
}

struct rig rig(const char *text, const struct kv_shape *s, size_t n,
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
        append_rows(r.cache, r.x.q, r.x.k, r.x.v, n, &e))
        fail_msg("%s: %s", text, e.msg);
    r.tiled = kv_tile_cache_new(r.cache);
    kv_tile_cache_update(r.tiled);
    return r;
}

void rig_clear(struct rig *r)
{
    kv_tile_cache_free(r->tiled);
    kv_cache_free(r->cache);
    for (int side = 0; side < KV_SIDES; side++)
        kv_codec_free(r->codec[side]);
    free_tensors(r->x);
}

void check_path(const char *text, size_t head_dim, enum kv_path path,
                const char *name)
{
    const struct kv_shape s = synthetic_shape(head_dim);
    struct kv_calib *calib = NULL;
    struct rig r = rig(text, &s, 10, &calib);
    const struct kv_tiles_job job = kv_tile_cache_job(r.tiled, 1);
    struct kv_gpu_attend *g;
    struct kv_err e = {""};

    if (kv_gpu_attend_new(&g, &test_device, &job, 1, path, &e))
        fail_msg("%s: %s", text, e.msg);
    if (strcmp(kv_gpu_attend_name(g), name))
        fail_msg("%s, head_dim %zu: path %s, expected %s", text, head_dim,
                 kv_gpu_attend_name(g), name);
    kv_gpu_attend_free(g);
    rig_clear(&r);
    kv_calib_free(calib);
}

void check_name(const char *text, size_t head_dim, const char *name)
{
    check_path(text, head_dim, KV_PATH_EXACT, name);
}

void check_by(const char *text, const struct kv_shape *s, size_t n, size_t nq,
              unsigned ways, struct kv_calib **calib)
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
    kv_codec_rotate(r.codec[KV_K], k, n);
    for (unsigned way = BY_EXACT; way <= BY_DEQUANT; way *= 2)
        if (ways & way)
            check_way(text, r.cache, r.tiled, &a, (enum way)way);
    free(v);
    free(k);
    rig_clear(&r);
}

/* Sizes one below, at and above a tile; some queries are among the codes. */
static const struct {
    size_t n, nq;
} sizes[] = {{1, 1}, {127, 1}, {128, 3}, {129, 1}, {400, 8}, {1300, 2}};

void check_sizes(const char *text, size_t head_dim, size_t group, unsigned ways)
{
    struct kv_shape s = synthetic_shape(head_dim);
    struct kv_calib *calib = NULL;

    s.n_heads = s.n_kv_heads * group;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        check_by(text, &s, sizes[i].n, sizes[i].nq, ways, &calib);
    kv_calib_free(calib);
}

void check_long(const char *text, size_t head_dim, size_t group, unsigned ways)
{
    struct kv_shape s = synthetic_shape(head_dim);
    struct kv_calib *calib = NULL;

    s.n_heads = s.n_kv_heads * group;
    check_by(text, &s, LONG, 2, ways, &calib);
    kv_calib_free(calib);
}

void check_kernels(const char *text, size_t head_dim, unsigned ways)
{
    struct kv_shape s = synthetic_shape(head_dim);
    struct kv_calib *calib = NULL;

    s.n_heads = s.n_kv_heads * 4;
    check_by(text, &s, 300, 1, ways, &calib);
    check_by(text, &s, 300, 3, ways, &calib);
    kv_calib_free(calib);
}

void check_sized(const struct sized *x, size_t n_cases, unsigned ways)
{
    for (size_t i = 0; i < n_cases; i++, x++) {
        struct kv_shape s = synthetic_shape(x->head_dim);
        struct kv_calib *calib = NULL;

        if (!strncmp(x->text, "klt", 3))
            s.n_kv_heads = 1; /* more coefficients would have no slots */
        s.n_heads = s.n_kv_heads * x->group;
        s.n_rot = x->n_rot;
        check_by(x->text, &s, x->n, x->nq, ways, &calib);
        kv_calib_free(calib);
    }
}
