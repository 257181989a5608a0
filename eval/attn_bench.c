#include "eval/attn_bench.h"
#include "eval/attn_gpu.h"
#include "kernels/attend.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "lib/codec.h"
#include "lib/dump.h"
#include "lib/rope_table.h"
#include "lib/seq/seq.h"
#include "lib/seq/tile_cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static size_t kv_row(const struct kv_attn_inputs *in)
{
    return in->shape.n_kv_heads * in->shape.head_dim;
}

static size_t q_row(const struct kv_attn_inputs *in)
{
    return in->shape.n_heads * in->shape.head_dim;
}

void kv_attn_inputs_exact(struct kv_attn_inputs *in)
{
    const struct kv_shape layer = kv_shape_layer(&in->shape, in->layer);
    struct kv_attend_job job = {
        .view = kv_shape_view(&layer, in->n, in->n - in->nq, in->nq),
        .q = in->q,
        .q_rows = in->nq,
        .k = {.unquantized = in->k},
        .v = {.unquantized = in->v},
    };

    job.view.n_seqs = in->n_batch;
    job.out = in->exact =
        kv_alloc(in->n_batch * in->nq, q_row(in) * sizeof(float));
    kv_attend_c(&job);
}

/* Reads the newest nq queries of every window into q. */
static int read_queries(struct kv_attn_inputs *in, struct kv_dump *dump,
                        struct kv_err *e)
{
    in->q = kv_alloc(in->n_batch * in->nq, q_row(in) * sizeof(float));
    for (size_t b = 0; b < in->n_batch; b++)
        if (kv_dump_read(dump, in->layer, KV_T_Q, (b + 1) * in->n - in->nq,
                         in->nq, in->q + b * in->nq * q_row(in), e))
            return -1;
    return 0;
}

static int read_tokens(const struct kv_attn_inputs *in, struct kv_dump *dump,
                       enum kv_tensor t, float **x, struct kv_err *e)
{
    const size_t n = in->n_batch * in->n;

    *x = kv_alloc(n, (t == KV_T_Q ? q_row(in) : kv_row(in)) * sizeof(**x));
    return kv_dump_read(dump, in->layer, t, 0, n, *x, e);
}

int kv_attn_inputs_of_dump(struct kv_attn_inputs *in, struct kv_dump *dump,
                           struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);

    if (info->shape.latent || kv_shape_by_kind(&info->shape))
        return kv_fail(e,
                       "%s is of %s, for which no attention in place is "
                       "implemented",
                       kv_dump_path(dump),
                       info->shape.latent ? "latent attention"
                                          : "layers that differ in their heads "
                                            "or share keys and values");
    in->shape = info->shape;
    in->n = info->ctx;
    in->has_k_pre = info->have[KV_T_K_PRE];
    if (in->n_batch > info->n_windows)
        return kv_fail(e, "%s has %zu window%s, %zu were asked for",
                       kv_dump_path(dump), info->n_windows,
                       info->n_windows == 1 ? "" : "s", in->n_batch);
    if (!in->n_batch)
        in->n_batch = info->n_windows;
    if (in->nq > in->n)
        return kv_fail(e,
                       "%s has windows of %zu tokens, fewer than %zu queries",
                       kv_dump_path(dump), in->n, in->nq);
    return 0;
}

int kv_attn_inputs_read(struct kv_attn_inputs *in, struct kv_dump *dump,
                        struct kv_err *e)
{
    if (read_queries(in, dump, e) || read_tokens(in, dump, KV_T_K, &in->k, e) ||
        read_tokens(in, dump, KV_T_V, &in->v, e) ||
        (in->want_all_q && read_tokens(in, dump, KV_T_Q, &in->all_q, e)) ||
        (in->has_k_pre && read_tokens(in, dump, KV_T_K_PRE, &in->k_pre, e))) {
        kv_attn_inputs_clear(in);
        return -1;
    }
    kv_attn_inputs_exact(in);
    return 0;
}

