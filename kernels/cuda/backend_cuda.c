#include "kernels/backend.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/layer.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/round_f16.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/views.h"
#include "kernels/device_code.h"
#include "kernels/hack/cuda_views.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The number of tokens in a layer's products at a time, and of rows of logits
 * (fewer if the vocabulary is large). */
enum { TILE = 2048, LOGIT_BYTES = 128 << 20, SIDES = 2 };

/* A codec's kernels. */
struct kv_coder {
    struct kv_gpu_code code;
    struct kv_gpu_coder *gpu;
};

/* Host memory that the device has a copy of; most layers share it. */
struct sent {
    struct kv_workspace there;
    void *host; /* the contents; NULL: nothing */
    size_t bytes;
};

struct cuda {
    struct kv_device device;
    struct kv_workspace half, work; /* memory for encode() */
    struct kv_workspace target, loss;
    struct kv_workspace steps[SIDES];
    struct sent until[SIDES], slope;
};

static struct cuda *of(const struct kv_backend *b)
{
    return b->state;
}

static void clear_sent(const struct kv_backend *b, struct sent *s)
{
    kv_workspace_clear(b, &s->there);
    free(s->host);
}

static void close_cuda(struct kv_backend *b)
{
    struct cuda *c = of(b);

    kv_workspace_clear(b, &c->half);
    kv_workspace_clear(b, &c->work);
    kv_workspace_clear(b, &c->target);
    kv_workspace_clear(b, &c->loss);
    for (int side = 0; side < SIDES; side++) {
        clear_sent(b, &c->until[side]);
        kv_workspace_clear(b, &c->steps[side]);
    }
    clear_sent(b, &c->slope);
    free(c);
    free(b);
}

static int load_one(const struct kv_load *l, struct kv_err *e)
{
    const size_t bytes = l->n * kv_type_bytes(l->to_type);
    void *x;
    int rc;

    if (!l->from.data)
        return kv_gpu_random(l->to, l->n, l->to_type, l->seed, l->scale, e);
    if (kv_stored_is(&l->from, l->to_type))
        return kv_device_upload(l->to,
                                (const uint8_t *)l->from.data +
                                    l->first * kv_type_bytes(l->to_type),
                                bytes, e);
    x = kv_alloc(bytes, 1);
    kv_stored_read(&l->from, l->first, l->n, l->to_type, x);
    rc = kv_device_upload(l->to, x, bytes, e);
    free(x);
    return rc;
}

static int cuda_load(const struct kv_load *part, size_t n_parts,
                     struct kv_err *e)
{
    for (size_t i = 0; i < n_parts; i++)
        if (load_one(&part[i], e))
            return -1;
    return 0;
}

static size_t threads(void)
{
    return 1;
}

static int each(size_t n, kv_tile_work *work, const void *arg, struct kv_err *e)
{
    for (size_t i = 0; i < n; i++)
        if (work(arg, i, 0, e))
            return -1;
    return 0;
}

/* ---- a layer ------------------------------------------------------------- */

static int cuda_norm(const struct kv_norm *norm, const float *x, size_t rows,
                     enum kv_type type, void *out, struct kv_err *e)
{
    return norm->centers ? kv_gpu_layer_norm(norm, x, rows, type, out, e)
                         : kv_gpu_rms_norm(x, norm->weight, rows, norm->n,
                                           norm->eps, type, out, e);
}

static int cuda_activate(const struct kv_activation *a, float *x, size_t rows,
                         enum kv_type type, void *out, struct kv_err *e)
{
    if (a->limit > 0)
        return kv_fail(e, "no CUDA kernel of gates with a limit");
    return kv_gpu_activate(a, x, rows, type, out, e);
}

static int to_input(const struct kv_backend *b, const float *x, size_t n,
                    void *workspace, const void **a, struct kv_err *e)
{
    *a = workspace;
    return kv_gpu_round(x, n, b->input_type, workspace, e);
}

static int cuda_multiply(const struct kv_backend *b, const struct kv_product *p,
                         struct kv_err *e)
{
    const struct kv_gpu_product g = {.type = b->weight_type,
                                     .c_type = KV_TYPE_F32,
                                     .m = p->rows,
                                     .n = p->outputs,
                                     .k = p->inputs,
                                     .a = p->a,
                                     .b = p->w,
                                     .c = p->c,
                                     .a_row = p->inputs,
                                     .b_row = p->inputs,
                                     .c_row = p->c_row,
                                     .add = p->add};

    return kv_gpu_few_rows(&g) ? kv_gpu_multiply_few(&g, e)
                               : kv_gpu_multiply(&g, e);
}