static float *random_tensor(size_t n, uint64_t key)
{
    float *x = kv_alloc(n, sizeof(*x));

#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        x[i] = (float)kv_random_normal(key, i);
    return x;
}

/* Makes all_q random; its newest nq queries of each sequence are q's. */
static void random_queries(struct kv_attn_inputs *in, uint64_t key)
{
    const size_t newest = in->nq * q_row(in), all = in->n * q_row(in);

    in->all_q = random_tensor(in->n_batch * all, key);
    for (size_t b = 0; b < in->n_batch; b++)
        memcpy(in->all_q + (b + 1) * all - newest, in->q + b * newest,
               newest * sizeof(*in->q));
}

void kv_attn_inputs_random(struct kv_attn_inputs *in, uint64_t seed)
{
    const struct kv_shape layer = kv_shape_layer(&in->shape, in->layer);
    const size_t sequence = in->n * kv_row(in);
    const size_t values = in->n_batch * sequence;

    in->q = random_tensor(in->n_batch * in->nq * q_row(in), kv_mix(seed, 0));
    in->k_pre = random_tensor(values, kv_mix(seed, 1));
    in->v = random_tensor(values, kv_mix(seed, 2));
    in->k = kv_alloc(values, sizeof(*in->k));
    memcpy(in->k, in->k_pre, values * sizeof(*in->k));
    for (size_t b = 0; b < in->n_batch; b++)
        kv_rope(&layer, in->k + b * sequence, in->n, layer.n_kv_heads, 0);
    if (in->want_all_q)
        random_queries(in, kv_mix(seed, 3));
    kv_attn_inputs_exact(in);
}

void kv_attn_inputs_clear(struct kv_attn_inputs *in)
{
    free(in->q);
    free(in->all_q);
    free(in->k);
    free(in->k_pre);
    free(in->v);
    free(in->exact);
    *in = (struct kv_attn_inputs){0};
}

struct kv_tokens kv_attn_inputs_tokens(const struct kv_attn_inputs *in,
                                       size_t b, size_t first, size_t n)
{
    const struct kv_tokens all = {
        .q = in->all_q, .k = in->k, .k_pre = in->k_pre, .v = in->v};

    return kv_tokens_part(&all, &in->shape, b * in->n + first, n);
}

double kv_attn_inputs_error(const struct kv_attn_inputs *in, const float *x,
                            const float *of)
{
    double e2 = 0, of2 = 0;

    for (size_t i = 0; i < in->n_batch * in->nq * q_row(in); i++) {
        const double e = (double)x[i] - (double)of[i];

        of2 += (double)of[i] * (double)of[i];
        e2 += e * e;
    }
    return sqrt(e2 / of2);
}

/* One timed step of the batch. */
struct kv_attn_step {
    const struct kv_attn_bench *bench;
    const struct kv_attn_inputs *in;
    const struct kv_spec *spec;
    struct kv_codecs *codecs;
    struct kv_codec *const *codec; /* [KV_SIDES] */
    struct kv_seq **seq;           /* [n_batch] */
    struct kv_tile_cache *
        *tiled; /* [n_batch], or NULLs: attend through the cache */
    struct kv_attend_view view; /* the tokens of the whole batch */
    enum kv_attn_path wanted;
    enum kv_path path; /* the path that reads tiles */
    const char *path_name;
    bool own_attention;
    struct kv_attn_gpu *gpu; /* NULL: on the CPU */
    float *out;              /* laid out like in->exact */
    double append;           /* struct kv_attn_result's */
    float *same; /* exact attention over the same codes; NULL: not known */
};

static const struct kv_cache *cache_of(const struct kv_attn_step *s, size_t b)
{
    return kv_seq_cache(s->seq[b], s->in->layer);
}

static void attend_cache(const struct kv_attn_step *s, size_t b)
{
    const size_t at = b * s->in->nq * q_row(s->in);

    kv_cache_attend(cache_of(s, b), kv_attend_seq(&s->view, b), s->in->q + at,
                    s->out + at);
}

static void attend_tiles(const struct kv_attn_step *s, enum kv_path path,
                         float *out)
{
    kv_tile_cache_attend(s->tiled, s->view, path, s->in->q, out,
                         s->bench->threads);
}

static void run_step(void *arg)
{
    const struct kv_attn_step *s = arg;

    if (s->tiled[0]) {
        attend_tiles(s, s->path, s->out);
        return;
    }
    /* If there are fewer sequences than threads, a scheme's own attention
     * divides its KV heads among threads; it needs idle threads, so it is not
     * called inside a parallel region. */
    if (s->own_attention && s->in->n_batch < s->bench->threads) {
        for (size_t b = 0; b < s->in->n_batch; b++)
            attend_cache(s, b);
        return;
    }
#pragma omp parallel for num_threads((int)s->bench->threads) schedule(static)
    for (size_t b = 0; b < s->in->n_batch; b++)
        attend_cache(s, b);
}

/* Appends tokens [first, end) of sequence b, at most `some` at a time. */
static int append(struct kv_attn_step *s, size_t b, size_t first, size_t end,
                  size_t some, struct kv_err *e)
{
    for (size_t i = first; i < end; i += some) {
        const struct kv_tokens t =
            kv_attn_inputs_tokens(s->in, b, i, end - i < some ? end - i : some);

        if (kv_interrupted(e) || kv_seq_append(s->seq[b], s->in->layer, &t, e))
            return -1;
    }
    return 0;
}

/* CPU seconds of all threads: wall time would include other programs' time. */
static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Fills the caches; on the CPU appends the newest tokens one by one and times
 * them. */
static int fill(struct kv_attn_step *s, struct kv_err *e)
{
    const struct kv_attn_inputs *in = s->in;
    struct kv_codec *const *codec = s->codec;
    const size_t timed = s->bench->gpu              ? 0
                         : in->n < KV_ATTN_APPENDED ? in->n
                                                    : KV_ATTN_APPENDED;
    const size_t first = in->n - timed;
    const struct kv_tokens all = kv_attn_inputs_tokens(in, 0, 0, in->n);
    double start;

    if (!kv_tokens_stored(&all, codec[KV_K]))
        return kv_fail(e,
                       "the dump has no keys before RoPE, which %s stores: "
                       "make it with kvdump --rope pre,post",
                       codec[KV_K]->spec.text);
    for (size_t b = 0; b < in->n_batch; b++)
        if (kv_seq_open(s->seq[b], codec, e) ||
            append(s, b, 0, first, KV_ATTN_PIECE, e))
            return -1;
    start = cpu_seconds();
    for (size_t b = 0; timed && b < in->n_batch; b++)
        if (append(s, b, first, in->n, 1, e))
            return -1;
    s->append = timed ? (cpu_seconds() - start) / (double)timed : NAN;
    return 0;
}

static bool can(const struct kv_attn_step *s, enum kv_path path)
{
    return kv_tile_cache_can(cache_of(s, 0), path) && kv_tiles_takes(&s->view);
}

/* Makes tiles, and runs exact attention over them if the CPU has it. */
static void make_tiles(struct kv_attn_step *s)
{
    const size_t outputs = s->in->n_batch * s->in->nq * q_row(s->in);

    for (size_t b = 0; b < s->in->n_batch; b++) {
        s->tiled[b] = kv_tile_cache_new(cache_of(s, b));
        kv_tile_cache_update(s->tiled[b]);
    }
    if (can(s, KV_PATH_EXACT) || can(s, KV_PATH_INT8)) {
        s->same = kv_alloc(outputs, sizeof(*s->same));
        attend_tiles(s, KV_PATH_EXACT, s->same);
    }
}

static void free_tiles(struct kv_attn_step *s)
{
    for (size_t b = 0; b < s->in->n_batch; b++) {
        kv_tile_cache_free(s->tiled[b]);
        s->tiled[b] = NULL;
    }
}

/* Whether path int8 adds less error than quantization itself. */
static bool int8_adds_less(const struct kv_attn_step *s)
{
    attend_tiles(s, KV_PATH_INT8, s->out);
    return kv_attn_inputs_error(s->in, s->out, s->same) <
           kv_attn_inputs_error(s->in, s->same, s->in->exact);
}