/* ---- codecs -------------------------------------------------------------- */

static void coder_free(struct kv_coder *c)
{
    if (!c)
        return;
    kv_gpu_coder_free(c->gpu);
    free(c);
}

static int coder_new(const struct kv_backend *b, struct kv_coder **out,
                     const struct kv_gpu_code *code, struct kv_err *e)
{
    struct kv_coder *c = kv_alloc(1, sizeof(*c));

    c->code = *code;
    if (kv_gpu_coder_new(&c->gpu, code, b->device, e)) {
        coder_free(c);
        return -1;
    }
    *out = c;
    return 0;
}

static bool codes_attend(const struct kv_backend *b,
                         const struct kv_gpu_code *code, uint64_t seed)
{
    struct kv_gpu_hack_views h;

    return kv_gpu_hack_views_open(&code[0], &code[1], seed, b->device, &h);
}

static int cuda_encode(const struct kv_backend *b, struct kv_coder *c,
                       const struct kv_encode *job, struct kv_err *e)
{
    struct cuda *s = of(b);
    const size_t row = c->code.n_heads * c->code.head_dim;

    if (kv_workspace_want(b, &s->half, job->n * row * sizeof(uint16_t), e) ||
        kv_workspace_want(b, &s->work,
                          kv_gpu_encode_workspace(c->gpu, job->n_blocks), e) ||
        kv_gpu_round_f16(job->x, job->n * row, s->half.p, job->rounded,
                         job->again, job->nonfinite, job->clipped, e))
        return -1;
    return kv_gpu_encode(
        c->gpu,
        &(struct kv_gpu_blocks){.x = (uint16_t *)s->half.p + job->first * row,
                                .bytes = job->bytes,
                                .n = job->n_blocks,
                                .first = job->at + job->first,
                                .seed = job->seed,
                                .workspace = s->work.p},
        e);
}

static int cuda_decode(const struct kv_coder *c, const uint8_t *bytes,
                       size_t n_blocks, float *x, struct kv_err *e)
{
    return kv_gpu_decode(c->gpu, bytes, n_blocks, x, e);
}

/* ---- attention ----------------------------------------------------------- */

static int cuda_rotate(const float *rope, struct kv_rope_pairs pairs, size_t n,
                       float *x, size_t rows, size_t heads, size_t head_dim,
                       struct kv_err *e)
{
    return kv_gpu_heads(&(struct kv_heads){.rows = rows,
                                           .n = n,
                                           .n_kv_heads = heads,
                                           .head_dim = head_dim,
                                           .pairs = pairs,
                                           .rope_scale = 1,
                                           .qkv = x,
                                           .rope = rope,
                                           .k = x},
                        e);
}

/* Replaces *x, host memory or NULL, by the device's copy, which is sent only if
 * the device does not hold it already. */
static int send(const struct kv_backend *b, struct sent *s, const void **x,
                size_t bytes, struct kv_err *e)
{
    if (!*x)
        return 0;
    if (s->bytes != bytes || memcmp(s->host, *x, bytes)) {
        s->bytes = 0;
        if (kv_workspace_want(b, &s->there, bytes, e) ||
            kv_device_upload(s->there.p, *x, bytes, e))
            return -1;
        s->host = kv_realloc(s->host, bytes, 1);
        memcpy(s->host, *x, bytes);
        s->bytes = bytes;
    }
    *x = s->there.p;
    return 0;
}

/* Arranges a side's codes, sequence by sequence, as attention on codes reads
 * them. */
static int cuda_arrange(const struct kv_backend *b,
                        const struct kv_attend_view *v, int side,
                        const struct kv_attend_codes *s,
                        struct kv_gpu_hack_views *h, struct kv_err *e)
{
    const struct kv_gpu_hack_side *steps = side ? &h->v : &h->k;
    const struct kv_gpu_code *code = &s->coder->code;
    struct kv_workspace *to = &of(b)->steps[side];
    const size_t bytes = s->n / code->block * code->block_bytes;
    const size_t each =
        v->n_kv_heads * h->n_steps * kv_gpu_hack_piece_bytes(steps);

    if (kv_workspace_want(b, to, v->n_seqs * each, e))
        return -1;
    for (size_t i = 0; i < v->n_seqs; i++)
        if (kv_gpu_hack_arrange(code, steps, s->bytes + i * bytes, s->n,
                                h->n_steps, (uint8_t *)to->p + i * each, e))
            return -1;
    *(side ? &h->v_steps : &h->k_steps) = to->p;
    return 0;
}