/* Chooses the path, and makes tiles if it needs them. */
static const char *choose(struct kv_attn_step *s)
{
    const bool exact = can(s, KV_PATH_EXACT), int8 = can(s, KV_PATH_INT8);

    s->own_attention = kv_codec_attends(s->codec[KV_K]);
    if (s->wanted != KV_ATTN_GENERIC && (exact || int8)) {
        make_tiles(s);
        s->path = KV_PATH_INT8;
        if (int8 && (s->wanted == KV_ATTN_INT8 ||
                     (s->wanted == KV_ATTN_AUTO && int8_adds_less(s))))
            return "int8";
        s->path = KV_PATH_EXACT;
        if (exact)
            return "exact";
        free_tiles(s);
    }
    if (s->own_attention)
        return "codes";
    return s->wanted == KV_ATTN_GENERIC ||
                   !kv_tile_cache_can(cache_of(s, 0), KV_PATH_EXACT)
               ? "generic"
               : "plain";
}

static size_t device_bytes(const struct kv_attn_step *s)
{
    size_t bytes = 0;

    if (s->gpu)
        return kv_attn_gpu_bytes(s->gpu);
    for (size_t b = 0; b < s->in->n_batch; b++)
        bytes += s->tiled[b]
                     ? kv_tile_cache_bytes(s->tiled[b])
                     : kv_cache_bytes(cache_of(s, b), KV_K, NULL, NULL) +
                           kv_cache_bytes(cache_of(s, b), KV_V, NULL, NULL);
    return bytes;
}

/* Makes tiles of the codes and sends them to the GPU. */
static int open_gpu(struct kv_attn_step *s, struct kv_err *e)
{
    if (!kv_tile_cache_stored(cache_of(s, 0)))
        return kv_fail(e, "%s: no CUDA kernel for its codes", s->spec->text);
    if (s->bench->repeats > 1 && s->codec[KV_K]->pre_rope)
        return kv_fail(e, "%s: keys before RoPE are not repeated",
                       s->spec->text);
    make_tiles(s);
    if (kv_attn_gpu_new(&s->gpu, s->bench->gpu, s->tiled, s->in->n_batch,
                        s->bench->copies, s->bench->repeats, s->in->q,
                        s->in->nq, s->wanted, e))
        return kv_fail_in(e, "%s", s->spec->text);
    s->path_name = kv_attn_gpu_name(s->gpu);
    free_tiles(s);
    return 0;
}

static void add_bits(struct kv_bits *bits, const struct kv_attn_step *s)
{
    for (size_t i = 0; i < s->in->n_batch * KV_SIDES; i++)
        kv_seq_bits(s->seq[i / KV_SIDES], s->in->layer,
                    (enum kv_side)(i % KV_SIDES), bits);
}

/* Counts the operations of one step, without using its output. */
static struct kv_attend_ops count_ops(const struct kv_attn_step *s)
{
    const struct kv_attn_inputs *in = s->in;
    struct kv_attend_ops ops = {0};

    for (size_t b = 0; b < in->n_batch; b++)
        kv_cache_count_ops(cache_of(s, b), in->nq,
                           in->q + b * in->nq * q_row(in), &ops);
    return ops;
}

static bool all_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

int kv_attn_step_new(struct kv_attn_step **out, const struct kv_attn_bench *b,
                     const struct kv_attn_inputs *in,
                     const struct kv_spec *spec, enum kv_attn_path path,
                     struct kv_err *e)
{
    struct kv_attn_step *s = kv_alloc(1, sizeof(*s));

    *s = (struct kv_attn_step){
        .bench = b, .in = in, .spec = spec, .wanted = path};
    s->seq = kv_alloc(in->n_batch, sizeof(*s->seq));
    for (size_t i = 0; i < in->n_batch; i++)
        s->seq[i] = kv_seq_new(
            &(struct kv_seq_plan){.n_layers = in->layer + 1, .seed = b->seed});
    s->tiled = kv_alloc(in->n_batch, sizeof(*s->tiled));
    s->out = kv_alloc(in->n_batch * in->nq, q_row(in) * sizeof(*s->out));
    if (kv_codecs_new(&s->codecs, spec, &in->shape, in->layer, 1, b->calib, e))
        goto fail;
    s->codec = kv_codecs_at(s->codecs, in->layer);
    if (fill(s, e))
        goto fail;
    s->view = kv_cache_view(cache_of(s, 0), in->nq);
    s->view.n_seqs = in->n_batch;
    if (b->gpu && open_gpu(s, e)) {
        kv_attn_step_free(s);
        return 1;
    }
    if (!b->gpu)
        s->path_name = choose(s);
    *out = s;
    return 0;
fail:
    kv_attn_step_free(s);
    return -1;
}

void kv_attn_step_free(struct kv_attn_step *s)
{
    if (!s)
        return;
    free_tiles(s);
    for (size_t i = 0; i < s->in->n_batch; i++)
        kv_seq_free(s->seq[i]);
    kv_attn_gpu_free(s->gpu);
    kv_codecs_free(s->codecs);
    free(s->tiled);
    free(s->seq);
    free(s->out);
    free(s->same);
    free(s);
}

int kv_attn_step_append(const struct kv_attn_step *s,
                        struct kv_append_times *times, struct kv_err *e)
{
    const struct kv_attn_inputs *in = s->in;
    const struct kv_append_times none = {NAN, NAN, NAN, NAN, NAN};
    const struct kv_tokens all = kv_attn_inputs_tokens(in, 0, 0, in->n);
    const struct kv_append_gpu plan = {
        .device = s->bench->gpu,
        .codec = s->codec,
        .x = {kv_tokens_stored(&all, s->codec[KV_K]), in->v},
        .n = in->n,
        .n_batch = in->n_batch,
        .copies = s->bench->copies,
        .attend = s->gpu,
        .out = s->out,
        .warmup = s->bench->warmup,
        .reps = s->bench->reps,
        .seed = s->bench->seed};

    *times = none;
    if (!s->gpu || !kv_append_gpu_time(&plan, times, e))
        return 0;
    *times = none;
    return -1;
}

const char *kv_attn_step_path(const struct kv_attn_step *s)
{
    return s->path_name;
}

int kv_attn_step_run(struct kv_attn_step *s, struct kv_attn_step *base,
                     struct kv_attn_result *out, struct kv_err *e)
{
    const struct kv_attn_bench *b = s->bench;
    const size_t outputs = s->in->n_batch * s->in->nq * q_row(s->in);
    const bool alone = !base || base == s;

    *out = (struct kv_attn_result){.speedup = 1};
    if (s->gpu) {
        if (kv_attn_gpu_time(s->gpu, alone ? NULL : base->gpu, b->warmup,
                             b->reps, &out->timing, &out->speedup, s->out, e)) {
            kv_fail_in(e, "%s", s->spec->text);
            return 1;
        }
    } else if (kv_bench_time(b->bench, b->warm, b->warmup, b->reps, run_step, s,
                             alone ? NULL : base, b->progress, &out->timing,
                             alone ? NULL : &out->speedup, e)) {
        return -1;
    }
    if (kv_codec_attends(s->codec[KV_K]) && b->repeats == 1)
        out->ops = count_ops(s);
    add_bits(&out->bits, s);
    out->rel_err = kv_attn_inputs_error(s->in, s->out, s->in->exact);
    out->append = s->append;
    out->path_rel_err =
        s->same ? kv_attn_inputs_error(s->in, s->out, s->same) : NAN;
    if (!all_finite(s->out, outputs))
        return kv_fail(e, "%s: the output of attention is not finite",
                       s->spec->text);
    out->device_bytes = device_bytes(s);
    out->bytes_moved =
        (size_t)out->bits.bytes * b->repeats + 2 * outputs * sizeof(*s->out);
    if (s->gpu)
        out->bytes_moved *= b->copies;
    return 0;
}