static int attend_codes(const struct kv_backend *b,
                        const struct kv_attend_job *job,
                        const struct kv_attend_codes *codes, uint64_t seed,
                        struct kv_err *e)
{
    const size_t n = codes[0].n > codes[1].n ? codes[0].n : codes[1].n;
    struct kv_gpu_hack_views h;

    kv_gpu_hack_views_open(&codes[0].coder->code, &codes[1].coder->code, seed,
                           b->device, &h);
    h.n_steps = (n + h.k.tokens - 1) / h.k.tokens;
    return cuda_arrange(b, &job->view, 0, &codes[0], &h, e) ||
           cuda_arrange(b, &job->view, 1, &codes[1], &h, e) ||
           kv_gpu_attend_hack(job, &h, e);
}

static int cuda_attend(const struct kv_backend *b,
                       const struct kv_attend_job *job,
                       const struct kv_attend_codes *codes, uint64_t seed,
                       struct kv_err *e)
{
    const size_t until = job->view.nq * sizeof(*job->k.until);
    struct kv_attend_job there = *job;
    struct cuda *c = of(b);

    if (send(b, &c->until[0], (const void **)&there.k.until, until, e) ||
        send(b, &c->until[1], (const void **)&there.v.until, until, e) ||
        send(b, &c->slope, (const void **)&there.view.slope,
             job->view.n_heads * sizeof(*job->view.slope), e))
        return -1;
    return codes ? attend_codes(b, &there, codes, seed, e)
                 : kv_gpu_attend_views(&there, e);
}

/* ---- losses -------------------------------------------------------------- */

/* Computes the logarithms, which the device leaves to the host; has_base: also
 * the base's logarithms. */
static struct kv_loss cuda_finish(const struct kv_gpu_loss *l, bool has_base)
{
    const double lse = log(l->sum) + (double)l->max;
    const double log_q = (double)l->x - lse;
    struct kv_loss s = {.nll = (float)-log_q};

    if (has_base) {
        const double base_lse = log(l->base_sum) + (double)l->base_max;
        const double log_p = (double)l->b - base_lse;

        s.kl = (float)(l->cross / l->base_sum - base_lse + lse);
        s.dp = (float)(exp(log_q) - exp(log_p));
        s.base_nll = (float)-log_p;
        s.same = l->same;
    }
    return s;
}

static int loss(const struct kv_backend *b, const float *logits,
                const float *base, const int32_t *target, size_t rows,
                size_t n_vocab, struct kv_loss *out, struct kv_err *e)
{
    struct cuda *c = of(b);
    struct kv_gpu_loss *got = kv_alloc(rows, sizeof(*got));
    const size_t bytes = rows * sizeof(*got), ids = rows * sizeof(*target);
    const int rc =
        kv_workspace_want(b, &c->target, ids, e) ||
        kv_workspace_want(b, &c->loss, bytes, e) ||
        kv_device_upload(c->target.p, target, ids, e) ||
        kv_gpu_score(logits, base, c->target.p, rows, n_vocab, c->loss.p, e) ||
        kv_device_download(got, c->loss.p, bytes, e);

    for (size_t r = 0; r < rows && !rc; r++)
        out[r] = cuda_finish(&got[r], base != NULL);
    free(got);
    return rc ? -1 : 0;
}

struct kv_backend *kv_backend_cuda(const struct kv_device *d,
                                   enum kv_type weight)
{
    struct kv_backend *b = kv_alloc(1, sizeof(*b));
    struct cuda *c = kv_alloc(1, sizeof(*c));

    c->device = *d;
    *b = (struct kv_backend){
        .input_type = weight,
        .weight_type = weight,
        .tile = TILE,
        .logit_bytes = LOGIT_BYTES,
        .logit_unit = 1,
        .logit_rows = TILE,
        .device = &c->device,
        .state = c,
        .close = close_cuda,
        .alloc = kv_device_alloc,
        .free = kv_device_free,
        .upload = kv_device_upload,
        .download = kv_device_download,
        .load = cuda_load,
        .threads = threads,
        .each = each,
        .norm = cuda_norm,
        .to_input = to_input,
        .multiply = cuda_multiply,
        .heads = kv_gpu_heads,
        .add = kv_gpu_add_bias,
        .scale = kv_gpu_scale,
        .activate = cuda_activate,
        .cap = kv_gpu_cap,
        .rotate = cuda_rotate,
        .attend = cuda_attend,
        .coder_new = coder_new,
        .coder_free = coder_free,
        .codes_attend = codes_attend,
        .encode = cuda_encode,
        .decode = cuda_decode,
        .loss = loss,
    };
    return b;
}
